// Linked if there is no CUDA compiler: the lists are empty, and callers need no #ifdef.
#include "core/fp8_call.h"
#include "core/implementation.h"

namespace rootdk::cuda {

std::span<const ForwardImplementation> forward_implementations() { return {}; }
std::span<const BackwardImplementation> backward_implementations() { return {}; }
std::span<const Fp8ForwardImplementation> fp8_forward_implementations() { return {}; }
std::span<const Fp8BackwardImplementation> fp8_backward_implementations() { return {}; }
std::span<const QuantizeImplementation> quantize_implementations() { return {}; }

}  // namespace rootdk::cuda
