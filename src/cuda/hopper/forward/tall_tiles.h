#pragma once

// How many query tiles of a call are tall, where a launch may mix two heights (mixed_config.h).

#include <cstdint>

namespace rootdk::cuda::hopper {

// The time of a tile of 128 rows, where one of 192 rows takes 1: measured on an H200.
inline constexpr double kLowTileTime = 0.79;

struct TileHeights {
  std::int64_t tall = 0, low = 0;  // query tiles of a head with 192 rows, and after them those with 128
  double time = 0;                 // of the block that ends last, in tall tiles
};

// The fastest mixture for `heads` heads of `q_len` rows, all of which see the same number of keys. Blocks take tiles in
// waves (TileDealer), tall ones first.
TileHeights choose_heights(std::int64_t q_len, std::int64_t heads, std::int64_t blocks);

}  // namespace rootdk::cuda::hopper
