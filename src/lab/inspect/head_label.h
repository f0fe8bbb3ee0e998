#pragma once

// Labels for heads, each with a rule that a reader can check.

#include <span>
#include <string_view>

#include "lab/inspect/inspection.h"

namespace rootdk::lab {

inline constexpr double kClearShare = 0.4;      // of the weight: previous, first, same, induction
inline constexpr double kNearShare = 0.6;       // of the weight: local
inline constexpr double kUsedShare = 0.5;       // of the visible keys: broad
inline constexpr std::int64_t kNearTokens = 8;  // how far "local" reaches
inline constexpr std::int64_t kEnoughKeys = 8;  // rows that see fewer are left out (half of a shorter text)
inline constexpr double kSaturatedWeight = 0.9;

struct LabelRule {
  HeadLabel label;
  std::string_view name;
  std::string_view rule;  // one sentence
};
// In the order of the reports.
std::span<const LabelRule> label_rules();
std::string_view name_of(HeadLabel label);

// Sets label and strength from the shares. Of the four clear labels the one with the most weight wins.
void label_head(HeadProfile& head);

}  // namespace rootdk::lab
