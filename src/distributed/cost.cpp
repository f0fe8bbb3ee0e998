// The cost model: a call is walked through item by item, with the rates of the machines in place of work and links.

#include <algorithm>
#include <deque>
#include <limits>

#include "core/check.h"
#include "distributed/call.h"

namespace rootdk {

const char* name_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::automatic: return "automatic";
    case Scheme::ring: return "ring";
    case Scheme::gather: return "gather";
    case Scheme::heads: return "heads";
    case Scheme::both: return "both";
  }
  return "unknown";
}

namespace distributed {
namespace {

// sum of clamp(first + i, 0, most) for i in [0, count)
double clamped_sum(std::int64_t first, std::int64_t count, std::int64_t most) {
  auto sum_to = [&](std::int64_t x) {  // of clamp(y, 0, most) for y below x
    if (x <= 0) return 0.0;
    const auto low = static_cast<double>(std::min(x, most));
    return low * (low - 1) / 2 + (x > most ? static_cast<double>(x - most) * static_cast<double>(most) : 0.0);
  };
  return sum_to(first + count) - sum_to(first);
}

// Pairs of a query and a key that it sees.
double pairs(const Whole& whole, const Run& queries, const Run& keys) {
  if (!whole.sees(queries, keys)) return 0;
  const std::int64_t n = queries.rows(), m = keys.rows();
  const std::int64_t first = whole.sequence_of(queries).position(queries.begin) - keys.begin;
  const std::int64_t right = whole.window.causal ? 0 : whole.window.right;
  double seen = right < 0 ? static_cast<double>(n * m) : clamped_sum(first + right + 1, n, m);
  if (whole.window.left >= 0) seen -= clamped_sum(first - whole.window.left, n, m);
  return std::max(0.0, seen);
}

// One pass of a stream: what its items weigh and what they cost.
struct Pass {
  Side travels = Side::keys;
  double row_bytes = 0;      // of a row that travels
  double flops_of_pair = 0;  // all heads together
};

struct PassCost {
  std::vector<double> compute{}, done{}, sent{}, held{};  // of each rank: seconds, seconds, bytes, bytes
};

// The ranks walk through the items as Stream does: a rank sends on what has arrived, one message at a time, and
// receives an item when one of its buffers is free.
class Walk {
 public:
  Walk(const Whole& whole, const DistributedParams& distributed, const Pass& pass, std::int64_t capacity)
      : whole_(whole), rates_(distributed.rates), pass_(pass), capacity_(static_cast<std::size_t>(capacity)) {
    const bool keys = pass.travels == Side::keys;
    const Shares& staying = keys ? distributed.queries : distributed.keys;
    ranks_ = staying.size();
    runs_.resize(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      runs_[r] = local_runs(whole, RowMap(staying[r]), keys ? Side::queries : Side::keys);
    }
    const Sight sight(whole, staying, keys ? Side::queries : Side::keys);
    items_ = plan_stream(whole, pass.travels, keys ? distributed.keys : distributed.queries, 0, sight);
    for (auto* values : {&cost_.compute, &cost_.done, &cost_.sent, &cost_.held}) values->assign(ranks_, 0.0);
    link_free_.assign(ranks_, 0.0);
    buffers_.resize(ranks_);
  }

  PassCost run() {
    for (const StreamItem& item : items_) walk(item);
    return cost_;
  }

 private:
  void walk(const StreamItem& item) {
    std::vector<double> ready(ranks_, 0.0);
    std::vector<bool> here(ranks_, false);
    for (const StreamPart& part : item.parts) {
      const double bytes = static_cast<double>(part.rows) * pass_.row_bytes;
      auto from = static_cast<std::size_t>(part.owner);
      double there = 0;
      for (const int to : part.route) {
        const auto r = static_cast<std::size_t>(to);
        const double start = std::max({there, link_free_[from], buffer_free(r)});
        link_free_[from] = start + rates_.link_latency + bytes / rates_.link_bytes;
        cost_.sent[from] += bytes;
        cost_.held[r] += bytes;
        there = ready[r] = std::max(ready[r], link_free_[from]);
        here[r] = true;
        from = r;
      }
    }
    for (std::size_t r = 0; r < ranks_; ++r) {
      const double seconds = work(r, item.run) * pass_.flops_of_pair / rates_.flops;
      if (seconds == 0) continue;
      cost_.compute[r] += seconds;
      cost_.done[r] = std::max(cost_.done[r], ready[r]) + seconds;
      if (!here[r]) continue;
      buffers_[r].push_back(cost_.done[r]);
      if (buffers_[r].size() > capacity_) buffers_[r].pop_front();
    }
  }

  double buffer_free(std::size_t r) const { return buffers_[r].size() < capacity_ ? 0.0 : buffers_[r].front(); }

  double work(std::size_t r, const Run& item) const {
    double sum = 0;
    for (const LocalRun& local : runs_[r]) {
      sum += pass_.travels == Side::keys ? pairs(whole_, local.run, item) : pairs(whole_, item, local.run);
    }
    return sum;
  }

  const Whole& whole_;
  MachineRates rates_;
  Pass pass_;
  std::size_t capacity_, ranks_ = 0;
  std::vector<std::vector<LocalRun>> runs_;
  std::vector<StreamItem> items_;
  PassCost cost_;
  std::vector<double> link_free_;
  std::vector<std::deque<double>> buffers_;  // when the items in memory are done with
};

double largest(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }
double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::vector<Pass> passes(const DistributedShape& s) {
  const double both = static_cast<double>(s.batch * s.heads), d = static_cast<double>(s.head_dim),
               v = static_cast<double>(s.value_dim), bytes = static_cast<double>(s.element_bytes);
  const double key_row = static_cast<double>(s.batch * s.kv_heads) * (d + v) * bytes;
  if (!s.backward) return {{.travels = Side::keys, .row_bytes = key_row, .flops_of_pair = both * 2 * (d + v)}};
  return {{.travels = Side::keys, .row_bytes = key_row, .flops_of_pair = both * 2 * (2 * d + v)},
          {.travels = Side::queries,
           .row_bytes = both * ((d + 2 * v) * bytes + 4),
           .flops_of_pair = both * 2 * (2 * d + 2 * v)}};
}

SchemeCost stream_cost(Scheme scheme, const Whole& whole, const DistributedShape& shape,
                       const DistributedParams& distributed) {
  SchemeCost cost{.scheme = scheme};
  double even = 0;
  for (const Pass& pass : passes(shape)) {
    const bool all = scheme == Scheme::gather;
    const std::int64_t capacity = all ? std::numeric_limits<std::int32_t>::max() : distributed.buffers;
    const PassCost walked = Walk(whole, distributed, pass, capacity).run();
    cost.compute_seconds += largest(walked.compute);
    cost.total_seconds += largest(walked.done);
    cost.sent_bytes += largest(walked.sent);
    const std::int64_t rows = pass.travels == Side::keys ? whole.key_chunk : whole.query_block;
    cost.buffer_bytes = std::max(
        cost.buffer_bytes,
        all ? largest(walked.held)
            : std::min(largest(walked.held), static_cast<double>(distributed.buffers * rows) * pass.row_bytes));
    even += mean(walked.compute);
  }
  cost.transfer_seconds = cost.sent_bytes / distributed.rates.link_bytes;
  cost.waiting_seconds = cost.total_seconds - cost.compute_seconds;
  cost.efficiency = cost.total_seconds > 0 ? even / cost.total_seconds : 1;
  return cost;
}

SchemeCost heads_cost(const Whole& whole, const DistributedShape& s, const DistributedParams& distributed,
                      const AttentionParams& params) {
  SchemeCost cost{.scheme = Scheme::heads};
  if (params.mask.defined() || params.bias.defined()) {
    cost.refusal = "a mask or a bias has the rows of this rank, and heads have all rows";
  } else if (s.backward) {
    cost.refusal = "the backward pass streams keys and queries";
  }
  const auto ranks = static_cast<double>(distributed.queries.size());
  double seen = 0;
  for (const Run& queries : whole.query_blocks()) {
    for (const Run& keys : whole.key_chunks()) seen += pairs(whole, queries, keys);
  }
  const double flops = seen * static_cast<double>(s.batch) * 2 * static_cast<double>(s.head_dim + s.value_dim);
  const auto count = static_cast<std::int64_t>(distributed.queries.size());
  const std::int64_t most_heads = (s.heads + count - 1) / count;  // of a rank
  const auto most = static_cast<double>(most_heads);
  cost.compute_seconds = flops * most / distributed.rates.flops;
  // A rank sends its rows of q to those who compute their heads, k and v to all who need a head of them, and gets out
  // back.
  const double rows = static_cast<double>(s.q_len) / ranks, keys = static_cast<double>(s.kv_len) / ranks;
  const double group = static_cast<double>(s.heads) / static_cast<double>(s.kv_heads);
  const double key_heads = std::max(static_cast<double>(s.kv_heads), most / group * ranks);
  const double widths = static_cast<double>(s.head_dim + s.value_dim) * static_cast<double>(s.element_bytes * s.batch);
  const double away = (ranks - 1) / ranks;
  cost.sent_bytes =
      away * widths *
      (rows * static_cast<double>(s.heads) + keys * std::min(key_heads, ranks * static_cast<double>(s.kv_heads)));
  cost.transfer_seconds = cost.sent_bytes / distributed.rates.link_bytes + 4 * ranks * distributed.rates.link_latency;
  cost.waiting_seconds = cost.transfer_seconds;
  cost.total_seconds = cost.compute_seconds + cost.transfer_seconds;
  cost.buffer_bytes =
      2 * widths * most * (static_cast<double>(s.q_len) + static_cast<double>(s.kv_len) / std::min(group, most));
  cost.efficiency = cost.total_seconds > 0
                        ? flops * static_cast<double>(s.heads) / ranks / distributed.rates.flops / cost.total_seconds
                        : 1;
  return cost;
}

// Heads exchanged among `members` ranks, chunks of keys that pass between their groups.
SchemeCost both_cost(const Whole& whole, const DistributedShape& s, const DistributedParams& distributed, int members) {
  const auto ranks = static_cast<double>(distributed.queries.size());
  const std::int64_t most = (s.heads + members - 1) / members;  // heads of a rank
  const std::int64_t group = s.heads / s.kv_heads, most_keys = std::min(s.kv_heads, (most + group - 1) / group);
  DistributedShape part = s;
  part.heads = most;
  part.kv_heads = most_keys;
  DistributedParams groups = distributed;
  groups.queries = group_shares(distributed.queries, members);
  groups.keys = group_shares(distributed.keys, members);
  SchemeCost cost = stream_cost(Scheme::ring, whole, part, groups);
  cost.scheme = Scheme::both;
  cost.head_ranks = members;
  // Each rank sends its rows of q, k and v of the heads of others, and gets its rows of out back.
  const double away = (members - 1.0) / members;
  const double widths = static_cast<double>(s.head_dim + s.value_dim) * static_cast<double>(s.element_bytes * s.batch);
  const double rows = static_cast<double>(s.q_len) / ranks, keys = static_cast<double>(s.kv_len) / ranks;
  const double key_heads = static_cast<double>(part.kv_heads) * members;
  const double exchanged = away * widths * (rows * static_cast<double>(s.heads) + keys * key_heads);
  const double seconds = exchanged / distributed.rates.link_bytes + 4 * members * distributed.rates.link_latency;
  const double even =
      cost.efficiency * cost.total_seconds * static_cast<double>(s.heads) / static_cast<double>(most * members);
  cost.sent_bytes += exchanged;
  cost.transfer_seconds += seconds;
  cost.waiting_seconds += seconds;
  cost.total_seconds += seconds;
  cost.buffer_bytes +=
      2 * widths * members * (rows * static_cast<double>(most) + keys * static_cast<double>(part.kv_heads));
  cost.efficiency = cost.total_seconds > 0 ? even / cost.total_seconds : 1;
  return cost;
}

// The best number of ranks that exchange heads, or the one that is asked for.
SchemeCost best_both(const Whole& whole, const DistributedShape& s, const DistributedParams& distributed,
                     const AttentionParams& params) {
  const auto ranks = static_cast<int>(distributed.queries.size());
  const std::string count = std::to_string(ranks);
  SchemeCost best{.scheme = Scheme::both,
                  .refusal = ranks == 1 ? "one rank has no groups"
                                        : count + " ranks have no divisor but 1 and " + count + ": give head_ranks"};
  if (params.mask.defined() || params.bias.defined()) {
    best.refusal = "a mask or a bias has the rows of this rank, and heads have all rows";
    return best;
  }
  if (s.backward) {
    best.refusal = "the backward pass streams keys and queries";
    return best;
  }
  for (int members = 1; members <= ranks; ++members) {
    const bool asked = distributed.head_ranks == members;
    const bool candidate = distributed.head_ranks == 0 && members > 1 && members < ranks && members <= s.heads;
    if (ranks % members != 0 || !(asked || candidate)) continue;
    const SchemeCost cost = both_cost(whole, s, distributed, members);
    if (!best.refusal.empty() || cost.total_seconds < best.total_seconds) best = cost;
  }
  return best;
}

}  // namespace
}  // namespace distributed

DistributedExplanation explain_distributed(const DistributedShape& shape, const DistributedParams& given,
                                           const AttentionParams& params) {
  using namespace distributed;
  DistributedExplanation result;
  try {
    constexpr const char* kOperation = "distributed_attention";
    DistributedParams distributed = given;
    if (distributed.keys.empty()) distributed.keys = distributed.queries;
    require(!distributed.queries.empty(), kOperation, ": shares of the queries are not given");
    require(static_cast<int>(given.scheme) >= 0 && static_cast<int>(given.scheme) <= 4, kOperation, ": scheme ",
            static_cast<int>(given.scheme), " is none of automatic (0), ring (1), gather (2), heads (3), both (4)");
    require(shape.heads >= 1 && shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0, kOperation, ": heads ",
            shape.heads, " is not a multiple of kv_heads ", shape.kv_heads);
    const AttentionShape sizes{.batch = shape.batch,
                               .heads = shape.heads,
                               .kv_heads = shape.kv_heads,
                               .q_len = shape.q_len,
                               .kv_len = shape.kv_len,
                               .head_dim = shape.head_dim,
                               .value_dim = shape.value_dim};
    const Whole whole = describe_whole(kOperation, sizes, distributed, params);
    result.schemes.push_back(stream_cost(Scheme::ring, whole, shape, distributed));
    result.schemes.push_back(stream_cost(Scheme::gather, whole, shape, distributed));
    result.schemes.push_back(heads_cost(whole, shape, distributed, params));
    result.schemes.push_back(best_both(whole, shape, distributed, params));
    const SchemeCost* best = &result.schemes[0];
    for (const SchemeCost& cost : result.schemes) {
      const bool forced = cost.scheme == given.scheme;
      if (forced) best = &cost;
      if (given.scheme != Scheme::automatic || !cost.refusal.empty()) continue;
      if (cost.buffer_bytes > distributed.rates.memory_bytes) continue;
      if (cost.total_seconds < best->total_seconds) best = &cost;
    }
    result.chosen = best->scheme;
    result.head_ranks = best->head_ranks;
    if (!best->refusal.empty()) {
      result.error = std::string(kOperation) + ": scheme " + name_of(best->scheme) + ": " + best->refusal;
    }
  } catch (const Error& error) {
    result.error = error.what();
  }
  return result;
}

}  // namespace rootdk
