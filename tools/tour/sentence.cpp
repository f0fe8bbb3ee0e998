// A sentence whose words attend to each other. The vectors are made by hand, so that one can see why.

#include <array>
#include <cmath>

#include "core/strided.h"
#include "rootdk/attention.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

constexpr std::int64_t kFeatures = 8;
using Features = std::array<float, kFeatures>;
constexpr std::array<const char*, kFeatures> kFeatureNames = {"animal",  "thing",   "action",  "link",
                                                              "pronoun", "quality", "article", "late"};

// What a word is (its key and value), and what it looks for (its query).
struct Word {
  const char* text;
  Features is;
  Features seeks;
};

//                                        animal thing action link pronoun quality article late
constexpr std::array<Word, 10> kSentence = {{
    {"the", /*is*/ {0, 0, 0, 0, 0, 0, 1, -1.0f}, /*seeks*/ {1, .4f, 0, 0, 0, 0, 0, -1}},
    {"cat", {1, 0, 0, 0, 0, 0, 0, -.8f}, {.5f, 0, .7f, 0, 0, .7f, 0, 0}},
    {"sat", {0, 0, 1, 0, 0, 0, 0, -.6f}, {1, .7f, 0, .4f, 0, 0, 0, 0}},
    {"on", {0, 0, 0, 1, 0, 0, 0, -.4f}, {0, 1, .6f, 0, 0, 0, 0, 0}},
    {"the", {0, 0, 0, 0, 0, 0, 1, -.2f}, {.4f, 1, 0, 0, 0, 0, 0, .3f}},
    {"mat", {0, 1, 0, 0, 0, 0, 0, 0}, {0, .4f, .5f, .8f, 0, 0, 0, -.4f}},
    {"as", {0, 0, 0, 1, 0, 0, 0, .3f}, {0, 0, .9f, 0, 0, .9f, 0, 0}},
    {"it", {.2f, 0, 0, 0, 1, 0, 0, .5f}, {1.2f, .5f, 0, 0, 0, 0, 0, 0}},
    {"was", {0, 0, .5f, 0, 0, 0, 0, .7f}, {.4f, 0, 0, 0, .8f, 1, 0, .3f}},
    {"tired", {0, 0, 0, 0, 0, 1, 0, 1.0f}, {.7f, 0, 0, 0, 1, .3f, 0, 0}},
}};
constexpr auto kWords = static_cast<std::int64_t>(kSentence.size());
constexpr float kSharpness = 12.0f;  // on the queries: how much a word cares

struct Vectors {
  Tensor q{DType::f32, {1, 1, kWords, kFeatures}};
  Tensor k{DType::f32, {1, 1, kWords, kFeatures}};
  Tensor out{DType::f32, {1, 1, kWords, kFeatures}};
  Tensor weights{DType::f32, {1, 1, kWords, kWords}};
  Tensor entropy{DType::f32, {1, 1, kWords}};
};

Vectors attend_sentence() {
  Vectors s;
  for (std::size_t i = 0; i < kSentence.size(); ++i) {
    for (std::size_t d = 0; d < kFeatures; ++d) {
      s.q.values<float>()[i * kFeatures + d] = kSharpness * kSentence[i].seeks[d];
      s.k.values<float>()[i * kFeatures + d] = kSentence[i].is[d];
    }
  }
  attention(s.q, s.k, s.k, s.out, {}, {.entropy = s.entropy, .weights = s.weights});
  return s;
}

void print_matrix(const Vectors& s, const Style& style) {
  constexpr std::size_t kCell = 5;
  std::string header = "         ";
  for (const Word& word : kSentence) header += pad_right(word.text, kCell);
  print_line(style.bold(header) + style.dim("  sum   effective"));
  const auto weight = read<float, 4>(s.weights.view());
  for (std::int64_t i = 0; i < kWords; ++i) {
    std::string line = "  " + style.bold(pad_left(kSentence[static_cast<std::size_t>(i)].text, 5)) + "  ";
    double sum = 0;
    for (std::int64_t j = 0; j < kWords; ++j) {
      const double w = weight(0, 0, i, j);
      sum += w;
      // The two digits after the point, where there is something to say.
      const std::string digits = w >= 0.095 ? format(".%02.0f", std::min(99.0, 100 * w)) : "   ";
      line += style.cyan(shade(w, 1)) + (w >= 0.5 ? style.green(digits) : digits) + " ";
    }
    const double keys = std::exp(s.entropy.values<float>()[static_cast<std::size_t>(i)]);
    print_line(line + style.dim(format("%6.3f  %3.1f keys", sum, keys)));
  }
}

}  // namespace

void show_sentence(const Style& style) {
  const Vectors s = attend_sentence();
  print_text(
      "Each word is three vectors: a query (what it looks for), a key and a value (what it is). A row below is one "
      "query; its weights are softmax(q · kᵀ / √d_k), and say how much it takes from each word. The vectors are made "
      "by "
      "hand; the weights are the kernel's.");
  print_line();
  print_matrix(s, style);
  constexpr std::int64_t kIt = 7;
  const auto out = read<float, 4>(s.out.view());
  std::string mix;
  for (std::int64_t d = 0; d < kFeatures; ++d) {
    if (out(0, 0, kIt, d) >= 0.05f) {
      mix += format("  %s %.2f", kFeatureNames[static_cast<std::size_t>(d)], out(0, 0, kIt, d));
    }
  }
  print_line();
  print_text(
      "'it' attends to what it can refer to: the cat, less the mat. Its output, the same mix of the values, now "
      "says so:");
  print_line("  " + style.green(mix));
}

}  // namespace rootdk::tools
