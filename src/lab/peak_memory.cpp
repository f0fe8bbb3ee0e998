#include "lab/peak_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace rootdk::lab {
namespace {

// A line of /proc/self/status, in kB there.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  }
  return 0;
}

}  // namespace

bool reset_peak_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);  // what earlier work has freed goes back first
#endif
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  return static_cast<bool>(clear);
}

std::int64_t peak_memory() { return status_bytes("VmHWM:"); }
std::int64_t resident_memory() { return status_bytes("VmRSS:"); }

}  // namespace rootdk::lab
