// Linked if there is no CUDA compiler: the lists are empty, and callers need no #ifdef.
#include "core/implementation.h"

namespace rootdk::cuda {

std::span<const ForwardImplementation> forward_implementations() { return {}; }
std::span<const BackwardImplementation> backward_implementations() { return {}; }

}  // namespace rootdk::cuda
