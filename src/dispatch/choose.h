#pragma once

// How every operation picks its implementation: candidates are asked in order, the first that accepts runs, and each
// refusal says why. An operation specialises implementations<Call>() with its ordered list.

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/environment.h"
#include "core/immortal.h"
#include "core/implementation.h"
#include "rootdk/attention.h"

namespace rootdk::dispatch {

template <class Call>
std::vector<Implementation<Call>> implementations();

// The lists one after another.
template <class Call>
std::vector<Implementation<Call>> joined(std::initializer_list<std::span<const Implementation<Call>>> lists) {
  std::vector<Implementation<Call>> all;
  for (auto list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

template <class Call>
const std::vector<Implementation<Call>>& ordered() {
  static const std::vector<Implementation<Call>>& all = immortal(implementations<Call>());
  return all;
}

inline std::string_view forced_target(const Execution& execution) {
  return execution.target.empty() ? std::string_view(environment().target) : execution.target;
}

// The same for a call. One that runs on the kernels of another call on the CPU (Call::Below) hands a name that is one
// of that call's implementations on to it.
template <class Call>
std::string_view forced_for(const Call& call) {
  const std::string_view forced = forced_target(call.execution);
  if constexpr (requires { typename Call::Below; }) {
    const auto names_it = [&](const auto& all) {
      return std::any_of(all.begin(), all.end(), [&](const auto& candidate) { return candidate.name == forced; });
    };
    const bool on_cpu = device_of(call).kind == DeviceKind::cpu;
    if (on_cpu && !names_it(ordered<Call>()) && names_it(ordered<typename Call::Below>())) return {};
  }
  return forced;
}

// Asks every candidate and keeps the answers; the first that accepts is chosen.
template <class Call>
Explanation ask(const Call& call) {
  const std::string_view forced = forced_for(call);
  Explanation result;
  for (const Implementation<Call>& candidate : ordered<Call>()) {
    std::string refusal = !forced.empty() && candidate.name != forced
                              ? "target " + std::string(forced) + " is asked for"
                              : candidate.answer(call).refusal;
    if (refusal.empty() && result.chosen.empty()) result.chosen = candidate.name;
    result.candidates.push_back({std::string(candidate.name), std::move(refusal)});
  }
  return result;
}

// Why a call finds no implementation: in one line where that says it all, else in the words of each.
template <class Call>
std::string without_implementation(const Call& call, const Explanation& answers, std::string_view forced) {
  const auto is_forced = [&](const Explanation::Candidate& candidate) { return candidate.name == forced; };
  std::ostringstream text;
  if (!forced.empty() && std::none_of(answers.candidates.begin(), answers.candidates.end(), is_forced)) {
    text << "there is no target " << forced << " in this build; there are";
    for (const auto& candidate : answers.candidates) text << ' ' << candidate.name;
  } else if (device_of(call).kind == DeviceKind::cuda && cuda::forward_implementations().empty()) {
    text << "the tensors lie on a CUDA device, and this build has no CUDA kernels";
  } else {
    text << "no implementation accepts this call:";
    for (const auto& candidate : answers.candidates) text << "\n  " << candidate.name << ": " << candidate.refusal;
  }
  return text.str();
}

// A target that does not exist is a mistake of the caller; else nothing here serves the call.
inline ErrorKind kind_of_refusal(const Explanation& answers, std::string_view forced) {
  const auto is_forced = [&](const Explanation::Candidate& candidate) { return candidate.name == forced; };
  const bool known = forced.empty() || std::any_of(answers.candidates.begin(), answers.candidates.end(), is_forced);
  return known ? ErrorKind::unsupported : ErrorKind::invalid_argument;
}

// The answer of the first implementation that accepts; a target that is forced excludes the others. Only a failure pays
// for the list of reasons.
template <class Call>
Answer<Call> choose(std::string_view operation, const Call& call, std::string_view forced) {
  for (const Implementation<Call>& candidate : ordered<Call>()) {
    if (!forced.empty() && candidate.name != forced) continue;
    Answer<Call> answer = candidate.answer(call);
    if (!answer.refusal.empty()) continue;
    if (environment().verbose) {
      std::fprintf(stderr, "rootdk: %.*s on %.*s\n", static_cast<int>(operation.size()), operation.data(),
                   static_cast<int>(candidate.name.size()), candidate.name.data());
    }
    return answer;
  }
  const Explanation answers = ask(call);
  fail(kind_of_refusal(answers, forced), operation, ": ", without_implementation(call, answers, forced));
}

template <class Call>
Answer<Call> choose(std::string_view operation, const Call& call) {
  return choose(operation, call, forced_for(call));
}

// Memory from the caller's allocator where the workspace that came with the call is too small for what was chosen.
inline void provide_workspace(std::string_view operation, CudaExecution& execution, std::size_t bytes) {
  if (!execution.allocate || bytes == 0 || (execution.workspace && execution.workspace_bytes >= bytes)) return;
  execution.workspace = execution.allocate(execution.allocate_user, bytes);
  execution.workspace_bytes = bytes;
  require(execution.workspace != nullptr, ErrorKind::out_of_memory, operation, ": the caller's allocator has no ",
          bytes, " bytes of device workspace");
}

// Runs a call on the first implementation that accepts it.
template <class Call>
void run(std::string_view operation, const Call& call) {
  const Answer<Call> chosen = choose(operation, call);
  if (chosen.workspace_bytes == 0 || !call.execution.cuda.allocate) return chosen.run(call);
  Call with_workspace = call;
  provide_workspace(operation, with_workspace.execution.cuda, chosen.workspace_bytes);
  chosen.run(with_workspace);
}

template <class MakeCall>
Explanation explain_call(MakeCall make_call) {
  try {
    const auto call = make_call();
    Explanation result = ask(call);
    if (result.chosen.empty()) result.error = without_implementation(call, result, forced_for(call));
    return result;
  } catch (const Error& error) {
    Explanation result;
    result.error = error.what();
    return result;
  }
}

template <class Call>
std::size_t workspace_of(std::string_view operation, const Call& call) {
  return choose(operation, call).workspace_bytes;
}

}  // namespace rootdk::dispatch
