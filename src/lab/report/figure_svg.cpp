#include "lab/report/figure_svg.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/check.h"
#include "lab/report/html.h"

namespace rootdk::lab {
namespace {

// Small enough that the text can still be read when a phone shrinks the drawing to its width.
constexpr double kWidth = 420, kPlotHeight = 210;
constexpr double kLeft = 58, kRight = 12, kTop = 34, kBottom = 46;
constexpr double kTickWidth = 6.6;  // of a character of a tick or a legend, at most

// One axis: values to pixels, and where its ticks are.
class Axis {
 public:
  Axis(double low, double high, bool logarithmic, double from, double to)
      : low_(low), high_(high), log_(logarithmic), from_(from), to_(to) {
    if (log_) {
      low_ = std::log10(low_);
      high_ = std::log10(high_);
    }
    if (!(high_ > low_)) {  // a single value gets room around it
      low_ -= 0.5;
      high_ += 0.5;
    }
  }

  double pixel(double value) const {
    const double v = log_ ? std::log10(value) : value;
    return from_ + (v - low_) / (high_ - low_) * (to_ - from_);
  }

  std::vector<double> ticks() const {
    std::vector<double> result;
    if (log_) {
      const bool few_decades = high_ - low_ < 2.2;
      for (int decade = static_cast<int>(std::floor(low_)); decade <= static_cast<int>(std::ceil(high_)); ++decade) {
        for (double step : few_decades ? std::vector<double>{1, 2, 5} : std::vector<double>{1}) {
          const double tick = step * std::pow(10, decade);
          if (std::log10(tick) >= low_ - 1e-9 && std::log10(tick) <= high_ + 1e-9) result.push_back(tick);
        }
      }
      return result;
    }
    const double rough = (high_ - low_) / 5, power = std::pow(10, std::floor(std::log10(rough)));
    double step = power;
    for (double multiple : {1.0, 2.0, 5.0, 10.0}) {
      step = multiple * power;
      if (step >= rough) break;
    }
    for (double tick = std::ceil(low_ / step - 1e-9) * step; tick <= high_ + step * 1e-6; tick += step) {
      result.push_back(std::abs(tick) < step * 1e-6 ? 0 : tick);
    }
    return result;
  }

 private:
  double low_, high_;
  bool log_;
  double from_, to_;
};

// A tick's text has no markup, as SVG text knows no <sup>, and is short enough for the margin: 1e6, 1e-4, 0.25, 4096.
std::string tick_text(double value) {
  char text[32];
  const double size = std::abs(value);
  if (size >= 1e4 || (size > 0 && size < 1e-3)) {
    std::snprintf(text, sizeof text, "%.2e", value);  // such as 1.50e+06
    const std::string digits = text;
    const std::size_t e = digits.find('e');
    if (e == std::string::npos) return digits;  // an infinity
    std::snprintf(text, sizeof text, "%ge%d", std::stod(digits.substr(0, e)), std::stoi(digits.substr(e + 1)));
    return text;
  }
  std::snprintf(text, sizeof text, size >= 100 || value == std::round(value) ? "%.0f" : "%.3g", value);
  return text;
}

// Characters as a reader counts them: UTF-8 continuation bytes are none.
double text_width(const std::string& text, double per_character) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return static_cast<double>(characters) * per_character;
}

class Drawing {
 public:
  explicit Drawing(const Figure& figure) : figure_(figure) {
    out_.exceptions(std::ios::badbit);
    place_legend();
    out_ << "<svg class=\"figure\" viewBox=\"0 0 " << kWidth << ' ' << foot_ + kBottom
         << "\" role=\"img\" aria-label=\"" << escape_html(figure.title) << "\"><title>" << escape_html(figure.title)
         << "</title>";
    text(8, 18, "title", "start", figure.title);
    draw_legend();
  }

  std::string finish() {
    out_ << "</svg>";
    return out_.str();
  }

  void text(double x, double y, const char* kind, const char* anchor, const std::string& content) {
    out_ << "<text class=\"" << kind << "\" x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << "\">"
         << escape_html(content) << "</text>";
  }

  void axes(const Axis& x, const Axis& y, bool x_ticks) {
    for (double tick : y.ticks()) {
      const double at = y.pixel(tick);
      out_ << "<line class=\"grid\" x1=\"" << kLeft << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << at << "\" y2=\""
           << at << "\"/>";
      text(kLeft - 6, at + 4, "tick", "end", tick_text(tick));
    }
    if (x_ticks) {
      for (double tick : x.ticks()) text(x.pixel(tick), foot_ + 17, "tick", "middle", tick_text(tick));
    }
    out_ << "<line class=\"axis\" x1=\"" << kLeft << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << foot_ << "\" y2=\""
         << foot_ << "\"/>";
    text((kLeft + kWidth - kRight) / 2, foot_ + kBottom - 8, "label", "middle", figure_.x_label);
    out_ << "<text class=\"label\" transform=\"translate(14," << (top_ + foot_) / 2
         << ") rotate(-90)\" text-anchor=\"middle\">" << escape_html(figure_.y_label) << "</text>";
  }

  void lines() {
    double x_low = 1e300, x_high = -1e300, y_low = 1e300, y_high = -1e300;
    for (const Series& series : figure_.series) {
      for (std::size_t i = 0; i < series.x.size(); ++i) {
        if (!drawable(series.x[i], series.y[i])) continue;
        x_low = std::min(x_low, series.x[i]), x_high = std::max(x_high, series.x[i]);
        y_low = std::min(y_low, series.y[i]), y_high = std::max(y_high, series.y[i]);
      }
    }
    require(x_high >= x_low, "report: the figure '", figure_.title, "' has no point to draw");
    if (!figure_.log_y) {
      if (y_low > 0 && y_low < 0.5 * y_high) y_low = 0;
      y_high += (y_high - y_low) * 0.05;
    }
    const Axis x(x_low, x_high, figure_.log_x, kLeft + 6, kWidth - kRight - 6),
        y(y_low, y_high, figure_.log_y, foot_, top_ + 6);
    axes(x, y, true);
    for (std::size_t s = 0; s < figure_.series.size(); ++s) {
      const Series& series = figure_.series[s];
      if (!series.markers_only) {
        out_ << "<polyline class=\"line c" << s % 8 << "\" points=\"";
        for (std::size_t i = 0; i < series.x.size(); ++i) {
          if (drawable(series.x[i], series.y[i])) out_ << x.pixel(series.x[i]) << ',' << y.pixel(series.y[i]) << ' ';
        }
        out_ << "\"/>";
      }
      if (series.markers_only || series.x.size() <= 12) {
        for (std::size_t i = 0; i < series.x.size(); ++i) {
          if (!drawable(series.x[i], series.y[i])) continue;
          out_ << "<circle class=\"dot c" << s % 8 << "\" cx=\"" << x.pixel(series.x[i]) << "\" cy=\""
               << y.pixel(series.y[i]) << "\" r=\"3.2\"><title>" << escape_html(series.name) << ": "
               << tick_text(series.x[i]) << ", " << tick_text(series.y[i]) << "</title></circle>";
        }
      }
    }
  }

  void bars() {
    double high = 0;
    std::size_t groups = 0;
    for (const Series& series : figure_.series) {
      groups = std::max(groups, series.y.size());
      for (double value : series.y) high = std::max(high, value);
    }
    const Axis x(0, static_cast<double>(groups), false, kLeft, kWidth - kRight),
        y(0, high * 1.08, false, foot_, top_ + 6);
    axes(x, y, false);
    const double slot = (kWidth - kRight - kLeft) / static_cast<double>(groups);
    const double width = slot * 0.7 / static_cast<double>(figure_.series.size());
    struct BarValue {
      double x, y, value;
    };
    std::vector<BarValue> values;
    for (std::size_t s = 0; s < figure_.series.size(); ++s) {
      for (std::size_t g = 0; g < figure_.series[s].y.size(); ++g) {
        const double value = figure_.series[s].y[g], top = y.pixel(value);
        const double left = kLeft + slot * (static_cast<double>(g) + 0.15) + width * static_cast<double>(s);
        out_ << "<rect class=\"bar c" << s % 8 << "\" x=\"" << left << "\" y=\"" << top << "\" width=\"" << width * 0.94
             << "\" height=\"" << foot_ - top << "\"/>";
        values.push_back({left + width / 2, top - 4, value});
      }
    }
    // After all bars, so that none covers a number; tiny values as powers of ten, to fit above a bar.
    for (const BarValue& bar : values) {
      char tiny[16];
      std::snprintf(tiny, sizeof tiny, "%.0e", bar.value);
      text(bar.x, bar.y, "tick", "middle", bar.value > 0 && bar.value < 1e-3 ? tiny : tick_text(bar.value));
    }
    for (std::size_t g = 0; g < figure_.column_labels.size(); ++g) {
      text(kLeft + slot * (static_cast<double>(g) + 0.5), foot_ + 17, "tick", "middle", figure_.column_labels[g]);
    }
  }

 private:
  bool drawable(double x, double y) const {
    return std::isfinite(x) && std::isfinite(y) && (!figure_.log_x || x > 0) && (!figure_.log_y || y > 0);
  }

  // Where the names of the series stand: in rows between the title and the plot, so that they never cover a line.
  void place_legend() {
    if (figure_.series.size() > 1) {
      double x = 8, y = kTop;
      for (const Series& series : figure_.series) {
        const double width = 22 + text_width(series.name, kTickWidth);
        if (x > 8 && x + width > kWidth - kRight) {
          x = 8;
          y += 17;
        }
        legend_.emplace_back(x, y);
        x += width + 6;
      }
      top_ = y + 8;
    }
    foot_ = top_ + kPlotHeight;
  }

  void draw_legend() {
    for (std::size_t s = 0; s < legend_.size(); ++s) {
      const auto [x, y] = legend_[s];
      out_ << "<rect class=\"bar c" << s % 8 << "\" x=\"" << x << "\" y=\"" << y - 3
           << "\" width=\"14\" height=\"4\"/>";
      text(x + 18, y + 3, "tick", "start", figure_.series[s].name);
    }
  }

  const Figure& figure_;
  std::ostringstream out_;
  std::vector<std::pair<double, double>> legend_;
  double top_ = kTop - 6, foot_ = 0;  // of the plot
};

struct MapFrame {
  double left, right, foot, cell;
};

// A bar behind each row and below each column, as long as its sum; the longest is 36 wide.
void draw_sums(std::ostream& out, const Figure& figure, const MapFrame& frame) {
  std::vector<double> rows, columns(figure.matrix[0].size());
  for (const auto& row : figure.matrix) {
    double sum = 0;
    for (std::size_t c = 0; c < row.size(); ++c) sum += row[c], columns[c] += row[c];
    rows.push_back(sum);
  }
  const double most =
      std::max(*std::max_element(rows.begin(), rows.end()), *std::max_element(columns.begin(), columns.end()));
  auto bar = [&](double x, double y, double width, double height, const char* what, std::size_t index, double sum) {
    out << "<rect class=\"bar c3\" x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height
        << "\"><title>" << what << ' ' << index << " sums to " << tick_text(sum) << "</title></rect>";
  };
  for (std::size_t r = 0; r < rows.size(); ++r)
    bar(frame.right + 6, kTop + frame.cell * (static_cast<double>(r) + 0.15), 36 * rows[r] / most, frame.cell * 0.7,
        "row", r, rows[r]);
  for (std::size_t c = 0; c < columns.size(); ++c)
    bar(frame.left + frame.cell * (static_cast<double>(c) + 0.15), frame.foot + 6, frame.cell * 0.7,
        36 * columns[c] / most, "column", c, columns[c]);
}

// The matrix as cells whose opacity is the size of the value; negative ones have a colour of their own.
std::string heat_map(const Figure& figure) {
  const std::size_t rows = figure.matrix.size(), columns = rows ? figure.matrix[0].size() : 0;
  require(rows > 0 && columns > 0, "report: the heat map '", figure.title, "' is empty");
  double low = 1e300, high = -1e300;
  for (const auto& row : figure.matrix) {
    for (double value : row) low = std::min(low, value), high = std::max(high, value);
  }
  const bool signed_values = low < 0;
  const double top = std::max({std::abs(low), std::abs(high), 1e-12});
  const double cell = std::min(320.0 / static_cast<double>(columns), 250.0 / static_cast<double>(rows));
  const double left = figure.row_labels.empty() ? 30 : kLeft, margin = figure.show_sums ? 52 : 12;
  const double right = left + cell * static_cast<double>(columns), foot = kTop + cell * static_cast<double>(rows);
  const double width = std::max(right + margin, 16 + text_width(figure.title, 9)), height = foot + margin + 26;
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // out of memory is an error, not half a figure
  out << "<svg class=\"figure heat\" style=\"max-width:" << std::lround(1.2 * width) << "px\" viewBox=\"0 0 " << width
      << ' ' << height << "\" role=\"img\" aria-label=\"" << escape_html(figure.title) << "\"><title>"
      << escape_html(figure.title) << "</title>";
  out << "<text class=\"title\" x=\"8\" y=\"18\">" << escape_html(figure.title) << "</text>";
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const double value = figure.matrix[r][c];
      out << "<rect class=\"" << (signed_values && value < 0 ? "cell cold" : "cell") << "\" x=\""
          << left + cell * static_cast<double>(c) << "\" y=\"" << kTop + cell * static_cast<double>(r) << "\" width=\""
          << cell << "\" height=\"" << cell << "\" fill-opacity=\"" << std::round(std::abs(value) / top * 1000) / 1000
          << "\">";
      if (rows * columns <= 1024) out << "<title>" << r << ", " << c << ": " << tick_text(value) << "</title>";
      out << "</rect>";
    }
    if (r < figure.row_labels.size()) {
      out << "<text class=\"tick\" text-anchor=\"end\" x=\"" << left - 5 << "\" y=\""
          << kTop + cell * (static_cast<double>(r) + 0.5) + 4 << "\">" << escape_html(figure.row_labels[r])
          << "</text>";
    }
  }
  out << "<rect class=\"frame\" x=\"" << left << "\" y=\"" << kTop << "\" width=\""
      << cell * static_cast<double>(columns) << "\" height=\"" << cell * static_cast<double>(rows) << "\"/>";
  if (figure.show_sums) draw_sums(out, figure, {left, right, foot, cell});
  out << "<text class=\"label\" text-anchor=\"middle\" x=\"" << (left + right) / 2 << "\" y=\"" << height - 8 << "\">"
      << escape_html(figure.x_label) << "</text>";
  out << "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(14," << (kTop + foot) / 2
      << ") rotate(-90)\">" << escape_html(figure.y_label) << "</text></svg>";
  return out.str();
}

}  // namespace

std::string svg(const Figure& figure) {
  if (figure.kind == Figure::Kind::heat_map) return heat_map(figure);
  Drawing drawing(figure);
  if (figure.kind == Figure::Kind::lines) {
    drawing.lines();
  } else {
    drawing.bars();
  }
  return drawing.finish();
}

}  // namespace rootdk::lab
