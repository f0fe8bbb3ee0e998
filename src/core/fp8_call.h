#pragma once

// Attention in e4m3 (rootdk/fp8.h) as its implementations receive it. These calls have lists of their own in the
// dispatcher: what computes in other types is never asked.

#include <span>

#include "core/attention_validator.h"
#include "core/implementation.h"
#include "rootdk/fp8.h"

namespace rootdk {

// q, k and v are e4m3 with the scales of params.fp8, or floating and still to be quantised.
struct Fp8ForwardCall : ForwardCall {
  using Below = ForwardCall;  // on the CPU it runs on the kernels of f32
  bool quantised() const { return q.dtype == DType::f8e4m3; }
};

// saved.q, k and v are floating. The gradient is that of the quantised values, handed through to the originals.
struct Fp8BackwardCall : BackwardCall {
  using Below = BackwardCall;
};

struct QuantizeCall {
  ConstTensorView q, k, v;
  QuantizedViews to;
  AttentionParams params;
  Execution execution;
  AttentionShape shape;
};
inline Device device_of(const QuantizeCall& call) { return call.q.device; }

// Whether the products of a valid call run in e4m3.
inline bool is_fp8(const ConstTensorView& q, const AttentionParams& params) {
  return q.dtype == DType::f8e4m3 || params.compute == DType::f8e4m3;
}

// Whether the mean key is taken off. A softcap and a sink see more of the scores than their differences.
inline bool takes_mean_off(const AttentionParams& params) {
  return params.logits.softcap == 0 && !params.logits.sinks.defined();
}

// The checks of compute and fp8, for every call of attention.
void check_compute(const AttentionValidator& check, const AttentionShape& shape, const ConstTensorView& q,
                   const ConstTensorView& k, const AttentionParams& params);

QuantizeCall make_quantize_call(ConstTensorView q, ConstTensorView k, ConstTensorView v, const QuantizedViews& to,
                                const AttentionParams& params, const Execution& execution);

// Memory for what quantize_for_attention writes, on the CPU: of tensors that are checked, or are checked here.
QuantizedTensors memory_for_quantized(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                      const AttentionParams& params);
QuantizedTensors quantized_like(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                const AttentionParams& params);

using Fp8ForwardImplementation = Implementation<Fp8ForwardCall>;
using Fp8BackwardImplementation = Implementation<Fp8BackwardCall>;
using QuantizeImplementation = Implementation<QuantizeCall>;

namespace reference {
std::span<const Fp8ForwardImplementation> fp8_forward_implementations();
std::span<const QuantizeImplementation> quantize_implementations();
}  // namespace reference
namespace cuda {
std::span<const Fp8ForwardImplementation> fp8_forward_implementations();
std::span<const Fp8BackwardImplementation> fp8_backward_implementations();
std::span<const QuantizeImplementation> quantize_implementations();
}  // namespace cuda

}  // namespace rootdk
