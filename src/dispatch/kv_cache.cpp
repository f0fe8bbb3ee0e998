#include "rootdk/kv_cache.h"

#include "core/kv_call.h"
#include "dispatch/choose.h"

namespace rootdk {
namespace dispatch {

template <>
std::vector<AppendImplementation> implementations<AppendCall>() {
  return joined<AppendCall>(
      {cuda::append_implementations(), cpu::append_implementations(), reference::append_implementations()});
}

template <>
std::vector<AttendImplementation> implementations<AttendCall>() {
  return joined<AttendCall>(
      {cuda::attend_implementations(), cpu::attend_implementations(), reference::attend_implementations()});
}

}  // namespace dispatch

// Metadata is committed after validation, before data is written, and taken back where writing fails: whatever throws
// leaves the cache as it was. Targets are names of attention kernels: one that is forced does not apply here, where
// numbers are only moved.
void append(KvCache& cache, ConstTensorView k, ConstTensorView v, KvSteps steps, const AppendParams& params,
            const Execution& execution) {
  AppendCall call = make_append_call(cache.state(), k, v, steps, params, execution);
  const Answer<AppendCall> chosen = dispatch::choose("append", call, {});
  commit_append_call(cache.state(), steps, call);
  try {
    chosen.run(call);
  } catch (...) {
    cache.state().undo_append(steps, call.layer, call.copies);
    throw;
  }
}

void attend(const KvCache& cache, ConstTensorView q, TensorView out, KvSteps steps, const AttendParams& params,
            const AttentionStats& stats, const Execution& execution) {
  dispatch::run("attend", make_attend_call(cache.state(), q, out, steps, params, stats, execution));
}

std::size_t attend_workspace(const KvCache& cache, ConstTensorView q, TensorView out, KvSteps steps,
                             const AttendParams& params, const AttentionStats& stats, const Execution& execution) {
  return dispatch::workspace_of("attend_workspace",
                                make_attend_call(cache.state(), q, out, steps, params, stats, execution));
}

Explanation explain_attend(const KvCache& cache, ConstTensorView q, TensorView out, KvSteps steps,
                           const AttendParams& params, const AttentionStats& stats, const Execution& execution) {
  return dispatch::explain_call(
      [&] { return make_attend_call(cache.state(), q, out, steps, params, stats, execution); });
}

}  // namespace rootdk
