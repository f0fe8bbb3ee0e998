#pragma once

#include <span>
#include <string>

#include "lab/inspect/inspection.h"

namespace rootdk::lab {

// The heads of one inspection, or of two side by side (two checkpoints or two texts), as one self-contained HTML page.
std::string inspection_page(std::span<const Inspection> sides);

}  // namespace rootdk::lab
