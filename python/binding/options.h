#pragma once

// The options of a call, from Python objects into rootdk_attention_params.

#include "arrays.h"

namespace rootdk::binding {

// One call on its way to the library. Tensors point into this struct, which therefore does not move.
struct Call {
  Kind kind = Kind::other;
  rootdk_tensor q, k, v, out, lse;
  rootdk_attention_params params;
  rootdk_tensor mask, bias, block_mask, kv_lengths, q_starts, kv_starts, relative_table, alibi_slopes, sinks,
      additive_v;
  PyObject* given_out = nullptr;  // borrowed
  int threads = 0;
  bool wants_gradient = false;  // of q, k, v or an option

  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

// Reads q, k and v, which must be of one kind and of rank 4.
bool read_inputs(Call& call, PyObject* q, PyObject* k, PyObject* v);

// An array of the call's kind; with `rank`, dimensions of size 1 are put in front.
bool read_option(Call& call, PyObject* x, rootdk_tensor* tensor, int rank);

// Every option of rootdk.attention by name. False: one of them is for the general way.
bool read_options(Call& call, PyObject* named);

}  // namespace rootdk::binding
