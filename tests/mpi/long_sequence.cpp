#include "mpi/long_sequence.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstring>

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

std::size_t bytes_of(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns) * sizeof(float);
}

// The rows of all ranks on rank 0. Shares are contiguous, so that they follow one another.
void collect(Transport& transport, const Shares& shares, const Tensor& own, Tensor& whole, std::int64_t columns) {
  if (transport.rank() > 0) {
    transport.wait(transport.post_send(0, own.view().data, bytes_of(own.size(2), columns)), kTimeout);
    return;
  }
  auto* to = whole.view().as<float>();
  std::memcpy(to, own.view().data, bytes_of(own.size(2), columns));
  for (int r = 1; r < transport.size(); ++r) {
    to += rows_of(shares, r - 1) * columns;
    transport.wait(transport.post_receive(r, to, bytes_of(rows_of(shares, r), columns)), kTimeout);
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.view().elements()) * sizeof(float)) == 0;
}

int compare_one(Transport& transport, std::int64_t keys, std::int64_t queries, bool causal, double& most_bytes) {
  const int here = transport.rank();
  const std::int64_t chunk = (keys / kMostChunks + kTile - 1) / kTile * kTile;
  DistributedParams distributed{.queries = contiguous_shares(queries, transport.size()),
                                .keys = striped_shares(keys, transport.size(), chunk),
                                .scheme = Scheme::ring};
  distributed.key_chunk = chunk;
  distributed.timeout_seconds = kTimeout;
  const AttentionParams params{.causal = causal};
  Tensor all_out(DType::f32, {1, 1, queries, kHeadDim}), all_lse(DType::f32, {1, 1, queries});
  const auto start = std::chrono::steady_clock::now();
  {
    const auto rank = static_cast<std::size_t>(here);
    const Tensor q = rows(distributed.queries[rank], 0), k = rows(distributed.keys[rank], 1),
                 v = rows(distributed.keys[rank], 2);
    Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, 1, q.size(2)});
    distributed_attention(transport, q, k, v, out, distributed, params, {.lse = lse});
    if (!causal) most_bytes = resident_bytes();  // the first of two: rank 0 holds everything after it
    collect(transport, distributed.queries, out, all_out, kHeadDim);
    collect(transport, distributed.queries, lse, all_lse, 1);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (here > 0) return 0;
  const Tensor q = rows({{0, queries}}, 0), k = rows({{0, keys}}, 1), v = rows({{0, keys}}, 2);
  Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, 1, queries});
  attention(q, k, v, out, params, {.lse = lse});
  const bool same = same_bits(out, all_out) && same_bits(lse, all_lse);
  std::printf("%lld queries over %lld keys on %d ranks, %s: %s the bits of one call, %.1f s\n",
              static_cast<long long>(queries), static_cast<long long>(keys), transport.size(),
              causal ? "causal" : "full", same ? "out and lse have" : "out or lse does not have", seconds.count());
  return !same;
}

}  // namespace

int compare_long_sequence(Transport& transport, std::int64_t keys, std::int64_t queries) {
  double most_bytes = 0;
  int failures = compare_one(transport, keys, queries, false, most_bytes);
  failures += compare_one(transport, keys, queries, true, most_bytes);
  std::printf("rank %d: at most %.0f MB resident\n", transport.rank(), most_bytes / 1e6);
  return failures + (most_bytes >= kMostBytes);
}

}  // namespace rootdk::test
