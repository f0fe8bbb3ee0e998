#include "core/cgroup.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include <unistd.h>

namespace rootdk {
namespace {

namespace fs = std::filesystem;

// A machine's files below a folder.
class Cgroup : public testing::Test {
 protected:
  Cgroup() : root_(fs::temp_directory_path() / ("rootdk_cgroup_" + std::to_string(getpid()))) { fs::remove_all(root_); }
  ~Cgroup() override { fs::remove_all(root_); }

  void file(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  fs::path root_;
};

TEST_F(Cgroup, NoFilesSetNoLimit) {
  EXPECT_EQ(cgroup_cpus(root_), 0);
  file("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(cgroup_cpus(root_), 0);
}

TEST_F(Cgroup, QuotaOfVersion2IsRoundedUp) {
  file("proc/self/cgroup", "0::/\n");
  file("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 2);
  file("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 2);
  file("sys/fs/cgroup/cpu.max", "1000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 1);
  file("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 0);
}

TEST_F(Cgroup, TheSmallestQuotaOfTheGroupsAboveCounts) {
  file("proc/self/cgroup", "0::/system.slice/job.service/worker\n");
  file("sys/fs/cgroup/system.slice/job.service/worker/cpu.max", "max 100000\n");
  file("sys/fs/cgroup/system.slice/job.service/cpu.max", "300000 100000\n");
  file("sys/fs/cgroup/system.slice/cpu.max", "800000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 3);
}

TEST_F(Cgroup, AContainerSeesItsOwnGroupAtTheMount) {
  file("proc/self/cgroup", "0::/docker/0123abcd\n");
  file("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 4);
  file("proc/self/cgroup", "0::/../elsewhere\n");
  EXPECT_EQ(cgroup_cpus(root_), 4);
}

TEST_F(Cgroup, QuotaOfVersion1) {
  file("proc/self/cgroup", "12:memory:/jobs\n4:cpu,cpuacct:/jobs/one\n3:cpuset:/\n0::/\n");
  file("sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_quota_us", "-1\n");
  file("sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 0);
  file("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "250000\n");
  file("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 3);
  file("sys/fs/cgroup/cpu/jobs/one/cpu.cfs_quota_us", "50000\n");  // the usual link to cpu,cpuacct
  file("sys/fs/cgroup/cpu/jobs/one/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpus(root_), 1);
}

TEST_F(Cgroup, WhatIsNoQuotaSetsNoLimit) {
  file("proc/self/cgroup", "nonsense\n0::relative\n0::/\n");
  for (const char* text : {"", "\n", "150000\n", "150000 0\n", "-5 100000\n", "x y\n", "99999999999999999999 1\n"}) {
    file("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(cgroup_cpus(root_), 0) << text;
  }
}

}  // namespace
}  // namespace rootdk
