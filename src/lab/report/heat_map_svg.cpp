#include "lab/report/heat_map_svg.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/check.h"
#include "lab/report/figure_text.h"
#include "lab/report/html.h"

namespace rootdk::lab {
namespace {

constexpr double kTop = 34, kSumLength = 36, kCharacter = 6.6;

// Cells whose opacity is the size of the value; negative ones have a colour of their own.
class HeatMap {
 public:
  explicit HeatMap(const Figure& figure) : figure_(figure) {
    require(!figure.matrix.empty() && !figure.matrix[0].empty(), "report: the heat map '", figure.title, "' is empty");
    out_.exceptions(std::ios::badbit);  // out of memory is an error, not half a figure
    rows_ = figure.matrix.size();
    columns_ = figure.matrix[0].size();
    double low = 1e300, high = -1e300;
    for (const auto& row : figure.matrix) {
      for (double value : row) low = std::min(low, value), high = std::max(high, value);
    }
    signed_ = low < 0;
    full_ = figure.full_colour > 0 ? figure.full_colour : std::max({std::abs(low), std::abs(high), 1e-12});
    place();
  }

  std::string draw() {
    const std::string title = escape_html(figure_.title);
    out_ << "<svg class=\"figure heat\" style=\"max-width:" << std::lround(1.2 * width_) << "px\" viewBox=\"0 0 "
         << width_ << ' ' << height_ << "\" role=\"img\" aria-label=\"" << title << "\"><title>" << title << "</title>";
    text(8, 18, "title", "start", figure_.title);
    cells();
    if (figure_.show_sums) sums();
    labels();
    legend();
    out_ << "</svg>";
    return out_.str();
  }

 private:
  void place() {
    double label_width = 0;
    for (const std::string& label : figure_.row_labels)
      label_width = std::max(label_width, text_width(label, kCharacter));
    left_ = figure_.row_labels.empty() ? 30 : label_width + (figure_.y_label.empty() ? 10 : 30);
    const double side = std::min(320.0 / static_cast<double>(columns_), 250.0 / static_cast<double>(rows_));
    cell_height_ = figure_.show_values ? 26 : side;
    cell_width_ = figure_.show_values ? 46 : side;
    const double margin = figure_.show_sums ? kSumLength + 16 : 12;
    right_ = left_ + cell_width_ * static_cast<double>(columns_);
    foot_ = kTop + cell_height_ * static_cast<double>(rows_);
    width_ = std::max({right_ + margin, 16 + text_width(figure_.title, 9), 8 + kLegendWidth + 90});
    below_ = foot_ + margin + (figure_.column_labels.empty() ? 0 : 12);
    height_ = below_ + 48;
  }

  double depth(double value) const {
    const double share = std::min(1.0, std::abs(value) / full_);
    return std::round((figure_.root_shade ? std::sqrt(share) : share) * 1000) / 1000;
  }

  void text(double x, double y, const char* kind, const char* anchor, const std::string& content) {
    out_ << "<text class=\"" << kind << "\" x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << "\">"
         << escape_html(content) << "</text>";
  }

  void cells() {
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t c = 0; c < columns_; ++c) {
        const double value = figure_.matrix[r][c];
        const double x = left_ + cell_width_ * static_cast<double>(c), y = kTop + cell_height_ * static_cast<double>(r);
        out_ << "<rect class=\"" << (value < 0 ? "cell cold" : "cell") << "\" x=\"" << x << "\" y=\"" << y
             << "\" width=\"" << cell_width_ << "\" height=\"" << cell_height_ << "\" fill-opacity=\"" << depth(value)
             << "\">";
        if (rows_ * columns_ <= 1024) out_ << "<title>" << r << ", " << c << ": " << tick_text(value) << "</title>";
        out_ << "</rect>";
        if (figure_.show_values) {
          char digits[16];
          std::snprintf(digits, sizeof digits, "%.2f", value);
          text(x + cell_width_ / 2, y + cell_height_ / 2 + 4, depth(value) > 0.6 ? "tick on" : "tick", "middle",
               digits);
        }
      }
    }
    out_ << "<rect class=\"frame\" x=\"" << left_ << "\" y=\"" << kTop << "\" width=\"" << right_ - left_
         << "\" height=\"" << foot_ - kTop << "\"/>";
  }

  // A bar behind each row and below each column, as long as its sum.
  void sums() {
    std::vector<double> rows, columns(columns_);
    for (const auto& row : figure_.matrix) {
      double sum = 0;
      for (std::size_t c = 0; c < row.size(); ++c) sum += row[c], columns[c] += row[c];
      rows.push_back(sum);
    }
    const double most = figure_.longest_sum > 0 ? figure_.longest_sum
                                                : std::max(*std::max_element(rows.begin(), rows.end()),
                                                           *std::max_element(columns.begin(), columns.end()));
    const auto bar = [&](double x, double y, double width, double height, const char* what, std::size_t at,
                         double sum) {
      out_ << "<rect class=\"bar c3\" x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height
           << "\"><title>" << what << ' ' << at << " sums to " << tick_text(sum) << "</title></rect>";
    };
    for (std::size_t r = 0; r < rows.size(); ++r)
      bar(right_ + 6, kTop + cell_height_ * (static_cast<double>(r) + 0.15), kSumLength * rows[r] / most,
          cell_height_ * 0.7, "row", r, rows[r]);
    for (std::size_t c = 0; c < columns.size(); ++c)
      bar(left_ + cell_width_ * (static_cast<double>(c) + 0.15), foot_ + 6, cell_width_ * 0.7,
          kSumLength * columns[c] / most, "column", c, columns[c]);
  }

  void labels() {
    for (std::size_t r = 0; r < figure_.row_labels.size(); ++r)
      text(left_ - 5, kTop + cell_height_ * (static_cast<double>(r) + 0.5) + 4, "tick", "end", figure_.row_labels[r]);
    for (std::size_t c = 0; c < figure_.column_labels.size(); ++c)
      text(left_ + cell_width_ * (static_cast<double>(c) + 0.5), foot_ + 15, "tick", "middle",
           figure_.column_labels[c]);
    text((left_ + right_) / 2, below_ + 18, "label", "middle", figure_.x_label);
    if (figure_.y_label.empty()) return;
    out_ << "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(14," << (kTop + foot_) / 2
         << ") rotate(-90)\">" << escape_html(figure_.y_label) << "</text>";
  }

  // What the shades mean, from one end of the scale to the other.
  void legend() {
    constexpr int kSteps = 24;
    const std::string least = signed_ ? tick_text(-full_) : "0", most = tick_text(full_);
    const double begin = 12 + text_width(least, kCharacter), y = below_ + 30, step = kLegendWidth / kSteps;
    text(8, y + 9, "tick", "start", least);
    for (int i = 0; i < kSteps; ++i) {
      const double share = (i + 0.5) / kSteps, value = full_ * (signed_ ? 2 * share - 1 : share);
      out_ << "<rect class=\"" << (value < 0 ? "legend cold" : "legend") << "\" x=\"" << begin + step * i << "\" y=\""
           << y << "\" width=\"" << step << "\" height=\"10\" fill-opacity=\"" << depth(value) << "\"/>";
    }
    out_ << "<rect class=\"frame\" x=\"" << begin << "\" y=\"" << y << "\" width=\"" << kLegendWidth
         << "\" height=\"10\"/>";
    text(begin + kLegendWidth + 5, y + 9, "tick", "start", most);
  }

  static constexpr double kLegendWidth = 120;

  const Figure& figure_;
  std::ostringstream out_;
  std::size_t rows_ = 0, columns_ = 0;
  bool signed_ = false;
  double full_ = 1;
  double cell_width_ = 0, cell_height_ = 0;
  double left_ = 0, right_ = 0, foot_ = 0, below_ = 0, width_ = 0, height_ = 0;  // below_: under the sums
};

}  // namespace

std::string heat_map_svg(const Figure& figure) { return HeatMap(figure).draw(); }

}  // namespace rootdk::lab
