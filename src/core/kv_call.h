#pragma once

// The two operations on a KV cache after validation: what every implementation receives. Nothing here is checked again.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/attention_call.h"
#include "core/implementation.h"
#include "core/kv_cache_state.h"
#include "rootdk/kv_cache.h"

namespace rootdk {

// RoPE resolved: the angle of pair p at a position is position * frequency[p].
struct Rotation {
  std::vector<double> frequency = {};  // [rotary_dim / 2]; empty: no rotation
  double magnitude = 1.0;              // factor on cos and sin
  RopeLayout layout = RopeLayout::half_split;
  std::int64_t offset = 0;  // added to every position

  bool empty() const { return frequency.empty(); }
  // cos and sin of every pair at a position, each [rotary_dim / 2].
  void angles(std::int64_t position, std::span<double> cosine, std::span<double> sine) const;
  // Rotates one vector in place.
  void apply(std::span<double> x, std::span<const double> cosine, std::span<const double> sine) const;
};

struct KvShape {
  std::int64_t heads = 0;  // of queries; 0 in append
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t page_size = 0;
  std::int64_t tokens = 0;  // rows of the call, all sequences together

  std::int64_t group() const { return heads / kv_heads; }  // query heads that share a key head
};

// One sequence of a call: rows [row, row + tokens) have the positions position, position + 1, ...
struct CallSequence {
  std::int64_t row = 0, tokens = 0, position = 0;
  const std::int32_t* pages = nullptr;      // logical page -> page; kEvictedPage in the gap. On the host.
  std::int64_t gap_begin = 0, gap_end = 0;  // evicted positions
};

struct AppendCall {
  ConstTensorView k = {}, v = {};  // [1, kv_heads, tokens, dim]
  KvStorage storage = {};          // every layer
  std::int64_t layer = 0;
  Rotation rotation = {};
  Execution execution = {};
  KvShape shape = {};
  std::vector<PageCopy> copies = {};  // to be made first, in every layer
  std::vector<CallSequence> sequences = {};
};

inline Device device_of(const AppendCall& call) { return call.k.device; }

// Makes the call's copies, in the memory of the host.
void copy_pages(const AppendCall& call);

struct AttendCall {
  ConstTensorView q = {};  // [1, heads, tokens, head_dim]
  TensorView out = {};     // [1, heads, tokens, value_dim]
  // One layer: k [pages, kv_heads, page_size, head_dim], v likewise, scales [pages, kv_heads, page_size].
  ConstTensorView k = {}, v = {}, k_scales = {}, v_scales = {};
  AttendParams params = {};
  AttentionStats stats = {};  // of rows alone
  Rotation rotation = {};
  Execution execution = {};
  KvShape shape = {};
  double logit_scale = 1.0;  // scale / temperature
  std::vector<CallSequence> sequences = {};
};

inline Device device_of(const AttendCall& call) { return call.q.device; }

// A query at `position` attends to the keys [0, position] without two gaps, which may be empty: what was evicted, and
// what the window hides.
struct KeyGaps {
  KeyRange evicted = {}, hidden = {};

  bool keeps(std::int64_t j) const {
    return !(j >= evicted.begin && j < evicted.end) && !(j >= hidden.begin && j < hidden.end);
  }
};
KeyGaps key_gaps(const CallSequence& sequence, const AttendParams& params, std::int64_t position);

// Validate the arguments (throwing rootdk::Error) and resolve them into a call. An append call has neither copies nor
// page tables yet: commit_append_call changes the cache's metadata and fills them in.
AppendCall make_append_call(KvCacheState& cache, ConstTensorView k, ConstTensorView v, std::span<const KvStep> steps,
                            const AppendParams& params, const Execution& execution);
void commit_append_call(KvCacheState& cache, std::span<const KvStep> steps, AppendCall& call);
AttendCall make_attend_call(const KvCacheState& cache, ConstTensorView q, TensorView out, std::span<const KvStep> steps,
                            const AttendParams& params, const AttentionStats& stats, const Execution& execution);

using AppendImplementation = Implementation<AppendCall>;
using AttendImplementation = Implementation<AttendCall>;

// What each backend folder provides.
namespace reference {
std::span<const AppendImplementation> append_implementations();
std::span<const AttendImplementation> attend_implementations();
}  // namespace reference
namespace cpu {
std::span<const AppendImplementation> append_implementations();
std::span<const AttendImplementation> attend_implementations();
}  // namespace cpu
namespace cuda {
std::span<const AppendImplementation> append_implementations();
std::span<const AttendImplementation> attend_implementations();
}  // namespace cuda

}  // namespace rootdk
