#include "core/implementation.h"

namespace rootdk::cpu {

std::span<const ForwardImplementation> forward_implementations() { return {}; }
std::span<const BackwardImplementation> backward_implementations() { return {}; }

}  // namespace rootdk::cpu
