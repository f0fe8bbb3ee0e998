// There are no kernels for a KV cache on the GPU: calls on one are refused by everybody, each saying why.
#include "core/kv_call.h"

namespace rootdk::cuda {

std::span<const AppendImplementation> append_implementations() { return {}; }
std::span<const AttendImplementation> attend_implementations() { return {}; }

}  // namespace rootdk::cuda
