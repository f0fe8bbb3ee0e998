#pragma once

// The report: one self-contained HTML page, no network, no script needed to read it.

#include <span>
#include <string>

#include "lab/run.h"

namespace rootdk::lab {

// What the head of a page says about how it was made.
struct ReportInfo {
  std::uint64_t seed = 1;
  bool quick = false;
  std::string implementation{};  // the kernel that ran
};

std::string report_page(std::span<const Result> results, const ReportInfo& info);

}  // namespace rootdk::lab
