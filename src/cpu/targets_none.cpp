// A processor that no kernel is written for: the reference runs instead.
#include "cpu/targets.h"
#include "rootdk/export.h"

namespace rootdk::cpu {

ROOTDK_API std::span<const Target> targets() { return {}; }

}  // namespace rootdk::cpu
