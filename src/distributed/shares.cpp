#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/strided.h"
#include "rootdk/distributed.h"

namespace rootdk {
namespace {

void check(std::string_view operation, std::int64_t total, int ranks) {
  require(ranks >= 1, operation, ": ", ranks, " ranks must be at least 1");
  require(total >= 0, operation, ": ", total, " rows must not be negative");
}

// Rows that one rank gets together, and the keys that they attend to.
struct Portion {
  RowRange rows{};
  double work = 0;
};

}  // namespace

Shares contiguous_shares(std::int64_t total, int ranks) {
  check("contiguous_shares", total, ranks);
  Shares shares;
  for (std::int64_t r = 0; r < ranks; ++r)
    shares.push_back({{.begin = r * total / ranks, .end = (r + 1) * total / ranks}});
  return shares;
}

Shares zigzag_shares(std::int64_t total, int ranks) {
  check("zigzag_shares", total, ranks);
  Shares shares;
  const std::int64_t runs = 2 * static_cast<std::int64_t>(ranks);
  auto run = [&](std::int64_t i) { return RowRange{.begin = i * total / runs, .end = (i + 1) * total / runs}; };
  for (std::int64_t r = 0; r < ranks; ++r) shares.push_back({run(r), run(runs - 1 - r)});
  return shares;
}

Shares striped_shares(std::int64_t total, int ranks, std::int64_t run) {
  check("striped_shares", total, ranks);
  require(run >= 1, "striped_shares: runs of ", run, " rows must have at least 1");
  Shares shares(static_cast<std::size_t>(ranks));
  std::size_t next = 0;
  for (std::int64_t begin = 0; begin < total; begin += run, next = (next + 1) % shares.size()) {
    shares[next].push_back({.begin = begin, .end = std::min(begin + run, total)});
  }
  return shares;
}

Shares document_shares(ConstTensorView starts, int ranks, bool causal) {
  constexpr std::int64_t kPortionsOfRank = 8, kSmallest = 64, kTile = 128;
  require(starts.defined() && starts.dtype == DType::i32 && starts.rank == 1 && starts.size(0) >= 1 &&
              starts.device.kind == DeviceKind::cpu,
          "document_shares: starts is ", describe(starts), ", expected i32 [documents + 1] on the CPU");
  const auto start = read<std::int32_t, 1>(starts);
  const std::int64_t documents = starts.size(0) - 1, total = start(documents);
  check("document_shares", total, ranks);
  const std::int64_t most = std::max(kSmallest, total / (kPortionsOfRank * ranks));
  // Where portions are long enough, a document is cut between tiles of the kernels, so that no tile is computed in two
  // halves.
  const std::int64_t unit = most >= 4 * kTile ? kTile : 1;
  std::vector<Portion> portions;
  for (std::int64_t s = 0; s < documents; ++s) {
    const std::int64_t first = start(s), length = start(s + 1) - start(s);
    require(length >= 0, "document_shares: starts decreases from ", start(s), " to ", start(s + 1), " at ", s + 1);
    const std::int64_t parts = (length + most - 1) / most;
    for (std::int64_t p = 0; p < parts; ++p) {
      const std::int64_t begin = p * length / parts / unit * unit;
      const std::int64_t end = p + 1 == parts ? length : (p + 1) * length / parts / unit * unit;
      const double keys = causal ? 0.5 * static_cast<double>(begin + end + 1) : static_cast<double>(length);
      portions.push_back({{.begin = first + begin, .end = first + end}, static_cast<double>(end - begin) * keys});
    }
  }
  // The largest first, each to the rank with the least so far.
  std::stable_sort(portions.begin(), portions.end(),
                   [](const Portion& a, const Portion& b) { return a.work > b.work; });
  Shares shares(static_cast<std::size_t>(ranks));
  std::vector<double> work(static_cast<std::size_t>(ranks));
  for (const Portion& portion : portions) {
    const auto least = static_cast<std::size_t>(std::min_element(work.begin(), work.end()) - work.begin());
    shares[least].push_back(portion.rows);
    work[least] += portion.work;
  }
  for (auto& share : shares) {
    std::sort(share.begin(), share.end(), [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
    std::vector<RowRange> joined;
    for (const RowRange& range : share) {
      if (!joined.empty() && joined.back().end == range.begin) {
        joined.back().end = range.end;
      } else {
        joined.push_back(range);
      }
    }
    share = std::move(joined);
  }
  return shares;
}

std::int64_t rows_of(const Shares& shares, int rank) {
  require(rank >= 0 && rank < static_cast<int>(shares.size()), "rows_of: rank ", rank, " of ", shares.size());
  const auto& share = shares[static_cast<std::size_t>(rank)];
  return std::accumulate(share.begin(), share.end(), std::int64_t{0},
                         [](std::int64_t sum, const RowRange& range) { return sum + (range.end - range.begin); });
}

}  // namespace rootdk
