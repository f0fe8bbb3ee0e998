// Multi-head attention, blocks and Transformer-XL: gradients against finite differences, padding, caches, QK-clip.

#include <cstring>

#include "layers/block.h"
#include "layers/gradient_check.h"
#include "layers/transformer_xl.h"
#include "rootdk/error.h"

namespace rootdk {
namespace {

using testing::check_gradients;
using testing::random_value;

std::vector<std::int32_t> positions_of(std::int64_t batch, std::int64_t len, std::int32_t first = 0) {
  std::vector<std::int32_t> positions;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < len; ++i) positions.push_back(first + static_cast<std::int32_t>(i));
  }
  return positions;
}

Parameters with_random_weights(const Value& x, const auto& layer, std::uint32_t seed, float spread = 0.4f) {
  Parameters inputs;
  layer.collect(inputs, "layer");
  testing::fill_random(inputs, seed, spread);
  inputs.push_back({"x", x});
  return inputs;
}

Value rows_of(const Value& x, std::int64_t first, std::int64_t count) {
  Value part = make_value({count, x->width()});
  std::copy_n(x->data() + first * x->width(), count * x->width(), part->data());
  return part;
}

TEST(MultiHeadAttention, GradientsOfEveryOption) {
  const std::vector<MultiHeadConfig> configs = {
      {.d_model = 8, .heads = 2, .causal = true},
      {.d_model = 8, .heads = 4, .kv_heads = 2, .head_dim = 3, .qkv_bias = true, .out_bias = true},
      {.d_model = 8, .heads = 2, .qk_norm = NormParams{.kind = NormKind::rms}, .rotary = true, .causal = true},
      {.d_model = 8,
       .heads = 2,
       .sinks = true,
       .alibi = true,
       .scale = Scale::none(),
       .causal = true,
       .window_left = 2},
      {.d_model = 8, .heads = 4, .kv_heads = 2, .head_dim = 3, .value_dim = 5, .causal = true},
      {.d_model = 8, .heads = 2, .value_dim = 6, .output_projection = false},
      {.d_model = 8, .heads = 2, .softcap = 2.0},
      {.d_model = 8, .heads = 2, .score = Score::cosine, .scale = 3.0},
      {.d_model = 8, .heads = 2, .score = Score::additive, .scale = Scale::none(), .causal = true},
  };
  for (std::size_t i = 0; i < configs.size(); ++i) {
    SCOPED_TRACE(i);
    const MultiHeadAttention layer(configs[i]);
    const Value x = random_value({2 * 5, 8}, 30);
    AttentionInput input{.batch = 2};
    if (configs[i].rotary) input.rope = make_rope_table(layer.config().head_dim, {}, positions_of(2, 5));
    check_gradients([&](Context& context) { return layer(context, x, input); }, with_random_weights(x, layer, 31),
                    {.tolerance = 1e-2});
  }
}

// With a gradient of the mean entropy, what comes back is that of entropy_gradient * mean entropy.
TEST(MultiHeadAttention, GradientsOfTheEntropy) {
  constexpr double kGradient = -3.0;
  for (const bool seen : {false, true}) {  // whether somebody asks for the statistics, too
    const MultiHeadAttention layer({.d_model = 8, .heads = 4, .kv_heads = 2, .head_dim = 3, .causal = true});
    const Value x = random_value({2 * 5, 8}, 70);
    const Parameters inputs = with_random_weights(x, layer, 71);
    auto loss = [&] {
      Context forward;
      AttentionCapture capture{.want_stats = true};
      layer(forward, x, {.batch = 2, .capture = &capture});
      double sum = 0;
      for (const float nats : capture.entropy.values<float>()) sum += nats;
      return kGradient * sum / static_cast<double>(capture.entropy.elements());
    };
    Tape tape;
    Context context{.tape = &tape, .entropy_gradient = kGradient};
    AttentionCapture capture{.want_stats = true};
    layer(context, x, {.batch = 2, .capture = seen ? &capture : nullptr})->grad();
    tape.backward();
    for (const Parameter& input : inputs) {
      std::span<float> numbers = input.value->value().values<float>();
      const std::span<const float> gradient = std::as_const(input.value->grad()).values<float>();
      double largest = 0.05;
      for (const float g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
      for (std::size_t i = 0; i < numbers.size(); i += 5) {
        const float kept = numbers[i];
        numbers[i] = kept + 4e-3f;
        const double above = loss(), high = numbers[i];
        numbers[i] = kept - 4e-3f;
        const double below = loss(), low = numbers[i];
        numbers[i] = kept;
        EXPECT_NEAR(gradient[i], (above - below) / (high - low), 5e-3 * largest) << input.name << "[" << i << "]";
      }
    }
  }
}

// A block that is computed again gives the same bits, with dropout, and keeps one record.
TEST(Block, RecomputedActivationsGiveTheSameBits) {
  const Block block(
      {.attention = {.d_model = 8, .heads = 2, .causal = true}, .feed_forward = {.d_model = 8, .d_ff = 12}});
  const Value x = random_value({2 * 5, 8}, 72);
  const Parameters inputs = with_random_weights(x, block, 73);
  auto gradients = [&](bool recompute) {
    for (const Parameter& input : inputs) input.value->drop_grad();
    Tape tape;
    Context context{.tape = &tape, .dropout = 0.3, .seed = 5};
    auto body = [&block, x](Context& inside) { return block(inside, x, {.self = {.batch = 2}}); };
    const Value first = recompute ? recomputed(context, body) : body(context);
    EXPECT_EQ(tape.size() == 1, recompute);
    const Value y = block(context, first, {.self = {.batch = 2}});  // its dropout goes on behind the first
    std::vector<float> all(y->data(), y->data() + y->elements());
    std::copy_n(all.begin(), all.size(), y->grad_data());
    tape.backward();
    for (const Parameter& input : inputs) {
      const std::span<const float> gradient = std::as_const(input.value->grad()).values<float>();
      all.insert(all.end(), gradient.begin(), gradient.end());
    }
    return all;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(MultiHeadAttention, CrossAttentionRelativeTableAndDropoutGradients) {
  const MultiHeadAttention layer({.d_model = 8, .heads = 2});
  const Value x = random_value({2 * 3, 8}, 32), source = random_value({2 * 4, 8}, 33);
  const Value buckets = random_value({8, 2}, 34);
  Parameters inputs = with_random_weights(x, layer, 35);
  inputs.push_back({"source", source});
  check_gradients([&](Context& context) { return layer(context, x, {.batch = 2, .source = source}); }, inputs,
                  {.tolerance = 1e-2});
  inputs.back() = {"buckets", buckets};
  const T5BucketParams params{.buckets = 8, .max_distance = 6};
  check_gradients(
      [&](Context& context) {
        const Value table = t5_table(context, buckets, params);
        return layer(context, x, {.batch = 2, .relative_table = table, .relative_zero = params.max_distance});
      },
      inputs, {.tolerance = 1e-2, .dropout = 0.2, .seed = 5});
}

TEST(MultiHeadAttention, ChecksItsSizes) {
  EXPECT_THROW(MultiHeadAttention({.d_model = 10, .heads = 4}), Error);
  EXPECT_THROW(MultiHeadAttention({.d_model = 12, .heads = 4, .kv_heads = 3}), Error);
  EXPECT_THROW(MultiHeadAttention({.d_model = 12, .heads = 4, .value_dim = -1}), Error);
  EXPECT_NO_THROW(MultiHeadAttention({.d_model = 10, .heads = 4, .head_dim = 8}));
}

TEST(MultiHeadAttention, TokensThroughACacheGiveTheSameRows) {
  const MultiHeadAttention layer(
      {.d_model = 8, .heads = 2, .value_dim = 5, .rotary = true, .causal = true, .window_left = 3});
  const std::int64_t len = 7;
  const Value x = random_value({len, 8}, 36);
  with_random_weights(x, layer, 37);
  Context context;
  AttentionInput whole{.batch = 1};
  whole.rope = make_rope_table(4, {}, positions_of(1, len));
  const Value expected = layer(context, x, whole);

  KvCache cache({.dtype = DType::f32, .kv_heads = 2, .head_dim = 4, .value_dim = 5, .pages = 1});
  const SequenceId sequence = cache.open();
  std::int64_t done = 0;
  for (const std::int64_t tokens : {3, 1, 2, 1}) {
    const KvStep step{.sequence = sequence, .tokens = tokens};
    AttentionInput input{.cached = {.cache = &cache, .steps = {&step, 1}}};
    input.rope = make_rope_table(4, {}, positions_of(1, tokens, static_cast<std::int32_t>(done)));
    const Value y = layer(context, rows_of(x, done, tokens), input);
    for (std::int64_t i = 0; i < tokens * 8; ++i) EXPECT_NEAR(y->data()[i], expected->data()[done * 8 + i], 1e-5);
    done += tokens;
  }
  EXPECT_EQ(cache.length(sequence), len);
}

// Prompts and single tokens of several sequences in one call, against each of them alone: the same bits.
TEST(CachedAttention, RowsDoNotDependOnTheOtherSteps) {
  Context context;
  const Value q = random_value({16, 16}, 38), k = random_value({16, 8}, 39), v = random_value({16, 8}, 40);
  const Value sinks = random_value({4}, 41);
  auto make_cache = [] { return KvCache({.dtype = DType::bf16, .kv_heads = 2, .head_dim = 4, .pages = 8}); };
  KvCache alone = make_cache(), together = make_cache();
  auto attended = [&](KvCache& cache, std::span<const KvStep> steps, std::int64_t first, std::int64_t rows) {
    const DotProductInput input{.heads = 4,
                                .kv_heads = 2,
                                .q = rows_of(q, first, rows),
                                .k = rows_of(k, first, rows),
                                .v = rows_of(v, first, rows),
                                .sinks = sinks};
    return cached_attention(context, input, {.causal = true, .window_left = 3}, {.cache = &cache, .steps = steps});
  };
  // What each call gives to the sequences a, b and c; 0: the sequence is not in the call.
  const std::int64_t calls[][3] = {{3, 1, 0}, {1, 2, 4}, {1, 0, 1}, {0, 1, 2}};
  std::vector<SequenceId> one, many;
  for (int i = 0; i < 3; ++i) {
    one.push_back(alone.open());
    many.push_back(together.open());
  }
  std::int64_t row = 0;
  for (const auto& tokens : calls) {
    std::vector<KvStep> steps;
    std::vector<Value> expected;
    const std::int64_t first = row;
    for (std::size_t i = 0; i < 3; ++i) {
      if (tokens[i] == 0) continue;
      steps.push_back({.sequence = many[i], .tokens = tokens[i]});
      const KvStep step{.sequence = one[i], .tokens = tokens[i]};
      expected.push_back(attended(alone, {&step, 1}, row, tokens[i]));
      row += tokens[i];
    }
    const Value y = attended(together, steps, first, row - first);
    const float* found = y->data();
    for (const Value& part : expected) {
      EXPECT_EQ(std::memcmp(part->data(), found, part->value().bytes()), 0);
      found += part->value().elements();
    }
  }
}

TEST(MultiHeadAttention, FixedKeysAreTheKeysOfTheirSource) {
  const MultiHeadAttention layer({.d_model = 8, .heads = 2});
  const Value x = random_value({5, 8}, 60), source = random_value({4, 8}, 61), other = random_value({6, 8}, 62);
  with_random_weights(x, layer, 63);
  Context context;
  const FixedKeys keys[] = {layer.fixed_keys(context, source), layer.fixed_keys(context, other)};
  const KvStep steps[] = {{.tokens = 2}, {.tokens = 3}};
  const Value y = layer(context, x, {.fixed = keys, .steps = steps});
  const Value first = layer(context, rows_of(x, 0, 2), {.source = source});
  const Value second = layer(context, rows_of(x, 2, 3), {.source = other});
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_NEAR(y->data()[i], first->data()[i], 1e-6);
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_NEAR(y->data()[16 + i], second->data()[i], 1e-6);
}

TEST(MultiHeadAttention, ACacheServesCausalDotProductsWithoutGradient) {
  KvCache cache({.dtype = DType::f32, .kv_heads = 2, .head_dim = 4, .pages = 1});
  const KvStep step{.sequence = cache.open(), .tokens = 2};
  const AttentionInput input{.cached = {.cache = &cache, .steps = {&step, 1}}};
  const Value x = random_value({2, 8}, 64);
  Tape tape;
  Context plain, training{.tape = &tape};
  EXPECT_THROW(MultiHeadAttention({.d_model = 8, .heads = 2})(plain, x, input), Error);
  EXPECT_THROW(MultiHeadAttention({.d_model = 8, .heads = 2, .causal = true})(training, x, input), Error);
  EXPECT_THROW(MultiHeadAttention({.d_model = 8, .heads = 2, .causal = true})(plain, random_value({3, 8}, 65), input),
               Error);
  EXPECT_EQ(cache.length(step.sequence), 0);
}

TEST(Block, GradientsOfEveryPlacement) {
  for (const NormPlacement placement :
       {NormPlacement::pre, NormPlacement::post, NormPlacement::sandwich, NormPlacement::parallel}) {
    for (const bool option : {false, true}) {
      SCOPED_TRACE(static_cast<int>(placement) * 2 + option);
      BlockConfig config{.attention = {.d_model = 8, .heads = 2, .causal = true},
                         .feed_forward = {.d_model = 8, .d_ff = 12, .activation = Activation::gelu},
                         .norm_bias = true,
                         .placement = placement};
      // A parallel block has no cross-attention; the option is then the residual behind the norm.
      config.cross_attention = option && placement != NormPlacement::parallel;
      config.residual_after_norm = option && placement == NormPlacement::pre;
      const Block block(config);
      const Value x = random_value({2 * 3, 8}, 40), memory = random_value({2 * 4, 8}, 41);
      Parameters inputs = with_random_weights(x, block, 42, 0.3f);
      if (config.cross_attention) inputs.push_back({"memory", memory});
      check_gradients(
          [&](Context& context) {
            return block(context, x, {.self = {.batch = 2}, .cross = {.batch = 2, .source = memory}});
          },
          inputs, {.tolerance = 1.5e-2, .samples = 5, .dropout = option ? 0.1 : 0.0, .seed = 4});
    }
  }
}

// The definition, in double, one logit at a time.
TEST(TransformerXl, AttentionIsTheDefinition) {
  const std::int64_t d = 8, heads = 2, head_dim = 4, len = 3, memory_len = 2, kv_len = 5;
  const TransformerXlBlock block({.d_model = d, .heads = heads, .d_ff = 12});
  const Value x = random_value({len, d}, 50), old = random_value({memory_len, d}, 51);
  with_random_weights(x, block, 52);
  Context context;
  AttentionCapture capture{.want_weights = true};
  block(context, x, old->value(), 1, &capture);

  auto project = [&](const float* row, const Linear& layer, std::int64_t out) {
    double sum = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += static_cast<double>(row[i]) * layer.weight->data()[out * d + i];
    return sum;
  };
  auto source = [&](std::int64_t j) { return j < memory_len ? old->data() + j * d : x->data() + (j - memory_len) * d; };
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < len; ++i) {
      std::vector<double> weights;
      double sum = 0;
      for (std::int64_t j = 0; j <= i + memory_len; ++j) {
        std::vector<float> encoding(static_cast<std::size_t>(d));
        const double distance = static_cast<double>(i + memory_len - j);
        for (std::int64_t p = 0; p < d / 2; ++p) {
          const double angle = distance / std::pow(10000.0, 2.0 * static_cast<double>(p) / static_cast<double>(d));
          encoding[static_cast<std::size_t>(p)] = static_cast<float>(std::sin(angle));
          encoding[static_cast<std::size_t>(p + d / 2)] = static_cast<float>(std::cos(angle));
        }
        double logit = 0;
        for (std::int64_t e = h * head_dim; e < (h + 1) * head_dim; ++e) {
          const double q = project(x->data() + i * d, block.q, e);
          logit += (q + block.u_bias->data()[e]) * project(source(j), block.k, e);
          logit += (q + block.v_bias->data()[e]) * project(encoding.data(), block.r, e);
        }
        weights.push_back(std::exp(logit / 2.0));  // sqrt(head_dim) = 2
        sum += weights.back();
      }
      for (std::int64_t j = 0; j < kv_len; ++j) {
        const double expected =
            j < static_cast<std::int64_t>(weights.size()) ? weights[static_cast<std::size_t>(j)] / sum : 0;
        EXPECT_NEAR(capture.weights.values<float>()[static_cast<std::size_t>((h * len + i) * kv_len + j)], expected,
                    1e-5);
      }
    }
  }
}

TEST(TransformerXl, Gradients) {
  const TransformerXlBlock block({.d_model = 8, .heads = 2, .d_ff = 12});
  const Value x = random_value({2 * 3, 8}, 53), old = random_value({2 * 2, 8}, 54);
  const Parameters inputs = with_random_weights(x, block, 55);
  check_gradients([&](Context& context) { return block(context, x, old->value(), 2); }, inputs,
                  {.tolerance = 1.5e-2, .samples = 6});
  check_gradients([&](Context& context) { return block(context, x, Tensor(), 2); }, inputs,
                  {.tolerance = 1.5e-2, .samples = 6});
}

TEST(QkClip, BringsTheLargestLogitToTheLimit) {
  for (const std::int64_t kv_heads : {2, 1}) {
    MultiHeadAttention layer({.d_model = 8, .heads = 2, .kv_heads = kv_heads, .qkv_bias = true, .causal = true});
    const Value x = random_value({6, 8}, 60);
    with_random_weights(x, layer, 61, 1.5f);
    auto largest = [&] {
      Context context;
      AttentionCapture capture{.want_stats = true};
      layer(context, x, {.batch = 1, .capture = &capture});
      std::vector<float> heads(2, -1e30f);
      for (std::size_t i = 0; i < 12; ++i) heads[i / 6] = std::max(heads[i / 6], capture.max_logit.values<float>()[i]);
      return heads;
    };
    const std::vector<float> before = largest();
    const double limit = 0.5 * std::min(before[0], before[1]);
    ASSERT_GT(limit, 0);
    EXPECT_EQ(qk_clip(layer, before, limit), 2);
    for (const float after : largest()) EXPECT_NEAR(after, limit, 1e-4 * limit);
    EXPECT_EQ(qk_clip(layer, largest(), limit * 1.01), 0);
  }
}

}  // namespace
}  // namespace rootdk
