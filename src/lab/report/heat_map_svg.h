#pragma once

#include <string>

#include "lab/claim.h"

namespace rootdk::lab {

// A heat map as inline SVG, with a legend of its colours.
std::string heat_map_svg(const Figure& figure);

}  // namespace rootdk::lab
