#pragma once

#include "layers/tape.h"

namespace rootdk {

// y = x W^T + b: x [rows, in], weight [out, in] in f32 or as it is stored, bias [out] or null. Without a tape a row of
// y has the same bits whatever other rows x has.
Value linear(Context& context, const Value& x, const Value& weight, const Value& bias = nullptr);

// A weight and its bias, as modules hold them.
struct Linear {
  Value weight;  // [out, in]
  Value bias;    // [out], or null

  Linear() = default;
  Linear(std::int64_t out, std::int64_t in, bool with_bias, WeightMemory memory = WeightMemory::own);
  Value operator()(Context& context, const Value& x) const { return linear(context, x, weight, bias); }
  void collect(Parameters& into, const std::string& name) const;
};

// layer(context, x) of each layer. Without a tape, layers whose weights have the same type are one product: x is read
// and rounded once, and threads meet once.
std::vector<Value> linear_together(Context& context, const Value& x, std::initializer_list<const Linear*> layers);

}  // namespace rootdk
