#include "operators.h"

namespace rootdk::binding {
namespace {

struct General {
  PyObject *attend = nullptr, *attend_with_lse = nullptr, *attend_backward = nullptr;
};
General general;

// What all three take besides q, k and v.
struct Options {
  PyObject *mask = nullptr, *bias = nullptr, *causal = nullptr, *window = nullptr, *scale = nullptr;
};

bool read_side(PyObject* window, Py_ssize_t i, int64_t* to) {
  PyObject* side = PyList_Check(window) && i < PyList_Size(window) ? PyList_GetItem(window, i) : nullptr;
  if (!side || !PyLong_CheckExact(side)) return false;
  int overflow = 0;
  *to = PyLong_AsLongLongAndOverflow(side, &overflow);
  return overflow == 0;
}

bool read_operator(Call& call, PyObject* q, PyObject* k, PyObject* v, const Options& options) {
  call.params = default_params();
  call.kind = Kind::torch;
  for (PyObject* x : {q, k, v}) {
    if (kind_of(x) != Kind::torch) return false;
  }
  if (!describe_inputs(call, q, k, v)) return false;
  if (options.mask != Py_None && !read_array(call, options.mask, kMask)) return false;
  if (options.bias != Py_None && !read_array(call, options.bias, kBias)) return false;
  call.params.causal = options.causal == Py_True;
  if (options.scale != Py_None) {
    if (!PyFloat_CheckExact(options.scale)) return false;
    call.params.scale_kind = ROOTDK_SCALE_VALUE;
    call.params.scale = PyFloat_AsDouble(options.scale);
  }
  return read_side(options.window, 0, &call.params.window_left) &&
         read_side(options.window, 1, &call.params.window_right);
}

PyObject* unless_general(PyObject* result, PyObject* function, PyObject* arguments) {
  if (result != Py_NotImplemented) return result;
  Py_DECREF(result);
  return PyObject_Call(function, arguments, nullptr);
}

bool parse(PyObject* arguments, PyObject** q, PyObject** k, PyObject** v, Options* o) {
  return PyArg_ParseTuple(arguments, "OOOOOOOO", q, k, v, &o->mask, &o->bias, &o->causal, &o->window, &o->scale);
}

}  // namespace

PyObject* operator_attend(PyObject*, PyObject* arguments) {
  PyObject *q = nullptr, *k = nullptr, *v = nullptr;
  Options options;
  if (!parse(arguments, &q, &k, &v, &options)) return nullptr;
  Call call;
  PyObject* out = read_operator(call, q, k, v, options) ? run_for_output(call, q) : failed(nullptr);
  return unless_general(out, general.attend, arguments);
}

PyObject* operator_attend_with_lse(PyObject*, PyObject* arguments) {
  PyObject *q = nullptr, *k = nullptr, *v = nullptr;
  Options options;
  if (!parse(arguments, &q, &k, &v, &options)) return nullptr;
  Call call;
  PyObject *out = nullptr, *lse = nullptr;
  PyObject* both = nullptr;
  if (read_operator(call, q, k, v, options) && run_with_lse(call, q, &out, &lse)) {
    both = PyTuple_Pack(2, out, lse);
    Py_DECREF(out);
    Py_DECREF(lse);
  } else {
    both = failed(nullptr);
  }
  return unless_general(both, general.attend_with_lse, arguments);
}

PyObject* operator_attend_backward(PyObject*, PyObject* arguments) {
  PyObject *grad_out = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *lse = nullptr;
  PyObject* needs = nullptr;
  Options o;
  if (!PyArg_ParseTuple(arguments, "OOOOOOOOOOOO!", &grad_out, &q, &k, &v, &out, &lse, &o.mask, &o.bias, &o.causal,
                        &o.window, &o.scale, &PyList_Type, &needs)) {
    return nullptr;
  }
  Call call;
  PyObject* gradients = nullptr;
  if (PyList_Size(needs) == 4 && read_operator(call, q, k, v, o)) {
    gradients = gradients_of(call, {q, k, v, out, lse}, grad_out, needs);
  } else {
    gradients = failed(nullptr);
  }
  return unless_general(gradients, general.attend_backward, arguments);
}

bool learn_operators(PyObject* names) {
  General found;
  struct {
    const char* name;
    PyObject** to;
  } const wanted[] = {{"attend", &found.attend},
                      {"attend_with_lse", &found.attend_with_lse},
                      {"attend_backward", &found.attend_backward}};
  for (const auto& [name, to] : wanted) {
    *to = PyDict_GetItemString(names, name);
    if (!*to) return false;
  }
  for (const auto& [name, to] : wanted) Py_INCREF(*to);
  general = found;
  return true;
}

}  // namespace rootdk::binding
