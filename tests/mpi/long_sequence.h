#pragma once

#include "rootdk/distributed.h"

namespace rootdk::test {

// What runs of a comparison. On machines that are too slow for all of it at once, the hashes of two runs are compared.
struct LongSequence {
  std::int64_t keys = 0, queries = 0;
  bool full = true;  // as well as causal
  bool ranks = true, one_call = true;
};

// Some queries, or all, over keys that are cut over the ranks (one head of 64, f32): out and lse have the hash of one
// call of attention() on rank 0, and no rank takes a gigabyte before that call. Returns the failures of this rank.
int compare_long_sequence(Transport& transport, const LongSequence& sequence);

}  // namespace rootdk::test
