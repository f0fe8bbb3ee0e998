#include "core/kv_call.h"

namespace rootdk::cpu {

std::span<const AppendImplementation> append_implementations() { return {}; }
std::span<const AttendImplementation> attend_implementations() { return {}; }

}  // namespace rootdk::cpu
