#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rootdk/error.h"
#include "rootdk/positions.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

using testing::ElementsAre;

TEST(LearnedPositions, AddsTheRowOfEachPosition) {
  const double rows[] = {1, 2, 10, 20, 100, 200};
  const Tensor table = tensor_of(DType::f32, {3, 2}, rows), positions = i32_tensor({2, 0});
  ConstTensorView grid = positions;
  grid.rank = 2;
  grid.shape = {1, 2};
  grid.strides = {2, 1};
  Tensor x = tensor_of(DType::f32, {2, 2, 2}, std::vector<double>(8, 0.5));
  add_learned_positions(x, table, grid);
  EXPECT_THAT(doubles(x), ElementsAre(100.5, 200.5, 1.5, 2.5, 100.5, 200.5, 1.5, 2.5));
  add_learned_positions(x, table, {}, 1);
  EXPECT_THAT(doubles(x), ElementsAre(110.5, 220.5, 101.5, 202.5, 110.5, 220.5, 101.5, 202.5));
}

TEST(LearnedPositions, BackwardSumsRows) {
  const double g[] = {1, 2, 3, 4, 5, 6, 7, 8};
  Tensor grad_table(DType::f32, {4, 2});
  poison(grad_table);
  add_learned_positions_backward(tensor_of(DType::f32, {2, 2, 2}, g), grad_table, {}, 1);
  EXPECT_THAT(doubles(grad_table), ElementsAre(0, 0, 6, 8, 10, 12, 0, 0));
}

TEST(LearnedPositions, RefusesPositionsOutsideTheTable) {
  Tensor x(DType::f32, {1, 3, 2});
  const Tensor table(DType::f32, {4, 2});
  try {
    add_learned_positions(x, table, {}, 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "add_learned_positions: position 4 of token 2 in batch entry 0 is not a row of the table, which has 4");
  }
}

}  // namespace
}  // namespace rootdk::test
