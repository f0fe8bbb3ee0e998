#pragma once

// The library's functions, and calls of them: on the CPU, or on the current stream of a CUDA device with scratch memory
// from PyTorch's allocator.

#include "options.h"

namespace rootdk::binding {

enum class Outcome {
  done,
  general_way,  // nothing was computed, and no Python error is set: the general way says what is wrong
  error         // a Python error is set
};

// connect(addresses of rootdk_attention, rootdk_attention_backward and rootdk_struct_init, check)
PyObject* connect(PyObject* module, PyObject* arguments);

const rootdk_attention_params& default_params();

// Both run without the interpreter lock. stats may be null.
Outcome run_forward(Call& call, const rootdk_attention_stats* stats);
Outcome run_backward(const Call& call, const rootdk_attention_saved& saved, const rootdk_attention_upstream& upstream,
                     const rootdk_attention_gradients& gradients);

// The output of a call that is ready but for it: a new reference, NotImplemented, or null with a Python error.
PyObject* run_for_output(Call& call, PyObject* q);
// New references to the output and lse. False: with a Python error, or, for the general way, without one.
bool run_with_lse(Call& call, PyObject* q, PyObject** out, PyObject** lse);

// NotImplemented: what the package takes for "the general way".
PyObject* general_way();
// Gives up an object and says the same, unless there is a Python error.
PyObject* failed(PyObject* given_up);

}  // namespace rootdk::binding
