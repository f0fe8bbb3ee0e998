#pragma once

// Checkpoints whose matrices are int8 or int4. model.safetensors then has the names that Transformer::parameters()
// gives. A quantised matrix is I8, padded to groups of 16 rows and blocks of 32 columns: int8 [groups, blocks * 8, 16,
// 4] beside NAME.row_scales (F32 [rows]), or int4, two numbers a byte, [groups, blocks, 4, 16, 4] beside
// NAME.block_scales (BF16 [groups, blocks, 16]). core/linear_call.h says which number is where. The metadata has
// rootdk_weights = int8 or int4.

#include "models/checkpoint.h"

namespace rootdk {

// Reads a model, makes its matrices int8 or int4 and writes it with the other files of its folder to `out`, which is
// made. Returns the bytes of model.safetensors.
std::uint64_t write_quantised(const std::filesystem::path& folder, WeightFormat weights,
                              const std::filesystem::path& out, Executor* executor = nullptr);

// Whether a folder was written so; then fill_quantised() gives a model its parameters, after it has checked them all.
bool is_quantised(const Checkpoint& checkpoint);
void fill_quantised(const TransformerConfig& config, const Parameters& parameters,
                    const std::shared_ptr<const Checkpoint>& checkpoint);

}  // namespace rootdk
