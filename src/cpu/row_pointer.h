#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rootdk/tensor.h"

namespace rootdk::cpu {

// Element (b, h, i, 0) of a rank-4 view of any type.
template <class View>
auto* row_pointer(const View& view, std::int64_t b, std::int64_t h, std::int64_t i) {
  using Byte = std::conditional_t<View::kWritable, std::byte, const std::byte>;
  const std::int64_t offset = b * view.stride(0) + h * view.stride(1) + i * view.stride(2);
  return static_cast<Byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace rootdk::cpu
