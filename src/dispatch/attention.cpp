#include "rootdk/attention.h"

#include <cstdio>
#include <sstream>

#include "core/attention_call.h"
#include "core/check.h"
#include "core/environment.h"
#include "core/implementation.h"

namespace rootdk {
namespace {

// The order in which implementations are asked: the most specialised device first, the reference last.
template <class Call>
std::vector<Implementation<Call>> implementations();

template <>
std::vector<ForwardImplementation> implementations<ForwardCall>() {
  std::vector<ForwardImplementation> all;
  for (auto list :
       {cuda::forward_implementations(), cpu::forward_implementations(), reference::forward_implementations()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

template <>
std::vector<BackwardImplementation> implementations<BackwardCall>() {
  std::vector<BackwardImplementation> all;
  for (auto list :
       {cuda::backward_implementations(), cpu::backward_implementations(), reference::backward_implementations()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

template <class Call>
const std::vector<Implementation<Call>>& ordered() {
  static const std::vector<Implementation<Call>> all = implementations<Call>();
  return all;
}

std::string_view forced_target(const Execution& execution) {
  return execution.target.empty() ? std::string_view(environment().target) : execution.target;
}

// Asks every candidate and keeps the answers; the first that accepts is chosen.
template <class Call>
Explanation ask(const Call& call) {
  const std::string_view forced = forced_target(call.execution);
  Explanation result;
  for (const Implementation<Call>& candidate : ordered<Call>()) {
    std::string refusal = !forced.empty() && candidate.name != forced
                              ? "target " + std::string(forced) + " is asked for"
                              : candidate.refuse(call);
    if (refusal.empty() && result.chosen.empty()) result.chosen = candidate.name;
    result.candidates.push_back({std::string(candidate.name), std::move(refusal)});
  }
  return result;
}

std::string refusals(const Explanation& explanation) {
  std::ostringstream text;
  for (const auto& candidate : explanation.candidates) text << "\n  " << candidate.name << ": " << candidate.refusal;
  return text.str();
}

// The first implementation that accepts. Only a failure pays for the list of reasons.
template <class Call>
const Implementation<Call>& choose(std::string_view operation, const Call& call) {
  const std::string_view forced = forced_target(call.execution);
  for (const Implementation<Call>& candidate : ordered<Call>()) {
    if (!forced.empty() && candidate.name != forced) continue;
    if (!candidate.refuse(call).empty()) continue;
    if (environment().verbose) {
      std::fprintf(stderr, "rootdk: %.*s on %.*s\n", static_cast<int>(operation.size()), operation.data(),
                   static_cast<int>(candidate.name.size()), candidate.name.data());
    }
    return candidate;
  }
  fail(operation, ": no implementation accepts this call:", refusals(ask(call)));
}

template <class MakeCall>
Explanation explain_call(MakeCall make_call) {
  try {
    Explanation result = ask(make_call());
    if (result.chosen.empty()) result.error = "no implementation accepts this call:" + refusals(result);
    return result;
  } catch (const Error& error) {
    Explanation result;
    result.error = error.what();
    return result;
  }
}

template <class Call>
std::size_t workspace_of(std::string_view operation, const Call& call) {
  const Implementation<Call>& chosen = choose(operation, call);
  return chosen.workspace ? chosen.workspace(call) : 0;
}

}  // namespace

void attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out, const AttentionParams& params,
               const AttentionStats& stats, const Execution& execution) {
  const ForwardCall call = make_forward_call(q, k, v, out, params, stats, execution);
  choose("attention", call).run(call);
}

void attention_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                        const AttentionGradients& gradients, const AttentionParams& params,
                        const Execution& execution) {
  const BackwardCall call = make_backward_call(saved, upstream, gradients, params, execution);
  choose("attention_backward", call).run(call);
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
