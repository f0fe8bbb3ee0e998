#pragma once

// One attention call after validation: what every implementation receives. Nothing here is checked again.

#include <cstdint>

#include "rootdk/attention.h"
#include "rootdk/dropout.h"

namespace rootdk {

// Where a call lies in a larger one that computes it tile by tile: the sequence, head, query and key that its own first
// ones are there. Dropout bits and positions are those of the larger call.
struct TileOrigin {
  bool is_tile = false;
  std::int64_t sequence = 0, head = 0, query = 0;
  std::int64_t key = 0;             // a multiple of 8: eight keys share one block of random bits
  std::int64_t first_position = 0;  // key position of the first query, counted from the first key of the tile
};

// The sizes of a call. For packed sequences batch is the number of sequences, and q_len and kv_len are upper bounds.
struct AttentionShape {
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t head_dim = 0, value_dim = 0;
  bool packed = false;
  TileOrigin origin{};

  std::int64_t group() const { return kv_heads ? heads / kv_heads : 1; }  // query heads that share a key head
};

// Rows that meet their keys in several calls, one after another: what the softmax and the sums of each have come to.
// For tiles of one batch entry and one head, whose keys begin at a multiple of the kernel's key tile (1024 is one of
// all): the rows then have the bits of one call. Implementations that cannot do this do not say that they can
// (Answer::carries_rows).
struct CarriedRows {
  float *max = nullptr, *sum = nullptr;           // [q_len]
  float *weighted = nullptr, *squares = nullptr;  // [q_len], in every call where entropy or sum_p2 is asked for
  float* out = nullptr;                           // [q_len, out_stride]; may be the memory of out itself
  std::int64_t out_stride = 0;                    // at least value_dim rounded up to kColumns
  bool first = false, last = false;               // begin the rows; write out and statistics

  static constexpr std::int64_t kColumns = 64;
  bool defined() const { return max != nullptr; }
};

struct ForwardCall {
  ConstTensorView q, k, v;
  TensorView out;
  AttentionParams params;
  AttentionStats stats;
  Execution execution;

  AttentionShape shape;
  double logit_scale = 1.0;  // scale / temperature
  DropoutRule dropout;
  CarriedRows carried = {};
};

struct BackwardCall {
  AttentionSaved saved;
  AttentionUpstream upstream;
  AttentionGradients gradients;
  AttentionParams params;
  Execution execution;

  AttentionShape shape;
  double logit_scale = 1.0;
  DropoutRule dropout;
};

// The keys that causal and the window leave to a query: those from position - left to position + right, and none after
// the position where causal.
struct KeyWindow {
  bool causal = false;
  std::int64_t left = -1, right = -1;  // -1: no limit
};
inline KeyWindow window_of(const AttentionParams& params) {
  return {.causal = params.causal, .left = params.window_left, .right = params.window_right};
}

inline Executor& executor_of(const Execution& execution) {
  return execution.cpu.executor ? *execution.cpu.executor : default_executor();
}

inline Device device_of(const ForwardCall& call) { return call.q.device; }
inline Device device_of(const BackwardCall& call) { return call.saved.q.device; }

// How many blocks of block_mask cover a length. A block may be as large as 64 bits hold.
constexpr std::int64_t blocks_over(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0);
}

// One sequence of the batch: where its rows and keys begin, and how many it has. Sequences that are not packed begin at
// row 0 of their own batch entry; kv_visible is kv_len cut by kv_lengths.
struct SequenceRange {
  std::int64_t batch_entry = 0;  // index into dimension 0 of the tensors
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t kv_begin = 0, kv_len = 0;
  std::int64_t kv_visible = 0;
  std::int64_t shift = 0;  // of the positions, in a tile of a larger call

  std::int64_t position(std::int64_t i) const { return i + (kv_len - q_len) + shift; }
};

// Reads kv_lengths, q_starts and kv_starts, which must lie on the CPU.
SequenceRange sequence_range(const AttentionShape& shape, const AttentionParams& params, std::int64_t sequence);

// The keys [begin, end) that causal, window and length leave to query i of the sequence; may be empty.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};
KeyRange key_range(const SequenceRange& range, const KeyWindow& window, std::int64_t i);

// Validate the arguments (throwing rootdk::Error) and resolve them into a call.
ForwardCall make_forward_call(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                              const AttentionParams& params, const AttentionStats& stats, const Execution& execution);
BackwardCall make_backward_call(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                const AttentionGradients& gradients, const AttentionParams& params,
                                const Execution& execution);

}  // namespace rootdk
