#pragma once

// The bodies of the operators that a compiled graph calls (rootdk/torch/_compiled.py). Their arguments are those of the
// operators in order; what is not plain goes to the functions in Python that learn_operators was given.

#include "autograd.h"

namespace rootdk::binding {

// attend(q, k, v, mask, bias, causal, window, scale): out
PyObject* operator_attend(PyObject* module, PyObject* arguments);
// attend_with_lse(the same): (out, lse)
PyObject* operator_attend_with_lse(PyObject* module, PyObject* arguments);
// attend_backward(grad_out, q, k, v, out, lse, mask, bias, causal, window, scale, needs): the gradients of q, k, v and
// bias; those that are not needed are empty
PyObject* operator_attend_backward(PyObject* module, PyObject* arguments);

bool learn_operators(PyObject* names);

}  // namespace rootdk::binding
