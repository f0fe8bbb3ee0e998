#pragma once

#include <string>
#include <string_view>

namespace rootdk::lab {

// The small part of LaTeX that the report's formulas use, as MathML, which browsers draw without any script:
// \frac \sqrt \text \operatorname, sub- and superscripts, Greek letters and a few operators. Throws rootdk::Error at
// anything else.
std::string mathml(std::string_view latex, bool display = false);

}  // namespace rootdk::lab
