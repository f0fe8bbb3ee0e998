#pragma once

// The seam between the ordinary code and the decode kernels, as kernel_table.h is for the fused forward: plain structs
// and a table of functions. Nothing here may contain code.

#include <stddef.h>
#include <stdint.h>

#include "cpu/kernel_table.h"

namespace rootdk::cpu {

enum class CacheKind : int32_t { f32, bf16, f16, i8, f8e4m3 };
constexpr int kCacheKinds = 5;

// Keys are found in groups of 16 that never cross a page, scored in tiles of 32, 64 or 128 (which, the type of the
// cache says), and summed in chunks of 1024. All three begin at multiples of their size, counted from position 0 of the
// sequence: how a row's keys are cut depends on nothing else, which is why its result has the same bits in any batch
// and for any number of threads.
constexpr int kGroupKeys = 16;
constexpr int kChunkKeys = 1024;

// The rows of a query block are computed four at a time.
constexpr int kRowBlock = 4;

// Key heads of a sequence that are walked side by side, at most.
constexpr int kMaxHeadsTogether = 16;

// One key head of one sequence. Row t of page p begins at k + (p * k_page_stride + t * k_row_stride) elements.
struct CachedKeys {
  const void* k = nullptr;
  const void* v = nullptr;
  const float* k_scales = nullptr;  // quantised: [page_size] at p * scale_page_stride
  const float* v_scales = nullptr;
  int64_t k_page_stride = 0, v_page_stride = 0, scale_page_stride = 0;
  int64_t k_row_stride = 0, v_row_stride = 0;  // head_dim and value_dim in a cache
  const int32_t* pages = nullptr;              // logical page -> page; negative: evicted
  int64_t page_size = 0;
  CacheKind kind = CacheKind::f32;
};

struct KeyGap {
  int64_t begin = 0, end = 0;
};

// A block of query rows against the keys [begin, end) of a chunk.
struct DecodeBlock {
  const ScoreRule* rule = nullptr;
  const QueryRow* rows = nullptr;  // [row_count]; q is not read. Later rows neither begin nor end earlier
  const KeyGap* hidden = nullptr;  // [row_count]: positions that the window hides from the row
  const float* q = nullptr;        // [row_count, head_dim]
  bool q_is_bf16 = false;          // every element of q is a bf16 number
  int row_count = 0;
  int head_dim = 0, value_dim = 0;
  CachedKeys cache;
  int64_t begin = 0, end = 0;  // begin is a multiple of kChunkKeys
  int64_t fetch_end = 0;       // keys [end, fetch_end) will be read next: they are fetched towards the end
  KeyGap evicted;              // hidden from every row, and its pages may be gone
  KeyGap unseen;               // hidden from every row by the window
  RowStates state;             // overwritten; out_stride is a multiple of 64
  void* scratch = nullptr;     // scratch_bytes, 64-byte aligned
};

// The kernel for one kind of cache.
struct DecodeFunction {
  size_t (*scratch_bytes)(int head_dim, int value_dim, int rows) = nullptr;
  // The same chunk of `count` key heads of one sequence, tile by tile and in each tile head by head: where pages are
  // small, memory is read in longer runs, since a page holds its heads one after another.
  void (*run)(const DecodeBlock* blocks, int count) = nullptr;
};

struct DecodeTable {
  DecodeFunction kinds[kCacheKinds];  // by CacheKind
  // Adds the state of later keys to the state of earlier ones.
  void (*merge)(const RowStates& into, const RowStates& later, int rows, int value_dim) = nullptr;
  // out[d] = row[d] * factor in the caller's element type.
  void (*store_row)(const float* row, float factor, int value_dim, void* out, ElementKind kind) = nullptr;
  // Reads memory in 1, 2 or 4 streams and does nothing else, for the benchmark.
  float (*read)(const float* memory, int64_t count, int streams) = nullptr;
};

// One function per target that this build has; see targets/decode_*.cpp. Those of avx512vnni, avx512bf16, avx512vbmi,
// neondot and neonbf16 have the kinds of cache alone for which these instructions are better than those of avx512 or
// neon: int8, bf16 and e4m3.
const DecodeTable& baseline_decode();
const DecodeTable& avx2_decode();
const DecodeTable& avx512_decode();
const DecodeTable& avx512vnni_decode();
const DecodeTable& avx512bf16_decode();
const DecodeTable& avx512vbmi_decode();
const DecodeTable& neon_decode();
const DecodeTable& neondot_decode();
const DecodeTable& neonbf16_decode();
const DecodeTable& wasm_decode();

}  // namespace rootdk::cpu
