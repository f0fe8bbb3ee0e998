#pragma once

// The checks of LogitParams, the same for attention() and attend().

#include <cstdint>
#include <string_view>

#include "rootdk/attention.h"

namespace rootdk {

// scale / temperature. Throws where a number makes no sense, or where it, or what kernels make of it, is over what they
// hold in f32 (q in f64 runs in double): an infinity there would come out as NaN.
double checked_logit_scale(std::string_view operation, const LogitParams& params, std::int64_t head_dim, DType q);

// The call whose tensors are checked: the type and the device that they must have, and what lies there.
struct LogitCheck {
  std::string_view operation;
  DType dtype;
  Device device;
  std::string_view device_of;  // "q", "the cache"
};

// Throws where relative_table, alibi_slopes or sinks do not fit the heads.
void check_logit_tensors(const LogitCheck& check, const LogitParams& params, std::int64_t heads);

}  // namespace rootdk
