#include "cuda/portable/forward_instances.h"

namespace rootdk::cuda::portable {

template ForwardKernelHandle forward_kernel_for<__nv_bfloat16, false>(const LogitRule&);

}  // namespace rootdk::cuda::portable
