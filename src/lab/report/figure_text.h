#pragma once

// Texts inside figures.

#include <string>

namespace rootdk::lab {

// A tick's text has no markup, as SVG text knows no <sup>, and is short enough for the margin: 1e6, 1e-4, 0.25, 4096.
std::string tick_text(double value);

// Characters as a reader counts them: UTF-8 continuation bytes are none.
double text_width(const std::string& text, double per_character);

}  // namespace rootdk::lab
