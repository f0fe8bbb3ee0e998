// The implementations in the order in which the dispatcher asks them, the most specialised first.
#include <array>

#include "core/fp8_call.h"
#include "core/implementation.h"
#include "cuda/hopper/hopper.h"
#include "cuda/portable/portable.h"

namespace rootdk::cuda {

std::span<const ForwardImplementation> forward_implementations() {
  static const std::array all = {hopper::forward(), portable::forward()};
  return all;
}
std::span<const BackwardImplementation> backward_implementations() {
  static const std::array all = {hopper::backward(), portable::backward()};
  return all;
}

std::span<const Fp8ForwardImplementation> fp8_forward_implementations() {
  static const std::array all = {hopper::fp8_forward()};
  return all;
}
std::span<const Fp8BackwardImplementation> fp8_backward_implementations() {
  static const std::array all = {hopper::fp8_backward()};
  return all;
}
std::span<const QuantizeImplementation> quantize_implementations() { return {}; }

}  // namespace rootdk::cuda
