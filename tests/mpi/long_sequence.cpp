#include "mpi/long_sequence.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "rootdk/attention.h"
#include "rootdk/tensor.h"

namespace rootdk::test {
namespace {

constexpr std::int64_t kHeadDim = 64, kTile = 1024, kMostChunks = 128;
constexpr double kMostBytes = 1e9;
constexpr double kTimeout = 600;

// From -2 to 2, a function of its place alone.
float number(std::int64_t row, std::int64_t column, int which) {
  auto x = static_cast<std::uint64_t>((row * kHeadDim + column) * 4 + which) + 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-22f - 2.0f;
}

Tensor rows(const std::vector<RowRange>& share, int which) {
  const std::int64_t count = rows_of({share}, 0);
  Tensor tensor(DType::f32, {1, 1, count, kHeadDim});
  auto* to = tensor.view().as<float>();
  for (const RowRange& range : share) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      for (std::int64_t d = 0; d < kHeadDim; ++d) *to++ = number(row, d, which);
    }
  }
  return tensor;
}

double resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Of out and lse: a sum over rows, so that the hashes of the ranks add up to that of the whole.
std::uint64_t hash_rows(const Tensor& out, const Tensor& lse, const std::vector<RowRange>& share) {
  const auto* of_out = out.view().as<std::uint32_t>();
  const auto* of_lse = lse.view().as<std::uint32_t>();
  std::uint64_t sum = 0;
  for (const RowRange& range : share) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      std::uint64_t value = mix(static_cast<std::uint64_t>(row) + 0x9E3779B97F4A7C15u) ^ *of_lse++;
      for (std::int64_t d = 0; d < kHeadDim; ++d) value = mix(value * 0x9E3779B97F4A7C15u ^ *of_out++);
      sum += value;
    }
  }
  return sum;
}

struct RankResult {
  std::uint64_t hash = 0;
  double seconds = 0, most_bytes = 0;
};

RankResult run_rank(Transport& transport, const DistributedParams& distributed, const AttentionParams& params) {
  const auto rank = static_cast<std::size_t>(transport.rank());
  const auto start = std::chrono::steady_clock::now();
  const Tensor q = rows(distributed.queries[rank], 0), k = rows(distributed.keys[rank], 1),
               v = rows(distributed.keys[rank], 2);
  Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, 1, q.size(2)});
  distributed_attention(transport, q, k, v, out, distributed, params, {.lse = lse});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {.hash = hash_rows(out, lse, distributed.queries[rank]),
          .seconds = seconds.count(),
          .most_bytes = resident_bytes()};
}

// As many threads as all ranks together.
RankResult run_one_call(std::int64_t keys, std::int64_t queries, const AttentionParams& params, int threads) {
  const auto start = std::chrono::steady_clock::now();
  const Tensor q = rows({{0, queries}}, 0), k = rows({{0, keys}}, 1), v = rows({{0, keys}}, 2);
  Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, 1, queries});
  Execution execution;
  execution.cpu.executor = &shared_executor(threads);
  attention(q, k, v, out, params, {.lse = lse}, execution);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {.hash = hash_rows(out, lse, {{0, queries}}), .seconds = seconds.count()};
}

// The hash of all ranks, on rank 0.
std::uint64_t attend_over_ranks(Transport& transport, const LongSequence& s, bool causal, double& most_bytes) {
  const int here = transport.rank(), ranks = transport.size();
  const std::int64_t chunk = (s.keys / kMostChunks + kTile - 1) / kTile * kTile;
  DistributedParams distributed{.keys = striped_shares(s.keys, ranks, chunk), .scheme = Scheme::ring};
  distributed.queries = s.queries == s.keys ? distributed.keys : contiguous_shares(s.queries, ranks);
  distributed.key_chunk = chunk;
  distributed.timeout_seconds = kTimeout;
  const RankResult own = run_rank(transport, distributed, {.causal = causal});
  most_bytes = std::max(most_bytes, own.most_bytes);
  std::printf("rank %d: %s, %.1f s, at most %.0f MB resident\n", here, causal ? "causal" : "full", own.seconds,
              own.most_bytes / 1e6);
  std::uint64_t hash = own.hash;
  if (here > 0) transport.wait(transport.post_send(0, &own.hash, sizeof own.hash), kTimeout);
  for (int r = 1; r < ranks && here == 0; ++r) {
    std::uint64_t other = 0;
    transport.wait(transport.post_receive(r, &other, sizeof other), kTimeout);
    hash += other;
  }
  if (here == 0) {
    std::printf("%lld queries over %lld keys on %d ranks, %s: hash %016llx\n", static_cast<long long>(s.queries),
                static_cast<long long>(s.keys), ranks, causal ? "causal" : "full",
                static_cast<unsigned long long>(hash));
  }
  std::fflush(stdout);
  return hash;
}

int compare_one(Transport& transport, const LongSequence& s, bool causal, double& most_bytes) {
  const int ranks = transport.size();
  std::uint64_t hash = 0;
  if (s.ranks) hash = attend_over_ranks(transport, s, causal, most_bytes);
  char done = 0;
  if (transport.rank() > 0) {  // leaves its cores to the one call
    transport.wait(transport.post_receive(0, &done, 1), kTimeout);
    return 0;
  }
  bool same = true;
  if (s.one_call) {
    const RankResult one = run_one_call(s.keys, s.queries, {.causal = causal}, ranks * default_executor().threads());
    same = !s.ranks || one.hash == hash;
    std::printf("one call: hash %016llx, %.1f s%s\n", static_cast<unsigned long long>(one.hash), one.seconds,
                !s.ranks ? ""
                : same   ? "; the ranks have its bits"
                         : "; the ranks do not have its bits");
  }
  for (int r = 1; r < ranks; ++r) transport.wait(transport.post_send(r, &done, 1), kTimeout);
  return !same;
}

}  // namespace

int compare_long_sequence(Transport& transport, const LongSequence& sequence) {
  // Rank 0 holds everything after one call: the memory of the first comparison counts.
  double first = 0, later = 0;
  int failures = 0;
  if (sequence.full) failures += compare_one(transport, sequence, false, first);
  failures += compare_one(transport, sequence, true, sequence.full ? later : first);
  return failures + (first >= kMostBytes);
}

}  // namespace rootdk::test
