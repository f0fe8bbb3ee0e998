// What a query may see: the same scores under different masks.

#include "rootdk/attention.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

constexpr std::int64_t kTokens = 8, kMaskedDim = 16;

// The weights [kTokens, kTokens] of random vectors under the given mask.
TitledBlock masked(const std::string& title, const AttentionParams& params, const Style& style) {
  const Tensor q = normal_tensor({1, 1, kTokens, kMaskedDim}, 6), k = normal_tensor({1, 1, kTokens, kMaskedDim}, 7);
  Tensor v(DType::f32, {1, 1, kTokens, 1}), out(DType::f32, {1, 1, kTokens, 1});
  Tensor weights(DType::f32, {1, 1, kTokens, kTokens});
  attention(q, k, v, out, params, {.weights = weights});
  return {title, draw_map(ConstTensorView(weights.values<float>().data(), {kTokens, kTokens}), style)};
}

}  // namespace

void show_masks(const Style& style) {
  print_text("The same eight queries and keys under four masks. Each row's weights sum to 1 over what is left.");
  print_line();
  Tensor length(DType::i32, {1}), starts(DType::i32, {3});
  length.values<std::int32_t>()[0] = 5;
  starts.values<std::int32_t>()[1] = 3;
  starts.values<std::int32_t>()[2] = static_cast<std::int32_t>(kTokens);
  print_beside(
      {masked("causal", {.causal = true}, style), masked("causal, window 2", {.causal = true, .window_left = 2}, style),
       masked("5 keys, padding", {.kv_lengths = length}, style),
       masked("packed 3+5, causal", {.causal = true, .q_starts = starts, .kv_starts = starts}, style)},
      style);
  print_line();
  print_text(
      "Also block-sparse masks, any boolean mask, biases, ALiBi, T5 buckets and learned sinks, with their gradients. A "
      "query that may see nothing gives zeros, never NaN.");
}

}  // namespace rootdk::tools
