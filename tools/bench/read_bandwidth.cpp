#include "tools/bench/read_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace rootdk::tools {
namespace {

constexpr std::size_t kLine = 64;

struct Line {
  std::uint64_t words[kLine / sizeof(std::uint64_t)];
};

// Reads `streams` equal parts of the memory side by side, line by line, each asked for a while before it is needed.
template <std::size_t kStreams>
std::uint64_t read_streams(std::span<const std::byte> memory) {
  constexpr std::size_t kAhead = 32 * kLine;
  const std::size_t part = memory.size() / kStreams / kLine * kLine;
  Line sums[kStreams] = {};
  for (std::size_t offset = 0; offset < part; offset += kLine) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      const std::byte* from = memory.data() + s * part + offset;
      __builtin_prefetch(from + kAhead);
      Line line;
      std::memcpy(&line, from, kLine);
      for (std::size_t w = 0; w < std::size(line.words); ++w) sums[s].words[w] ^= line.words[w];
    }
  }
  std::uint64_t all = 0;
  for (const Line& sum : sums) {
    for (const std::uint64_t word : sum.words) all ^= word;
  }
  return all;
}

template <std::size_t kStreams>
double bytes_per_second(std::span<const std::byte> memory, Executor& executor) {
  const int threads = executor.threads();
  const std::size_t share = memory.size() / static_cast<std::size_t>(threads) / kLine * kLine;
  std::vector<std::uint64_t> results(static_cast<std::size_t>(threads));
  const auto start = std::chrono::steady_clock::now();
  executor.parallel_for(threads, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    results[at] = read_streams<kStreams>(memory.subspan(at * share, share));
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  volatile std::uint64_t keep = 0;  // the reads have a result, so they happen
  for (const std::uint64_t result : results) keep = keep ^ result;
  return static_cast<double>(share) * threads / seconds;
}

}  // namespace

void ReadMeter::measure() {
  best_ = std::max({best_, bytes_per_second<1>(memory_, executor_), bytes_per_second<2>(memory_, executor_),
                    bytes_per_second<4>(memory_, executor_)});
}

}  // namespace rootdk::tools
