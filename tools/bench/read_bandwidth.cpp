#include "tools/bench/read_bandwidth.h"

#include <algorithm>
#include <vector>

#include "cpu/decode_targets.h"
#include "tools/bench/peak.h"

namespace rootdk::tools {

ReadMeter::ReadMeter(std::string_view implementation, std::size_t bytes, Executor& executor)
    : memory_(bytes),
      share_(static_cast<std::int64_t>(bytes / sizeof(float)) / executor.threads()),
      executor_(executor) {
  for (const cpu::DecodeTarget& target : cpu::decode_targets()) {
    if (target.name == implementation) read_ = target.kernels().read;
  }
}

double ReadMeter::measure() {
  if (!read_) return 0;
  const int threads = executor_.threads();
  const auto* memory = reinterpret_cast<const float*>(memory_.data());
  std::vector<float> results(static_cast<std::size_t>(threads));
  double best_now = 0;
  for (const int streams : {1, 2, 4}) {
    const double seconds = seconds_of(threads, [&] {
      executor_.parallel_for(threads, [&](std::int64_t i) {
        results[static_cast<std::size_t>(i)] = read_(memory + i * share_, share_, streams);
      });
    });
    best_now = std::max(best_now, static_cast<double>(share_) * sizeof(float) * threads / seconds);
  }
  best_ = std::max(best_, best_now);
  return best_now;
}

}  // namespace rootdk::tools
