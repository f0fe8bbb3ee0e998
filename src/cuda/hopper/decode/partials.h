#pragma once

// The results of parts of the keys, in the workspace: sums of all parts first, then their outputs. A single part of a
// single token needs none: its block writes the output itself.

#include <cstddef>
#include <cstdint>

#include "cuda/hopper/shared/params.h"

namespace rootdk::cuda::hopper {

std::size_t partials_bytes(std::int64_t parts, std::int64_t rows, std::int64_t value_dim);

// Points the parameters at memory of partials_bytes().
void set_partials(ForwardParams& params, void* memory, std::int64_t rows);

}  // namespace rootdk::cuda::hopper
