#include "autograd.h"

#include <cstring>

namespace rootdk::binding {
namespace {

struct Autograd {
  PyObject* apply = nullptr;     // of the function's class
  PyObject* backward = nullptr;  // the general way: backward(ctx, grad_out)
  PyObject* once = nullptr;      // once(gradients, sources): gradients that refuse to be differentiated again
  PyObject* leave = nullptr;     // raised by forward where the call is for the general way
};
Autograd autograd;

// The numbers of a call, as bytes that ctx keeps; rootdk/torch/_plain.py reads them, too.
struct Packed {
  rootdk_attention_params params;  // without its pointers
  int32_t threads;
  uint32_t arrays;  // bit i: OptionArray i is given
};

// Arguments of forward behind ctx.
constexpr int kArrays = 4;  // packed, q, k, v, then the arrays
// What ctx saves.
constexpr int kSavedOut = 3, kSavedLse = 4, kSavedArrays = 5;

bool is_differentiable(int array) { return array >= kBias; }

PyObject* pack(const Call& call) {
  Packed packed;
  std::memset(&packed, 0, sizeof packed);
  packed.params = call.params;
  packed.threads = call.threads;
  for (int i = 0; i < kOptionArrays; ++i) {
    packed.params.*field_of(static_cast<OptionArray>(i)).field = nullptr;
    if (call.objects[i]) packed.arrays |= 1u << i;
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&packed), sizeof packed);
}

// Reads what pack() wrote, and the arrays that are given, which begin at `first` of a tuple.
bool unpack(Call& call, PyObject* bytes, PyObject* tuple, Py_ssize_t first) {
  Packed packed;
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes, &data, &size) != 0 || size != sizeof packed) return false;
  std::memcpy(&packed, data, sizeof packed);
  call.kind = Kind::torch;
  call.params = packed.params;
  call.threads = packed.threads;
  for (int i = 0; i < kOptionArrays; ++i) {
    if (!(packed.arrays >> i & 1)) continue;
    PyObject* array = first < PyTuple_Size(tuple) ? PyTuple_GetItem(tuple, first++) : nullptr;
    if (!array || !read_array(call, array, static_cast<OptionArray>(i))) return false;
  }
  return true;
}

PyObject* leave() {
  if (!PyErr_Occurred()) PyErr_SetNone(autograd.leave);
  return nullptr;
}

// The names of attributes and methods, made once.
PyObject *packed_name = nullptr, *save_name = nullptr, *saved_name = nullptr, *needs_name = nullptr;

// Gives ctx what backward needs: the numbers, and (q, k, v, out, lse, arrays).
bool keep(PyObject* ctx, PyObject* arguments, PyObject* out, PyObject* lse) {
  const Py_ssize_t given = PyTuple_Size(arguments) - 1;
  PyObject* kept = PyTuple_New(given + 1);  // without packed, with out and lse
  if (!kept) return false;
  for (Py_ssize_t i = 0; i < given + 1; ++i) {
    PyObject* item = i == kSavedOut   ? out
                     : i == kSavedLse ? lse
                                      : PyTuple_GetItem(arguments, i < kSavedOut ? i + 2 : i);
    Py_INCREF(item);
    PyTuple_SetItem(kept, i, item);
  }
  PyObject* save = PyObject_GetAttr(ctx, save_name);
  PyObject* nothing = save ? PyObject_Call(save, kept, nullptr) : nullptr;
  Py_XDECREF(save);
  Py_XDECREF(nothing);
  Py_DECREF(kept);
  return nothing && PyObject_SetAttr(ctx, packed_name, PyTuple_GetItem(arguments, 1)) == 0;
}

}  // namespace

PyObject* differentiate(const Call& call, PyObject* q, PyObject* k, PyObject* v) {
  if (!autograd.apply || call.kind != Kind::torch || call.given_out) return general_way();
  int count = 0;
  for (PyObject* object : call.objects) count += object != nullptr;
  PyObject* arguments = PyTuple_New(kArrays + count);
  PyObject* packed = arguments ? pack(call) : nullptr;
  if (!packed) return failed(arguments);
  PyTuple_SetItem(arguments, 0, packed);
  int next = 1;
  const auto add = [&](PyObject* x) {
    Py_INCREF(x);
    PyTuple_SetItem(arguments, next++, x);
  };
  add(q);
  add(k);
  add(v);
  for (PyObject* object : call.objects) {
    if (object) add(object);
  }
  PyObject* out = PyObject_Call(autograd.apply, arguments, nullptr);
  Py_DECREF(arguments);
  if (out || !PyErr_ExceptionMatches(autograd.leave)) return out;
  PyErr_Clear();
  return general_way();
}

PyObject* autograd_forward(PyObject*, PyObject* arguments) {
  if (PyTuple_Size(arguments) < 1 + kArrays) return leave();
  PyObject* ctx = PyTuple_GetItem(arguments, 0);
  PyObject* q = PyTuple_GetItem(arguments, 2);
  Call call;
  if (!unpack(call, PyTuple_GetItem(arguments, 1), arguments, 1 + kArrays) ||
      !describe_inputs(call, q, PyTuple_GetItem(arguments, 3), PyTuple_GetItem(arguments, 4), describe_known)) {
    return leave();
  }
  PyObject *out = nullptr, *lse = nullptr;
  if (!run_with_lse(call, q, &out, &lse)) return leave();
  const bool done = keep(ctx, arguments, out, lse);
  Py_DECREF(lse);
  if (done) return out;
  Py_DECREF(out);
  return leave();
}

namespace {

// One backward call: the tensors behind the descriptions, and the gradients that are made.
struct Backward {
  Call call;
  rootdk_tensor grad_out;
  rootdk_tensor inputs[3], arrays[kOptionArrays];  // gradients
  PyObject* gradients = nullptr;                   // a tuple, one for each argument of forward behind ctx
};

// A new gradient of x, in its place in the tuple.
bool new_gradient(Backward& backward, Py_ssize_t place, PyObject* x, rootdk_tensor* tensor) {
  PyObject* gradient = empty_like(x);
  if (!gradient) return false;
  PyTuple_SetItem(backward.gradients, place, gradient);
  return describe_known(Kind::torch, gradient, tensor);
}

// Makes the gradients that are needed, and points the struct to them.
bool new_gradients(Backward& backward, PyObject* saved, PyObject* needs, rootdk_attention_gradients* to) {
  using G = rootdk_attention_gradients;
  static constexpr const rootdk_tensor* G::*kInputs[3] = {&G::q, &G::k, &G::v};
  static constexpr const rootdk_tensor* G::*kDifferentiable[kOptionArrays - kBias] = {
      &G::bias, &G::relative_table, &G::alibi_slopes, &G::sinks, &G::additive_v};
  for (int i = 0; i < 3; ++i) {
    if (PyTuple_GetItem(needs, 1 + i) != Py_True) continue;
    if (!new_gradient(backward, 1 + i, PyTuple_GetItem(saved, i), &backward.inputs[i])) return false;
    to->*kInputs[i] = &backward.inputs[i];
  }
  Py_ssize_t given = 0;
  for (int i = 0; i < kOptionArrays; ++i) {
    if (!backward.call.objects[i]) continue;
    const Py_ssize_t place = kArrays + given++;
    if (PyTuple_GetItem(needs, place) != Py_True) continue;
    rootdk_tensor* tensor = &backward.arrays[i];
    if (!is_differentiable(i) || !new_gradient(backward, place, backward.call.objects[i], tensor)) return false;
    pad_rank(tensor, field_of(static_cast<OptionArray>(i)).rank);
    to->*kDifferentiable[i - kBias] = tensor;
  }
  return true;
}

// The gradients of a call whose saved tensors and grad_out are plain.
Outcome compute(Backward& backward, PyObject* saved, PyObject* needs) {
  Call& call = backward.call;
  const Py_ssize_t count = PyTuple_Size(needs);
  backward.gradients = PyTuple_New(count);
  if (!backward.gradients) return Outcome::error;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(Py_None);
    PyTuple_SetItem(backward.gradients, i, Py_None);
  }
  rootdk_attention_gradients gradients = {};
  gradients.struct_size = sizeof gradients;
  if (!new_gradients(backward, saved, needs, &gradients)) {
    return PyErr_Occurred() ? Outcome::error : Outcome::general_way;
  }
  rootdk_attention_saved from = {};
  from.struct_size = sizeof from;
  from.q = &call.q;
  from.k = &call.k;
  from.v = &call.v;
  from.out = &call.out;
  from.lse = &call.lse;
  rootdk_attention_upstream upstream = {};
  upstream.struct_size = sizeof upstream;
  upstream.out = &backward.grad_out;
  return run_backward(call, from, upstream, gradients);
}

bool all_plain(PyObject* tuple) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) {
    if (kind_of(PyTuple_GetItem(tuple, i)) != Kind::torch) return false;
  }
  return true;
}

// Describes everything; grad_out becomes contiguous where its last dimension is not: the gradient of a sum repeats one
// number. Takes and gives a reference to it.
bool describe_backward(Backward& backward, PyObject* packed, PyObject* saved, PyObject** grad_out) {
  Call& call = backward.call;
  if (PyTuple_Size(saved) < kSavedArrays || kind_of(*grad_out) != Kind::torch || !all_plain(saved) ||
      !unpack(call, packed, saved, kSavedArrays) ||
      !describe_inputs(call, PyTuple_GetItem(saved, 0), PyTuple_GetItem(saved, 1), PyTuple_GetItem(saved, 2)) ||
      !describe(Kind::torch, PyTuple_GetItem(saved, kSavedOut), &call.out) ||
      !describe(Kind::torch, PyTuple_GetItem(saved, kSavedLse), &call.lse) ||
      !describe(Kind::torch, *grad_out, &backward.grad_out)) {
    return false;
  }
  if (backward.grad_out.rank != 4 || backward.grad_out.strides[3] == 1) return true;
  PyObject* rows = contiguous(*grad_out);
  if (!rows) return false;
  Py_DECREF(*grad_out);
  *grad_out = rows;
  return describe_known(Kind::torch, rows, &backward.grad_out);
}

Outcome run(Backward& backward, PyObject* packed, PyObject* saved, PyObject* needs, PyObject** grad_out) {
  if (describe_backward(backward, packed, saved, grad_out)) return compute(backward, saved, needs);
  return PyErr_Occurred() ? Outcome::error : Outcome::general_way;
}

// The gradients with a history that refuses to be followed, where a graph of the backward pass is made.
PyObject* differentiable_once(PyObject* gradients, PyObject* grad_out, PyObject* saved) {
  if (!gradients_are_on()) return gradients;
  PyObject* result = PyObject_CallFunction(autograd.once, "OOO", gradients, grad_out, saved);
  Py_DECREF(gradients);
  return result;
}

}  // namespace

PyObject* autograd_backward(PyObject*, PyObject* arguments) {
  PyObject *ctx = nullptr, *grad_out = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO", &ctx, &grad_out)) return nullptr;
  Py_INCREF(grad_out);
  PyObject* packed = PyObject_GetAttr(ctx, packed_name);
  PyObject* saved = packed ? PyObject_GetAttr(ctx, saved_name) : nullptr;
  PyObject* needs = saved ? PyObject_GetAttr(ctx, needs_name) : nullptr;
  Backward backward;
  Outcome outcome = Outcome::error;
  if (needs) {
    outcome = torch_is_plain() ? run(backward, packed, saved, needs, &grad_out) : Outcome::general_way;
  }
  PyObject* result = nullptr;
  if (outcome == Outcome::done) {
    result = differentiable_once(backward.gradients, grad_out, saved);
  } else {
    Py_XDECREF(backward.gradients);
    if (outcome == Outcome::general_way)
      result = PyObject_CallFunctionObjArgs(autograd.backward, ctx, grad_out, nullptr);
  }
  Py_XDECREF(needs);
  Py_XDECREF(saved);
  Py_XDECREF(packed);
  Py_DECREF(grad_out);
  return result;
}

namespace {

void set_new(PyObject* tuple, Py_ssize_t i, PyObject* x) {
  Py_INCREF(x);
  PyTuple_SetItem(tuple, i, x);
}

// The gradients of q, k, v and, where it is given, bias, out of a tuple with one for each argument of forward. What is
// not needed is empty.
PyObject* picked(const Call& call, PyObject* gradients, PyObject* q) {
  PyObject* result = PyTuple_New(4);
  for (int i = 0; result && i < 4; ++i) {
    const Py_ssize_t place = i < 3 ? 1 + i : call.objects[kBias] ? PyTuple_Size(gradients) - 1 : 0;
    PyObject* gradient = PyTuple_GetItem(gradients, place);
    if (gradient == Py_None) {
      gradient = PyObject_CallMethod(q, "new_empty", "i", 0);
    } else {
      Py_INCREF(gradient);
    }
    if (!gradient) {
      Py_DECREF(result);
      return nullptr;
    }
    PyTuple_SetItem(result, i, gradient);
  }
  return result;
}

}  // namespace

PyObject* gradients_of(const Call& call, std::initializer_list<PyObject*> inputs, PyObject* grad_out, PyObject* needs) {
  Py_ssize_t arrays = 0;
  for (PyObject* object : call.objects) arrays += object != nullptr;
  PyObject* packed = pack(call);
  PyObject* saved = PyTuple_New(kSavedArrays + arrays);
  PyObject* wanted = PyTuple_New(kArrays + arrays);
  Outcome outcome = Outcome::error;
  Backward backward;
  Py_INCREF(grad_out);
  if (packed && saved && wanted) {
    Py_ssize_t next = 0;
    for (PyObject* x : inputs) set_new(saved, next++, x);
    set_new(wanted, 0, Py_False);
    for (int i = 0; i < 3; ++i) set_new(wanted, 1 + i, PyList_GetItem(needs, i));
    for (int i = 0; i < kOptionArrays; ++i) {
      if (!call.objects[i]) continue;
      set_new(wanted, next - kSavedArrays + kArrays, i == kBias ? PyList_GetItem(needs, 3) : Py_False);
      set_new(saved, next++, call.objects[i]);
    }
    outcome = run(backward, packed, saved, wanted, &grad_out);
  }
  PyObject* result = outcome == Outcome::done ? picked(call, backward.gradients, *inputs.begin()) : failed(nullptr);
  Py_XDECREF(backward.gradients);
  Py_XDECREF(wanted);
  Py_XDECREF(saved);
  Py_XDECREF(packed);
  Py_DECREF(grad_out);
  return result;
}

bool learn_autograd(PyObject* names) {
  Autograd found;
  struct {
    const char* name;
    PyObject** to;
  } const wanted[] = {{"apply", &found.apply}, {"backward", &found.backward}, {"once", &found.once}};
  for (const auto& [name, to] : wanted) {
    *to = PyDict_GetItemString(names, name);
    if (!*to) return false;
  }
  packed_name = PyUnicode_InternFromString("packed");
  save_name = PyUnicode_InternFromString("save_for_backward");
  saved_name = PyUnicode_InternFromString("saved_tensors");
  needs_name = PyUnicode_InternFromString("needs_input_grad");
  found.leave = PyErr_NewException("rootdk._binding.Leave", nullptr, nullptr);
  if (!packed_name || !save_name || !saved_name || !needs_name || !found.leave) return false;
  for (const auto& [name, to] : wanted) Py_INCREF(*to);
  autograd = found;
  return true;
}

}  // namespace rootdk::binding
