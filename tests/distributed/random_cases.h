#pragma once

// Random calls and cuts for the grid over ranks: the same for a seed on every rank.

#include "distributed/ranks.h"

namespace rootdk::test {

struct RandomCall {
  AttentionCase problem;
  DistributedParams one, many;  // one rank, and as many as asked
};

RandomCall random_call(std::uint64_t seed, int ranks);

}  // namespace rootdk::test
