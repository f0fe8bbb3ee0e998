#pragma once

// From q, k and v to what the e4m3 kernels read: three small kernels in front of attention.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/attention_call.h"
#include "cuda/hopper/shared/params.h"

namespace rootdk::cuda::hopper {

// Where everything is in the workspace, in bytes from its begin.
struct Fp8Workspace {
  std::size_t tile_counter = 0;
  std::size_t q = 0, k = 0, v = 0;                      // e4m3; v is [batch, kv_heads, head_dim, key_blocks block_kv]
  std::size_t q_units = 0, k_scale = 0, v_columns = 0;  // see Fp8Scales
  std::size_t v_multiplier = 0, mean_key = 0;           // [sequences, kv_heads, head_dim]
  std::size_t partials = 0;                             // of the means: [batch, kv_heads, chunks, head_dim]
  std::size_t bytes = 0;
  int head_dim = 0;  // of the kernel
  int block_kv = 0;  // keys of a tile, which share a scale
  int key_blocks = 0, chunks = 0;
};

// Why the kernels that prepare cannot be launched for so many heads and batch entries; empty: they can.
std::string refuse_preparation(const AttentionShape& shape);

Fp8Workspace fp8_workspace(const ForwardCall& call, int head_dim, int block_kv);

// Fills the workspace from the call's q, k and v.
void prepare_fp8(const ForwardCall& call, const ForwardParams& params, const Fp8Workspace& at);

// Writes the values of the numbers in the workspace over to.q, to.k and to.v, contiguous tensors of the call's type and
// shapes: k without its mean, and over to.lse, contiguous, what lse is then. params.row_values[kLse] is lse with the
// mean.
void write_fp8_values(const ForwardCall& call, const ForwardParams& params, const Fp8Workspace& at,
                      const AttentionSaved& to);

}  // namespace rootdk::cuda::hopper
