#include "distributed/device_work.h"

#include <algorithm>

#include "core/check.h"

namespace rootdk::distributed {
namespace {

constexpr std::size_t kStreams = 4;

}  // namespace

DevicePlan device_plan(const Call& call, int rank) {
  const Shares &queries = call.distributed.queries, &keys = call.distributed.keys;
  const auto here = static_cast<std::size_t>(rank);
  DevicePlan plan;
  for (std::size_t r = 0; r < queries.size(); ++r) {
    const std::vector<DevicePart> parts = device_parts(call.whole, queries[r]);
    plan.wanted.push_back(common_rows(keys[here], keys_seen(parts)));
    if (r != here) continue;
    plan.calls = device_calls(parts, call.whole.shape.batch);
    const std::vector<RowRange> seen = keys_seen(parts);
    if (!seen.empty()) plan.seen = {seen.front().begin, seen.back().end};
    for (const auto& share : keys) plan.coming.push_back(common_rows(share, seen));
  }
  return plan;
}

GatheredKeys gather_keys(const DeviceLink& link, const Call& call, const DevicePlan& plan, const ConstTensorView& k,
                         const ConstTensorView& v) {
  const std::int64_t rows = plan.seen.end - plan.seen.begin;
  GatheredKeys all;
  all.k = device_rows(link.queue, k.dtype, k, rows);
  all.v = device_rows(link.queue, v.dtype, v, rows);
  all.rows = {.tensors = {all.k.view, all.v.view}, .first = plan.seen.begin};
  const RowMap share(call.distributed.keys[static_cast<std::size_t>(link.transport.rank())]);
  exchange_rows(link, {.tensors = {k, v}, .share = share}, plan.wanted,
                {.tensors = {all.k.view, all.v.view}, .first = plan.seen.begin}, plan.coming, Arrival::replace);
  return all;
}

CallStarts::CallStarts(DeviceQueue& queue, const std::vector<DeviceCall>& calls, bool all_packed) {
  std::vector<std::int32_t> starts;
  for (const DeviceCall& call : calls) {
    first_.push_back(-1);
    if (!call.packed() && !all_packed) continue;
    first_.back() = static_cast<std::int64_t>(starts.size());
    std::int64_t queries = 0, keys = 0;
    std::vector<std::int32_t> of_keys = {0};
    starts.push_back(0);
    for (const DevicePart& part : call.parts) {
      starts.push_back(static_cast<std::int32_t>(queries += part.rows()));
      of_keys.push_back(static_cast<std::int32_t>(keys += part.key_count()));
    }
    starts.insert(starts.end(), of_keys.begin(), of_keys.end());
  }
  if (starts.empty()) return;
  memory_ = device_tensor(queue, DType::i32, {static_cast<std::int64_t>(starts.size())});
  queue.copy(memory_.view.data, starts.data(), starts.size() * sizeof starts[0]);
}

AttentionParams CallStarts::params(const AttentionParams& whole, const DeviceCall& call, std::size_t index) const {
  AttentionParams params = params_of_rank(whole);
  const KeyWindow& window = call.parts[0].window;
  params.causal = window.causal;
  params.window_left = window.left;
  params.window_right = window.right;
  params.max_q_len = params.max_kv_len = 0;
  const std::int64_t first = first_[index];
  if (first < 0) return params;
  const auto count = static_cast<std::int64_t>(call.parts.size()) + 1;
  params.q_starts = memory_.view.slice(0, first, first + count);
  params.kv_starts = memory_.view.slice(0, first + count, first + 2 * count);
  params.max_q_len = call.longest_queries();
  params.max_kv_len = call.longest_keys();
  return params;
}

Branches::Branches(DeviceQueue& main, std::size_t calls) : main_(main) {
  const std::size_t count = std::min(calls, kStreams);
  for (std::size_t i = 0; count > 1 && i < count; ++i) branches_.push_back(main.branch());
}

Branches::~Branches() {
  for (const auto& branch : branches_) {
    try {
      main_.join(*branch);
    } catch (...) {  // the device has failed, which the next call on it says
    }
  }
}

QueueExecution::QueueExecution(DeviceQueue& queue, Execution execution)
    : queue_(queue), execution_(execution) {
  execution_.cuda = {};
  execution_.cuda.stream = queue.stream();
  execution_.cuda.allocate_user = this;
  execution_.cuda.allocate = [](void* user, std::size_t bytes) -> void* {
    auto& self = *static_cast<QueueExecution*>(user);
    self.workspace_ = DeviceMemory(self.queue_, bytes);
    return self.workspace_.data();
  };
}

KeysOfCall keys_of_call(DeviceQueue& queue, const PlacedRows<ConstTensorView>& rows, std::size_t tensor,
                        const DeviceCall& call) {
  const std::vector<RowRange> ranges = call.keys();
  const auto of = [&](const RowRange& range) {
    return rows.at(tensor, range).slice(0, call.batch.begin, call.batch.end);
  };
  if (ranges.size() == 1) return {.view = of(ranges[0])};
  const ConstTensorView& all = rows.tensors[tensor];
  KeysOfCall keys;
  keys.copy =
      device_tensor(queue, all.dtype, {call.batch.end - call.batch.begin, all.size(1), call.key_count(), all.size(3)});
  keys.view = keys.copy.view;
  std::int64_t first = 0;
  for (const RowRange& range : ranges) {
    const std::int64_t count = range.end - range.begin;
    queue.copy_rows(keys.copy.view.slice(2, first, first + count), of(range));
    first += count;
  }
  return keys;
}

}  // namespace rootdk::distributed
