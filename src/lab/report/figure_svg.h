#pragma once

#include <string>

#include "lab/claim.h"

namespace rootdk::lab {

// A figure as inline SVG. Colours come from the page's style sheet, so that it follows light and dark.
std::string svg(const Figure& figure);

}  // namespace rootdk::lab
