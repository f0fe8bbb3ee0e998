#pragma once

// Weights in the type they are stored in: a part of a mapped checkpoint, or memory that was made when it was loaded.

#include <memory>
#include <string_view>

#include "core/linear_call.h"
#include "layers/tape.h"

namespace rootdk {

struct StoredMatrix {
  WeightMatrix matrix{};
  std::shared_ptr<const void> owner{};  // of the memory
};

// The matrix of a parameter: as it is stored, or its f32 value.
WeightMatrix matrix_of(const Node& parameter);

// Row `row` in f32.
void widen_row(const WeightMatrix& matrix, std::int64_t row, float* out);

std::string_view name_of(WeightFormat format);

// A matrix in i8 (a scale for each row) or i4 (a scale for each 32 columns, which must divide the columns): each number
// becomes the nearest integer, and the largest magnitude of its row or block the largest integer.
std::shared_ptr<const StoredMatrix> quantise(const WeightMatrix& from, WeightFormat to, Executor& executor);

}  // namespace rootdk
