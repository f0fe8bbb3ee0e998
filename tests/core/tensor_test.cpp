#include "rootdk/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

#include "core/out_of_memory.h"
#include "core/strided.h"
#include "rootdk/error.h"
#include "support/error_of.h"
#include "support/tensors.h"

namespace rootdk {
namespace {

using test::doubles;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Tensor, OwnsZeroedAlignedMemory) {
  Tensor t(DType::f32, {2, 3});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.view().data) % 64, 0u);
  EXPECT_THAT(doubles(t), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_EQ(t.bytes(), 24u);
  const float* memory = t.view().as<float>();
  const Tensor moved = std::move(t);
  EXPECT_EQ(moved.view().as<float>(), memory);
}

TEST(Tensor, EmptyAndScalarShapes) {
  const Tensor empty(DType::bf16, {4, 0, 2});
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_TRUE(empty.defined());
  EXPECT_FALSE(TensorView().defined());
}

TEST(Tensor, RefusesBadSizes) {
  EXPECT_EQ(error_of([] { Tensor(DType::f32, {2, -1}); }), "tensor: size -1 is negative");
  EXPECT_EQ(error_of([] {
              Tensor(DType::f32, {INT64_MAX / 2, 3});
            }),
            "tensor: the sizes [4611686018427387903, 3] of f32 multiply to more bytes than 64 bits hold");
  EXPECT_THAT(error_of([] { Tensor(DType::f32, {0, INT64_MAX / 2, 3}); }), HasSubstr("more bytes than 64 bits hold"));
  EXPECT_EQ(error_of([] { Tensor(DType::f32, {1, 1, 1, 1, 1, 1, 1}); }), "tensor: rank 7 is over the maximum 6");
}

TEST(Tensor, SaysHowMuchMemoryThereIsNot) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends the program instead";
#endif
  try {
    Tensor(DType::f32, {std::int64_t{1} << 56});
    FAIL() << "a tensor of 2^58 bytes";
  } catch (const std::bad_alloc& error) {
    EXPECT_STREQ(message_of(error), "out of memory: there are no 288230376151711744 bytes for a tensor");
  }
  EXPECT_STREQ(message_of(std::bad_alloc()), "out of memory");
}

TEST(Tensor, ValuesAreOfItsOwnType) {
  Tensor t(DType::bf16, {2, 3});
  EXPECT_EQ(t.values<BFloat16>().size(), 6u);
  EXPECT_EQ(error_of([&] { t.values<float>(); }), "tensor: values of f32 are asked of bf16 [2, 3]");
  EXPECT_EQ(error_of([&] { std::as_const(t).values<Float16>(); }), "tensor: values of f16 are asked of bf16 [2, 3]");
}

// What compiles, and what does not: a view must not outlive its tensor.
template <class T>
concept GivesValues = requires(T t) {
  static_cast<T>(t).template values<float>();
};
template <class T>
concept GivesView = requires(T t) {
  static_cast<T>(t).view();
};
static_assert(GivesValues<Tensor&> && GivesValues<const Tensor&>);
static_assert(!GivesValues<Tensor&&> && !GivesValues<const Tensor&&>);
static_assert(GivesView<Tensor&> && GivesView<const Tensor&>);
static_assert(!GivesView<Tensor&&> && !GivesView<const Tensor&&>);
// A temporary can be read by a call, not written to.
static_assert(std::is_convertible_v<Tensor&, TensorView> && std::is_convertible_v<Tensor&, ConstTensorView>);
static_assert(std::is_convertible_v<const Tensor&, ConstTensorView> &&
              !std::is_convertible_v<const Tensor&, TensorView>);
static_assert(std::is_convertible_v<Tensor&&, ConstTensorView> && !std::is_convertible_v<Tensor&&, TensorView>);
static_assert(std::is_nothrow_move_constructible_v<Tensor> && std::is_nothrow_move_assignable_v<Tensor>);
static_assert(!std::is_copy_constructible_v<Tensor> && !std::is_copy_assignable_v<Tensor>);

TEST(Tensor, IsUndefinedOnceMovedFrom) {
  Tensor first(DType::f32, {2, 3});
  void* const memory = first.view().data;
  Tensor second = std::move(first);
  EXPECT_FALSE(first.defined());
  EXPECT_EQ(first.view().data, nullptr);
  EXPECT_EQ(second.view().data, memory);
  EXPECT_EQ(second.elements(), 6);
  Tensor third(DType::bf16, {4});
  third = std::move(second);
  EXPECT_FALSE(second.defined());
  EXPECT_EQ(second.view().data, nullptr);
  EXPECT_EQ(third.view().data, memory);
  second = Tensor(DType::f32, {1});
  EXPECT_EQ(second.elements(), 1);
}

TEST(TensorView, StridesOfSlicesAndTranspositions) {
  std::vector<float> memory(24);
  for (std::size_t n = 0; n < 24; ++n) memory[n] = static_cast<float>(n);
  const TensorView view(memory.data(), {2, 3, 4});
  EXPECT_THAT(doubles(view.slice(1, 1, 2)), ElementsAre(4, 5, 6, 7, 16, 17, 18, 19));
  EXPECT_THAT(doubles(view.slice(0, 1, 2).transposed(1, 2).slice(1, 0, 2)), ElementsAre(12, 16, 20, 13, 17, 21));
  EXPECT_EQ(error_of([&] { view.slice(1, 2, 5); }), "slice: [2, 5) of dimension 1 with size 3");
  EXPECT_EQ(error_of([&] { view.slice(3, 0, 1); }), "slice: dimension 3 of a tensor of rank 3");
  EXPECT_EQ(error_of([&] { view.transposed(1, 3); }), "transposed: dimensions 1 and 3 of a tensor of rank 3");
}

TEST(TensorView, IsFilledWithZerosWhereItReaches) {
  std::vector<float> memory(12, 1.0f);
  fill_zero(TensorView(memory.data(), {3, 4}).transposed(0, 1).slice(0, 1, 3));
  EXPECT_THAT(memory, ElementsAre(1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1));
  fill_zero({});
}

TEST(TensorView, Describes) {
  const Tensor t(DType::f16, {2, 8});
  EXPECT_EQ(describe(t), "f16 [2, 8]");
  ConstTensorView elsewhere = t;
  elsewhere.device = {DeviceKind::cuda, 1};
  EXPECT_EQ(describe(elsewhere), "f16 [2, 8] on cuda:1");
  EXPECT_EQ(describe({}), "no tensor");
}

TEST(Tensor, ConvertsBetweenFloatingTypes) {
  const double values[] = {1, -2.5, 1e-3, 300};
  const Tensor wide = test::tensor_of(DType::f64, {2, 2}, values);
  for (DType type : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor back = convert(convert(wide, type), DType::f64);
    EXPECT_LT(test::difference(wide, back).relative(), type == DType::f32 ? 1e-7 : 4e-3);
  }
  EXPECT_THAT(doubles(convert(std::as_const(wide).view().transposed(0, 1), DType::f32)),
              ElementsAre(1, 0.001f, -2.5, 300));
  EXPECT_EQ(error_of([] { convert(Tensor(DType::i32, {2}), DType::f32); }),
            "convert: i32 to f32 is not a conversion between floating types");
}

}  // namespace
}  // namespace rootdk
