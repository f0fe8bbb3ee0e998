#include "cuda/hopper/decode/direct_kernel.cuh"
#include "cuda/hopper/decode/kernels.h"

namespace rootdk::cuda::hopper {

template <>
DirectKernel direct_decode_kernel_of<BFloat16>() {
  return describe_direct_decode<DirectConfig<__nv_bfloat16>>();
}
template <>
DirectKernel direct_decode_kernel_of<Float16>() {
  return describe_direct_decode<DirectConfig<__half>>();
}

}  // namespace rootdk::cuda::hopper
