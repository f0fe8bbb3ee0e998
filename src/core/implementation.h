#pragma once

// An implementation of one operation, as the dispatcher sees it. Backends hand over ordered lists of these; the first
// that accepts a call runs it.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/attention_call.h"

namespace rootdk {

template <class Call>
struct Implementation {
  std::string_view name;                            // what ROOTDK_TARGET and --target say
  std::string (*refuse)(const Call&) = nullptr;     // why it cannot run the call here; empty: it can
  void (*run)(const Call&) = nullptr;               // trusts its input
  std::size_t (*workspace)(const Call&) = nullptr;  // device scratch memory it wants; null: none
};

using ForwardImplementation = Implementation<ForwardCall>;
using BackwardImplementation = Implementation<BackwardCall>;

// What each backend folder provides; a backend that is not built provides empty lists (src/cuda/no_cuda.cpp).
namespace reference {
std::span<const ForwardImplementation> forward_implementations();
std::span<const BackwardImplementation> backward_implementations();
}  // namespace reference
namespace cpu {
std::span<const ForwardImplementation> forward_implementations();
std::span<const BackwardImplementation> backward_implementations();
}  // namespace cpu
namespace cuda {
std::span<const ForwardImplementation> forward_implementations();
std::span<const BackwardImplementation> backward_implementations();
}  // namespace cuda

}  // namespace rootdk
