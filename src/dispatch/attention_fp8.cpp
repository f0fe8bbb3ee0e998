// Attention in e4m3: its implementations, and the one on the CPU. That one quantises, and attends to the values of the
// numbers with the kernels of f32, which round weights to e4m3.

#include <optional>

#include "dispatch/fp8_composite.h"

namespace rootdk {
namespace dispatch {
namespace {

// lse and max_logit get back what the mean key took off.
void add_shift(const TensorView& statistic, const TensorView& q_shift, double logit_scale) {
  if (!statistic.defined() || !q_shift.defined()) return;
  const auto to = write<float, 3>(statistic);
  const auto shift = read<float, 3>(q_shift);
  for (std::int64_t b = 0; b < statistic.size(0); ++b) {
    for (std::int64_t h = 0; h < statistic.size(1); ++h) {
      for (std::int64_t i = 0; i < statistic.size(2); ++i) {
        to(b, h, i) += shift(b, h, i) * static_cast<float>(logit_scale);
      }
    }
  }
}

void forward_on_values(const Fp8ForwardCall& call) {
  std::optional<QuantizedTensors> quantised;
  if (!call.quantised()) quantised = quantise(call, call.q, call.k, call.v);
  const QuantizedViews numbers = quantised ? quantised->views() : numbers_of(call);
  const Fp8Values values = values_of(numbers, call.shape, call.params, DType::f32, executor_of(call.execution));
  ForwardCall plain = call;
  plain.params.compute = DType::f8e4m3;  // f32 kernels take it as the type of the weights
  plain.params.fp8 = {};
  plain.q = values.q;
  plain.k = values.k;
  plain.v = values.v;
  Tensor out;
  if (call.out.dtype != DType::f32) {
    out = Tensor(DType::f32, std::span(call.out.shape).first(4));
    plain.out = out;
  }
  choose("attention", plain, target_below(call)).run(plain);
  if (out.defined()) round_rows(out, call.out);
  add_shift(call.stats.lse, numbers.q_shift, call.logit_scale);
  add_shift(call.stats.max_logit, numbers.q_shift, call.logit_scale);
}

constexpr Fp8ForwardImplementation kOnValues[] = {{.name = kFp8OnCpu, .answer = [](const Fp8ForwardCall& call) {
                                                     return accept_unless(refuse_composite(call.q.device),
                                                                          forward_on_values);
                                                   }}};

}  // namespace

template <>
std::vector<Fp8ForwardImplementation> implementations<Fp8ForwardCall>() {
  return joined<Fp8ForwardCall>(
      {cuda::fp8_forward_implementations(), kOnValues, reference::fp8_forward_implementations()});
}

template <>
std::vector<QuantizeImplementation> implementations<QuantizeCall>() {
  return joined<QuantizeCall>({cuda::quantize_implementations(), reference::quantize_implementations()});
}

std::string refuse_composite(Device device) {
  return device.kind == DeviceKind::cpu ? "" : "the tensors lie on a CUDA device";
}

void round_rows(const Tensor& from, const TensorView& to) {
  const auto source = read<float, 4>(from);
  with_floating_type(to.dtype, [&](auto type) {
    using T = decltype(type);
    const auto target = write<T, 4>(to);
    for (std::int64_t b = 0; b < to.size(0); ++b) {
      for (std::int64_t h = 0; h < to.size(1); ++h) {
        for (std::int64_t i = 0; i < to.size(2); ++i) {
          for (std::int64_t d = 0; d < to.size(3); ++d) target(b, h, i, d) = static_cast<T>(source(b, h, i, d));
        }
      }
    }
  });
}

}  // namespace dispatch

void quantize_for_attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, const QuantizedViews& to,
                            const AttentionParams& params, const Execution& execution) {
  const QuantizeCall call = make_quantize_call(q, k, v, to, params, execution);
  // Targets are names of attention kernels, and one that is forced does not apply here.
  dispatch::choose("quantize_for_attention", call, {}).run(call);
}

std::size_t quantize_for_attention_workspace(ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                             const QuantizedViews& to, const AttentionParams& params,
                                             const Execution& execution) {
  const QuantizeCall call = make_quantize_call(q, k, v, to, params, execution);
  return dispatch::choose("quantize_for_attention_workspace", call, {}).workspace_bytes;
}

QuantizedTensors quantize_for_attention(ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                        const AttentionParams& params, const Execution& execution) {
  QuantizedTensors result = memory_for_quantized(q, k, v, params);
  quantize_for_attention(q, k, v, result.views(), params, execution);
  return result;
}

}  // namespace rootdk
