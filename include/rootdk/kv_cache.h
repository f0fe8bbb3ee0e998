#pragma once

// Generation: keys and values kept between calls, and attention of new tokens over them.
//
//     KvCache cache({.dtype = DType::bf16, .kv_heads = 8, .head_dim = 128, .page_size = 64, .pages = 4096});
//     const SequenceId s = cache.open();
//     append(cache, k, v, {{.sequence = s, .tokens = n}});       // a prompt, or one token
//     attend(cache, q, out, {{.sequence = s, .tokens = n}});     // causal among the n, over everything before them
//
// One call serves many sequences of mixed lengths, prefill and decode together. The rows of the sequences follow one
// another, as in packed attention(): q is [1, heads, tokens, head_dim].
// docs/kv_cache.md has the rules; src/reference/attend.cpp is the executable specification; examples/generation.cpp is
// a whole program.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>

#include "rootdk/attention.h"
#include "rootdk/export.h"
#include "rootdk/positions.h"
#include "rootdk/tensor.h"

namespace rootdk {

struct KvCacheState;

enum class KvLayout : std::int32_t {
  contiguous = 0,  // one block of memory a sequence, with room for max_len tokens
  paged = 1,       // pages of page_size tokens, from one pool, through a table per sequence
};

// The memory of a cache. Pages come first, so that one page of one head is one block: page_size rows. A contiguous
// cache has max_sequences pages of max_len tokens. Scales belong to i8 and f8e4m3: element = number * scale of its
// (token, head).
struct KvStorage {
  TensorView k = {};         // [layers, pages, kv_heads, page_size, head_dim]
  TensorView v = {};         // [layers, pages, kv_heads, page_size, value_dim]
  TensorView k_scales = {};  // f32 [layers, pages, kv_heads, page_size]
  TensorView v_scales = {};  // f32 [layers, pages, kv_heads, page_size]
};

struct KvCacheConfig {
  KvLayout layout = KvLayout::paged;
  DType dtype = DType::bf16;  // f32, bf16, f16, or i8 or f8e4m3 with a scale per (token, head)
  std::int64_t layers = 1;    // layers share sequences and page tables; each has its own keys and values
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;  // 0: head_dim

  std::int64_t page_size = 64;  // paged: tokens of a page, a multiple of 16 in 16 to 256
  std::int64_t pages = 0;       // paged: how many there are

  std::int64_t max_sequences = 0;  // contiguous: sequences that hold tokens at the same time
  std::int64_t max_len = 0;        // contiguous: tokens of one sequence

  Device device = {};  // where the memory lies
  // Memory of the caller, contiguous, of the shapes above; not given: the cache's own (CPU alone).
  KvStorage storage = {};
};

// Names an open sequence. Ids are never reused.
enum class SequenceId : std::int64_t { none = -1 };

struct KvCacheUsage {
  std::int64_t sequences = 0;     // open
  std::int64_t pages = 0;         // in the pool
  std::int64_t free_pages = 0;    // of these
  std::int64_t shared_pages = 0;  // held by more than one sequence
  std::int64_t bytes = 0;         // of keys, values and scales
};

// One page of one layer, as it lies in memory.
struct KvPage {
  ConstTensorView k = {}, v = {};                // [kv_heads, page_size, head_dim or value_dim]
  ConstTensorView k_scales = {}, v_scales = {};  // [kv_heads, page_size]; i8 and f8e4m3 alone
  std::int64_t references = 0;                   // sequences that hold it
};

// Sequences, their page tables, and the memory behind them. The tables live on the host, the memory on any device.
// Every function checks its arguments first: one that throws has changed nothing. Not for use by several threads at
// once, except that const functions and attend() may run together.
class ROOTDK_API KvCache {
 public:
  explicit KvCache(const KvCacheConfig& config);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  const KvCacheConfig& config() const;  // with value_dim, page_size and pages resolved
  KvCacheUsage usage() const;

  // Gives a paged cache that owns its memory `pages` pages in all; what it holds is copied. Fewer than it has: nothing.
  void grow(std::int64_t pages);

  // An empty sequence. It takes no page before its first token.
  SequenceId open();
  // A sequence that begins with the first `length` tokens of another (-1: all): prefixes, beams. Pages are shared, and
  // copied only when one of the sequences writes into a page that the other holds too.
  SequenceId fork(SequenceId parent, std::int64_t length = -1);
  void close(SequenceId sequence);

  // Tokens that the sequence has been given, evicted ones included: the position of the next.
  std::int64_t length(SequenceId sequence, std::int64_t layer = 0) const;
  // Forgets the tokens from `length` on, in every layer: rejected drafts, a step that is taken back.
  void trim(SequenceId sequence, std::int64_t length);
  // Keeps the first keep_first tokens (attention sinks) and the last keep_last. The tokens between are never attended
  // to again, and pages that hold nothing else are freed; positions stay what they were. A contiguous cache frees none.
  // A sequence has one gap: an eviction whose tokens do not touch those evicted before is an error, and loses nothing.
  void evict(SequenceId sequence, std::int64_t keep_first, std::int64_t keep_last);

  // The page that holds a position of the sequence; throws where the position was evicted or never written.
  std::int64_t page_of(SequenceId sequence, std::int64_t position) const;
  // Its memory; throws where the page is free.
  KvPage page(std::int64_t page, std::int64_t layer = 0) const;

  KvCacheState& state() { return *state_; }  // the library's own
  const KvCacheState& state() const { return *state_; }

 private:
  std::unique_ptr<KvCacheState> state_;
};

// One sequence's part of a call: the next `tokens` rows of the tensors.
struct KvStep {
  SequenceId sequence = SequenceId::none;
  std::int64_t tokens = 1;
  // Position of the first of them. append: the length of the sequence, and anything else is an error. attend: any
  // position that has been appended. -1: the end, so that the last row of attend is the last token of the sequence.
  std::int64_t position = -1;
};

// The steps of a call: {{.sequence = a, .tokens = 5}, {.sequence = b}}, one KvStep, or any array of them. A view, as
// std::span is.
class KvSteps : public std::span<const KvStep> {
 public:
  using std::span<const KvStep>::span;
  KvSteps(std::span<const KvStep> steps) : span(steps) {}
  KvSteps(std::initializer_list<KvStep> steps) : span(steps.begin(), steps.size()) {}
  KvSteps(const KvStep& step) : span(&step, 1) {}
};

struct AppendParams {
  std::int64_t layer = 0;
  // Rotates k at its positions on the way in, in double, rounding once; offset is added to the positions.
  std::optional<RopeParams> rope = {};
};

// k [1, kv_heads, tokens, head_dim], v [1, kv_heads, tokens, value_dim], f32, bf16, f16 or f64, whatever the cache
// holds; last dimension contiguous. Each sequence at most once. A cache without the pages says how many it needs.
ROOTDK_API void append(KvCache& cache, ConstTensorView k, ConstTensorView v, KvSteps steps,
                       const AppendParams& params = {}, const Execution& execution = {});

// The operation of attention() where a query at position i attends to the keys j <= i of its sequence that were not
// evicted.
struct AttendParams {
  std::int64_t layer = 0;
  LogitParams logits{};

  std::int64_t window_left = -1;        // keeps j >= i - window_left; -1: no limit
  std::int64_t window_keeps_first = 0;  // every query attends to keys [0, this), whatever the window

  std::optional<RopeParams> rope = {};  // rotates q at its positions, rounding to q's type; offset is added
};

// q [1, heads, tokens, head_dim], out [1, heads, tokens, value_dim] of q's type, which need not be the cache's.
// The result of a token has the same bits for any number of threads, whatever else is in the call, and however the
// tokens of its sequence were spread over calls. stats may name lse, max_logit, max_weight, entropy and sum_p2, each
// [1, heads, tokens]; the statistics over keys and the weights are refused.
ROOTDK_API void attend(const KvCache& cache, ConstTensorView q, TensorView out, KvSteps steps,
                       const AttendParams& params = {}, const AttentionStats& stats = {},
                       const Execution& execution = {});

// Device scratch memory that the call wants in CudaExecution::workspace; 0 on the CPU, which takes its own.
ROOTDK_API std::size_t attend_workspace(const KvCache& cache, ConstTensorView q, TensorView out, KvSteps steps,
                                        const AttendParams& params = {}, const AttentionStats& stats = {},
                                        const Execution& execution = {});

// Which implementation attend would use here, and why not the others.
ROOTDK_API Explanation explain_attend(const KvCache& cache, ConstTensorView q, TensorView out, KvSteps steps,
                                      const AttendParams& params = {}, const AttentionStats& stats = {},
                                      const Execution& execution = {});

}  // namespace rootdk
