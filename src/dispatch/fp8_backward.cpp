// The gradient of attention in e4m3, straight through the rounding: the backward pass of f32 on the values of the
// numbers that the forward pass used, with its lse and output. q and k get their gradients as if they had been those
// values.

#include <cmath>

#include "dispatch/fp8_composite.h"

namespace rootdk::dispatch {
namespace {

// The tensors of a backward call in f32.
struct PlainTensors {
  Tensor out, grad_out, lse;      // what comes in
  Tensor grad_q, grad_k, grad_v;  // what goes out
};

// lse of the keys without their mean.
Tensor shifted_lse(const ConstTensorView& lse, const Tensor& q_shift, double logit_scale) {
  Tensor result = convert(lse, DType::f32);
  const auto shift = q_shift.values<float>();
  const auto values = result.values<float>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= shift[i] * static_cast<float>(logit_scale);
  return result;
}

void rotate_rows_back(Tensor& gradient, Executor& executor) {
  if (!gradient.defined()) return;
  const auto values = gradient.values<float>();
  const auto row = static_cast<std::size_t>(gradient.size(3));
  executor.parallel_for(gradient.elements() / gradient.size(3), [&](std::int64_t r) {
    rotate_channels_back(values.subspan(static_cast<std::size_t>(r) * row, row));
  });
}

// lse is that of the keys with their mean, so that its gradient reaches q through the mean, too. (The weights do not
// see the mean: their gradients with respect to the logits of a row add up to 0.)
void add_gradient_of_shift(const Fp8BackwardCall& call, const Tensor& key_mean, Tensor& grad_q) {
  if (!grad_q.defined() || !call.upstream.lse.defined() || !takes_mean_off(call.params)) return;
  const auto grad_lse = read<float, 3>(call.upstream.lse);
  const auto lse = read<float, 3>(call.saved.lse);
  const auto mean = read<float, 3>(key_mean);
  const auto to = write<float, 4>(grad_q.view());
  for (std::int64_t sequence = 0; sequence < call.shape.batch; ++sequence) {
    const SequenceRange range = sequence_range(call.shape, call.params, sequence);
    for (std::int64_t h = 0; h < call.shape.heads; ++h) {
      for (std::int64_t r = range.q_begin; r < range.q_begin + range.q_len; ++r) {
        if (std::isinf(lse(range.batch_entry, h, r))) continue;  // no key, no gradient
        const float g = grad_lse(range.batch_entry, h, r) * static_cast<float>(call.logit_scale);
        for (std::int64_t d = 0; d < call.shape.head_dim; ++d) {
          to(range.batch_entry, h, r, d) += g * mean(sequence, h / call.shape.group(), d);
        }
      }
    }
  }
}

PlainTensors plain_tensors(const Fp8BackwardCall& call, const QuantizedTensors& numbers) {
  const auto memory = [](const TensorView& gradient) {
    return gradient.defined() ? Tensor(DType::f32, std::span(gradient.shape).first(4)) : Tensor();
  };
  return {.out = convert(call.saved.out, DType::f32),
          .grad_out = convert(call.upstream.out, DType::f32),
          .lse = shifted_lse(call.saved.lse, numbers.q_shift, call.logit_scale),
          .grad_q = memory(call.gradients.q),
          .grad_k = memory(call.gradients.k),
          .grad_v = memory(call.gradients.v)};
}

void backward_on_values(const Fp8BackwardCall& call) {
  Executor& executor = executor_of(call.execution);
  QuantizedTensors numbers = quantise(call, call.saved.q, call.saved.k, call.saved.v);
  const Fp8Values values = values_of(numbers.views(), call.shape, call.params, DType::f32, executor);
  PlainTensors tensors = plain_tensors(call, numbers);
  BackwardCall plain = call;
  plain.params.compute.reset();
  plain.params.fp8 = {};
  plain.saved.q = values.q;
  plain.saved.k = values.k;
  plain.saved.v = values.v;
  plain.saved.out = tensors.out;
  plain.saved.lse = tensors.lse;
  plain.upstream.out = tensors.grad_out;
  plain.gradients.q = tensors.grad_q;
  plain.gradients.k = tensors.grad_k;
  plain.gradients.v = tensors.grad_v;
  choose("attention_backward", plain, target_below(call)).run(plain);
  if (call.params.fp8.rotate) {
    rotate_rows_back(tensors.grad_q, executor);
    rotate_rows_back(tensors.grad_k, executor);
  }
  add_gradient_of_shift(call, numbers.key_mean, tensors.grad_q);
  if (call.gradients.q.defined()) round_rows(tensors.grad_q, call.gradients.q);
  if (call.gradients.k.defined()) round_rows(tensors.grad_k, call.gradients.k);
  if (call.gradients.v.defined()) round_rows(tensors.grad_v, call.gradients.v);
}

constexpr Fp8BackwardImplementation kOnValues[] = {{.name = kFp8OnCpu, .answer = [](const Fp8BackwardCall& call) {
                                                      return accept_unless(refuse_composite(call.saved.q.device),
                                                                           backward_on_values);
                                                    }}};

}  // namespace

template <>
std::vector<Fp8BackwardImplementation> implementations<Fp8BackwardCall>() {
  return joined<Fp8BackwardCall>({cuda::fp8_backward_implementations(), kOnValues});
}

}  // namespace rootdk::dispatch
