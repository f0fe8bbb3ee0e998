#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rootdk/tensor.h"

namespace rootdk {

// The whole numbers of a tensor [batch, len] of i32, i64 or booleans, row by row. Throws rootdk::Error that names the
// tensor where it has another type or shape, or a number that is no token id; batch 0 takes any.
std::vector<std::int32_t> token_ids(const ConstTensorView& view, std::string_view name, std::int64_t batch = 0);

}  // namespace rootdk
