#pragma once

// A claim about attention, and what measuring it found.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/attention.h"

namespace rootdk::lab {

enum class Verdict { holds, holds_with_a_correction, does_not_hold };
std::string_view name_of(Verdict verdict);

// How the headline of a finding stands to what is expected.
enum class Relation { equal, at_least, at_most };
std::string_view name_of(Relation relation);

// A measured value and its 95 % confidence interval (equal ends where it is exact).
struct Interval {
  double value = 0, low = 0, high = 0;

  bool contains(double x) const { return low <= x && x <= high; }
};

// One row of numbers behind a verdict: "d_k = 64: Var(q.k)", expected 64, measured 63.9 [63.5, 64.3].
struct Detail {
  std::string setting{};
  double expected = 0;  // NaN: no closed form, nothing to compare with
  Interval measured{};  // NaN: `expected` is arithmetic that puts the others into proportion
};

struct Series {
  std::string name{};
  std::vector<double> x{}, y{};
  bool markers_only = false;
};

// Something to look at. Lines, bars and histograms have series; a heat map has a matrix, row by row.
struct Figure {
  enum class Kind { lines, bars, heat_map };
  Kind kind = Kind::lines;
  std::string title{}, x_label{}, y_label{}, caption{};
  bool log_x = false, log_y = false;
  std::vector<Series> series{};
  std::vector<std::string> column_labels{}, row_labels{};
  std::vector<std::vector<double>> matrix{};
  // Heat maps. Figures that are compared share full_colour and longest_sum.
  double full_colour = 0;    // the value in full colour; 0: the largest
  bool root_shade = false;   // the shade is the square root of the share of full_colour, so that small values show
  bool show_values = false;  // every cell says its value
  bool show_sums = false;    // a bar for the sum of each row and column
  double longest_sum = 0;    // the sum with the longest bar; 0: the largest
};

// What an experiment found. The headline is one number that the verdict turns on; the details are all of them.
struct Finding {
  std::string quantity{};  // what the headline measures: "Var(q.k) at d_k = 512"
  double expected = 0;     // NaN: nothing to compare with
  Relation relation = Relation::equal;
  Interval measured{};
  Verdict verdict = Verdict::does_not_hold;
  std::string note{};   // one sentence why; its numbers are among those of the finding
  std::string setup{};  // what was run, where the settings below do not say it
  std::int64_t samples = 0;
  std::vector<Detail> details{};
  std::vector<Figure> figures{};
};

// What an experiment works with.
struct Bench {
  std::uint64_t seed = 1;
  bool quick = false;
  // The operation under test. A test of the lab hands in a broken one.
  std::function<void(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out, const AttentionParams&,
                     const AttentionStats&)>
      attend = [](ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                  const AttentionParams& params,
                  const AttentionStats& stats) { attention(q, k, v, out, params, stats); };
  // What runs, and how much of the claim is done; from any thread.
  std::function<void(std::string_view stage, double share)> progress = [](std::string_view, double) {};

  // `full` samples, or an eighth of them in a quick run.
  std::int64_t samples(std::int64_t full) const { return quick ? (full + 7) / 8 : full; }
};

struct Claim {
  int id = 0;
  std::string_view text;     // as textbooks put it
  std::string_view formula;  // what is measured, in LaTeX
  Finding (*measure)(const Bench&) = nullptr;
  double seconds = 0, quick_seconds = 0;  // about, on two Zen 4 cores: what the time that is left is foretold from
};

// All claims, in order.
const std::vector<Claim>& catalogue();

}  // namespace rootdk::lab
