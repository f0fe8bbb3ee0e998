#pragma once

// The forward and backward pass of a torch.autograd.Function, whose Python class (rootdk/torch/_plain.py) is a shell.

#include <initializer_list>

#include "library.h"

namespace rootdk::binding {

// The call through autograd, for the gradients of q, k, v and the arrays among its options.
PyObject* differentiate(const Call& call, PyObject* q, PyObject* k, PyObject* v);

// forward(ctx, packed numbers of the call, q, k, v, *arrays among the options): out
PyObject* autograd_forward(PyObject* module, PyObject* arguments);
// backward(ctx, grad_out): a gradient or None for each argument of forward behind ctx
PyObject* autograd_backward(PyObject* module, PyObject* arguments);

// The gradients of q, k, v and bias, empty where the list `needs` says False; inputs are q, k, v, out and lse.
// NotImplemented: for the general way.
PyObject* gradients_of(const Call& call, std::initializer_list<PyObject*> inputs, PyObject* grad_out, PyObject* needs);

// What rootdk/torch/_plain.py hands over: a dict of objects by name.
bool learn_autograd(PyObject* names);

}  // namespace rootdk::binding
