// The CPU's append writes the bytes that the reference writes.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/kv_call.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

struct AppendCase {
  DType cache, from;
  bool rotated;
};

class CpuAppend : public testing::TestWithParam<AppendCase> {};

constexpr std::int64_t kHeads = 3, kTokens = 700, kDim = 40;

std::vector<std::byte> bytes_of(const TensorView& view) {
  if (!view.defined()) return {};
  const auto* first = view.as<std::byte>();
  return {first, first + static_cast<std::size_t>(view.elements()) * size_of(view.dtype)};
}

// Everything in a cache after one append to two sequences, one of which shares a page with a third.
std::vector<std::vector<std::byte>> after_append(const AppendImplementation& implementation, const AppendCase& c) {
  KvCache cache({.dtype = c.cache, .kv_heads = kHeads, .head_dim = kDim, .page_size = 16, .pages = 128});
  Tensor k = random_tensor(DType::f32, {1, kHeads, kTokens, kDim}, 1);
  const Tensor v = convert(random_tensor(DType::f32, {1, kHeads, kTokens, kDim}, 2), c.from);
  k.values<float>()[5] = std::nanf("");
  k.values<float>()[kDim + 1] = std::numeric_limits<float>::infinity();
  for (std::int64_t d = 0; d < kDim; ++d) k.values<float>()[static_cast<std::size_t>(2 * kDim + d)] = 0.0f;
  const Tensor keys = convert(k, c.from);
  AppendParams params;
  if (c.rotated) params.rope = RopeParams{.rotary_dim = 24};
  auto run = [&](const std::vector<KvStep>& steps, std::int64_t tokens) {
    AppendCall call = make_append_call(cache.state(), keys.view().slice(2, 0, tokens), v.view().slice(2, 0, tokens),
                                       steps, params, {.cpu = {.executor = &shared_executor(2)}});
    commit_append_call(cache.state(), steps, call);
    implementation.answer(call).run(call);
  };
  const SequenceId one = cache.open(), two = cache.open();
  run({{.sequence = one, .tokens = 7}}, 7);
  cache.fork(one);
  run({{.sequence = one, .tokens = kTokens - 3}, {.sequence = two, .tokens = 3}}, kTokens);
  const KvStorage& storage = cache.state().storage;
  return {bytes_of(storage.k), bytes_of(storage.v), bytes_of(storage.k_scales), bytes_of(storage.v_scales)};
}

TEST_P(CpuAppend, WritesWhatTheReferenceWrites) {
  const auto expected = after_append(reference::append_implementations()[0], GetParam());
  const auto written = after_append(cpu::append_implementations()[0], GetParam());
  EXPECT_EQ(written, expected);
}

std::vector<AppendCase> cases() {
  std::vector<AppendCase> all;
  for (const DType cache : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8e4m3}) {
    for (const DType from : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (const bool rotated : {false, true}) all.push_back({cache, from, rotated});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Types, CpuAppend, testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(name_of(info.param.from)) + "_to_" + std::string(name_of(info.param.cache)) +
         (info.param.rotated ? "_rotated" : "");
});

}  // namespace
}  // namespace rootdk::test
