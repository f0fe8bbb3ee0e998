#pragma once

// An implementation of one operation, as the dispatcher sees it. Backends hand over ordered lists of these; the first
// that accepts a call runs it.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/attention_call.h"

namespace rootdk {

// What an implementation answers to a call: a reason to refuse it, or everything it has chosen for it, ready to run.
// Kernel and tile shape are chosen once, here; run() carries the choice.
template <class Call>
struct Answer {
  std::string refusal = {};         // why it cannot run the call here; empty: it can
  std::size_t workspace_bytes = 0;  // device scratch memory that run() needs
  bool carries_rows = false;        // run() takes a call with CarriedRows, too
  // Takes the call that was asked about, or one that differs in addresses alone, equally aligned: the workspace may
  // have been given since, and a forward or backward call may come again with other tensors. Trusts its input.
  std::function<void(const Call&)> run = {};
};

// The answer of an implementation that has nothing to choose in advance.
template <class Call>
Answer<Call> accept_unless(std::string refusal, void (*run)(const Call&)) {
  if (!refusal.empty()) return {.refusal = std::move(refusal)};
  return {.run = run};
}

template <class Call>
struct Implementation {
  std::string_view name;  // what ROOTDK_TARGET and --target say
  Answer<Call> (*answer)(const Call&) = nullptr;
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
