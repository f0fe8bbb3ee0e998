// For processors without kernels: the reference does everything.
#include "cpu/decode_targets.h"
#include "rootdk/export.h"

namespace rootdk::cpu {

ROOTDK_API std::span<const DecodeTarget> decode_targets() { return {}; }

}  // namespace rootdk::cpu
