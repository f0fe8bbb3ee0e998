#pragma once

#include "cuda/hopper/forward/choice.h"
#include "cuda/hopper/shared/params.h"

namespace rootdk::cuda::hopper {

// How the query tiles of a call go to blocks: sets that part of the parameters, and clears the counter of tiles if
// there is one. Returns the number of blocks.
int deal_tiles(const ForwardCall& call, const ForwardKernelHandle& kernel, int* tile_counter, ForwardParams& params);

void launch_forward(const ForwardCall& call, const ForwardChoice& choice);

}  // namespace rootdk::cuda::hopper
