#include "tools/bench/peak.h"

#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "cpu/targets.h"

namespace rootdk::tools {
namespace {

constexpr double kMeasureSeconds = 3e-3;

// A line of /proc/self/status in bytes: "VmHWM:   1234 kB".
std::size_t status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(line.find_first_of("0123456789"))) * 1024;
  }
  return 0;
}

}  // namespace

PeakMeter::PeakMeter(std::string_view implementation, Executor& executor) : executor_(executor) {
  for (const cpu::Target& target : cpu::targets()) {
    if (target.name == implementation) peak_ = target.kernels().peak;
  }
}

void PeakMeter::measure() {
  if (!exists()) return;
  const int threads = executor_.threads();
  std::vector<float> sums(static_cast<std::size_t>(threads));
  std::vector<std::int64_t> operations(static_cast<std::size_t>(threads));
  const double seconds = seconds_of(threads, [&] {
    executor_.parallel_for(threads, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      operations[at] = peak_(rounds_, &sums[at]);
    });
  });
  double total = 0;
  for (std::int64_t count : operations) total += static_cast<double>(count);
  best_ = std::max(best_, total / seconds);
  if (seconds < kMeasureSeconds / 2) {
    rounds_ = static_cast<std::int64_t>(static_cast<double>(rounds_) * std::min(100.0, kMeasureSeconds / seconds));
  }
}

double seconds_of(int threads, const std::function<void()>& body) {
  const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  const auto now = [clock] {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  body();
  return now() - start;
}

std::size_t peak_bytes_of(const std::function<void()>& body) {
  malloc_trim(0);                                 // memory that was freed but not given back would hide what body takes
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark starts again from here
  const std::size_t before = status_bytes("VmRSS:");
  body();
  const std::size_t highest = status_bytes("VmHWM:");
  return highest > before ? highest - before : 0;
}

}  // namespace rootdk::tools
