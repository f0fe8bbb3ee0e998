// What the dispatcher asks, most specialised first.
#include "core/implementation.h"

namespace rootdk::cuda {

std::span<const ForwardImplementation> forward_implementations() { return {}; }
std::span<const BackwardImplementation> backward_implementations() { return {}; }

}  // namespace rootdk::cuda
