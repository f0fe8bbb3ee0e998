#include "cuda/portable/backward_instances.h"

namespace rootdk::cuda::portable {

template BackwardKernel keys_kernel_for<__half, false>(const LogitRule&);
template BackwardKernel queries_kernel_for<__half, false>(const LogitRule&);
template TileSumKernel tile_sum_kernel_for<__half, false>(const LogitRule&);

}  // namespace rootdk::cuda::portable
