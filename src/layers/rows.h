#pragma once

// Work on rows, spread over threads in blocks whose borders depend on the shape alone.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layers/tape.h"

// Loops that the compiler vectorises, compiled once for each vector width and chosen at load time.
// Not under sanitizers, whose runtime is not there yet when the choice is made.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ROOTDK_SANITIZED 1
#endif
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROOTDK_SANITIZED 1
#endif
#if defined(__x86_64__) && !defined(ROOTDK_SANITIZED)
#define ROOTDK_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ROOTDK_VECTOR_CLONES
#endif

namespace rootdk {

inline constexpr std::int64_t kRowBlock = 32;
// Where no sum goes over rows: a batch of sequences, a token each, has work for several threads.
inline constexpr std::int64_t kFewRows = 8;

// body(begin, end) for each block of rows.
template <class Body>
void for_row_blocks(const Context& context, std::int64_t rows, std::int64_t block, Body&& body) {
  const std::int64_t blocks = (rows + block - 1) / block;
  if (blocks == 0) return;
  if (blocks == 1) return body(std::int64_t{0}, rows);
  context.threads().parallel_for(blocks,
                                 [&](std::int64_t index) { body(index * block, std::min(rows, (index + 1) * block)); });
}

// Elements per block of an element-wise pass: large enough to hide the cost of a task.
inline constexpr std::int64_t kElementBlock = 16384;

// Sums over rows: body(begin, end, sums) adds the rows of one block into its own zeroed sums [width]; the blocks are
// then added to `total` in order.
template <class Body>
void sum_over_rows(const Context& context, std::int64_t rows, std::int64_t width, float* total, Body&& body) {
  const std::int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  std::vector<float> partial(static_cast<std::size_t>(blocks * width));
  for_row_blocks(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    body(begin, end, partial.data() + begin / kRowBlock * width);
  });
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t d = 0; d < width; ++d) total[d] += partial[static_cast<std::size_t>(block * width + d)];
  }
}

}  // namespace rootdk
