#pragma once

// The whole call, as every rank sees it: its sequences, how they are cut, and which keys which queries see.

#include <cstdint>
#include <vector>

#include "core/attention_call.h"
#include "rootdk/distributed.h"

namespace rootdk::distributed {

// One sequence of the whole: a batch entry's (all entries alike), or one of several that are packed.
struct Sequence {
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t kv_begin = 0, kv_len = 0;

  std::int64_t position(std::int64_t i) const { return i + (kv_len - q_len); }
};

// Rows of one sequence, counted inside it: a block of queries or a chunk of keys, or some rows of one.
struct Run {
  std::int64_t sequence = 0;
  std::int64_t begin = 0, end = 0;

  std::int64_t rows() const { return end - begin; }
};

// A run that lies on some rank, and its first row in the tensors there.
struct LocalRun {
  Run run{};
  std::int64_t local = 0;
};

// Which blocks of block_mask any head of any batch entry keeps.
struct SeenBlocks {
  std::int64_t rows = 1, keys = 1;   // of a block
  std::int64_t columns = 0;          // blocks of keys
  std::vector<std::uint8_t> seen{};  // [blocks of queries, columns]; empty: there is no block_mask

  bool any(const Run& queries, const Run& keys) const;
};

struct Whole {
  AttentionShape shape{};  // of the whole; packed: batch is 1 and lengths are totals
  bool packed = false;
  KeyWindow window{};
  std::int64_t visible_keys = 0;  // the largest of kv_lengths, or kv_len
  std::int64_t key_chunk = 0, query_block = 0;
  std::vector<Sequence> sequences{};
  SeenBlocks blocks{};

  const Sequence& sequence_of(const Run& run) const { return sequences[static_cast<std::size_t>(run.sequence)]; }
  // Whether any of the queries sees any of the keys, by causal, window, length and block_mask.
  bool sees(const Run& queries, const Run& keys) const;

  std::vector<Run> query_blocks() const;  // in order of position
  std::vector<Run> key_chunks() const;
};

// What a call passes; checks what concerns the whole, and throws with the values.
Whole describe_whole(std::string_view operation, const AttentionShape& shape, const DistributedParams& distributed,
                     const AttentionParams& params);

// The rows of one rank, found by their number in the whole.
class RowMap {
 public:
  explicit RowMap(const std::vector<RowRange>& ranges);
  std::int64_t rows() const { return rows_; }

  struct Found {
    std::int64_t begin = 0, end = 0;  // in the whole
    std::int64_t local = 0;
  };
  // What of [begin, end) is here, in order of position.
  std::vector<Found> within(std::int64_t begin, std::int64_t end) const;

 private:
  std::vector<Found> runs_;  // sorted
  std::int64_t rows_ = 0;
};

std::vector<RowMap> row_maps(const Shares& shares);
// The rows of groups of `members` ranks: those of the ranks, one after another.
Shares group_shares(const Shares& shares, int members);

enum class Side { queries, keys };
// The blocks or chunks of the whole, as far as they lie on a rank, in order of position.
std::vector<LocalRun> local_runs(const Whole& whole, const RowMap& rows, Side side);

}  // namespace rootdk::distributed
