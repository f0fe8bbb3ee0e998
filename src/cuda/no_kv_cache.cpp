// Linked where the CUDA compiler is absent: calls on a cache that lies on a GPU are refused by everybody, each saying
// why.
#include "core/kv_call.h"

namespace rootdk::cuda {

std::span<const AppendImplementation> append_implementations() { return {}; }
std::span<const AttendImplementation> attend_implementations() { return {}; }

}  // namespace rootdk::cuda
