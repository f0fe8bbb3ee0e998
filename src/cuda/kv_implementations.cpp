// The implementations for a KV cache on a device, in the order in which the dispatcher asks them.
#include <array>

#include "core/kv_call.h"
#include "cuda/hopper/hopper.h"
#include "cuda/kv/append.h"
#include "cuda/portable/portable.h"

namespace rootdk::cuda {

std::span<const AppendImplementation> append_implementations() {
  static const std::array all = {kv::append()};
  return all;
}
std::span<const AttendImplementation> attend_implementations() {
  static const std::array all = {hopper::attend(), portable::attend()};
  return all;
}

}  // namespace rootdk::cuda
