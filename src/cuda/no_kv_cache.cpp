// Linked if there is no CUDA compiler. Every other implementation refuses a call on a cache in GPU memory, each with
// its reason.
#include "core/kv_call.h"

namespace rootdk::cuda {

std::span<const AppendImplementation> append_implementations() { return {}; }
std::span<const AttendImplementation> attend_implementations() { return {}; }

}  // namespace rootdk::cuda
