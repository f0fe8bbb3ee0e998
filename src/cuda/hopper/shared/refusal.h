#pragma once

// What the refusals of forward, decode and backward share.

#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>

#include "rootdk/tensor.h"

namespace rootdk::cuda::hopper {

// A reason to refuse a call, with its values: the parts written one after another.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

// Why kernels for Hopper cannot run on the device; empty: they can.
std::string refuse_device(Device device);

// Why the copy engine cannot read one of the tensors; empty: it can read all that are given.
using NamedTensor = std::pair<const char*, ConstTensorView>;
std::string refuse_layout(std::initializer_list<NamedTensor> tensors);

}  // namespace rootdk::cuda::hopper
