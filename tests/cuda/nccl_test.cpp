// NCCL as a transport, with one rank. PyTorch's is found by ROOTDK_NCCL_LIBRARY.

#include "rootdk/nccl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cuda/cuda_memory.h"
#include "cuda/device_case.h"
#include "distributed/device_ranks.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

class Nccl : public HopperTest {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (!IsSkipped() && !nccl_absence().empty()) GTEST_SKIP() << nccl_absence();
  }
};

// In a process of its own: the library is loaded once.
TEST(NcclDeathTest, NamesWhatIsMissing) {
  EXPECT_EXIT(
      {
        setenv("ROOTDK_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
        try {
          make_nccl_id();
        } catch (const Error& error) {
          std::fprintf(stderr, "%s", error.what());
        }
        std::exit(0);
      },
      testing::ExitedWithCode(0), "ROOTDK_NCCL_LIBRARY is /nowhere/libnccl.so.2, which cannot be loaded");
}

// Messages of a rank to itself, of the device and of the host.
TEST_F(Nccl, OneRankSendsToItself) {
  const auto transport = nccl_transport(make_nccl_id(), 0, 1, 0);
  ASSERT_TRUE(transport->takes_device_memory({DeviceKind::cuda, 0}));
  EXPECT_FALSE(transport->takes_device_memory({}));
  constexpr std::size_t kCount = 100000;
  std::vector<std::int32_t> numbers(kCount), came(kCount);
  for (std::size_t i = 0; i < kCount; ++i) numbers[i] = static_cast<std::int32_t>(i * 7);
  auto* const device = static_cast<std::int32_t*>(cuda_memory().allocate(2 * kCount * sizeof numbers[0]));
  cuda_memory().upload(device, numbers.data(), kCount * sizeof numbers[0]);
  const DeviceMessage send{.peer = 0, .data = device, .bytes = kCount * sizeof numbers[0]};
  const DeviceMessage receive{.peer = 0, .data = device + kCount, .bytes = kCount * sizeof numbers[0]};
  transport->exchange_on_device({&send, 1}, {&receive, 1}, nullptr, 60);
  cuda_memory().download(came.data(), device + kCount, kCount * sizeof numbers[0]);
  EXPECT_EQ(came, numbers);
  std::fill(came.begin(), came.end(), 0);
  const std::size_t bytes = kCount * sizeof numbers[0];
  transport->all_to_all(numbers.data(), {&bytes, 1}, came.data(), {&bytes, 1}, 60);
  EXPECT_EQ(came, numbers);
  cuda_memory().release(device);
}

TEST_F(Nccl, OneRankHasTheBitsOfOneCall) {
  const auto transport = nccl_transport(make_nccl_id(), 0, 1, 0);
  const AttentionCase problem = std::move(device_cases({.dtype = DType::bf16, .len = 3000, .head_dim = 128})[1]);
  const DeviceRanks where{.memory = &cuda_memory()};
  const Results many = run_device_rank(*transport, where, problem, {.queries = zigzag_shares(3000, 1)});
  const Results one = run_one_call(where, problem);
  for (const char* name : {"out", "lse", "entropy"}) {
    Results expected, actual;
    expected[name] = clone(one.at(name));
    actual[name] = clone(many.at(name));
    EXPECT_EQ(first_difference(expected, actual), "");
  }
}

// Where NCCL allows two ranks on one device they agree bit for bit; the versions so far refuse them, with a reason.
TEST_F(Nccl, TwoRanksOnOneDeviceAgreeOrAreRefused) {
  const AttentionCase problem = std::move(device_cases({.dtype = DType::bf16, .len = 2000, .head_dim = 128})[1]);
  const auto errors = errors_of_ranks(2, [&](Transport& host) {
    const auto transport = nccl_transport(host, 0);
    const DeviceRanks where{.memory = &cuda_memory()};
    run_device_rank(*transport, where, problem, {.queries = zigzag_shares(2000, 2)});
  });
  for (const std::string& error : errors) {
    std::printf("two ranks on one device: %s\n", error.empty() ? "served" : error.c_str());
    EXPECT_TRUE(error.empty() || error.find("NCCL") != std::string::npos ||
                error.find("ncclCommInitRank") != std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace rootdk::test
