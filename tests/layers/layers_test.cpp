// Each layer's gradients against finite differences, and its forward pass against the formula.

#include "layers/activations.h"

#include <cstring>

#include "layers/elementwise.h"
#include "layers/feed_forward.h"
#include "layers/gradient_check.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/norms.h"
#include "layers/products.h"
#include "layers/rotary.h"
#include "rootdk/error.h"

namespace rootdk {
namespace {

using testing::check_gradients;
using testing::random_value;

double exact(Activation activation, double x) {
  switch (activation) {
    case Activation::relu: return x > 0 ? x : 0;
    case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_quick: return x / (1 + std::exp(-1.702 * x));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::tanh: return std::tanh(x);
  }
  return 0;
}

constexpr Activation kActivations[] = {Activation::relu,       Activation::gelu, Activation::gelu_tanh,
                                       Activation::gelu_quick, Activation::silu, Activation::tanh};

TEST(Products, AllTransposesAndTilesMatchPlainSums) {
  const std::int64_t rows = 150, columns = 401, inner = 37;
  const Value a = random_value({rows, inner}, 1), b = random_value({inner, columns}, 2);
  const Value at = make_value({inner, rows}), bt = make_value({columns, inner});
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < inner; ++k) at->data()[k * rows + i] = a->data()[i * inner + k];
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t k = 0; k < inner; ++k) bt->data()[j * inner + k] = b->data()[k * columns + j];
  }
  const Factor lefts[] = {{.data = a->data(), .stride = inner},
                          {.data = at->data(), .stride = rows, .transpose = Transpose::yes}};
  const Factor rights[] = {{.data = b->data(), .stride = columns},
                           {.data = bt->data(), .stride = inner, .transpose = Transpose::yes}};
  for (const Factor& left : lefts) {
    for (const Factor& right : rights) {
      Value c = make_value({rows, columns});
      c->data()[columns + 1] = 100.0f;
      multiply({}, {.rows = rows, .columns = columns, .inner = inner}, left, right, c->data(), true);
      for (std::int64_t i = 0; i < rows; i += 7) {
        for (std::int64_t j = 0; j < columns; ++j) {
          double sum = i == 1 && j == 1 ? 100.0 : 0.0;
          for (std::int64_t k = 0; k < inner; ++k) {
            sum += static_cast<double>(a->data()[i * inner + k]) * b->data()[k * columns + j];
          }
          ASSERT_NEAR(c->data()[i * columns + j], sum, 1e-4) << i << " " << j;
        }
      }
    }
  }
}

TEST(Products, BitIdenticalForAnyNumberOfThreads) {
  const std::int64_t rows = 300, columns = 800, inner = 64;
  const Value a = random_value({rows, inner}, 1), b = random_value({columns, inner}, 2);
  auto product = [&](int threads) {
    Value c = make_value({rows, columns});
    multiply({.executor = &shared_executor(threads)}, {.rows = rows, .columns = columns, .inner = inner},
             {.data = a->data(), .stride = inner}, {.data = b->data(), .stride = inner, .transpose = Transpose::yes},
             c->data());
    return std::vector<float>(c->data(), c->data() + rows * columns);
  };
  const std::vector<float> one = product(1);
  EXPECT_EQ(one, product(2));
  EXPECT_EQ(one, product(5));
}

TEST(Linear, Gradients) {
  const Value x = random_value({5, 7}, 1);
  const Linear layer(3, 7, true);
  Parameters inputs{{"x", x}};
  layer.collect(inputs, "linear");
  testing::fill_random(inputs, 3, 0.5f);
  check_gradients([&](Context& context) { return layer(context, x); }, inputs);
}

TEST(Linear, NamesTheSizesThatDoNotFit) {
  Context context;
  try {
    linear(context, make_value({2, 5}), make_value({3, 4}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "linear: input of width 5 for a weight f32 [3, 4]");
  }
}

TEST(Norms, ForwardIsTheFormula) {
  Context context;
  const Value x = random_value({3, 10}, 4, 2.0f), weight = random_value({10}, 5), bias = random_value({10}, 6);
  for (const NormKind kind : {NormKind::layer, NormKind::rms, NormKind::rms_unit_offset}) {
    const Value y = norm(context, x, weight, kind == NormKind::layer ? bias : nullptr, {.kind = kind, .eps = 1e-3});
    for (std::int64_t row = 0; row < 3; ++row) {
      double mean = 0, squares = 0;
      for (int d = 0; d < 10; ++d) mean += kind == NormKind::layer ? x->data()[row * 10 + d] / 10.0 : 0.0;
      for (int d = 0; d < 10; ++d) squares += std::pow(x->data()[row * 10 + d] - mean, 2) / 10;
      for (int d = 0; d < 10; ++d) {
        const double w = weight->data()[d] + (kind == NormKind::rms_unit_offset ? 1.0 : 0.0);
        const double expected = (x->data()[row * 10 + d] - mean) / std::sqrt(squares + 1e-3) * w +
                                (kind == NormKind::layer ? bias->data()[d] : 0.0);
        EXPECT_NEAR(y->data()[row * 10 + d], expected, 1e-5);
      }
    }
  }
}

TEST(Norms, Gradients) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms, NormKind::rms_unit_offset}) {
    const Value x = random_value({70, 9}, 4);  // more than one block of rows
    const Norm layer(9, {.kind = kind, .eps = 1e-5}, kind == NormKind::layer);
    Parameters inputs{{"x", x}};
    layer.collect(inputs, "norm");
    testing::fill_random(inputs, 8, 0.3f);
    check_gradients([&](Context& context) { return layer(context, x); }, inputs);
  }
}

TEST(Norms, OverHeadsOfARow) {
  const Value x = random_value({4, 12}, 4);
  const Norm layer(3, {.kind = NormKind::rms}, false);
  check_gradients([&](Context& context) { return layer(context, x); }, {{"x", x}, {"weight", layer.weight}});
}

TEST(Activations, ForwardIsTheFunction) {
  Context context;
  Value x = make_value({1, 401});
  for (int i = 0; i <= 400; ++i) x->data()[i] = static_cast<float>(i - 200) / 20.0f;
  for (const Activation activation : kActivations) {
    const Value y = activate(context, x, activation);
    for (int i = 0; i <= 400; ++i) {
      EXPECT_NEAR(y->data()[i], exact(activation, x->data()[i]), 2e-6) << name_of(activation) << " " << x->data()[i];
    }
  }
}

TEST(Activations, Gradients) {
  for (const Activation activation : kActivations) {
    const Value x = random_value({6, 11}, 9), up = random_value({6, 11}, 10);
    for (float& v : x->value().values<float>()) v += v < 0 ? -0.02f : 0.02f;  // away from the corner of relu
    check_gradients([&](Context& context) { return activate(context, x, activation); }, {{"x", x}});
    check_gradients([&](Context& context) { return gated(context, x, up, activation); }, {{"gate", x}, {"up", up}});
  }
}

TEST(Activations, ClampedSwigluForwardAndGradients) {
  Context context;
  const Value gate = random_value({5, 16}, 11, 4.0f), up = random_value({5, 16}, 12, 4.0f);
  const Value y = clamped_swiglu(context, gate, up, 3.0f);
  for (int i = 0; i < 80; ++i) {
    const double g = std::min<double>(gate->data()[i], 3.0), u = std::clamp<double>(up->data()[i], -3.0, 3.0);
    EXPECT_NEAR(y->data()[i], g / (1 + std::exp(-1.702 * g)) * (u + 1), 1e-5);
  }
  check_gradients([&](Context& c) { return clamped_swiglu(c, gate, up, 3.0f); }, {{"gate", gate}, {"up", up}},
                  {.step = 1e-3});
}

TEST(Elementwise, Gradients) {
  const Value x = random_value({40, 10}, 13), y = random_value({40, 10}, 14), b = random_value({10}, 15);
  check_gradients([&](Context& context) { return add(context, x, y); }, {{"x", x}, {"y", y}});
  check_gradients([&](Context& context) { return add(context, x, x); }, {{"x", x}});
  check_gradients([&](Context& context) { return scale(context, x, -1.5); }, {{"x", x}});
  check_gradients([&](Context& context) { return softcap(context, x, 2.0); }, {{"x", x}});
  check_gradients([&](Context& context) { return add_row(context, x, b); }, {{"x", x}, {"b", b}});
  check_gradients([&](Context& context) { return dropout(context, x); }, {{"x", x}}, {.dropout = 0.3, .seed = 3});
}

TEST(Elementwise, DropoutDropsItsShareAndKeepsTheMean) {
  Context context{.dropout = 0.25, .seed = 9};
  Value x = make_value({100, 200});
  for (float& v : x->value().values<float>()) v = 1.0f;
  const Value y = dropout(context, x);
  double sum = 0;
  int dropped = 0;
  for (const float v : y->value().values<float>()) {
    sum += v;
    dropped += v == 0.0f;
  }
  EXPECT_NEAR(dropped / 20000.0, 0.25, 0.02);
  EXPECT_NEAR(sum / 20000.0, 1.0, 0.02);
  Context again{.dropout = 0.25, .seed = 9};
  EXPECT_EQ(0, std::memcmp(y->data(), dropout(again, x)->data(), 20000 * sizeof(float)));
}

TEST(Elementwise, EmbeddingGradientsAndBadIds) {
  const Value table = random_value({6, 4}, 16);
  const std::vector<std::int32_t> ids = {1, 5, 1, 0};
  check_gradients([&](Context& context) { return embed(context, ids, table); }, {{"table", table}});
  Context context;
  EXPECT_THROW(embed(context, std::vector<std::int32_t>{6}, table), Error);
  EXPECT_THROW(embed(context, std::vector<std::int32_t>{-1}, table), Error);
}

TEST(Rotary, MatchesThePublicOperationAndItsGradients) {
  const std::vector<std::int32_t> positions = {3, 4, 5, 0, 1, 2};  // batch 2, len 3
  for (const RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
    const RopeParams params{.layout = layout, .rotary_dim = 6};
    const auto table = make_rope_table(8, params, positions);
    const Value x = random_value({6, 16}, 17);
    Context context;
    const Value y = rotate(context, x, table);
    Tensor expected(DType::f32, {2, 3, 2, 8});
    const ConstTensorView view = ConstTensorView(std::as_const(*x).data(), {2, 3, 2, 8}).transposed(1, 2);
    rope(view, expected.view().transposed(1, 2), params, ConstTensorView(positions.data(), {2, 3}));
    for (int i = 0; i < 96; ++i) EXPECT_NEAR(y->data()[i], expected.values<float>()[static_cast<std::size_t>(i)], 1e-5);
    check_gradients([&](Context& c) { return rotate(c, x, table); }, {{"x", x}});
  }
}

TEST(FeedForward, Gradients) {
  for (const bool gated : {false, true}) {
    const FeedForward layer({.d_model = 6, .d_ff = 10, .activation = Activation::silu, .gated = gated, .bias = true});
    const Value x = random_value({7, 6}, 18);
    Parameters inputs{{"x", x}};
    layer.collect(inputs, "ffn");
    testing::fill_random(inputs, 19, 0.4f);
    check_gradients([&](Context& context) { return layer(context, x); }, inputs);
  }
}

TEST(FeedForward, MixtureOfExpertsGradients) {
  const FeedForward layer({.d_model = 6, .d_ff = 8, .bias = true, .experts = 4, .top_k = 2, .clamp_limit = 7.0});
  const Value x = random_value({9, 6}, 20);
  Parameters inputs{{"x", x}};
  layer.collect(inputs, "ffn");
  testing::fill_random(inputs, 21, 0.5f);
  check_gradients([&](Context& context) { return layer(context, x); }, inputs, {.step = 1e-3, .tolerance = 1e-2});
}

TEST(Loss, CrossEntropyIsTheFormulaAndItsGradient) {
  const Value logits = random_value({6, 5}, 22, 2.0f);
  const std::vector<std::int32_t> targets = {0, 4, kIgnoredTarget, 2, 2, 1};
  double expected = 0;
  for (int row = 0; row < 6; ++row) {
    if (targets[static_cast<std::size_t>(row)] == kIgnoredTarget) continue;
    double sum = 0;
    for (int d = 0; d < 5; ++d) sum += std::exp(static_cast<double>(logits->data()[row * 5 + d]));
    expected += std::log(sum) - logits->data()[row * 5 + targets[static_cast<std::size_t>(row)]];
  }
  Tape tape;
  Context context{.tape = &tape};
  EXPECT_NEAR(cross_entropy(context, logits, targets), expected / 5, 1e-6);
  Context forward;
  for (int i = 0; i < 30; ++i) {
    const float kept = logits->data()[i];
    logits->data()[i] = kept + 1e-2f;
    const double above = cross_entropy(forward, logits, targets);
    logits->data()[i] = kept - 1e-2f;
    const double below = cross_entropy(forward, logits, targets);
    logits->data()[i] = kept;
    EXPECT_NEAR(logits->grad_data()[i], (above - below) / 2e-2, 1e-4) << i;
  }
}

}  // namespace
}  // namespace rootdk
