#include "lab/report/figure_svg.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/check.h"
#include "lab/report/figure_text.h"
#include "lab/report/heat_map_svg.h"
#include "lab/report/html.h"

namespace rootdk::lab {
namespace {

// Small enough that the text can still be read when a phone shrinks the drawing to its width.
constexpr double kWidth = 420, kPlotHeight = 210;
constexpr double kLeft = 58, kRight = 12, kTop = 34, kBottom = 46;
constexpr double kTickWidth = 6.6;  // of a character of a tick or a legend, at most
constexpr double kTickHeight = 14;  // of a tick with the space around it

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
    if (log_) return log_ticks();
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
  // Decades, and where fewer than three of them are in view, steps between them.
  std::vector<double> log_ticks() const {
    static const std::vector<std::vector<double>> kSteps = {
        {1},
        {1, 3},
        {1, 2, 5},
        {1, 1.5, 2, 3, 4, 5, 7},
        {1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9}};
    std::vector<double> result;
    for (const std::vector<double>& steps : kSteps) {
      result.clear();
      for (int decade = static_cast<int>(std::floor(low_)); decade <= static_cast<int>(std::ceil(high_)); ++decade) {
        for (double step : steps) {
          const double tick = step * std::pow(10, decade);
          if (std::log10(tick) >= low_ - 1e-9 && std::log10(tick) <= high_ + 1e-9) result.push_back(tick);
        }
      }
      if (result.size() >= 3) break;
    }
    return result;
  }

  double low_, high_;
  bool log_;
  double from_, to_;
};

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

  // x_ticks: where the axis of x has numbers.
  void axes(const Axis& x, const Axis& y, const std::vector<double>& x_ticks) {
    double last = 1e300;
    for (double tick : y.ticks()) {
      const double at = y.pixel(tick);
      if (std::abs(at - last) < kTickHeight) continue;
      last = at;
      out_ << "<line class=\"grid\" x1=\"" << kLeft << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << at << "\" y2=\""
           << at << "\"/>";
      text(kLeft - 6, at + 4, "tick", "end", tick_text(tick));
    }
    double end = -1e300;  // of the number before
    for (double tick : x_ticks) {
      const double at = x.pixel(tick), width = text_width(tick_text(tick), kTickWidth);
      if (at - width / 2 < end + 4) continue;
      end = at + width / 2;
      out_ << "<line class=\"axis\" x1=\"" << at << "\" x2=\"" << at << "\" y1=\"" << foot_ << "\" y2=\"" << foot_ + 4
           << "\"/>";
      text(at, foot_ + 17, "tick", "middle", tick_text(tick));
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
    axes(x, y, ticks_of(x));
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
    axes(x, y, {});
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

  // On a logarithmic axis with few values the values themselves are the ticks: 16, 64, 256, 512.
  std::vector<double> ticks_of(const Axis& x) const {
    if (!figure_.log_x) return x.ticks();
    std::vector<double> values;
    for (const Series& series : figure_.series) {
      for (std::size_t i = 0; i < series.x.size(); ++i) {
        if (drawable(series.x[i], series.y[i])) values.push_back(series.x[i]);
      }
    }
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values.size() <= 12 ? values : x.ticks();
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

}  // namespace

std::string svg(const Figure& figure) {
  if (figure.kind == Figure::Kind::heat_map) return heat_map_svg(figure);
  Drawing drawing(figure);
  if (figure.kind == Figure::Kind::lines) {
    drawing.lines();
  } else {
    drawing.bars();
  }
  return drawing.finish();
}

}  // namespace rootdk::lab
