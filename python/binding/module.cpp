// The hot path of the Python package: rootdk.attention and the drop-in for PyTorch over plain arrays, with gradients.
// Whatever is not plain (statistics, lists, subclasses, another device) gives NotImplemented, and the package goes its
// general way over ctypes; so do bad arguments, which are told there.

#include "operators.h"

namespace rootdk::binding {
namespace {

// attention(positional arguments, options)
PyObject* attention(PyObject*, PyObject* arguments) {
  PyObject *given = nullptr, *named = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &given, &PyDict_Type, &named)) return nullptr;
  if (PyTuple_Size(given) != 3) return general_way();
  Call call;
  call.params = default_params();
  PyObject *q = PyTuple_GetItem(given, 0), *k = PyTuple_GetItem(given, 1), *v = PyTuple_GetItem(given, 2);
  if (!read_inputs(call, q, k, v) || !read_options(call, named)) return failed(nullptr);
  return call.wants_gradient && gradients_are_on() ? differentiate(call, q, k, v) : run_for_output(call, q);
}

// Whether nothing broadcasts, and rows are contiguous. With gqa, query heads may share key heads.
bool is_shared(const Call& call, bool gqa) {
  const bool same_batch = call.q.shape[0] == call.k.shape[0] && call.q.shape[0] == call.v.shape[0];
  const int64_t heads = call.q.shape[1], kv_heads = call.k.shape[1];
  const bool same_heads =
      kv_heads == call.v.shape[1] && (heads == kv_heads || (gqa && kv_heads && heads % kv_heads == 0));
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
  if (!read_array(call, attn_mask, kBias)) return false;
  const int type = call.arrays[kBias].dtype;
  if (type != ROOTDK_BOOL) return type == call.q.dtype || (type == ROOTDK_F32 && call.q.dtype != ROOTDK_F64);
  call.params.bias = nullptr;
  call.objects[kBias] = nullptr;
  return read_array(call, attn_mask, kMask);
}

// scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
PyObject* scaled_dot_product_attention(PyObject*, PyObject* arguments) {
  PyObject *query = nullptr, *key = nullptr, *value = nullptr, *mask = nullptr, *dropout = nullptr, *causal = nullptr,
           *scale = nullptr, *gqa = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOOOOOOO", &query, &key, &value, &mask, &dropout, &causal, &scale, &gqa)) {
    return nullptr;
  }
  Call call;
  call.params = default_params();
  const double drops = PyFloat_CheckExact(dropout) ? PyFloat_AsDouble(dropout) : -1.0;
  const bool plain_causal = causal == Py_True || causal == Py_False;
  if (!(drops >= 0.0 && drops < 1.0) || !plain_causal || !read_inputs(call, query, key, value) ||
      call.kind != Kind::torch || !is_shared(call, gqa == Py_True) || !autocast_keeps(call.q)) {
    return failed(nullptr);
  }
  if (scale != Py_None) {
    if (!PyFloat_CheckExact(scale)) return general_way();
    call.params.scale_kind = ROOTDK_SCALE_VALUE;
    call.params.scale = PyFloat_AsDouble(scale);
  }
  if (mask != Py_None && (causal == Py_True || !set_attn_mask(call, mask))) return failed(nullptr);
  const bool differentiates = call.wants_gradient && gradients_are_on();
  if (causal == Py_True) {
    // Keys that no query attends to have gradients, too: zeros, which the general way makes.
    if (differentiates && call.q.shape[2] < call.k.shape[2]) return general_way();
    set_upper_left(call);
  }
  // Drawn last: a call that goes the general way draws there.
  if (drops > 0.0) {
    call.params.dropout = drops;
    if (!draw_seed(&call.params.seed)) return failed(nullptr);
  }
  return differentiates ? differentiate(call, query, key, value) : run_for_output(call, query);
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
PyObject* learn_autograd_names(PyObject*, PyObject* names) { return learned(learn_autograd, names); }
PyObject* learn_operator_names(PyObject*, PyObject* names) { return learned(learn_operators, names); }

PyMethodDef functions[] = {
    {"attention", attention, METH_VARARGS, nullptr},
    {"autograd_forward", autograd_forward, METH_VARARGS, nullptr},
    {"autograd_backward", autograd_backward, METH_VARARGS, nullptr},
    {"scaled_dot_product_attention", scaled_dot_product_attention, METH_VARARGS, nullptr},
    {"attend", operator_attend, METH_VARARGS, nullptr},
    {"attend_with_lse", operator_attend_with_lse, METH_VARARGS, nullptr},
    {"attend_backward", operator_attend_backward, METH_VARARGS, nullptr},
    {"connect", connect, METH_VARARGS, nullptr},
    {"learn_numpy", learn_numpy_names, METH_O, nullptr},
    {"learn_torch", learn_torch_names, METH_O, nullptr},
    {"learn_autograd", learn_autograd_names, METH_O, nullptr},
    {"learn_operators", learn_operator_names, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rootdk._binding", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace rootdk::binding

PyMODINIT_FUNC PyInit__binding() { return PyModule_Create(&rootdk::binding::definition); }
