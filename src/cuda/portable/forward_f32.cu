#include "cuda/portable/forward_instances.h"

namespace rootdk::cuda::portable {

template ForwardKernelHandle forward_kernel_for<float, false>(const LogitRule&);
template ForwardKernelHandle forward_kernel_for<float, true>(const LogitRule&);

}  // namespace rootdk::cuda::portable
