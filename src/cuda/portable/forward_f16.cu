#include "cuda/portable/forward_instances.h"

namespace rootdk::cuda::portable {

template ForwardKernelHandle forward_kernel_for<__half, false>(const LogitRule&);

}  // namespace rootdk::cuda::portable
