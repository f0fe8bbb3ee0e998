// rootdk attention on every fixture: PyTorch's float64 answers for out, the gradients and the statistics.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/safetensors.h"
#include "tools/command.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

constexpr double kTolerance = 1e-5;  // of the tensor's largest magnitude
// Where a gradient is exactly zero (cosine of vectors with one dimension), the file holds the rounding noise of
// float64.
constexpr double kNoise = 1e-12;

std::vector<std::string> fixtures() {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(ROOTDK_TEST_DATA "/attention")) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  return paths;
}

// Infinities must agree exactly; the largest difference of the others, relative to the largest magnitude expected.
double relative_difference(const ConstTensorView& actual, const ConstTensorView& expected) {
  double difference = 0, magnitude = 0;
  for (std::int64_t i = 0; i < expected.elements(); ++i) {
    const double a = actual.as<float>()[i], e = expected.as<float>()[i];
    if (std::isinf(e) && a == e) continue;
    if (!std::isfinite(a) || !std::isfinite(e)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(a - e));
    magnitude = std::max(magnitude, std::abs(e));
  }
  if (magnitude < kNoise) return difference < kNoise ? 0 : difference / kNoise;
  return difference / magnitude;
}

bool is_result(const std::string& name) {
  return name == "out" || name.starts_with("stats_") || (name.starts_with("grad_") && name != "grad_out");
}

class AttendFixture : public testing::TestWithParam<std::string> {};

TEST_P(AttendFixture, MatchesTheFile) {
  const test::TemporaryFolder folder;
  const std::string out = folder / "out.safetensors";
  const auto run = test::run_rootdk({"attention", GetParam(), "--target", "reference", "--out", out});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const SafetensorsFile expected = SafetensorsFile::open(GetParam()), actual = SafetensorsFile::open(out);
  int compared = 0;
  for (const std::string& name : expected.names()) {
    if (!is_result(name)) continue;
    ASSERT_TRUE(actual.contains(name)) << name;
    ASSERT_EQ(describe(actual.tensor(name)), describe(expected.tensor(name))) << name;
    EXPECT_LE(relative_difference(actual.tensor(name), expected.tensor(name)), kTolerance) << name;
    ++compared;
  }
  EXPECT_GE(compared, 10);  // out, grad_q, grad_k, grad_v and six statistics
}

INSTANTIATE_TEST_SUITE_P(All, AttendFixture, testing::ValuesIn(fixtures()),
                         [](const auto& info) { return "case_" + fs::path(info.param).stem().string(); });

TEST(AttendFixtures, AreAllThere) { EXPECT_EQ(fixtures().size(), 80u); }

}  // namespace
}  // namespace rootdk
