#pragma once

#include <span>

#include "layers/tape.h"

namespace rootdk {

// x + y, the residual connection.
Value add(Context& context, const Value& x, const Value& y);

// x times a number.
Value scale(Context& context, const Value& x, double factor);

// cap tanh(x / cap), as on Gemma's logits.
Value softcap(Context& context, const Value& x, double cap);

// x + b for a vector b as long as a row.
Value add_row(Context& context, const Value& x, const Value& b);

// Drops elements with the context's probability and scales the rest; x itself where the probability is 0. The bit of
// an element is a pure function of (seed of the call, row, column).
Value dropout(Context& context, const Value& x);

// rows of table [entries, width] by id; ids outside the table are an error that names them.
Value embed(Context& context, std::span<const std::int32_t> ids, const Value& table);

}  // namespace rootdk
