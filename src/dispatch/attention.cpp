#include "rootdk/attention.h"

#include "core/attention_call.h"
#include "core/fp8_call.h"
#include "dispatch/choose.h"
#include "dispatch/planned.h"

namespace rootdk {
namespace dispatch {

// The order in which implementations are asked: the most specialised device first, the reference last.
template <>
std::vector<ForwardImplementation> implementations<ForwardCall>() {
  return joined<ForwardCall>(
      {cuda::forward_implementations(), cpu::forward_implementations(), reference::forward_implementations()});
}

template <>
std::vector<BackwardImplementation> implementations<BackwardCall>() {
  return joined<BackwardCall>(
      {cuda::backward_implementations(), cpu::backward_implementations(), reference::backward_implementations()});
}

namespace {

constexpr const char* kForward = "attention";
constexpr const char* kBackward = "attention_backward";

template <class Call>
void run_with_workspace(std::string_view operation, Planned<Call>& planned) {
  provide_workspace(operation, planned.call.execution.cuda, planned.answer.workspace_bytes);
  planned.answer.run(planned.call);
}

}  // namespace

Planned<ForwardCall> plan_attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                                    const AttentionParams& params, const AttentionStats& stats,
                                    const Execution& execution) {
  Planned<ForwardCall> planned{make_forward_call(q, k, v, out, params, stats, execution), {}};
  planned.answer = choose(kForward, planned.call);
  return planned;
}

Planned<BackwardCall> plan_attention_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                              const AttentionGradients& gradients, const AttentionParams& params,
                                              const Execution& execution) {
  Planned<BackwardCall> planned{make_backward_call(saved, upstream, gradients, params, execution), {}};
  planned.answer = choose(kBackward, planned.call);
  return planned;
}

void run_planned(Planned<ForwardCall>& planned) { run_with_workspace(kForward, planned); }
void run_planned(Planned<BackwardCall>& planned) { run_with_workspace(kBackward, planned); }

}  // namespace dispatch

using dispatch::explain_call;
using dispatch::workspace_of;

namespace {

// Hands the call to `body`, as the kind of call that it is.
template <class Body>
auto as_its_kind(const ForwardCall& call, Body body) {
  return is_fp8(call.q, call.params) ? body(Fp8ForwardCall{call}) : body(call);
}
template <class Body>
auto as_its_kind(const BackwardCall& call, Body body) {
  return is_fp8(call.saved.q, call.params) ? body(Fp8BackwardCall{call}) : body(call);
}

}  // namespace

void attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out, const AttentionParams& params,
               const AttentionStats& stats, const Execution& execution) {
  const ForwardCall call = make_forward_call(q, k, v, out, params, stats, execution);
  as_its_kind(call, [](const auto& kind) { dispatch::run("attention", kind); });
}

void attention_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                        const AttentionGradients& gradients, const AttentionParams& params,
                        const Execution& execution) {
  const BackwardCall call = make_backward_call(saved, upstream, gradients, params, execution);
  as_its_kind(call, [](const auto& kind) { dispatch::run("attention_backward", kind); });
}

std::size_t attention_workspace(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                                const AttentionParams& params, const AttentionStats& stats,
                                const Execution& execution) {
  return as_its_kind(make_forward_call(q, k, v, out, params, stats, execution),
                     [](const auto& call) { return workspace_of("attention_workspace", call); });
}

std::size_t attention_backward_workspace(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                         const AttentionGradients& gradients, const AttentionParams& params,
                                         const Execution& execution) {
  return as_its_kind(make_backward_call(saved, upstream, gradients, params, execution),
                     [](const auto& call) { return workspace_of("attention_backward_workspace", call); });
}

Explanation explain(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const AttentionParams& params, const AttentionStats& stats, const Execution& execution) {
  const auto make = [&] { return make_forward_call(q, k, v, out, params, stats, execution); };
  if (is_fp8(q, params)) return explain_call([&] { return Fp8ForwardCall{make()}; });
  return explain_call(make);
}

Explanation explain_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                             const AttentionGradients& gradients, const AttentionParams& params,
                             const Execution& execution) {
  const auto make = [&] { return make_backward_call(saved, upstream, gradients, params, execution); };
  if (is_fp8(saved.q, params)) return explain_call([&] { return Fp8BackwardCall{make()}; });
  return explain_call(make);
}

}  // namespace rootdk
