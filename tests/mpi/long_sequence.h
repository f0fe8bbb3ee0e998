#pragma once

#include "rootdk/distributed.h"

namespace rootdk::test {

// Some queries over `keys` keys that are cut over the ranks (one head of 64, f32), full and causal: out and lse are
// those of one call of attention() on rank 0, bit for bit, and no rank takes a gigabyte before that call. Returns the
// failures of this rank.
int compare_long_sequence(Transport& transport, std::int64_t keys, std::int64_t queries);

}  // namespace rootdk::test
