#pragma once

// What the kernels of several passes know about their tiles. A kernel's configuration C (ForwardConfig, DecodeConfig,
// BackwardConfig) is a struct of constants; the functions of this folder take it as their template parameter.

#include <cstdint>

namespace rootdk::cuda::hopper {

// What a kernel does to its scores before the softmax.
enum class Terms : std::int32_t { none, softcap, causal_alibi, any };

// Changes only the order in which ptxas issues instructions. Measure again with every new compiler.
struct Tuning {
  bool rescale_under_qk = false;  // rescale the output during the next Q K^T, not before it
  bool order_after_max = false;   // compute the row maximum before the wait for P V
  int max_chains = 2;             // independent chains of the row maximum: 2 or 4
  int early_token = 1;            // pass the turn at the tensor cores so many instructions before P V ends
  bool integer_max = false;       // row maxima of three scores at a time, see row_maxima_above()
};

// One query tile of one head: what the producer hands to the consumers.
struct alignas(16) WorkTile {
  int sequence;  // batch entry, or packed sequence; -1: no more work
  int head;
  int q0;          // first row, counted inside the sequence
  int q_begin;     // row of the tensor where the sequence begins
  int q_len;       // rows of the sequence
  int kv_begin;    // the same for keys
  int kv_len;      // keys of the sequence; row i is at key position i + kv_len - q_len
  int kv_visible;  // kv_len cut by kv_lengths
};

inline constexpr int kSharedAlignment = 1024;  // for swizzled tiles; dynamic shared memory itself is aligned to less

}  // namespace rootdk::cuda::hopper
