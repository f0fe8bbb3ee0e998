// The hot path of the Python package: rootdk.attention and the drop-in for PyTorch over plain arrays on the CPU.
// Whatever is not plain (statistics, lists, subclasses, gradients, another device) gives NotImplemented, and the
// package goes its general way over ctypes; so do bad arguments, which are told there.

#include "options.h"

namespace rootdk::binding {
namespace {

// The library's functions, by address: the package has loaded it.
struct Library {
  decltype(&rootdk_attention) attention = nullptr;
  decltype(&rootdk_execution_init) execution_init = nullptr;
  rootdk_attention_params defaults = {};
  PyObject* check = nullptr;  // raises the error of a status
};
Library library;

PyObject* general_way() {
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

// Runs the call without the interpreter lock. False: with a Python error, or, for bad arguments, without one.
bool run(Call& call, const rootdk_attention_stats* stats) {
  rootdk_execution execution;
  if (call.threads) {
    library.execution_init(&execution);
    execution.threads = call.threads;
  }
  PyThreadState* thread = PyEval_SaveThread();
  const rootdk_status status =
      library.attention(&call.q, &call.k, &call.v, &call.out, &call.params, stats, call.threads ? &execution : nullptr);
  PyEval_RestoreThread(thread);
  if (status == ROOTDK_OK) return true;
  if (status != ROOTDK_INVALID_ARGUMENT) {
    PyObject* nothing = PyObject_CallFunction(library.check, "i", static_cast<int>(status));
    Py_XDECREF(nothing);
  }
  return false;
}

PyObject* failed(PyObject* out) {
  Py_XDECREF(out);
  return PyErr_Occurred() ? nullptr : general_way();
}

// The output of a call that is ready but for it.
PyObject* run_for_output(Call& call, PyObject* q) {
  PyObject* out = call.given_out;
  if (out) {
    Py_INCREF(out);
  } else {
    out = new_output(call.kind, q, call.q, call.v.shape[3]);
    if (!out) return nullptr;
    if (!describe_new(call.kind, out, call.q, call.v.shape[3], &call.out)) return failed(out);
  }
  return run(call, nullptr) ? out : failed(out);
}

// attention(positional arguments, options)
PyObject* attention(PyObject*, PyObject* arguments) {
  PyObject *given = nullptr, *named = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &given, &PyDict_Type, &named)) return nullptr;
  if (PyTuple_Size(given) != 3) return general_way();
  Call call;
  call.params = library.defaults;
  PyObject* q = PyTuple_GetItem(given, 0);
  if (!read_inputs(call, q, PyTuple_GetItem(given, 1), PyTuple_GetItem(given, 2)) || !read_options(call, named) ||
      (call.wants_gradient && gradients_are_on())) {
    return failed(nullptr);
  }
  return run_for_output(call, q);
}

// attention_with_lse(q, k, v, options): (out, lse), inside a function that autograd knows.
PyObject* attention_with_lse(PyObject*, PyObject* arguments) {
  PyObject *q = nullptr, *k = nullptr, *v = nullptr, *named = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOOO!", &q, &k, &v, &PyDict_Type, &named)) return nullptr;
  Call call;
  call.params = library.defaults;
  if (!read_inputs(call, q, k, v) || !read_options(call, named) || call.given_out) return failed(nullptr);
  PyObject* lse = new_row_statistic(call.kind, q, call.q);
  if (!lse) return nullptr;
  PyObject* out = describe(call.kind, lse, &call.lse) ? new_output(call.kind, q, call.q, call.v.shape[3]) : nullptr;
  rootdk_attention_stats stats = {};
  stats.struct_size = sizeof stats;
  stats.stride = 1;
  stats.lse = &call.lse;
  if (!out || !describe_new(call.kind, out, call.q, call.v.shape[3], &call.out) || !run(call, &stats)) {
    Py_DECREF(lse);
    return failed(out);
  }
  PyObject* both = PyTuple_Pack(2, out, lse);
  Py_DECREF(out);
  Py_DECREF(lse);
  return both;
}

bool is_shared(const Call& call) {
  const bool same_batch = call.q.shape[0] == call.k.shape[0] && call.q.shape[0] == call.v.shape[0];
  const bool same_heads = call.q.shape[1] == call.k.shape[1] && call.q.shape[1] == call.v.shape[1];
  const bool in_rows = call.q.strides[3] == 1 && call.k.strides[3] == 1 && call.v.strides[3] == 1;
  return same_batch && same_heads && in_rows && call.q.shape[3] > 0 && call.v.shape[3] > 0;
}

// is_causal counts from the upper left corner.
void set_upper_left(Call& call) {
  const int64_t q_len = call.q.shape[2], kv_len = call.k.shape[2];
  if (q_len > kv_len) {
    call.params.window_right = q_len - kv_len;
    return;
  }
  call.params.causal = 1;
  call.k.shape[2] = q_len;  // no query attends to a later key, and the corners meet
  call.v.shape[2] = call.v.shape[2] < q_len ? call.v.shape[2] : q_len;
}

bool set_attn_mask(Call& call, PyObject* attn_mask) {
  if (!read_option(call, attn_mask, &call.mask, 4)) return false;
  const int type = call.mask.dtype;
  if (type == ROOTDK_BOOL) {
    call.params.mask = &call.mask;
    return true;
  }
  call.params.bias = &call.mask;
  return type == call.q.dtype || (type == ROOTDK_F32 && call.q.dtype != ROOTDK_F64);
}

// scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
PyObject* scaled_dot_product_attention(PyObject*, PyObject* arguments) {
  PyObject *query = nullptr, *key = nullptr, *value = nullptr, *mask = nullptr, *dropout = nullptr, *causal = nullptr,
           *scale = nullptr, *gqa = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOOOOOOO", &query, &key, &value, &mask, &dropout, &causal, &scale, &gqa)) {
    return nullptr;
  }
  Call call;
  call.params = library.defaults;
  const bool plain_dropout = (PyFloat_CheckExact(dropout) && PyFloat_AsDouble(dropout) == 0.0);
  const bool plain_causal = causal == Py_True || causal == Py_False;
  if (!plain_dropout || !plain_causal || !read_inputs(call, query, key, value) || call.kind != Kind::torch ||
      !is_shared(call) || autocast_is_on()) {
    return failed(nullptr);
  }
  if (scale != Py_None) {
    if (!PyFloat_CheckExact(scale)) return general_way();
    call.params.scale_kind = ROOTDK_SCALE_VALUE;
    call.params.scale = PyFloat_AsDouble(scale);
  }
  if (mask != Py_None && (causal == Py_True || !set_attn_mask(call, mask))) return failed(nullptr);
  if (causal == Py_True) set_upper_left(call);
  if (call.wants_gradient && gradients_are_on()) return general_way();
  return run_for_output(call, query);
}

// connect(addresses by name, check): the functions of the library.
PyObject* connect(PyObject*, PyObject* arguments) {
  unsigned long long attention = 0, params_init = 0, execution_init = 0;
  PyObject* check = nullptr;
  if (!PyArg_ParseTuple(arguments, "KKKO", &attention, &params_init, &execution_init, &check)) return nullptr;
  library.attention = reinterpret_cast<decltype(library.attention)>(attention);
  library.execution_init = reinterpret_cast<decltype(library.execution_init)>(execution_init);
  reinterpret_cast<decltype(&rootdk_attention_params_init)>(params_init)(&library.defaults);
  if (library.defaults.struct_size != sizeof library.defaults) {
    PyErr_Format(PyExc_ImportError, "rootdk: the library's parameters have %zu bytes, those of the binding %zu",
                 library.defaults.struct_size, sizeof library.defaults);
    return nullptr;
  }
  Py_INCREF(check);
  library.check = check;
  Py_RETURN_NONE;
}

PyObject* learned(bool (*learn)(PyObject*), PyObject* names) {
  if (!PyDict_Check(names) || !learn(names)) {
    PyErr_SetString(PyExc_TypeError, "rootdk: a name is missing");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* learn_numpy_names(PyObject*, PyObject* names) { return learned(learn_numpy, names); }
PyObject* learn_torch_names(PyObject*, PyObject* names) { return learned(learn_torch, names); }

PyMethodDef functions[] = {
    {"attention", attention, METH_VARARGS, nullptr},
    {"attention_with_lse", attention_with_lse, METH_VARARGS, nullptr},
    {"scaled_dot_product_attention", scaled_dot_product_attention, METH_VARARGS, nullptr},
    {"connect", connect, METH_VARARGS, nullptr},
    {"learn_numpy", learn_numpy_names, METH_O, nullptr},
    {"learn_torch", learn_torch_names, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rootdk._binding", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace rootdk::binding

PyMODINIT_FUNC PyInit__binding() { return PyModule_Create(&rootdk::binding::definition); }
