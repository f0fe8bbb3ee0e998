#include "cuda/hopper/forward/tall_tiles.h"

#include <algorithm>

namespace rootdk::cuda::hopper {
namespace {

// When the last block ends. Every other wave is dealt in reverse, so that the blocks which begin the wave in which tall
// tiles end and those which begin the last wave are the same, or lie at opposite ends.
double time_of(std::int64_t tall, std::int64_t low, std::int64_t blocks) {
  const std::int64_t tiles = tall + low, waves = (tiles + blocks - 1) / blocks;
  const std::int64_t tall_waves = tall / blocks, more_tall = tall % blocks;  // more_tall blocks have one tall tile more
  const std::int64_t in_last = tiles - (waves - 1) * blocks;                 // blocks that have a tile in the last wave
  const auto time = [](std::int64_t t, std::int64_t all) {
    return static_cast<double>(t) + kLowTileTime * static_cast<double>(all - t);
  };
  if (tall_waves == waves - 1 || more_tall == 0) return time(tall_waves + (more_tall > 0), waves);
  const bool same_end = (waves - 1 - tall_waves) % 2 == 0;
  const std::int64_t both =
      same_end ? std::min(more_tall, in_last) : std::max<std::int64_t>(0, more_tall + in_last - blocks);
  if (both > 0) return time(tall_waves + 1, waves);
  return std::max(time(tall_waves + 1, waves - 1), time(tall_waves, waves));
}

}  // namespace

TileHeights choose_heights(std::int64_t q_len, std::int64_t heads, std::int64_t blocks) {
  const std::int64_t units = (q_len + 63) / 64;  // of 64 rows: a tall tile has three, a low one two
  TileHeights best;
  for (std::int64_t tall = (units + 2) / 3; tall >= 0; --tall) {
    const std::int64_t low = (std::max<std::int64_t>(0, units - 3 * tall) + 1) / 2;
    const double time = time_of(tall * heads, low * heads, blocks);
    if (best.time == 0 || time < best.time) best = {.tall = tall, .low = low, .time = time};
  }
  return best;
}

}  // namespace rootdk::cuda::hopper
