#include "cuda/portable/backward_instances.h"

namespace rootdk::cuda::portable {

template BackwardKernel keys_kernel_for<__nv_bfloat16, false>(const LogitRule&);
template BackwardKernel queries_kernel_for<__nv_bfloat16, false>(const LogitRule&);
template TileSumKernel tile_sum_kernel_for<__nv_bfloat16, false>(const LogitRule&);

}  // namespace rootdk::cuda::portable
