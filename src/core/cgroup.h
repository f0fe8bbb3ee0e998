#pragma once

#include <filesystem>

namespace rootdk {

// How many CPUs the control groups of this process allow it to keep busy: the smallest quota / period of its group and
// the groups above, rounded up; 0 where there is no quota. Reads proc/self/cgroup and sys/fs/cgroup below `root`,
// version 1 and version 2. What cannot be read sets no limit.
int cgroup_cpus(const std::filesystem::path& root);

}  // namespace rootdk
