#include "core/implementation.h"

#include <utility>

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/targets.h"

namespace rootdk::cpu {
namespace {

constexpr std::size_t kMaxTargets = 8;
constexpr std::int64_t kMaxHeadDim = 512;

std::string refuse_tensors(const Target& target, const ConstTensorView& q, const AttentionShape& shape, Score score) {
  if (q.device.kind != DeviceKind::cpu) return "the tensors lie on a CUDA device";
  if (q.dtype == DType::f64) return "f64 is computed by the reference";
  if (shape.head_dim > kMaxHeadDim || shape.value_dim > kMaxHeadDim) {
    return "head_dim " + std::to_string(shape.head_dim) + " and value_dim " + std::to_string(shape.value_dim) +
           " must be at most " + std::to_string(kMaxHeadDim);
  }
  if (target.bf16_products && q.dtype != DType::bf16) {
    return "its products are in bf16, and q is " + std::string(name_of(q.dtype));
  }
  if (target.bf16_products && score != Score::dot) return "its products are in bf16, and this score needs f32";
  return target.missing();
}

// Implementations are plain function pointers: one per target, made from its index.
template <std::size_t I>
ForwardImplementation forward_implementation() {
  return {.name = targets()[I].name, .answer = [](const ForwardCall& call) {
            return accept_unless<ForwardCall>(
                refuse_tensors(targets()[I], call.q, call.shape, call.params.score),
                [](const ForwardCall& accepted) { run_forward(accepted, targets()[I].kernels()); });
          }};
}

template <std::size_t I>
BackwardImplementation backward_implementation() {
  return {.name = targets()[I].name, .answer = [](const BackwardCall& call) {
            return accept_unless<BackwardCall>(
                refuse_tensors(targets()[I], call.saved.q, call.shape, call.params.score),
                [](const BackwardCall& accepted) { run_backward(accepted, targets()[I].backward()); });
          }};
}

template <std::size_t... I>
std::array<ForwardImplementation, kMaxTargets> make_forward(std::index_sequence<I...>) {
  return {(I < targets().size() ? forward_implementation<I>() : ForwardImplementation{})...};
}

template <std::size_t... I>
std::array<BackwardImplementation, kMaxTargets> make_backward(std::index_sequence<I...>) {
  return {(I < targets().size() ? backward_implementation<I>() : BackwardImplementation{})...};
}

}  // namespace

std::span<const ForwardImplementation> forward_implementations() {
  static const auto all = make_forward(std::make_index_sequence<kMaxTargets>{});
  return std::span(all).first(targets().size());
}

std::span<const BackwardImplementation> backward_implementations() {
  static const auto all = make_backward(std::make_index_sequence<kMaxTargets>{});
  return std::span(all).first(targets().size());
}

}  // namespace rootdk::cpu
