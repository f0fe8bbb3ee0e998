#pragma once

#include <span>

#include "layers/tape.h"

namespace rootdk {

// A target that counts for nothing: padding.
inline constexpr std::int32_t kIgnoredTarget = -1;

// The mean over counted rows of -ln softmax(logits)[target]. Where the context has a tape, also sets the gradient of
// the logits to that of weight * loss, so that Tape::backward() can start.
double cross_entropy(Context& context, const Value& logits, std::span<const std::int32_t> targets, double weight = 1.0);

}  // namespace rootdk
