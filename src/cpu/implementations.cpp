#include "core/implementation.h"

#include <utility>
#include <vector>

#include "core/environment.h"
#include "core/immortal.h"
#include "cpu/backward.h"
#include "cpu/decode_targets.h"
#include "cpu/few_queries.h"
#include "cpu/forward.h"
#include "cpu/targets.h"

namespace rootdk::cpu {
namespace {

constexpr std::size_t kMaxTargets = 8;
constexpr std::int64_t kMaxHeadDim = 512;

std::string refuse_tensors(const Target& target, const ConstTensorView& q, const AttentionShape& shape, Score score) {
  if (q.device.kind != DeviceKind::cpu) return "the tensors lie on a CUDA device";
  if (q.dtype == DType::f64) return "f64 is computed by the reference, in plain loops without SIMD: exact, and slow";
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

// Implementations are plain function pointers, made for each target from its index.
template <std::size_t I>
ForwardImplementation forward_implementation() {
  return {.name = targets()[I].name, .answer = [](const ForwardCall& call) {
            auto answer = accept_unless<ForwardCall>(
                refuse_tensors(targets()[I], call.q, call.shape, call.params.score),
                [](const ForwardCall& accepted) { run_forward(accepted, targets()[I].kernels()); });
            answer.carries_rows = answer.refusal.empty();
            return answer;
          }};
}

// The name under which the best decode kernels of this processor run attention() with the bits of attend(), and its
// gradients.
constexpr std::string_view kAsDecode = "decode";

bool is_asked_for(const Execution& execution, std::string_view name) {
  return (execution.target.empty() ? std::string_view(environment().target) : execution.target) == name;
}

std::string refuse_few(const DecodeTarget& target, const ForwardCall& call, bool asked_for) {
  if (call.q.device.kind != DeviceKind::cpu) return "the tensors lie on a CUDA device";
  if (call.q.dtype == DType::f64)
    return "f64 is computed by the reference, in plain loops without SIMD: exact, and slow";
  if (call.shape.head_dim > kMaxHeadDim || call.shape.value_dim > kMaxHeadDim) return "head_dim is too large";
  std::string refusal = refuse_few_queries(call, asked_for);
  return refusal.empty() ? target.missing() : refusal;
}

// The pooled map, column_mass and exact weights, which are the fused kernels' alone. The output stays that of the rows:
// its bits do not depend on which statistics are asked for.
void run_maps(const ForwardCall& call) {
  ForwardCall maps = call;
  Tensor out(call.out.dtype, std::span(call.out.shape).first(4));
  maps.out = out;
  const AttentionStats all = call.stats;
  maps.stats = AttentionStats{};
  maps.stats.column_mass = all.column_mass;
  maps.stats.pooled_map = all.pooled_map;
  maps.stats.weights = all.weights;
  for (const Target& target : targets()) {
    if (!refuse_tensors(target, call.q, call.shape, call.params.score).empty()) continue;
    return run_forward(maps, target.kernels());
  }
}

void run_few(const DecodeTarget& target, const ForwardCall& call) {
  run_few_queries(call, target.kernels());
  const AttentionStats& stats = call.stats;
  if (stats.column_mass.defined() || stats.pooled_map.defined() || stats.weights.defined()) run_maps(call);
}

// Few queries on the kernels of decoding, under names that say so.
template <std::size_t I>
ForwardImplementation few_queries_implementation() {
  static const std::string& name = immortal("decode_" + std::string(decode_targets()[I].name));
  return {.name = name, .answer = [](const ForwardCall& call) {
            const std::string refusal = refuse_few(decode_targets()[I], call, is_asked_for(call.execution, name));
            return accept_unless<ForwardCall>(
                refusal, [](const ForwardCall& accepted) { run_few(decode_targets()[I], accepted); });
          }};
}

// The target that attend() would choose.
const DecodeTarget* best_decode_target() {
  for (const DecodeTarget& target : decode_targets()) {
    if (target.missing().empty()) return &target;
  }
  return nullptr;
}

ForwardImplementation as_decode() {
  return {.name = kAsDecode, .answer = [](const ForwardCall& call) {
            const DecodeTarget* target = best_decode_target();
            if (!target) return Answer<ForwardCall>{.refusal = "this build has no decode kernels"};
            if (!is_asked_for(call.execution, kAsDecode)) {
              return Answer<ForwardCall>{.refusal = "it runs where it is asked for by name"};
            }
            return accept_unless<ForwardCall>(refuse_few(*target, call, true), [](const ForwardCall& accepted) {
              run_few(*best_decode_target(), accepted);
            });
          }};
}

// Gradients know no decoding: those of the first target that takes the call.
const Target* backward_target(const BackwardCall& call) {
  for (const Target& target : targets()) {
    if (refuse_tensors(target, call.saved.q, call.shape, call.params.score).empty()) return &target;
  }
  return nullptr;
}

BackwardImplementation backward_as_decode() {
  return {.name = kAsDecode, .answer = [](const BackwardCall& call) {
            std::string refusal;
            if (!is_asked_for(call.execution, kAsDecode))
              refusal = "it runs where it is asked for by name";
            else if (!backward_target(call))
              refusal = "no target of the CPU takes this call";
            return accept_unless<BackwardCall>(refusal, [](const BackwardCall& accepted) {
              run_backward(accepted, backward_target(accepted)->backward());
            });
          }};
}

template <std::size_t I>
void add_few_queries(std::vector<ForwardImplementation>& list) {
  if constexpr (I < kMaxTargets) {
    if (I >= decode_targets().size()) return;
    if (decode_targets()[I].few_queries) list.push_back(few_queries_implementation<I>());
    add_few_queries<I + 1>(list);
  }
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
std::vector<ForwardImplementation> make_forward(std::index_sequence<I...>) {
  std::vector<ForwardImplementation> all;
  add_few_queries<0>(all);
  for (const ForwardImplementation& one :
       {(I < targets().size() ? forward_implementation<I>() : ForwardImplementation{})...}) {
    if (one.answer) all.push_back(one);
  }
  if (!decode_targets().empty()) all.push_back(as_decode());
  return all;
}

template <std::size_t... I>
std::vector<BackwardImplementation> make_backward(std::index_sequence<I...>) {
  std::vector<BackwardImplementation> all;
  for (const BackwardImplementation& one :
       {(I < targets().size() ? backward_implementation<I>() : BackwardImplementation{})...}) {
    if (one.answer) all.push_back(one);
  }
  if (!decode_targets().empty()) all.push_back(backward_as_decode());
  return all;
}

}  // namespace

std::span<const ForwardImplementation> forward_implementations() {
  static const auto& all = immortal(make_forward(std::make_index_sequence<kMaxTargets>{}));
  return all;
}

std::span<const BackwardImplementation> backward_implementations() {
  static const auto& all = immortal(make_backward(std::make_index_sequence<kMaxTargets>{}));
  return all;
}

}  // namespace rootdk::cpu
