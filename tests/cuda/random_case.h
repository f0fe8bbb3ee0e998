#pragma once

// Fresh shapes: what a random test draws, all from one seed.

#include <cstdint>

#include "conformance/cases.h"

namespace rootdk::test {

// The largest sizes drawn.
struct RandomSizes {
  std::int64_t batch = 2, kv_heads = 2, group = 3;
  std::int64_t q_len = 300, kv_len = 400;                // of a call
  std::int64_t packed_q_len = 150, packed_kv_len = 200;  // of a packed sequence; some are empty
};

// A shape with any features of attention. Packed calls always have queries and keys.
CaseSpec random_spec(std::uint64_t seed, const RandomSizes& largest);

// ROOTDK_TEST_SEED, which repeats a failure, or a new seed.
std::uint64_t random_seed();

}  // namespace rootdk::test
