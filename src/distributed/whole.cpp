#include "distributed/whole.h"

#include <algorithm>

#include "core/check.h"
#include "core/strided.h"
#include "core/view_check.h"

namespace rootdk::distributed {
namespace {

// Every row has one holder.
void check_shares(std::string_view operation, const char* name, const Shares& shares, std::int64_t total) {
  std::vector<RowRange> all;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    for (const RowRange& range : shares[r]) {
      require(range.begin >= 0 && range.begin <= range.end && range.end <= total, operation, ": ", name, " of rank ", r,
              " has the rows [", range.begin, ", ", range.end, ") of ", total);
      if (range.begin < range.end) all.push_back(range);
    }
  }
  std::sort(all.begin(), all.end(), [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::int64_t next = 0;
  for (const RowRange& range : all) {
    require(range.begin == next, operation, ": ", name, ": row ", std::min(range.begin, next), " of ", total,
            range.begin > next ? " is on no rank" : " is on two ranks");
    next = range.end;
  }
  require(next == total, operation, ": ", name, ": row ", next, " of ", total, " is on no rank");
}

std::vector<Sequence> packed_sequences(const AttentionParams& params) {
  const auto q = read<std::int32_t, 1>(params.q_starts), kv = read<std::int32_t, 1>(params.kv_starts);
  std::vector<Sequence> all;
  for (std::int64_t s = 0; s + 1 < params.q_starts.size(0); ++s) {
    all.push_back({.q_begin = q(s), .q_len = q(s + 1) - q(s), .kv_begin = kv(s), .kv_len = kv(s + 1) - kv(s)});
  }
  return all;
}

void check_starts(std::string_view operation, const char* name, const ConstTensorView& starts, std::int64_t total) {
  require(starts.defined() && starts.dtype == DType::i32 && starts.rank == 1 && starts.size(0) >= 1 &&
              starts.device.kind == DeviceKind::cpu,
          operation, ": ", name, " is ", describe(starts), ", expected i32 [sequences + 1] on the CPU");
  const auto start = read<std::int32_t, 1>(starts);
  const std::int64_t last = starts.size(0) - 1;
  require(start(0) == 0 && start(last) == total, operation, ": ", name, " runs from ", start(0), " to ", start(last),
          ", expected 0 to the ", total, " rows of all ranks");
  for (std::int64_t s = 0; s < last; ++s) {
    require(start(s) <= start(s + 1), operation, ": ", name, " decreases from ", start(s), " to ", start(s + 1), " at ",
            s + 1);
  }
}

std::vector<Run> cut(const std::vector<Sequence>& sequences, std::int64_t size, std::int64_t Sequence::*length) {
  std::vector<Run> runs;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (std::int64_t begin = 0; begin < sequences[s].*length; begin += size) {
      runs.push_back({.sequence = static_cast<std::int64_t>(s),
                      .begin = begin,
                      .end = std::min(begin + size, sequences[s].*length)});
    }
  }
  return runs;
}

SeenBlocks seen_blocks(std::string_view operation, const AttentionShape& shape, const AttentionParams& params) {
  require(params.block_q >= 1 && params.block_kv >= 1, operation,
          ": block_mask needs block_q and block_kv of at least 1, got ", params.block_q, " and ", params.block_kv);
  const std::int64_t rows = blocks_over(shape.q_len, params.block_q),
                     columns = blocks_over(shape.kv_len, params.block_kv);
  const NamedView tensor{operation, "block_mask", params.block_mask};
  require_dtype(tensor, {DType::boolean});
  require_broadcastable(tensor, {shape.batch, shape.heads, rows, columns});
  require_device(tensor, Device{}, "the CPU");
  require_addressable(tensor);
  SeenBlocks blocks{.rows = params.block_q, .keys = params.block_kv, .columns = columns};
  blocks.seen.assign(static_cast<std::size_t>(rows * columns), 0);
  const auto keeps = read<bool, 4>(broadcast(params.block_mask, {shape.batch, shape.heads, rows, columns}));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t at = 0; at < rows * columns; ++at) {
        if (keeps(b, h, at / columns, at % columns)) blocks.seen[static_cast<std::size_t>(at)] = 1;
      }
    }
  }
  return blocks;
}

}  // namespace

bool SeenBlocks::any(const Run& queries, const Run& chunk) const {
  if (seen.empty()) return true;
  const std::int64_t first = chunk.begin / keys, last = (chunk.end - 1) / keys;
  for (std::int64_t r = queries.begin / rows; r <= (queries.end - 1) / rows; ++r) {
    const auto row = seen.begin() + r * columns;
    if (std::find(row + first, row + last + 1, 1) != row + last + 1) return true;
  }
  return false;
}

bool Whole::sees(const Run& queries, const Run& keys) const {
  if (queries.sequence != keys.sequence || queries.rows() <= 0 || keys.rows() <= 0) return false;
  if (keys.begin >= visible_keys) return false;
  const Sequence& sequence = sequence_of(queries);
  const std::int64_t first = sequence.position(queries.begin), last = sequence.position(queries.end - 1);
  if (window.causal && keys.begin > last) return false;
  if (window.right >= 0 && keys.begin - last > window.right) return false;
  if (window.left >= 0 && first - (keys.end - 1) > window.left) return false;
  return blocks.any(queries, keys);
}

std::vector<Run> Whole::query_blocks() const { return cut(sequences, query_block, &Sequence::q_len); }
std::vector<Run> Whole::key_chunks() const { return cut(sequences, key_chunk, &Sequence::kv_len); }

Whole describe_whole(std::string_view operation, const AttentionShape& shape, const DistributedParams& distributed,
                     const AttentionParams& params) {
  require(distributed.key_chunk >= 8 && distributed.key_chunk % 8 == 0, operation, ": key_chunk ",
          distributed.key_chunk, " is not a positive multiple of 8");
  require(distributed.query_block >= 1, operation, ": query_block ", distributed.query_block, " must be at least 1");
  require(distributed.buffers >= 2, operation, ": buffers ", distributed.buffers, " must be at least 2");
  const auto ranks = static_cast<int>(distributed.queries.size());
  require(distributed.head_ranks >= 0 && (distributed.head_ranks == 0 || ranks % distributed.head_ranks == 0),
          operation, ": head_ranks ", distributed.head_ranks, " is not a divisor of the ", ranks, " ranks");
  require(distributed.timeout_seconds > 0, operation, ": timeout_seconds ", distributed.timeout_seconds,
          " must be positive");
  require(shape.q_len < (std::int64_t{1} << 31) && shape.kv_len < (std::int64_t{1} << 31), operation, ": q_len ",
          shape.q_len, " and kv_len ", shape.kv_len, " of the whole must be below 2^31");
  check_shares(operation, "shares of the queries", distributed.queries, shape.q_len);
  check_shares(operation, "shares of the keys", distributed.keys, shape.kv_len);
  require(!params.compute && !params.fp8.rotate, ErrorKind::unsupported, operation,
          ": compute is not served across ranks");
  Whole whole{.shape = shape,
              .packed = params.q_starts.defined() || params.kv_starts.defined(),
              .window = window_of(params),
              .visible_keys = shape.kv_len,
              .key_chunk = distributed.key_chunk,
              .query_block = distributed.query_block};
  if (whole.packed) {
    require(shape.batch == 1, operation, ": packed sequences need batch 1, got ", shape.batch);
    require(!params.kv_lengths.defined() && !params.mask.defined() && !params.block_mask.defined() &&
                !params.bias.defined(),
            operation, ": packed sequences do not combine with kv_lengths, mask, block_mask or bias");
    check_starts(operation, "q_starts", params.q_starts, shape.q_len);
    check_starts(operation, "kv_starts", params.kv_starts, shape.kv_len);
    require(params.q_starts.size(0) == params.kv_starts.size(0), operation, ": q_starts has ", params.q_starts.size(0),
            " entries but kv_starts ", params.kv_starts.size(0));
    whole.sequences = packed_sequences(params);
  } else {
    whole.sequences.push_back({.q_len = shape.q_len, .kv_len = shape.kv_len});
  }
  if (params.block_mask.defined()) whole.blocks = seen_blocks(operation, shape, params);
  if (params.kv_lengths.defined()) {
    const auto length = read<std::int32_t, 1>(params.kv_lengths);
    whole.visible_keys = 0;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      require(length(b) >= 0 && length(b) <= shape.kv_len, operation, ": kv_lengths[", b, "] is ", length(b),
              ", not in 0 to kv_len ", shape.kv_len);
      whole.visible_keys = std::max<std::int64_t>(whole.visible_keys, length(b));
    }
  }
  return whole;
}

RowMap::RowMap(const std::vector<RowRange>& ranges) {
  for (const RowRange& range : ranges) {
    if (range.begin < range.end) runs_.push_back({.begin = range.begin, .end = range.end, .local = rows_});
    rows_ += range.end - range.begin;
  }
  std::sort(runs_.begin(), runs_.end(), [](const Found& a, const Found& b) { return a.begin < b.begin; });
}

std::vector<RowMap::Found> RowMap::within(std::int64_t begin, std::int64_t end) const {
  std::vector<Found> found;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](std::int64_t row, const Found& candidate) { return row < candidate.end; });
  for (; run != runs_.end() && run->begin < end; ++run) {
    const std::int64_t from = std::max(begin, run->begin), to = std::min(end, run->end);
    if (from < to) found.push_back({.begin = from, .end = to, .local = run->local + (from - run->begin)});
  }
  return found;
}

std::vector<RowMap> row_maps(const Shares& shares) {
  std::vector<RowMap> maps;
  for (const auto& ranges : shares) maps.emplace_back(ranges);
  return maps;
}

Shares group_shares(const Shares& shares, int members) {
  Shares groups(shares.size() / static_cast<std::size_t>(members));
  for (std::size_t r = 0; r < shares.size(); ++r) {
    auto& group = groups[r / static_cast<std::size_t>(members)];
    group.insert(group.end(), shares[r].begin(), shares[r].end());
  }
  return groups;
}

std::vector<LocalRun> local_runs(const Whole& whole, const RowMap& rows, Side side) {
  std::vector<LocalRun> runs;
  for (const Run& run : side == Side::queries ? whole.query_blocks() : whole.key_chunks()) {
    const Sequence& sequence = whole.sequence_of(run);
    const std::int64_t first = side == Side::queries ? sequence.q_begin : sequence.kv_begin;
    for (const RowMap::Found& found : rows.within(first + run.begin, first + run.end)) {
      runs.push_back({.run = {.sequence = run.sequence, .begin = found.begin - first, .end = found.end - first},
                      .local = found.local});
    }
  }
  return runs;
}

}  // namespace rootdk::distributed
