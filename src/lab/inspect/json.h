#pragma once

#include <span>
#include <string>

#include "lab/inspect/inspection.h"

namespace rootdk::lab {

// One inspection as JSON, or two as {"a": ..., "b": ...}; docs/lab.md has the fields. Numbers that do not arise are
// null, heads are grouped by label, and texts of over 1024 tokens list neither tokens nor the mass by key.
std::string inspection_json(std::span<const Inspection> sides);

}  // namespace rootdk::lab
