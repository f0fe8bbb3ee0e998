#pragma once

// What forward and backward in e4m3 share on the CPU, where they run on the kernels of f32.

#include <string>
#include <string_view>

#include "core/fp8_values.h"
#include "core/strided.h"
#include "dispatch/choose.h"

namespace rootdk::dispatch {

inline constexpr std::string_view kFp8OnCpu = "fp8_cpu";

std::string refuse_composite(Device device);

// The target that is forced on the kernels below: any name but that of this implementation.
template <class Call>
std::string_view target_below(const Call& call) {
  const std::string_view forced = forced_target(call.execution);
  return forced == kFp8OnCpu ? std::string_view{} : forced;
}

// q, k and v of a forward or backward call as numbers.
template <class Call>
QuantizedTensors quantise(const Call& call, const ConstTensorView& q, const ConstTensorView& k,
                          const ConstTensorView& v) {
  QuantizedTensors numbers = quantized_like(q, k, v, call.params);
  const QuantizeCall quantize{.q = q,
                              .k = k,
                              .v = v,
                              .to = numbers.views(),
                              .params = call.params,
                              .execution = call.execution,
                              .shape = call.shape};
  choose("quantize_for_attention", quantize, {}).run(quantize);
  return numbers;
}

// Rounds an f32 tensor into a view of the same shape.
void round_rows(const Tensor& from, const TensorView& to);

}  // namespace rootdk::dispatch
