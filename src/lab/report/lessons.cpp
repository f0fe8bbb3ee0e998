#include "lab/report/lessons.h"

#include <cmath>
#include <cstdio>
#include <sstream>
#include <vector>

#include "lab/claim.h"
#include "lab/probe.h"
#include "lab/report/figure_svg.h"
#include "lab/report/html.h"
#include "lab/report/mathml.h"
#include "lab/training/learned_positions.h"
#include "rootdk/positions.h"

namespace rootdk::lab {
namespace {

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string joined(const std::vector<double>& values, int digits) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + fixed(values[i], digits);
  return text + "]";
}

std::string figures(const std::vector<Figure>& all) {
  std::string html = "<div class=\"figures\">";
  for (const Figure& figure : all)
    html += "<figure>" + svg(figure) + "<figcaption>" + escape_html(figure.caption) + "</figcaption></figure>";
  return html + "</div>";
}

// One query against three keys, small enough for pencil and paper.
struct Example {
  Tensor q{DType::f32, {1, 1, 1, 4}}, k{DType::f32, {1, 1, 3, 4}};
  Example() {
    const float query[] = {1, 0, 2, 1}, keys[] = {1, 1, 2, 0, 0, 1, 1, 1, 2, 0, 0, -1};
    std::copy(std::begin(query), std::end(query), q.values<float>().begin());
    std::copy(std::begin(keys), std::end(keys), k.values<float>().begin());
  }
  std::vector<double> weights(const AttentionParams& params) const { return weights_of(Bench{}, q, k, params)[0]; }
};

Figure sinusoidal_figure() {
  Tensor table(DType::f32, {48, 64});
  sinusoidal_positions(table, {.layout = SinusoidalLayout::concatenated});
  Figure figure{.kind = Figure::Kind::heat_map,
                .title = "Sinusoidal",
                .x_label = "dimension",
                .y_label = "position",
                .caption =
                    "Added to the input: sines on the left, cosines on the right, from fast to slow. Blue is "
                    "positive, red negative."};
  for (std::size_t i = 0; i < 48; ++i) {
    auto& row = figure.matrix.emplace_back();
    for (std::size_t d = 0; d < 64; ++d) row.push_back(table.values<float>()[i * 64 + d]);
  }
  return figure;
}

// Before and after training.
std::vector<Figure> learned_figures() {
  LearnedPositions learned = train_positions(7);
  const auto picture = [](const char* title, const std::string& caption, std::vector<std::vector<double>> scores) {
    return Figure{.kind = Figure::Kind::heat_map,
                  .title = title,
                  .x_label = "position of the key",
                  .y_label = "position of the query",
                  .caption = caption,
                  .matrix = std::move(scores)};
  };
  return {
      picture("Learned: before training",
              "A free vector a position, added to the input. Shown is the score that two positions give each "
              "other: noise.",
              std::move(learned.before)),
      picture("Learned: after training",
              "The same after learning to say the token that stood one before (" + fixed(100 * learned.accuracy, 0) +
                  " % right): each query position has found the key position before it, pair by pair.",
              std::move(learned.after))};
}

// One constant vector, rotated by its position: how q.k then falls and swings with distance.
Figure rope_figure() {
  constexpr std::int64_t kLength = 128, kDim = 64;
  Tensor x(DType::f32, {1, 1, kLength, kDim});
  for (float& value : x.values<float>()) value = 1 / std::sqrt(static_cast<float>(kDim));
  rope(x, x);
  Figure figure{
      .title = "RoPE",
      .x_label = "distance",
      .y_label = "q·k of equal unit vectors",
      .caption = "Rotates q and k by their positions: the score depends on the distance alone, and fades on the whole.",
      .series = {{.name = "d_k = 64"}}};
  for (std::int64_t i = 0; i < kLength; ++i) {
    double dot = 0;
    for (std::int64_t d = 0; d < kDim; ++d)
      dot += double{x.values<float>()[static_cast<std::size_t>(d)]} *
             x.values<float>()[static_cast<std::size_t>(i * kDim + d)];
    figure.series[0].x.push_back(static_cast<double>(i));
    figure.series[0].y.push_back(dot);
  }
  return figure;
}

Figure t5_figure() {
  Figure figure{
      .title = "T5 buckets",
      .x_label = "distance i − j",
      .y_label = "bucket",
      .caption = "Added to the logits: one learned number a bucket; near distances have their own, far ones share.",
      .series = {{.name = "bidirectional"}, {.name = "causal"}}};
  for (std::int64_t distance = -140; distance <= 140; ++distance) {
    figure.series[0].x.push_back(static_cast<double>(distance));
    figure.series[0].y.push_back(static_cast<double>(t5_bucket(distance)));
    if (distance < 0) continue;
    figure.series[1].x.push_back(static_cast<double>(distance));
    figure.series[1].y.push_back(static_cast<double>(t5_bucket(distance, {.bidirectional = false})));
  }
  return figure;
}

Figure alibi_figure() {
  Tensor slopes(DType::f32, {8});
  alibi_slopes(slopes);
  Figure figure{.title = "ALiBi",
                .x_label = "distance i − j",
                .y_label = "added to the logit",
                .caption =
                    "A straight line a head, each half as steep as the head before (every other one is drawn): "
                    "near-sighted and far-sighted heads, nothing learned."};
  for (std::size_t h = 0; h < 8; h += 2) {
    Series series{.name = "head " + std::to_string(h)};
    for (int distance = 0; distance <= 64; distance += 8) {
      series.x.push_back(distance);
      series.y.push_back(-double{slopes.values<float>()[h]} * distance);
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

}  // namespace

std::string lesson_why_square_root() {
  const Example example;
  const std::vector<double> unscaled = example.weights({.logits = {.scale = Scale::none()}}),
                            scaled = example.weights({});
  std::ostringstream html;
  html.exceptions(std::ios::badbit);  // out of memory is an error, not a shorter page
  html << "<section id=\"why\"><h2>Why the square root of d_k</h2>"
       << "<p>A score is a sum of d_k products, "
       << mathml(R"(q \cdot k = q_1 k_1 + q_2 k_2 + \dots + q_{d_k} k_{d_k})")
       << ". Let every entry have mean 0 and variance 1, and be independent of the others.</p><ol class=\"steps\">"
       << "<li>One product has mean " << mathml("0") << " and variance "
       << mathml(R"(\operatorname{Var}(q_i k_i) = \operatorname{Var}(q_i) \operatorname{Var}(k_i) = 1)") << ".</li>"
       << "<li>Variances of independent terms add: "
       << mathml(R"(\operatorname{Var}(q \cdot k) = 1 + 1 + \dots + 1 = d_k)")
       << ". A typical score is as large as its standard deviation, " << mathml(R"(\sqrt{d_k})")
       << ": 4 for d_k = 16, 22.6 for d_k = 512.</li>"
       << "<li>Dividing a number by c divides its variance by " << mathml("c^2")
       << ". To come back to variance 1 we need " << mathml(R"(c^2 = d_k)") << ", so " << mathml(R"(c = \sqrt{d_k})")
       << ".</li>"
       << "<li>Dividing by d_k would leave variance " << mathml(R"(d_k / d_k^2 = 1 / d_k)")
       << ": with d_k = 64 nearly all scores lie within ±0.25, and softmax treats all keys alike.</li>"
       << "<li>Dividing by " << mathml(R"(\sqrt{d_{model}})")
       << " would use the wrong count: a head sums d_k products, not d_model. It leaves variance "
       << mathml(R"(d_k / d_{model})") << ", one over the number of heads.</li></ol>"
       << "<div class=\"card\"><h3>By hand, with d_k = 4</h3><p>q = [1, 0, 2, 1] against three keys:</p>"
       << "<ul><li>q·[1, 1, 2, 0] = 1·1 + 0·1 + 2·2 + 1·0 = 5</li><li>q·[0, 1, 1, 1] = 0 + 0 + 2 + 1 = 3</li><li>q·[2, "
          "0, 0, −1] = 2 + 0 + 0 − 1 = 1</li></ul>"
       << "<p>softmax of 5, 3, 1 is " << joined(unscaled, 3)
       << ". Divided by √4 = 2 the scores are 2.5, 1.5, 0.5, and the weights " << joined(scaled, 3)
       << ": the same order, but every key is heard. With d_k = 512 scores are √(512/4) = 11.3 times as large: 56.6, "
          "33.9, 11.3. Without the division the first key would get all but 1.5·10⁻¹⁰ of the "
          "weight.</p></div></section>";
  return html.str();
}

std::string lesson_three_scores() {
  const Example example;
  Tensor a(DType::f32, {1, 4});
  for (float& value : a.values<float>()) value = 1;
  struct Row {
    const char* name;
    const char* formula;
    AttentionParams params;
    const char* by_hand;
    const char* remark;
  };
  const Row rows[] = {
      {"Scaled dot product",
       R"(\frac{q \cdot k}{\sqrt{d_k}})",
       {},
       "5/2, 3/2, 1/2",
       "One matrix product and one division. Longer vectors speak louder: length carries meaning."},
      {"Additive (Bahdanau)",
       R"(a \cdot \tanh(q + k))",
       {.score = Score::additive, .logits = {.scale = Scale::none()}, .additive_v = a},
       "tanh 2 + tanh 1 + tanh 4 + tanh 1 = 3.49, …",
       "Bounded by |a|₁ whatever the inputs, so it needs no scale; but a tanh for each dimension of each pair, which "
       "no matrix unit can do."},
      {"Cosine",
       R"(\frac{q \cdot k}{|q| |k|})",
       {.score = Score::cosine, .logits = {.scale = Scale::none()}},
       "5/(√6·√6) = 0.833, 3/(√6·√3) = 0.707, 1/(√6·√5) = 0.183",
       "Only the direction counts, and the score never leaves [−1, 1]: without a learned gain the softmax stays flat."},
      {"Cosine, gain 10",
       R"(10 \, \frac{q \cdot k}{|q| |k|})",
       {.score = Score::cosine, .logits = {.scale = 10.0}},
       "8.33, 7.07, 1.83",
       "The gain plays the part of the temperature, and brings the choice back."},
  };
  std::ostringstream html;
  html.exceptions(std::ios::badbit);  // out of memory is an error, not a shorter page
  html << "<section id=\"scores\"><h2>Three ways to score</h2><p>The same q and keys as above, weights computed by the "
          "library.</p><div class=\"two\">";
  for (const Row& row : rows) {
    html << "<div class=\"card\"><h3>" << row.name << "</h3><p>" << mathml(row.formula)
         << "</p><p>Scores: " << row.by_hand << "</p><p>Weights: <b>" << joined(example.weights(row.params), 3)
         << "</b></p><p class=\"soft\">" << row.remark << "</p></div>";
  }
  html << "</div></section>";
  return html.str();
}

std::string lesson_position_encodings() {
  std::vector<Figure> all{sinusoidal_figure()};
  for (Figure& figure : learned_figures()) all.push_back(std::move(figure));
  all.insert(all.end(), {rope_figure(), t5_figure(), alibi_figure()});
  return "<section id=\"positions\"><h2>Where a token stands</h2><p>Attention does not know the order of its keys "
         "until something tells it.</p>" +
         figures(all) + "</section>";
}

std::string lesson_attention_matrix() {
  Random random(7, 4000);
  constexpr std::int64_t kTokens = 16;
  const Tensor q = random.normal_tensor({1, 1, kTokens, 64}), k = random.normal_tensor({1, 1, kTokens, 64});
  std::vector<Figure> all;
  const std::pair<const char*, AttentionParams> cases[] = {
      {"Scaled", {}}, {"Unscaled", {.logits = {.scale = Scale::none()}}}, {"Scaled, causal", {.causal = true}}};
  double longest = 0;  // sum of all three
  for (const auto& [name, params] : cases) {
    const auto weights = weights_of(Bench{}, q, k, params);
    double least = 1e9, most = 0, worst = 0;
    for (std::size_t c = 0; c < kTokens; ++c) {
      double column = 0;
      for (std::size_t r = 0; r < kTokens; ++r) column += weights[r][c];
      least = std::min(least, column), most = std::max(most, column);
    }
    for (const auto& row : weights) {
      double sum = 0;
      for (double w : row) sum += w;
      worst = std::max(worst, std::abs(sum - 1));
    }
    longest = std::max(longest, most);
    all.push_back({.kind = Figure::Kind::heat_map,
                   .title = name,
                   .x_label = "key",
                   .y_label = "query",
                   .caption = "Bars: sums. Rows sum to 1 (to " + fixed(worst, 7) + "); columns from " +
                              fixed(least, 2) + " to " + fixed(most, 2) + ".",
                   .matrix = weights,
                   .full_colour = 1,
                   .root_shade = true,
                   .show_sums = true});
  }
  for (Figure& figure : all) figure.longest_sum = longest;
  return "<section id=\"matrix\"><h2>The n × n matrix</h2><p>16 random queries against 16 random keys, d_k = 64. One "
         "scale for all three: full blue is a weight of 1, the shade is the square root of the weight, and bars of "
         "equal "
         "sums are equally long. Hover to read a weight.</p>" +
         figures(all) + "</section>";
}

}  // namespace rootdk::lab
