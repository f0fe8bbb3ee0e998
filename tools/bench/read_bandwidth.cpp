#include "tools/bench/read_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "cpu/decode_targets.h"

namespace rootdk::tools {

ReadMeter::ReadMeter(std::string_view implementation, std::size_t bytes, Executor& executor)
    : memory_(bytes),
      share_(static_cast<std::int64_t>(bytes / sizeof(float)) / executor.threads()),
      executor_(executor) {
  for (const cpu::DecodeTarget& target : cpu::decode_targets()) {
    if (target.name == implementation) read_ = target.kernels().read;
  }
}

void ReadMeter::measure() {
  if (!read_) return;
  const int threads = executor_.threads();
  const auto* memory = reinterpret_cast<const float*>(memory_.data());
  std::vector<float> results(static_cast<std::size_t>(threads));
  for (const int streams : {1, 2, 4}) {
    const auto start = std::chrono::steady_clock::now();
    executor_.parallel_for(threads, [&](std::int64_t i) {
      results[static_cast<std::size_t>(i)] = read_(memory + i * share_, share_, streams);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best_ = std::max(best_, static_cast<double>(share_) * sizeof(float) * threads / seconds);
  }
}

}  // namespace rootdk::tools
