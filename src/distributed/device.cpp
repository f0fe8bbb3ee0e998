#include "distributed/device.h"

#include "core/check.h"
#include "core/view_check.h"
#include "distributed/device_work.h"

namespace rootdk::distributed {
namespace {

constexpr std::int64_t kWide = 192;  // the widest head whose gradients of packed sequences run at full speed

// Each field has the rows of its tensor: views of one call.
AttentionStats stats_of_call(const AttentionStats& stats, const DeviceCall& call) {
  AttentionStats part;
  for (const auto field : {&AttentionStats::lse, &AttentionStats::max_logit, &AttentionStats::max_weight,
                           &AttentionStats::entropy, &AttentionStats::sum_p2}) {
    part.*field = rows_of_call(stats.*field, call);
  }
  return part;
}

AttentionSaved saved_of_call(const AttentionSaved& saved, const DeviceCall& call) {
  AttentionSaved part;
  for (const auto field : {&AttentionSaved::q, &AttentionSaved::out, &AttentionSaved::lse, &AttentionSaved::entropy}) {
    part.*field = rows_of_call(saved.*field, call);
  }
  return part;
}

AttentionUpstream upstream_of_call(const AttentionUpstream& upstream, const DeviceCall& call) {
  AttentionUpstream part;
  for (const auto field : {&AttentionUpstream::out, &AttentionUpstream::lse, &AttentionUpstream::entropy}) {
    part.*field = rows_of_call(upstream.*field, call);
  }
  return part;
}

// A tensor of the host with the elements of a view of rank 1.
Tensor on_host(std::string_view operation, const char* name, const ConstTensorView& view, DeviceQueue& queue) {
  require_rank({operation, name, view}, 1);
  require_contiguous_last({operation, name, view});
  Tensor copy(view.dtype, {view.size(0)});
  queue.copy(copy.view().data, view.data, copy.bytes());
  queue.wait();
  return copy;
}

// What is asked for and not served; empty: nothing.
std::string refusal(DType dtype, Scheme scheme, const AttentionParams& p, const AttentionStats& stats,
                    const AttentionGradients& gradients) {
  const std::pair<bool, const char*> lacking[] = {
      {dtype == DType::f8e4m3 || p.compute, "e4m3"},
      {p.score != Score::dot, "a score other than the dot product"},
      {p.logits.relative_table.defined(), "relative_table"},
      {p.logits.alibi_slopes.defined(), "alibi_slopes"},
      {p.kv_lengths.defined(), "kv_lengths"},
      {p.mask.defined(), "mask"},
      {p.block_mask.defined(), "block_mask"},
      {p.bias.defined(), "bias"},
      {p.dropout != 0, "dropout"},
      {stats.column_mass.defined() || gradients.column_mass.defined(), "column_mass"},
      {stats.pooled_map.defined(), "pooled_map"},
      {stats.weights.defined(), "weights"},
  };
  for (const auto& [asked, name] : lacking) {
    if (asked) return name;
  }
  if (scheme == Scheme::automatic || scheme == Scheme::gather) return {};
  return std::string("scheme ") + name_of(scheme);
}

// What the calls of this rank add to the gradients of k and v (where those are asked for) and of sinks, in f32 and in
// the order of the calls.
class KeySums {
 public:
  KeySums(DeviceQueue& queue, const Call& call, const DevicePlan& plan, const AttentionSaved& saved,
          const AttentionGradients& gradients)
      : small_(saved.q.dtype == DType::f64 ? DType::f64 : DType::f32) {
    const std::int64_t rows = plan.seen.end - plan.seen.begin;
    rows_.first = plan.seen.begin;
    for (const auto& [wanted, like] : {std::pair{gradients.k.defined(), saved.k}, {gradients.v.defined(), saved.v}}) {
      if (!wanted) continue;
      memory_.push_back(device_rows(queue, small_, like, rows));
      rows_.tensors.push_back(memory_.back().view);
    }
    if (gradients.sinks.defined()) {
      memory_.push_back(device_tensor(queue, small_, {1, 1, 1, call.whole.shape.heads}));
      sinks_ = memory_.back().view;
    }
    for (const DeviceTensor& tensor : memory_) queue.fill_zero(tensor.view.data, bytes_of(tensor.view));
  }

  // A call's gradients on `queue`, after those of the call before, which was on `last`.
  void add(DeviceQueue& queue, DeviceQueue* last, const DeviceCall& call, const std::vector<TensorView>& of_keys,
           const TensorView& of_sinks) {
    if (last && last != &queue) queue.join(*last);
    for (std::size_t tensor = 0; tensor < of_keys.size(); ++tensor) {
      std::int64_t first = 0;
      for (const RowRange& range : call.keys()) {
        const std::int64_t count = range.end - range.begin;
        queue.add_rows(rows_.at(tensor, range).slice(0, call.batch.begin, call.batch.end),
                       of_keys[tensor].slice(2, first, first + count));
        first += count;
      }
    }
    if (of_sinks.defined()) queue.add_rows(sinks_, of_sinks);
  }

  DType small() const { return small_; }
  const TensorView& sinks() const { return sinks_; }
  PlacedRows<ConstTensorView> rows() const {
    PlacedRows<ConstTensorView> rows{.first = rows_.first};
    rows.tensors.assign(rows_.tensors.begin(), rows_.tensors.end());
    return rows;
  }

 private:
  DType small_;
  std::vector<DeviceTensor> memory_;
  PlacedRows<TensorView> rows_;
  TensorView sinks_;
};

// The gradients of one call, added to the sums.
void backward_call(DeviceQueue& queue, DeviceQueue* last, const DeviceCall& part, const AttentionParams& params,
                   const Call& call, const GatheredKeys& keys, const AttentionSaved& saved,
                   const AttentionUpstream& upstream, const AttentionGradients& gradients, KeySums& sums) {
  const KeysOfCall k = keys_of_call(queue, keys.rows, 0, part), v = keys_of_call(queue, keys.rows, 1, part);
  AttentionSaved of_call = saved_of_call(saved, part);
  of_call.k = k.view;
  of_call.v = v.view;
  AttentionGradients found;
  found.q = rows_of_call(gradients.q, part);
  std::vector<DeviceTensor> memory;
  std::vector<TensorView> of_keys;
  const auto like = [&](const ConstTensorView& view) {
    memory.push_back(device_tensor(queue, view.dtype, {view.size(0), view.size(1), view.size(2), view.size(3)}));
    return of_keys.emplace_back(memory.back().view);
  };
  if (gradients.k.defined()) found.k = like(k.view);
  if (gradients.v.defined()) found.v = like(v.view);
  TensorView of_sinks;
  if (gradients.sinks.defined()) {
    const std::int64_t heads = call.whole.shape.heads;
    memory.push_back(device_tensor(queue, sums.small(), {1, 1, 1, heads}));
    of_sinks = memory.back().view;
    const std::int64_t shape[] = {heads};
    found.sinks = TensorView(of_sinks.data, of_sinks.dtype, shape, of_sinks.device);
  }
  attention_backward(of_call, upstream_of_call(upstream, part), found, params, QueueExecution(queue, call.execution));
  sums.add(queue, last, part, of_keys, of_sinks);
}

// In order of the ranks, the same on every rank.
void sum_sinks(const DeviceLink& link, const ConstTensorView& own, const TensorView& gradient) {
  const auto ranks = static_cast<std::size_t>(link.transport.size());
  const auto heads = static_cast<std::size_t>(gradient.size(0));
  const std::size_t bytes = bytes_of(own);
  std::vector<std::byte> mine(bytes), sent, all(ranks * bytes);
  link.queue.copy(mine.data(), own.data, bytes);
  link.queue.wait();
  for (std::size_t r = 0; r < ranks; ++r) sent.insert(sent.end(), mine.begin(), mine.end());
  const std::vector<std::size_t> sizes(ranks, bytes);
  link.transport.all_to_all(sent.data(), sizes, all.data(), sizes, link.timeout_seconds);
  const auto add_up = [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> sums(heads, zero);
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t h = 0; h < heads; ++h) sums[h] += reinterpret_cast<const T*>(all.data() + r * bytes)[h];
    }
    DeviceTensor total = device_tensor(link.queue, own.dtype, {1, 1, 1, gradient.size(0)});
    link.queue.copy(total.view.data, sums.data(), bytes);
    TensorView to = gradient;  // [1, 1, 1, heads]
    to.rank = 4;
    to.shape = {1, 1, 1, gradient.size(0)};
    to.strides = {0, 0, 0, gradient.stride(0)};
    link.queue.copy_rows(to, total.view);
  };
  own.dtype == DType::f64 ? add_up(double{}) : add_up(float{});
}

// The gradients of this rank's keys: the sums of all ranks, rounded once.
void add_up_keys(const DeviceLink& link, const Call& call, const DevicePlan& plan, const KeySums& sums,
                 const AttentionGradients& gradients) {
  std::vector<TensorView> results;
  if (gradients.k.defined()) results.push_back(gradients.k);
  if (gradients.v.defined()) results.push_back(gradients.v);
  if (results.empty()) return;
  const RowMap share(call.distributed.keys[static_cast<std::size_t>(link.transport.rank())]);
  PlacedRows<TensorView> totals{.share = share};
  std::vector<DeviceTensor> memory;
  for (const TensorView& result : results) {
    memory.push_back(device_rows(link.queue, sums.small(), result, result.size(2)));
    totals.tensors.push_back(memory.back().view);
    link.queue.fill_zero(memory.back().view.data, bytes_of(memory.back().view));
  }
  exchange_rows(link, sums.rows(), plan.coming, totals, plan.wanted, Arrival::add);
  for (std::size_t i = 0; i < results.size(); ++i) link.queue.copy_rows(results[i], totals.tensors[i]);
}

}  // namespace

DeviceSide device_side(std::string_view operation, const ConstTensorView& q, const DistributedParams& distributed,
                       const AttentionStats& stats, const AttentionGradients& gradients, const Execution& execution,
                       AttentionParams& params) {
  DeviceSide side;
  if (q.device.kind == DeviceKind::cpu) return side;
  const std::string reason = refusal(q.dtype, distributed.scheme, params, stats, gradients);
  require(reason.empty(), ErrorKind::unsupported, operation, ": ", reason, " is not served across ranks on a GPU");
  side.queue = cuda::device_queue(q.device.index, execution.cuda.stream);
  if (params.q_starts.defined() && params.q_starts.device.kind != DeviceKind::cpu) {
    params.q_starts = side.q_starts = on_host(operation, "q_starts", params.q_starts, *side.queue);
  }
  if (params.kv_starts.defined() && params.kv_starts.device.kind != DeviceKind::cpu) {
    params.kv_starts = side.kv_starts = on_host(operation, "kv_starts", params.kv_starts, *side.queue);
  }
  return side;
}

void attend_on_device(Transport& transport, const Call& call, DeviceQueue& queue, const ConstTensorView& q,
                      const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                      const AttentionStats& stats) {
  const DevicePlan plan = device_plan(call, transport.rank());
  const CallStarts starts(queue, plan.calls, false);
  const GatheredKeys keys = gather_keys({transport, queue, call.distributed.timeout_seconds}, call, plan, k, v);
  Branches branches(queue, plan.calls.size());
  for (std::size_t i = 0; i < plan.calls.size(); ++i) {
    const DeviceCall& part = plan.calls[i];
    DeviceQueue& branch = branches.of(i);
    const KeysOfCall of_k = keys_of_call(branch, keys.rows, 0, part), of_v = keys_of_call(branch, keys.rows, 1, part);
    attention(rows_of_call(q, part), of_k.view, of_v.view, rows_of_call(out, part), starts.params(call.params, part, i),
              stats_of_call(stats, part), QueueExecution(branch, call.execution));
  }
}

void backward_on_device(Transport& transport, const Call& call, DeviceQueue& queue, const AttentionSaved& saved,
                        const AttentionUpstream& upstream, const AttentionGradients& gradients) {
  const DevicePlan plan = device_plan(call, transport.rank());
  // The order of sums of a packed sequence needs no block of its call to wait for the last one, so that a call begins
  // while another ends. The kernels of wide heads have another one.
  const bool all_packed =
      plan.calls.size() > 1 && call.whole.shape.batch == 1 && std::max(saved.q.size(3), saved.v.size(3)) <= kWide;
  const CallStarts starts(queue, plan.calls, all_packed);
  const DeviceLink link{transport, queue, call.distributed.timeout_seconds};
  const GatheredKeys keys = gather_keys(link, call, plan, saved.k, saved.v);
  KeySums sums(queue, call, plan, saved, gradients);
  {
    Branches branches(queue, plan.calls.size());
    for (std::size_t i = 0; i < plan.calls.size(); ++i) {
      DeviceQueue* const last = i > 0 ? &branches.of(i - 1) : nullptr;
      backward_call(branches.of(i), last, plan.calls[i], starts.params(call.params, plan.calls[i], i), call, keys,
                    saved, upstream, gradients, sums);
    }
  }
  add_up_keys(link, call, plan, sums, gradients);
  if (gradients.sinks.defined()) sum_sinks(link, sums.sinks(), gradients.sinks);
}

}  // namespace rootdk::distributed
