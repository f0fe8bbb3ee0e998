// The data flow of attention as drawings, with the shapes of a real model.

#include <sstream>

#include "lab/report/html.h"
#include "lab/report/lessons.h"

namespace rootdk::lab {
namespace {

class Diagram {
 public:
  Diagram(int width, int height, const char* label) {
    out_.exceptions(std::ios::badbit);  // out of memory is an error, not half a drawing
    out_ << "<svg class=\"diagram\" viewBox=\"0 0 " << width << ' ' << height << "\" role=\"img\" aria-label=\""
         << label << "\"><title>" << label << "</title>";
  }
  Diagram& box(int x, int y, int width, const std::string& name, const std::string& shape) {
    out_ << "<rect class=\"box\" rx=\"6\" x=\"" << x - width / 2 << "\" y=\"" << y << "\" width=\"" << width
         << "\" height=\"42\"/>"
         << "<text class=\"name\" x=\"" << x << "\" y=\"" << y + 18 << "\">" << escape_html(name) << "</text>"
         << "<text class=\"shape\" x=\"" << x << "\" y=\"" << y + 34 << "\">" << escape_html(shape) << "</text>";
    return *this;
  }
  // From the foot of one box to the head of another.
  Diagram& flow(int from_x, int from_y, int to_x, int to_y) {
    const int bend = (from_y + 42 + to_y) / 2;
    out_ << "<path class=\"flow\" d=\"M" << from_x << ' ' << from_y + 42 << " V" << bend << " H" << to_x << " V" << to_y
         << "\"/>"
         << "<path class=\"flow\" d=\"M" << to_x - 4 << ' ' << to_y - 6 << " L" << to_x << ' ' << to_y << " L"
         << to_x + 4 << ' ' << to_y - 6 << "\"/>";
    return *this;
  }
  std::string finish() {
    out_ << "</svg>";
    return out_.str();
  }

 private:
  std::ostringstream out_;
};

std::string scaled_dot_product() {
  Diagram d(420, 452, "Scaled dot-product attention of one head");
  d.box(80, 8, 120, "Q", "512 × 64").box(210, 8, 120, "K", "512 × 64").box(340, 8, 120, "V", "512 × 64");
  d.box(145, 84, 150, "Q Kᵀ", "512 × 512").flow(80, 8, 120, 84).flow(210, 8, 170, 84);
  d.box(145, 158, 150, "divide by √64 = 8", "variance 64 → 1").flow(145, 84, 145, 158);
  d.box(145, 232, 150, "mask (optional)", "−∞ where not allowed").flow(145, 158, 145, 232);
  d.box(145, 306, 150, "softmax", "rows sum to 1").flow(145, 232, 145, 306);
  d.box(240, 396, 170, "weights × V", "512 × 64").flow(145, 306, 200, 396).flow(340, 8, 280, 396);
  return d.finish();
}

std::string multi_head() {
  Diagram d(470, 452, "Multi-head attention of BERT-base");
  d.box(235, 8, 180, "x", "512 × 768");
  d.box(80, 90, 130, "W_Q", "768 × 768").box(235, 90, 130, "W_K", "768 × 768").box(390, 90, 130, "W_V", "768 × 768");
  d.flow(235, 8, 80, 90).flow(235, 8, 235, 90).flow(235, 8, 390, 90);
  d.box(235, 176, 380, "split into 12 heads", "12 × 512 × 64 each")
      .flow(80, 90, 110, 176)
      .flow(235, 90, 235, 176)
      .flow(390, 90, 360, 176);
  d.box(235, 250, 380, "scaled dot-product attention, 12 times", "12 weight matrices of 512 × 512, never stored")
      .flow(235, 176, 235, 250);
  d.box(235, 324, 380, "concatenate", "512 × 768").flow(235, 250, 235, 324);
  d.box(235, 398, 230, "W_O", "768 × 768: mixes the heads").flow(235, 324, 235, 398);
  return d.finish();
}

}  // namespace

std::string lesson_data_flow() {
  return "<section id=\"flow\"><h2>The way of the data</h2><div class=\"figures\"><figure>" + scaled_dot_product() +
         "<figcaption>One head, 512 tokens, d_k = 64.</figcaption></figure><figure>" + multi_head() +
         "<figcaption>Multi-head attention with the shapes of BERT-base: 768 = 12 × "
         "64.</figcaption></figure></div></section>";
}

}  // namespace rootdk::lab
