// Linked where the CUDA compiler is absent: the lists are empty, and no caller needs to know why.
#include "core/implementation.h"

namespace rootdk::cuda {

std::span<const ForwardImplementation> forward_implementations() { return {}; }
std::span<const BackwardImplementation> backward_implementations() { return {}; }

}  // namespace rootdk::cuda
