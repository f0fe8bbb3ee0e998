#include "core/view_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/strided.h"
#include "rootdk/error.h"

namespace rootdk {
namespace {

using testing::HasSubstr;

struct Layout {
  std::vector<std::int64_t> shape, strides;
  bool overlaps;
};

TEST(ViewCheck, FindsOverlap) {
  const Layout layouts[] = {
      {{2, 3}, {3, 1}, false},  {{3, 2}, {1, 3}, false},  {{2, 3}, {2, 1}, true},        {{2, 3}, {0, 1}, true},
      {{1, 3}, {0, 1}, false},  {{2, 0}, {0, 1}, false},  {{2, 3, 4}, {4, 8, 1}, false}, {{2, 2, 4}, {4, 4, 1}, true},
      {{2, 3}, {-3, 1}, false}, {{2, 3}, {3, -1}, false}, {{4, 4}, {1, 1}, true},        {{4, 4}, {16, 4}, false},
  };
  std::vector<float> memory(100);
  for (const Layout& layout : layouts) {
    TensorView view(memory.data() + 20, DType::f32, layout.shape);
    std::copy(layout.strides.begin(), layout.strides.end(), view.strides.begin());
    if (layout.overlaps) {
      EXPECT_THROW(require_no_overlap({"op", "x", view}), Error) << describe(view);
    } else {
      EXPECT_NO_THROW(require_no_overlap({"op", "x", view})) << describe(view);
    }
  }
}

TEST(ViewCheck, FindsOverflow) {
  float memory = 0;
  TensorView view(&memory, {1, 1});
  view.shape = {INT64_MAX / 4, 4};
  view.strides = {4, 1};
  try {
    require_addressable({"op", "x", view});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("whose extent overflows 64 bits"));
  }
}

TEST(Strided, ReadsThroughStridesAndBroadcasts) {
  float memory[] = {0, 1, 2, 3, 4, 5};
  const TensorView view(memory, {2, 3});
  EXPECT_EQ((read<float, 2>(view.transposed(0, 1))(2, 1)), 5);
  const TensorView row = broadcast(view.slice(0, 1, 2), {7, 3});
  EXPECT_EQ((read<float, 2>(row)(6, 0)), 3);
  EXPECT_THROW((read<double, 2>(view)), Error);
}

}  // namespace
}  // namespace rootdk
