#pragma once

// Arrays of NumPy and PyTorch as rootdk_tensor, without Python code on the way. Functions that return false have left
// no Python error: the caller then takes the general way, in Python, which serves everything or says what is wrong.

#define Py_LIMITED_API 0x03090000  // one binary for every Python from 3.9 on
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dlpack.h"
#include "rootdk/c_api.h"

namespace rootdk::binding {

enum class Kind { other, numpy, torch };

// The type must be the library's own: subclasses have their own say.
Kind kind_of(PyObject* x);

// Describes x, which must lie in the memory of the host, or on a CUDA device where PyTorch tells the current stream
// and lends memory in C. The numbers are copied; x keeps the memory.
bool describe(Kind kind, PyObject* x, rootdk_tensor* tensor);

// The same for an array that was described before, or was just made: it is no view that PyTorch negates.
bool describe_known(Kind kind, PyObject* x, rootdk_tensor* tensor);

// For an array that was just made: contiguous, of this type and shape.
bool describe_new(Kind kind, PyObject* x, const rootdk_tensor& shape, int64_t value_dim, rootdk_tensor* tensor);

bool is_writable(Kind kind, PyObject* x);

// Tells PyTorch that the memory of a tensor that was given has been written to. False with a Python error set.
bool tell_written(Kind kind, PyObject* x);

// A new contiguous array of q's type; shape is q's where value_dim is its last dimension. Null with a Python error set.
PyObject* new_output(Kind kind, PyObject* q, const rootdk_tensor& shape, int64_t value_dim);

// A new f32 array (f64 beside f64) of q's first three dimensions.
PyObject* new_row_statistic(Kind kind, PyObject* q, const rootdk_tensor& shape);

// Whether nothing follows what PyTorch's tensors are used for: no transform, mode, trace or forward derivative.
bool torch_is_plain();
// Whether autograd wants to know about the use of x.
bool wants_gradient(PyObject* x);
bool gradients_are_on();
// Whether autocast, where it is on, leaves tensors like x as they are.
bool autocast_keeps(const rootdk_tensor& x);

// A seed of dropout from PyTorch's generator. False: with a Python error, or without one where there is no function for
// it.
bool draw_seed(uint64_t* seed);

// Of PyTorch's tensors, new references: contiguous memory of x's shape and type, and x with contiguous memory.
PyObject* empty_like(PyObject* x);
PyObject* contiguous(PyObject* x);

// PyTorch's functions; null before version 2.10.
const DLPackExchange* torch_exchange();

// What the package hands over when NumPy or PyTorch is first seen: a dict of objects by name.
bool learn_numpy(PyObject* names);
bool learn_torch(PyObject* names);

}  // namespace rootdk::binding
