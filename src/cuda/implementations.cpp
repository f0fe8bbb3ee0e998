// The implementations in the order in which the dispatcher asks them, the most specialised first.
#include <array>

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

}  // namespace rootdk::cuda
