#pragma once

// The options of a call, from Python objects into rootdk_attention_params.

#include "arrays.h"

namespace rootdk::binding {

// The arrays among the options, in the order of their fields in rootdk_attention_params.
enum OptionArray {
  kKvLengths,
  kMask,
  kBlockMask,
  kQStarts,
  kKvStarts,
  kBias,
  kRelativeTable,
  kAlibiSlopes,
  kSinks,
  kAdditiveV,
  kOptionArrays
};

// One call on its way to the library. Tensors point into this struct, which therefore does not move.
struct Call {
  Kind kind = Kind::other;
  rootdk_tensor q, k, v, out, lse;
  rootdk_attention_params params;
  rootdk_tensor arrays[kOptionArrays];
  PyObject* objects[kOptionArrays] = {};  // what the arrays were given as, borrowed; null: not given
  PyObject* given_out = nullptr;          // borrowed
  int threads = 0;
  bool wants_gradient = false;  // of q, k, v or an option

  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

// The field of an array, and the rank to which it is brought by dimensions of size 1 in front.
struct ArrayField {
  const rootdk_tensor* rootdk_attention_params::*field;
  int rank;
};
const ArrayField& field_of(OptionArray array);

// Reads q, k and v, which must be of one kind and of rank 4.
bool read_inputs(Call& call, PyObject* q, PyObject* k, PyObject* v);

// Their descriptions alone, of a kind that is set; describe_known where they were described before.
bool describe_inputs(Call& call, PyObject* q, PyObject* k, PyObject* v, decltype(&describe) describes = describe);

// An array of the call's kind as one of its options.
bool read_array(Call& call, PyObject* x, OptionArray array);

void pad_rank(rootdk_tensor* tensor, int rank);

// Every option of rootdk.attention by name. False: one of them is for the general way.
bool read_options(Call& call, PyObject* named);

}  // namespace rootdk::binding
