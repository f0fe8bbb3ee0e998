#include "arrays.h"

#include <initializer_list>

namespace rootdk::binding {
namespace {

// A name of an attribute, made once.
class Name {
 public:
  explicit Name(const char* text) : text_(text) {}
  PyObject* get() {
    if (!object_) object_ = PyUnicode_InternFromString(text_);
    return object_;
  }

 private:
  const char* text_;
  PyObject* object_ = nullptr;
};

Name array_struct("__array_struct__"), shape_name("shape"), dtype_name("dtype"), is_cpu("is_cpu"), is_neg("is_neg"),
    stride("stride"), data_ptr("data_ptr"), requires_grad("requires_grad"), current_level("_current_level"),
    new_empty("new_empty"), contiguous_name("contiguous");

struct NumPy {
  PyObject *ndarray = nullptr, *empty = nullptr, *float32 = nullptr, *float64 = nullptr;
};
NumPy numpy;

constexpr int kTypes = 8;  // f32 to i8, as rootdk_dtype numbers them
constexpr int kChecks = 4;

// The struct behind NumPy's __array_struct__.
struct ArrayInterface {
  int two, rank;
  char kind;
  int item_size, flags;
  Py_ssize_t *shape, *strides;
  void* data;
};
constexpr int kAligned = 0x100, kNativeOrder = 0x200, kWritable = 0x400;

struct Torch {
  PyObject *tensor = nullptr, *parameter = nullptr, *empty_like = nullptr, *empty_like_options = nullptr;
  PyObject *is_grad_enabled = nullptr, *forward_ad = nullptr, *draw_seed = nullptr, *wrote = nullptr;
  PyObject* types[kTypes] = {};
  PyObject* statistic_options[2] = {};  // of new_empty, for f32 and f64
  PyObject* checks[kChecks] = {};       // give something true where the call is followed
  // By rootdk_device_kind: functions that tell whether autocast is on and its type, and what to call both with.
  PyObject *autocast_is_on[2] = {}, *autocast_type[2] = {}, *autocast_arguments[2] = {};
  const DLPackExchange* exchange = nullptr;
};
Torch torch;

bool without_error(bool ok) {
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return ok;
}

bool is_true(PyObject* x) {  // takes the reference
  if (!x) return without_error(false);
  const int answer = PyObject_IsTrue(x);
  Py_DECREF(x);
  return answer > 0;
}

PyObject* call(PyObject* function) { return PyObject_CallFunctionObjArgs(function, nullptr); }

bool fits(int rank) { return rank > 0 && rank <= ROOTDK_MAX_RANK; }

int numpy_type(char kind, int size) {
  if (kind == 'f') return size == 4 ? ROOTDK_F32 : size == 2 ? ROOTDK_F16 : size == 8 ? ROOTDK_F64 : -1;
  if (kind == 'i') return size == 4 ? ROOTDK_I32 : size == 8 ? ROOTDK_I64 : size == 1 ? ROOTDK_I8 : -1;
  return kind == 'b' && size == 1 ? ROOTDK_BOOL : -1;
}

bool describe_numpy(PyObject* x, rootdk_tensor* tensor, int needed_flags) {
  PyObject* capsule = PyObject_GetAttr(x, array_struct.get());
  if (!capsule) return without_error(false);
  const auto* array = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule, nullptr));
  bool ok = array && fits(array->rank) && (array->flags & needed_flags) == needed_flags;
  const int type = ok ? numpy_type(array->kind, array->item_size) : -1;
  ok = ok && type >= 0;
  if (ok) {
    *tensor = {};
    tensor->data = array->data;
    tensor->dtype = type;
    tensor->rank = array->rank;
    for (int i = 0; i < array->rank; ++i) {
      tensor->shape[i] = array->shape[i];
      tensor->strides[i] = array->strides[i] / array->item_size;
      ok = ok && array->strides[i] % array->item_size == 0;
    }
  }
  Py_DECREF(capsule);
  return without_error(ok);
}

int dlpack_type(const DLTensor& x) {
  if (x.lanes != 1) return -1;
  if (x.code == 2) return x.bits == 32 ? ROOTDK_F32 : x.bits == 16 ? ROOTDK_F16 : x.bits == 64 ? ROOTDK_F64 : -1;
  if (x.code == 0) return x.bits == 32 ? ROOTDK_I32 : x.bits == 64 ? ROOTDK_I64 : x.bits == 8 ? ROOTDK_I8 : -1;
  if (x.code == 4) return x.bits == 16 ? ROOTDK_BF16 : -1;
  return x.code == 6 && x.bits == 8 ? ROOTDK_BOOL : -1;
}

bool describe_exchanged(PyObject* x, rootdk_tensor* tensor) {
  DLTensor from;
  if (torch.exchange->describe(x, &from) != 0) return without_error(false);
  const int type = dlpack_type(from);
  const bool on_cuda = from.device_type == kDLCuda && torch.exchange->allocate && torch.exchange->current_stream;
  if (type < 0 || !(on_cuda || from.device_type == kDLCpu) || !fits(from.rank) || !from.strides) return false;
  *tensor = {};
  tensor->data = static_cast<char*>(from.data) + from.byte_offset;
  tensor->dtype = type;
  if (on_cuda) {
    tensor->device_kind = ROOTDK_CUDA;
    tensor->device_index = from.device_id;
  }
  tensor->rank = from.rank;
  for (int i = 0; i < from.rank; ++i) {
    tensor->shape[i] = from.shape[i];
    tensor->strides[i] = from.strides[i];
  }
  return true;
}

// The numbers of a tuple; -1 where there are too many or others.
int read_tuple(PyObject* tuple, int64_t* to) {  // takes the reference
  if (!tuple) return -1;
  const Py_ssize_t size = PyTuple_Size(tuple);
  int count = size >= 0 && size <= ROOTDK_MAX_RANK ? static_cast<int>(size) : -1;
  for (int i = 0; i < count; ++i) to[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
  Py_DECREF(tuple);
  return count;
}

// For versions of PyTorch without the exchange functions.
bool describe_by_attributes(PyObject* x, rootdk_tensor* tensor) {
  if (!is_true(PyObject_GetAttr(x, is_cpu.get()))) return false;
  PyObject* dtype = PyObject_GetAttr(x, dtype_name.get());
  int type = 0;
  while (type < kTypes && torch.types[type] != dtype) ++type;
  Py_XDECREF(dtype);
  if (type == kTypes) return without_error(false);
  *tensor = {};
  tensor->dtype = type;
  tensor->rank = read_tuple(PyObject_GetAttr(x, shape_name.get()), tensor->shape);
  if (!fits(tensor->rank)) return without_error(false);
  if (read_tuple(PyObject_CallMethodObjArgs(x, stride.get(), nullptr), tensor->strides) != tensor->rank) {
    return without_error(false);
  }
  PyObject* address = PyObject_CallMethodObjArgs(x, data_ptr.get(), nullptr);
  if (!address) return without_error(false);
  tensor->data = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return without_error(true);
}

}  // namespace

Kind kind_of(PyObject* x) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(x));
  if (type == torch.tensor || type == torch.parameter) return torch.tensor ? Kind::torch : Kind::other;
  return type == numpy.ndarray ? Kind::numpy : Kind::other;
}

bool describe(Kind kind, PyObject* x, rootdk_tensor* tensor) {
  if (kind == Kind::numpy) return describe_numpy(x, tensor, kAligned | kNativeOrder);
  // A view that PyTorch negates when it reads it: the general way refuses it by name.
  if (is_true(PyObject_CallMethodObjArgs(x, is_neg.get(), nullptr))) return false;
  return describe_known(kind, x, tensor);
}

bool describe_known(Kind kind, PyObject* x, rootdk_tensor* tensor) {
  if (kind == Kind::numpy) return describe_numpy(x, tensor, kAligned | kNativeOrder);
  return torch.exchange ? describe_exchanged(x, tensor) : describe_by_attributes(x, tensor);
}

bool describe_new(Kind kind, PyObject* x, const rootdk_tensor& shape, int64_t value_dim, rootdk_tensor* tensor) {
  if (kind == Kind::numpy || torch.exchange) return describe_known(kind, x, tensor);
  PyObject* address = PyObject_CallMethodObjArgs(x, data_ptr.get(), nullptr);
  if (!address) return without_error(false);
  *tensor = shape;
  tensor->data = PyLong_AsVoidPtr(address);
  tensor->shape[3] = tensor->strides[2] = value_dim;
  tensor->strides[3] = 1;
  tensor->strides[1] = tensor->strides[2] * tensor->shape[2];
  tensor->strides[0] = tensor->strides[1] * tensor->shape[1];
  Py_DECREF(address);
  return without_error(true);
}

bool is_writable(Kind kind, PyObject* x) {
  rootdk_tensor tensor;
  // A tensor that requires a gradient: the general way refuses it by name.
  if (kind == Kind::torch) return !(wants_gradient(x) && gradients_are_on());
  return describe_numpy(x, &tensor, kWritable);
}

bool tell_written(Kind kind, PyObject* x) {
  if (kind != Kind::torch) return true;
  PyObject* nothing = PyObject_CallFunctionObjArgs(torch.wrote, x, nullptr);
  Py_XDECREF(nothing);
  return nothing != nullptr;
}

PyObject* new_output(Kind kind, PyObject* q, const rootdk_tensor& shape, int64_t value_dim) {
  const bool same = shape.shape[3] == value_dim;
  if (same && kind == Kind::torch) return empty_like(q);
  PyObject* sizes =
      same ? PyObject_GetAttr(q, shape_name.get())
           : Py_BuildValue("(LLLL)", static_cast<long long>(shape.shape[0]), static_cast<long long>(shape.shape[1]),
                           static_cast<long long>(shape.shape[2]), static_cast<long long>(value_dim));
  if (!sizes) return nullptr;
  PyObject* result = nullptr;
  if (kind == Kind::torch) {
    result = PyObject_CallMethodObjArgs(q, new_empty.get(), sizes, nullptr);
  } else if (PyObject* dtype = PyObject_GetAttr(q, dtype_name.get())) {
    result = PyObject_CallFunctionObjArgs(numpy.empty, sizes, dtype, nullptr);
    Py_DECREF(dtype);
  }
  Py_DECREF(sizes);
  return result;
}

PyObject* new_row_statistic(Kind kind, PyObject* q, const rootdk_tensor& shape) {
  const bool wide = shape.dtype == ROOTDK_F64;
  PyObject* sizes = Py_BuildValue("(LLL)", static_cast<long long>(shape.shape[0]),
                                  static_cast<long long>(shape.shape[1]), static_cast<long long>(shape.shape[2]));
  if (!sizes) return nullptr;
  PyObject* result = nullptr;
  if (kind == Kind::numpy) {
    result = PyObject_CallFunctionObjArgs(numpy.empty, sizes, wide ? numpy.float64 : numpy.float32, nullptr);
  } else if (PyObject* function = PyObject_GetAttr(q, new_empty.get())) {
    PyObject* arguments = PyTuple_Pack(1, sizes);
    if (arguments) result = PyObject_Call(function, arguments, torch.statistic_options[wide ? 1 : 0]);
    Py_XDECREF(arguments);
    Py_DECREF(function);
  }
  Py_DECREF(sizes);
  return result;
}

bool torch_is_plain() {
  for (PyObject* check : torch.checks) {
    if (check && is_true(call(check))) return false;
  }
  // Private to PyTorch: where a version has no such name, nothing is noticed.
  PyObject* level = torch.forward_ad ? PyObject_GetAttr(torch.forward_ad, current_level.get()) : nullptr;
  if (!level) {
    PyErr_Clear();
    return true;
  }
  const bool off = PyLong_AsLong(level) < 0;
  Py_DECREF(level);
  return off;
}

bool wants_gradient(PyObject* x) { return is_true(PyObject_GetAttr(x, requires_grad.get())); }

bool gradients_are_on() { return is_true(call(torch.is_grad_enabled)); }

bool autocast_keeps(const rootdk_tensor& x) {
  const int device = x.device_kind == ROOTDK_CUDA ? 1 : 0;
  PyObject* arguments = torch.autocast_arguments[device];
  if (!torch.autocast_is_on[device] || !is_true(PyObject_Call(torch.autocast_is_on[device], arguments, nullptr))) {
    return true;
  }
  PyObject* type =
      torch.autocast_type[device] ? PyObject_Call(torch.autocast_type[device], arguments, nullptr) : nullptr;
  const bool same = type && type == torch.types[x.dtype];
  Py_XDECREF(type);
  return without_error(same);
}

bool draw_seed(uint64_t* seed) {
  PyObject* drawn = torch.draw_seed ? call(torch.draw_seed) : nullptr;
  if (!drawn) return false;
  *seed = PyLong_AsUnsignedLongLongMask(drawn);
  Py_DECREF(drawn);
  return without_error(true);
}

PyObject* empty_like(PyObject* x) {
  PyObject* arguments = PyTuple_Pack(1, x);
  PyObject* result = arguments ? PyObject_Call(torch.empty_like, arguments, torch.empty_like_options) : nullptr;
  Py_XDECREF(arguments);
  return result;
}

PyObject* contiguous(PyObject* x) { return PyObject_CallMethodObjArgs(x, contiguous_name.get(), nullptr); }

const DLPackExchange* torch_exchange() { return torch.exchange; }

namespace {

// Keeps an object of the dict, which may be missing or None.
bool take(PyObject* names, const char* name, PyObject** to) {
  PyObject* object = PyDict_GetItemString(names, name);
  if (!object || object == Py_None) return false;
  Py_INCREF(object);
  *to = object;
  return true;
}

const DLPackExchange* usable(const DLPackExchange* exchange) {
  while (exchange && exchange->major != 1) exchange = exchange->older;
  return exchange && exchange->describe ? exchange : nullptr;
}

}  // namespace

bool learn_numpy(PyObject* names) {
  NumPy found;
  const bool all = take(names, "empty", &found.empty) && take(names, "float32", &found.float32) &&
                   take(names, "float64", &found.float64) && take(names, "ndarray", &found.ndarray);
  if (all) numpy = found;
  return all;
}

bool learn_torch(PyObject* names) {
  Torch found;
  bool all = take(names, "Parameter", &found.parameter) && take(names, "empty_like", &found.empty_like) &&
             take(names, "empty_like_options", &found.empty_like_options) &&
             take(names, "is_grad_enabled", &found.is_grad_enabled) && take(names, "wrote", &found.wrote);
  static constexpr const char* kTypeNames[kTypes] = {"f32", "bf16", "f16", "f64", "i32", "i64", "bool", "i8"};
  for (int i = 0; i < kTypes; ++i) all = all && take(names, kTypeNames[i], &found.types[i]);
  for (int wide = 0; all && wide < 2; ++wide) {
    found.statistic_options[wide] = Py_BuildValue("{sO}", "dtype", found.types[wide ? ROOTDK_F64 : ROOTDK_F32]);
    all = found.statistic_options[wide] != nullptr;
  }
  int check = 0;
  for (const char* name : {"dispatch_modes", "function_modes", "transform", "tracing_state"}) {
    take(names, name, &found.checks[check++]);
  }
  take(names, "forward_ad", &found.forward_ad);
  take(names, "draw_seed", &found.draw_seed);
  static constexpr const char* kAutocast[2][3] = {{"cpu_autocast", "cpu_autocast_type", "cpu_autocast_arguments"},
                                                  {"cuda_autocast", "cuda_autocast_type", "cuda_autocast_arguments"}};
  for (int device = 0; device < 2; ++device) {
    take(names, kAutocast[device][0], &found.autocast_is_on[device]);
    take(names, kAutocast[device][1], &found.autocast_type[device]);
    all = take(names, kAutocast[device][2], &found.autocast_arguments[device]) && all;
  }
  PyObject* exchange = PyDict_GetItemString(names, "exchange");
  if (exchange && exchange != Py_None) {
    found.exchange = usable(static_cast<const DLPackExchange*>(PyCapsule_GetPointer(exchange, "dlpack_exchange_api")));
    PyErr_Clear();
  }
  all = all && take(names, "Tensor", &found.tensor);
  if (all) torch = found;
  return all;
}

}  // namespace rootdk::binding
