#include "distributed/device_ranks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "distributed/device.h"
#include "distributed/host_queue.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

// A transport that takes device memory: the ranks are threads and tell each other where their rows lie.
class DirectTransport final : public Transport {
 public:
  DirectTransport(Transport& under, const DeviceRanks& where) : under_(under), where_(where) {}
  int rank() const override { return under_.rank(); }
  int size() const override { return under_.size(); }
  Transfer post_send(int to, const void* data, std::size_t bytes) override { return under_.post_send(to, data, bytes); }
  Transfer post_receive(int from, void* data, std::size_t bytes) override {
    return under_.post_receive(from, data, bytes);
  }
  void wait(Transfer transfer, double timeout_seconds) override { under_.wait(transfer, timeout_seconds); }
  bool takes_device_memory(Device) const override { return true; }

  void exchange_on_device(std::span<const DeviceMessage> send, std::span<const DeviceMessage> receive, void*,
                          double timeout_seconds) override {
    if (where_.memory) where_.memory->synchronize();
    std::vector<DeviceMessage> places(receive.size());
    std::vector<char> done(send.size()), ended(receive.size());
    std::vector<Transfer> transfers;
    const auto wait_for_all = [&] {
      for (const Transfer transfer : transfers) wait(transfer, timeout_seconds);
      transfers.clear();
    };
    for (std::size_t i = 0; i < receive.size(); ++i) {
      transfers.push_back(post_receive(receive[i].peer, &places[i], sizeof places[i]));
    }
    for (const DeviceMessage& message : send) transfers.push_back(post_send(message.peer, &message, sizeof message));
    wait_for_all();
    for (std::size_t i = 0; i < receive.size(); ++i) {
      if (places[i].bytes != receive[i].bytes) throw Error("a message has another size than its room");
      where_.copy(receive[i].data, places[i].data, places[i].bytes);
    }
    // Nobody reuses its memory before all have read it.
    for (std::size_t i = 0; i < send.size(); ++i) transfers.push_back(post_receive(send[i].peer, &done[i], 1));
    for (std::size_t i = 0; i < receive.size(); ++i) transfers.push_back(post_send(receive[i].peer, &ended[i], 1));
    wait_for_all();
  }

 private:
  Transport& under_;
  DeviceRanks where_;
};

constexpr std::pair<const char*, TensorView AttentionStats::*> kRowStatistics[] = {
    {"lse", &AttentionStats::lse},
    {"max_logit", &AttentionStats::max_logit},
    {"max_weight", &AttentionStats::max_weight},
    {"entropy", &AttentionStats::entropy},
    {"sum_p2", &AttentionStats::sum_p2}};

Tensor output(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  poison(tensor);
  return tensor;
}

// The results of a call and where it writes them.
struct Outputs {
  Results results{};
  Placement& placement;

  TensorView add(const std::string& name, DType dtype, const Shape& shape) {
    results[name] = output(dtype, shape);
    return placement.output(results[name].view());
  }
};

Shape shape_of(const ConstTensorView& view) { return Shape(view.shape.begin(), view.shape.begin() + view.rank); }

// A forward and a backward call over `transport`. On the host the passes of a device run over its memory.
Results run_rank(Transport& transport, const DeviceRanks& where, const AttentionCase& problem,
                 const DistributedParams& distributed) {
  const auto& share = distributed.queries[static_cast<std::size_t>(transport.rank())];
  const auto& key_share =
      distributed.keys.empty() ? share : distributed.keys[static_cast<std::size_t>(transport.rank())];
  const Tensor own_q = rows_of_share(problem.q.view(), 2, share), own_k = rows_of_share(problem.k.view(), 2, key_share),
               own_v = rows_of_share(problem.v.view(), 2, key_share),
               own_grad = rows_of_share(problem.grad_out.view(), 2, share);
  Tensor own_grad_lse;
  if (problem.grad_lse.defined()) own_grad_lse = rows_of_share(problem.grad_lse, 2, share);
  Placement placement(where.memory);
  Outputs outputs{.placement = placement};
  const ConstTensorView q = placement.input(own_q), k = placement.input(own_k), v = placement.input(own_v);
  const AttentionParams params = placement.params(problem.params());
  AttentionStats stats;
  for (const auto& [name, field] : kRowStatistics) {
    stats.*field = outputs.add(name, problem.small(), {q.size(0), q.size(1), q.size(2)});
  }
  const TensorView out = outputs.add("out", problem.dtype, {q.size(0), q.size(1), q.size(2), v.size(3)});
  AttentionSaved saved{.q = q, .k = k, .v = v, .out = out, .lse = stats.lse};
  AttentionUpstream upstream;
  upstream.out = placement.input(own_grad);
  if (own_grad_lse.defined()) upstream.lse = placement.input(own_grad_lse);
  AttentionGradients gradients;
  gradients.q = outputs.add("grad_q", problem.dtype, shape_of(q));
  gradients.k = outputs.add("grad_k", problem.dtype, shape_of(k));
  gradients.v = outputs.add("grad_v", problem.dtype, shape_of(v));
  if (problem.sinks.defined()) gradients.sinks = outputs.add("grad_sinks", problem.small(), {q.size(1)});
  if (where.memory) {
    distributed_attention(transport, q, k, v, out, distributed, params, stats);
    distributed_attention_backward(transport, saved, upstream, gradients, distributed, params);
  } else {
    HostQueue queue;
    DistributedParams gathered = distributed;
    gathered.scheme = Scheme::gather;
    const distributed::Call call =
        distributed::make_call("device_test", transport, q, k, v, gathered, params, Execution{});
    distributed::attend_on_device(transport, call, queue, q, k, v, out, stats);
    distributed::backward_on_device(transport, call, queue, saved, upstream, gradients);
  }
  placement.fetch();
  return std::move(outputs.results);
}

double relative_error(const Tensor& expected, const Tensor& actual) {
  double error = 0, size = 0;
  const auto e = expected.values<double>(), a = actual.values<double>();
  for (std::size_t i = 0; i < e.size(); ++i) {
    error += (a[i] - e[i]) * (a[i] - e[i]);
    size += e[i] * e[i];
  }
  const double result = std::sqrt(error / std::max(size, 1e-30));
  return std::isfinite(result) ? result : INFINITY;
}

AttentionCase make_case(const DeviceCaseSizes& s, const std::string& name, std::int64_t batch, std::int64_t kv_len,
                        const AttentionParams& scalars) {
  constexpr std::int64_t kHeads = 4, kKeyHeads = 2;
  AttentionCase c;
  c.name = name;
  c.dtype = s.dtype;
  c.scalars = scalars;
  c.q = DataTensor(random_tensor(s.dtype, {batch, kHeads, s.len, s.head_dim}, 1), false);
  c.k = DataTensor(random_tensor(s.dtype, {batch, kKeyHeads, kv_len, s.head_dim}, 2), true);
  c.v = DataTensor(random_tensor(s.dtype, {batch, kKeyHeads, kv_len, s.head_dim}, 3), false);
  c.grad_out = DataTensor(random_tensor(s.dtype, {batch, kHeads, s.len, s.head_dim}, 4), false);
  return c;
}

// A share of each kind of rows in turn: one of 7 rows, one of 500, ...
Shares uneven_shares(std::int64_t total, int ranks) {
  Shares shares(static_cast<std::size_t>(ranks));
  constexpr std::int64_t kRuns[] = {7, 500, 64, 1};
  std::size_t next = 0;
  for (std::int64_t begin = 0; begin < total; ++next) {
    const std::int64_t end = std::min(total, begin + kRuns[next % std::size(kRuns)]);
    shares[(next * 2 + next / 3) % shares.size()].push_back({begin, end});
    begin = end;
  }
  return shares;
}

}  // namespace

std::vector<AttentionCase> device_cases(const DeviceCaseSizes& s) {
  std::vector<AttentionCase> all;
  all.push_back(make_case(s, "full", 1, s.len, {}));
  all.push_back(make_case(s, "causal", 1, s.len, {.causal = true}));
  all.push_back(make_case(s, "causal, two entries", 2, s.len, {.causal = true}));
  all.push_back(make_case(s, "causal, window", 1, s.len, {.causal = true, .window_left = 300}));
  all.push_back(make_case(s, "window to both sides", 1, s.len, {.window_left = 200, .window_right = 90}));
  all.push_back(make_case(s, "more keys, causal", 1, s.len + 700, {.causal = true}));
  all.push_back(make_case(s, "causal, softcap", 1, s.len, {.causal = true}));
  all.back().scalars.logits.softcap = 20;
  all.push_back(make_case(s, "causal, sinks, gradient of lse", 1, s.len, {.causal = true}));
  all.back().sinks = random_tensor(all.back().small(), {4}, 5);
  all.back().grad_lse = random_tensor(all.back().small(), {1, 4, s.len}, 6);
  all.push_back(make_case(s, "packed, causal", 1, s.len, {.causal = true}));
  const auto len = static_cast<std::int32_t>(s.len);
  all.back().q_starts = i32_tensor({0, 900, 1000, 1000, 1021, len});
  all.back().kv_starts = i32_tensor({0, 900, 1000, 1000, 1021, len});
  all.push_back(make_case(s, "packed", 1, s.len, {}));
  all.back().q_starts = i32_tensor({0, len / 2, len});
  all.back().kv_starts = i32_tensor({0, len / 2, len});
  return all;
}

std::vector<Shares> device_shares(const AttentionCase& problem, int ranks) {
  const std::int64_t total = problem.q.view().size(2);
  std::vector<Shares> all = {zigzag_shares(total, ranks), contiguous_shares(total, ranks), uneven_shares(total, ranks)};
  if (problem.q_starts.defined()) all.push_back(document_shares(problem.q_starts, ranks, problem.scalars.causal));
  return all;
}

Results run_device_rank(Transport& transport, const DeviceRanks& where, const AttentionCase& problem,
                        const DistributedParams& distributed) {
  Results results = run_rank(transport, where, problem, distributed);
  for (auto& [name, tensor] : results) tensor = convert(tensor, DType::f64);
  return results;
}

Results run_device_ranks(const DeviceRanks& where, int ranks, const AttentionCase& problem, const Shares& shares) {
  DistributedParams distributed{.queries = shares, .timeout_seconds = 120};
  const std::int64_t keys = problem.k.view().size(2);
  if (keys != problem.q.view().size(2)) distributed.keys = contiguous_shares(keys, ranks);
  std::vector<Results> results(static_cast<std::size_t>(ranks));
  for (const std::string& error : errors_of_ranks(ranks, [&](Transport& transport) {
         DirectTransport direct(transport, where);
         results[static_cast<std::size_t>(transport.rank())] =
             run_device_rank(where.route == Route::device ? direct : transport, where, problem, distributed);
       })) {
    if (!error.empty()) throw Error(error);
  }
  return join(results, distributed);
}

Results run_one_call(const DeviceRanks& where, const AttentionCase& problem) {
  const Target target{.memory = where.memory};
  Results all = run_forward(problem, target, Statistics::rows);
  for (auto& [name, tensor] : run_backward(problem, all, target)) all[name] = std::move(tensor);
  return all;
}

std::string device_difference(const DeviceRanks& where, const AttentionCase& problem, const Results& expected,
                              const Results& actual, double tolerance) {
  // Kernels of a GPU visit key tiles that some rows of a tile of rows do not see, and may choose a formula for the
  // softcap by the rows of a warp: with a limit to the left and with a softcap last bits depend on the cut.
  const bool has_bits = !where.memory || (problem.scalars.window_left < 0 && problem.scalars.logits.softcap == 0 &&
                                          problem.dtype != DType::f32);
  for (const auto& [name, tensor] : actual) {
    if (has_bits && !name.starts_with("grad_")) {
      Results one, other;
      one[name] = clone(expected.at(name));
      other[name] = clone(tensor);
      if (std::string difference = first_difference(one, other); !difference.empty()) return difference;
    } else if (const double error = relative_error(expected.at(name), tensor); !(error <= tolerance)) {
      return name + " is off by " + std::to_string(error) + " of its size";
    }
  }
  return "";
}

void expect_bits_of_one_call(const DeviceRanks& where, const AttentionCase& problem, double tolerance) {
  const Results one = run_one_call(where, problem);
  for (const int ranks : {1, 2, 3, 4}) {
    int number = 0;
    for (const Shares& shares : device_shares(problem, ranks)) {
      const Results many = run_device_ranks(where, ranks, problem, shares);
      EXPECT_EQ(device_difference(where, problem, one, many, tolerance), "")
          << problem.name << ", " << ranks << " ranks, shares " << number;
      ++number;
    }
  }
}

}  // namespace rootdk::test
