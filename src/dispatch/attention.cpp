#include "rootdk/attention.h"

#include "core/attention_call.h"
#include "dispatch/choose.h"

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

}  // namespace dispatch

using dispatch::explain_call;
using dispatch::workspace_of;

void attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out, const AttentionParams& params,
               const AttentionStats& stats, const Execution& execution) {
  dispatch::run("attention", make_forward_call(q, k, v, out, params, stats, execution));
}

void attention_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                        const AttentionGradients& gradients, const AttentionParams& params,
                        const Execution& execution) {
  dispatch::run("attention_backward", make_backward_call(saved, upstream, gradients, params, execution));
}

std::size_t attention_workspace(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                                const AttentionParams& params, const AttentionStats& stats,
                                const Execution& execution) {
  return workspace_of("attention_workspace", make_forward_call(q, k, v, out, params, stats, execution));
}

std::size_t attention_backward_workspace(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                         const AttentionGradients& gradients, const AttentionParams& params,
                                         const Execution& execution) {
  return workspace_of("attention_backward_workspace",
                      make_backward_call(saved, upstream, gradients, params, execution));
}

Explanation explain(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const AttentionParams& params, const AttentionStats& stats, const Execution& execution) {
  return explain_call([&] { return make_forward_call(q, k, v, out, params, stats, execution); });
}

Explanation explain_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                             const AttentionGradients& gradients, const AttentionParams& params,
                             const Execution& execution) {
  return explain_call([&] { return make_backward_call(saved, upstream, gradients, params, execution); });
}

}  // namespace rootdk
