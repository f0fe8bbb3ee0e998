#pragma once

// Scaled dot-product attention, forward and backward.
//
//     logits  = softcap( score(q, k) * scale / temperature ) + position(i - j) + bias      masked to -inf
//     weights = softmax over keys, with an optional learned sink per head in the denominator
//     out     = dropout(weights) v
//
// docs/operation.md defines every term; src/reference/attention.cpp is the executable specification;
// examples/training.cpp goes forward and back.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/executor.h"
#include "rootdk/export.h"
#include "rootdk/tensor.h"

namespace rootdk {

// How a query and a key become one number.
enum class Score : std::int32_t {
  dot = 0,       // q . k
  cosine = 1,    // q . k / (|q| |k|); 0 where either vector is zero
  additive = 2,  // a . tanh(q + k), the projections already applied (Bahdanau); a is AttentionParams::additive_v
};

// The factor on the score. Never silently 1/sqrt(d_model): only head_dim, or a number that the caller names.
class ROOTDK_API Scale {
 public:
  enum class Kind : std::int32_t { inverse_sqrt_head_dim = 0, none = 1, inverse_head_dim = 2, value = 3 };

  constexpr Scale() = default;
  constexpr Scale(double factor) : kind_(Kind::value), factor_(factor) {}  // implicit: {.scale = 0.125}

  static constexpr Scale inverse_sqrt_head_dim() { return Scale(Kind::inverse_sqrt_head_dim); }
  static constexpr Scale none() { return Scale(Kind::none); }
  static constexpr Scale inverse_head_dim() { return Scale(Kind::inverse_head_dim); }

  constexpr Kind kind() const { return kind_; }
  double factor(std::int64_t head_dim) const;

 private:
  constexpr explicit Scale(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::inverse_sqrt_head_dim;
  double factor_ = 1.0;
};

// How a score becomes a logit. attention() and attend() of the KV cache share it.
// Small float tensors (relative_table, alibi_slopes, sinks, additive_v) are f32, or f64 where q is f64.
struct LogitParams {
  Scale scale = Scale::inverse_sqrt_head_dim();
  double temperature = 1.0;  // > 0
  double softcap = 0.0;      // c tanh(x / c) on the scaled score; 0: none

  // Added after the softcap.
  ConstTensorView relative_table{};  // [heads or 1, entries]: entry clamp(position - j + relative_zero, 0, entries - 1)
  std::int64_t relative_zero = 0;    // the entry of distance 0
  ConstTensorView alibi_slopes{};    // [heads]: adds -slope |position - j|

  ConstTensorView sinks{};  // [heads]: one more logit in the denominator, with no value
};

// Which rows the statistics cover. AttentionStats says where they go.
struct StatsRequest {
  ConstTensorView weight_rows{};  // i32 [chosen rows] of AttentionStats::weights; not given: all rows
  // Entropy and sum_p2 of one query tile in `stride` (the sampled rows are exact, the others NaN); 1: of every row.
  // Devices where every row is cheap may fill more rows than asked.
  std::int64_t stride = 1;
};

// Attention in e4m3: rootdk/fp8.h defines it. The scales are given where q, k and v are e4m3 already, as
// quantize_for_attention() has made them.
struct Fp8Params {
  // q and k are multiplied by the same orthogonal matrix (Hadamard) before they are rounded, which changes no score.
  bool rotate = false;
  ConstTensorView q_scales{};  // f32 [batch, heads, blocks of 128 rows]
  ConstTensorView k_scales{};  // f32 [batch, kv_heads, blocks of 128 keys]
  ConstTensorView v_scales{};  // f32 [batch or sequences, kv_heads, value_dim]
  ConstTensorView q_shift{};   // f32 [batch, heads, q_len]: what lse and max_logit get back, before scale; or missing
};

// Everything that shapes the operation. Every field has a default: {.causal = true, .window_left = 4096}.
struct AttentionParams {
  Score score = Score::dot;
  LogitParams logits{};

  // Masks. Query i has key position i + (kv_len - q_len). A position is kept when every mask given keeps it.
  bool causal = false;             // keeps j <= position of i
  std::int64_t window_left = -1;   // keeps j >= position - window_left;  -1: no limit
  std::int64_t window_right = -1;  // keeps j <= position + window_right; -1: no limit
  ConstTensorView kv_lengths{};    // i32 [batch]: keys from this length on are padding
  ConstTensorView mask{};          // bool, broadcast to [batch, heads, q_len, kv_len]: true keeps
  ConstTensorView block_mask{};    // bool, broadcast to [batch, heads, q blocks, kv blocks]: true keeps the block
  std::int64_t block_q = 0;        // rows of a block of block_mask
  std::int64_t block_kv = 0;       // keys of a block of block_mask

  // Packed sequences: q is [1, heads, total_q, head_dim], k and v [1, kv_heads, total_kv, ...], and sequence s has the
  // queries [q_starts[s], q_starts[s+1]) and the keys [kv_starts[s], kv_starts[s+1]). Both i32 [sequences + 1].
  // Every rule above then holds inside each sequence. Not together with kv_lengths, mask, block_mask, bias or
  // pooled_map.
  ConstTensorView q_starts{};
  ConstTensorView kv_starts{};
  // Upper bounds on the lengths above, for devices that cannot look (0: total_q and total_kv).
  std::int64_t max_q_len = 0;
  std::int64_t max_kv_len = 0;

  ConstTensorView bias{};        // added to the logits: f32 or q's type, broadcast to [batch, heads, q_len, kv_len]
  ConstTensorView additive_v{};  // [heads, head_dim]: the vector a of the additive score

  double dropout = 0.0;    // probability in [0, 1) that a weight is dropped; docs/dropout.md defines the bits
  std::uint64_t seed = 0;  // of the dropout

  StatsRequest stats{};  // attention_backward() ignores it

  // The type that the products run in: not given, that of q; DType::f8e4m3, with out in f32, bf16 or f16.
  std::optional<DType> compute{};
  Fp8Params fp8{};
};

// What happened inside the softmax: where each statistic goes. Each view that is given is filled; all are f32 (f64
// where q is f64). Weights are those before dropout, over real keys, with the sink in their denominator.
// docs/statistics.md says how to read them.
struct AttentionStats {
  TensorView lse{};  // [batch, heads, q_len] ln sum exp(logit), sink included; -inf where no key is left and no sink
  TensorView max_logit{};    // [batch, heads, q_len] -inf where no key is left
  TensorView max_weight{};   // [batch, heads, q_len]
  TensorView entropy{};      // [batch, heads, q_len] -sum p ln p, in nats
  TensorView sum_p2{};       // [batch, heads, q_len] sum p^2: near 1 means saturated
  TensorView column_mass{};  // [batch, heads, kv_len] sum over queries of the weight a key receives
  // [batch, heads, rows, columns]: the n x n matrix at any resolution. Row r covers the queries [r q_len / rows,
  // (r + 1) q_len / rows), rounded down, columns likewise; a cell is the mean over its queries of the summed weight.
  TensorView pooled_map{};
  // [batch, heads, chosen rows, kv_len]: the exact weights of StatsRequest::weight_rows, or the whole n x n matrix.
  TensorView weights{};
};

struct CpuExecution {
  Executor* executor = nullptr;     // null: default_executor()
  std::size_t workspace_limit = 0;  // bytes of scratch memory that a call may take; 0: no limit
};

struct CudaExecution {
  void* stream = nullptr;     // cudaStream_t
  void* workspace = nullptr;  // device scratch memory, at least attention_workspace() bytes
  std::size_t workspace_bytes = 0;
  // Asked for device scratch memory, once a call at most, where `workspace` has fewer bytes than the call needs. The
  // memory must stay until the call returns and be used by nothing that runs beside `stream`. Null: out of memory.
  void* (*allocate)(void* user, std::size_t bytes) = nullptr;
  void* allocate_user = nullptr;
};

// How and where a call runs; never changes what it computes. A call uses `target` and the part of its device.
struct Execution {
  std::string_view target = {};  // force an implementation by name; empty: ROOTDK_TARGET, else the first that accepts
  CpuExecution cpu{};
  CudaExecution cuda{};
};

// q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, value_dim],
// out [batch, heads, q_len, value_dim]; one element type (e4m3 aside), last dimension contiguous, other strides free.
// heads is a multiple of kv_heads: query head h attends to key head h / (heads / kv_heads).
// What is written must not overlap what is read, here and everywhere. Throws rootdk::Error, with the values in the
// message, before anything is written. Any number of threads may call at once. On CUDA the call returns when its work
// is queued on CudaExecution::stream.
ROOTDK_API void attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                          const AttentionParams& params = {}, const AttentionStats& stats = {},
                          const Execution& execution = {});

// What the forward pass read and wrote; all but entropy are needed.
struct AttentionSaved {
  ConstTensorView q{}, k{}, v{}, out{};
  ConstTensorView lse{};      // AttentionStats::lse
  ConstTensorView entropy{};  // AttentionStats::entropy, where AttentionUpstream::entropy is given
};

// Gradients of the loss with respect to what the forward pass wrote, of the same shapes and types; out is needed.
struct AttentionUpstream {
  ConstTensorView out{};
  ConstTensorView lse{};
  ConstTensorView entropy{};
};

// Gradients that flow out; what is not given is not computed. Each view that is given is overwritten. q, k, v have the
// type of their tensor, bias its own type or f32, the others the type of the parameter. column_mass is the forward
// statistic as a by-product.
struct AttentionGradients {
  TensorView q{}, k{}, v{};
  TensorView bias{};            // the shape of params.bias: summed over broadcast dimensions
  TensorView relative_table{};  // the shape of params.relative_table
  TensorView alibi_slopes{};    // [heads]
  TensorView sinks{};           // [heads]
  TensorView additive_v{};      // [heads, head_dim]
  TensorView column_mass{};     // [batch, heads, kv_len]
};

// params are those of the forward call, the seed included.
ROOTDK_API void attention_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                   const AttentionGradients& gradients, const AttentionParams& params = {},
                                   const Execution& execution = {});

// Device scratch memory that the call wants in CudaExecution::workspace; 0 on the CPU, which takes its own.
ROOTDK_API std::size_t attention_workspace(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                                           const AttentionParams& params = {}, const AttentionStats& stats = {},
                                           const Execution& execution = {});
ROOTDK_API std::size_t attention_backward_workspace(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                                    const AttentionGradients& gradients,
                                                    const AttentionParams& params = {},
                                                    const Execution& execution = {});

// Which implementation a call would use here, and why not the others. Never throws for bad arguments: `error` then says
// what the call itself would have said.
struct Explanation {
  struct Candidate {
    std::string name{};
    std::string refusal{};  // empty: accepts
  };
  std::string chosen{};                 // empty: none
  std::vector<Candidate> candidates{};  // in the order in which they are asked
  std::string error{};
};

ROOTDK_API Explanation explain(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                               const AttentionParams& params = {}, const AttentionStats& stats = {},
                               const Execution& execution = {});
ROOTDK_API Explanation explain_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                        const AttentionGradients& gradients, const AttentionParams& params = {},
                                        const Execution& execution = {});

// Combines attention over disjoint sets of keys into attention over their union (split keys, ring attention, prefix
// caches): out [parts, batch, heads, q_len, value_dim] and lse [parts, batch, heads, q_len] into the merged pair. Parts
// are merged in order. A part with lse -inf adds nothing. merged_lse may be left out.
ROOTDK_API void merge_states(ConstTensorView out, ConstTensorView lse, TensorView merged_out,
                             TensorView merged_lse = {});

}  // namespace rootdk
