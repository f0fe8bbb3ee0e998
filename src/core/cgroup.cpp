#include "core/cgroup.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

namespace rootdk {
namespace {

namespace fs = std::filesystem;

// Running out of memory while a line is read is an error, not the end of the file.
std::ifstream open(const fs::path& file) {
  std::ifstream stream(file);
  stream.exceptions(std::ios::badbit);
  return stream;
}

std::string first_line(const fs::path& file) {
  std::ifstream stream = open(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// The whole text as a number; -1 where it is none, as "max" is.
std::int64_t number(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : -1;
}

// Both in microseconds; 0 where there is no limit.
int cpus(std::int64_t quota, std::int64_t period) {
  if (quota <= 0 || period <= 0) return 0;
  const std::int64_t whole = (quota - 1) / period + 1;
  return static_cast<int>(std::min<std::int64_t>(whole, std::numeric_limits<int>::max()));
}

// cpu.max of version 2: "quota period", or "max period".
int limit_v2(const fs::path& group) {
  const std::string line = first_line(group / "cpu.max");
  const std::size_t space = line.find(' ');
  if (space == std::string::npos) return 0;
  return cpus(number(std::string_view(line).substr(0, space)), number(std::string_view(line).substr(space + 1)));
}

int limit_v1(const fs::path& group) {
  return cpus(number(first_line(group / "cpu.cfs_quota_us")), number(first_line(group / "cpu.cfs_period_us")));
}

// The smallest limit from `group` up to the root of the hierarchy, which is mounted at `mount`. In a container the
// group may be named as the host sees it: folders that are not there set no limit.
int smallest_limit(const fs::path& mount, std::string_view group, int (*limit_of)(const fs::path&)) {
  if (group.find("..") != std::string_view::npos) group = "/";  // outside of what is mounted
  int smallest = 0;
  for (;;) {
    while (!group.empty() && group.back() == '/') group.remove_suffix(1);
    const int limit = limit_of(group.empty() ? mount : mount / group.substr(1));
    if (limit && (!smallest || limit < smallest)) smallest = limit;
    if (group.empty()) return smallest;
    group = group.substr(0, group.rfind('/'));
  }
}

bool names_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

int cgroup_cpus(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups = open(root / "proc/self/cgroup");
  int smallest = 0;
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:/path"; version 2 is hierarchy 0 without controllers.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = std::string_view(line).substr(second + 1);
    if (!group.starts_with('/')) continue;
    int limit = 0;
    if (controllers.empty()) {
      limit = smallest_limit(mounts, group, limit_v2);
    } else if (names_cpu(controllers)) {
      std::error_code ignored;
      limit = smallest_limit(fs::is_directory(mounts / "cpu", ignored) ? mounts / "cpu" : mounts / controllers, group,
                             limit_v1);
    }
    if (limit && (!smallest || limit < smallest)) smallest = limit;
  }
  return smallest;
}

}  // namespace rootdk
