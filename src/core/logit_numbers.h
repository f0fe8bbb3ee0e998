#pragma once

// The numbers that make a score a logit, checked alike for attention() and attend().

#include <cstdint>
#include <string_view>

#include "rootdk/attention.h"

namespace rootdk {

struct LogitNumbers {
  Scale scale;
  double temperature, softcap;
};

// scale / temperature. Throws where a number makes no sense, or where it, or what kernels make of it, is over what they
// hold in f32 (q in f64 runs in double): an infinity there would come out as NaN.
double checked_logit_scale(std::string_view operation, const LogitNumbers& numbers, std::int64_t head_dim, DType q);

}  // namespace rootdk
