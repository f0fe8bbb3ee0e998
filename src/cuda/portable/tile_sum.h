#pragma once

#include "cuda/portable/arguments.h"

namespace rootdk::cuda::portable {

// What the gradients by the logits are summed into: the bias, or the distances of the relative table and ALiBi.
enum class TileSum { bias, distance };

struct TileSumArguments {
  BackwardArguments backward;
  TileSum kind = TileSum::bias;
  int row_tiles = 0, key_tiles = 0;

  AnyView<4> grad_bias;
  int bias_shape[4] = {};

  // [batch, heads, offsets, diagonals]: sums along the diagonals of tiles; DistanceLayout numbers the offsets.
  float* distance_partial = nullptr;
};

}  // namespace rootdk::cuda::portable
