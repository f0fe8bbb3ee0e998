// Linked if there is no CUDA compiler: the lists are empty, and callers need no #ifdef.
#include "core/check.h"
#include "core/device_queue.h"
#include "core/fp8_call.h"
#include "core/implementation.h"

namespace rootdk::cuda {

std::span<const ForwardImplementation> forward_implementations() { return {}; }
std::span<const BackwardImplementation> backward_implementations() { return {}; }
std::span<const Fp8ForwardImplementation> fp8_forward_implementations() { return {}; }
std::span<const Fp8BackwardImplementation> fp8_backward_implementations() { return {}; }
std::span<const QuantizeImplementation> quantize_implementations() { return {}; }

std::unique_ptr<DeviceQueue> device_queue(int device, void*) {
  fail(ErrorKind::unsupported, "attention: device ", device, ": this library was built without CUDA");
}

}  // namespace rootdk::cuda
