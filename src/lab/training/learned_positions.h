#pragma once

// A table of learned positions, trained on a task that needs nothing but order: say the token that stood one before.

#include <cstdint>
#include <vector>

namespace rootdk::lab {

struct LearnedPositions {
  double accuracy = 0;                      // of the trained layer
  std::vector<std::vector<double>> before;  // [query][key]: what position i of a query adds to the score of position j
  std::vector<std::vector<double>> after;   // the same when training is over
};

LearnedPositions train_positions(std::uint64_t seed);

}  // namespace rootdk::lab
