#pragma once

// Query tiles of two heights in one launch, for the tail of a wave.

#include "cuda/hopper/forward/config.h"

namespace rootdk::cuda::hopper {

// The ranged kernel of three consumers, in which the last consumer is idle in some tiles: ForwardParams::tall_tiles of
// a head have 192 rows, those after them 128. The rows of a call that is neither causal nor windowed cost the same, so
// that the host can deal tiles of both heights to blocks which then end together.
template <class Element, int HeadDim>
struct MixedConfig : ForwardConfig<Element, HeadDim, Variant::ranged> {
  static constexpr bool kMixed = true;
  static_assert(MixedConfig::kConsumers == 3);
};

}  // namespace rootdk::cuda::hopper
