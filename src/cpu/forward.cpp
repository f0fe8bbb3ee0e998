#include "cpu/forward.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/forward_run.h"
#include "cpu/row_pointer.h"

namespace rootdk::cpu {
ForwardRun::ForwardRun(const ForwardCall& call, const KernelTable& kernels, Executor& executor)
    : call_(call),
      kernels_(kernels),
      executor_(executor),
      plan_(plan_forward(call, kernels, executor.threads())),
      query_rows_(call.shape, call_.params, call.logit_scale, call.dropout),
      statistics_(call.stats),
      workspace_(plan_.bytes()) {
  for (int i = 0; i < plan_.workers; ++i) workers_.push_back(take_worker());
  const auto keys = static_cast<std::size_t>(plan_.round_heads * plan_.round_tiles * plan_.sizes.geometry.tile_keys);
  const auto element = static_cast<std::size_t>(plan_.sizes.geometry.element_bytes);
  packed_keys_ = workspace_.take<std::byte>(keys * static_cast<std::size_t>(plan_.sizes.depth) * element);
  packed_values_ = workspace_.take<std::byte>(keys * static_cast<std::size_t>(plan_.sizes.value_columns) * element);
  not_finite_ = workspace_.take<std::uint8_t>(static_cast<std::size_t>(plan_.round_heads * plan_.round_tiles));
  if (!plan_.whole()) {
    const auto rows = static_cast<std::size_t>(plan_.round_rows);
    between_.state = take_states(rows);
    between_.sums = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
    between_.maxima = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
  }
  if (plan_.second_pass) {
    normalisers_ = workspace_.take<RowNormaliser>(static_cast<std::size_t>(plan_.round_heads * plan_.rows));
  }
  if (plan_.segments) make_segments();
}

RowStates ForwardRun::take_states(std::size_t rows) {
  RowStates state;
  state.max = workspace_.take<float>(rows);
  state.sum = workspace_.take<float>(rows);
  if (statistics_.needs_sums()) {
    state.weighted = workspace_.take<float>(rows);
    state.squares = workspace_.take<float>(rows);
  }
  state.out_stride = plan_.sizes.value_columns;
  state.out = workspace_.take<float>(rows * static_cast<std::size_t>(state.out_stride));
  return state;
}

ForwardRun::Worker ForwardRun::take_worker() {
  const ForwardSizes& sizes = plan_.sizes;
  const int head_dim = static_cast<int>(call_.shape.head_dim), value_dim = static_cast<int>(call_.shape.value_dim);
  const auto rows = static_cast<std::size_t>(sizes.geometry.block_rows);
  Worker worker;
  worker.scratch = workspace_.take<std::byte>(kernels_.forward_scratch_bytes(head_dim, value_dim));
  worker.packed_q = workspace_.take<std::byte>(rows * static_cast<std::size_t>(sizes.depth) *
                                               static_cast<std::size_t>(sizes.geometry.element_bytes));
  worker.rows = workspace_.take<QueryRow>(rows);
  worker.state = take_states(rows);
  worker.sums = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
  worker.maxima = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
  worker.factors = workspace_.take<float>(rows);
  worker.row_max = workspace_.take<float>(rows);
  worker.row_scale = workspace_.take<float>(rows);
  if (call_.params.score == Score::cosine) {
    worker.normalised = workspace_.take<float>(
        static_cast<std::size_t>(std::max(sizes.geometry.tile_keys, sizes.geometry.block_rows) * head_dim));
  }
  worker.columns = workspace_.take<float>(static_cast<std::size_t>(sizes.geometry.tile_keys));
  return worker;
}

ForwardRun::BatchHead ForwardRun::batch_head(const Round& round, std::int64_t index) const {
  const std::int64_t number = round.first_head + index;
  BatchHead batch_head{.sequence = number / call_.shape.kv_heads,
                       .kv_head = number % call_.shape.kv_heads,
                       .range = {},
                       .buffer = round.first_buffer + index,
                       .blocks = {},
                       .keys = {}};
  batch_head.range = sequence_range(call_.shape, call_.params, batch_head.sequence);
  batch_head.blocks = RowBlocks(batch_head.range.q_len * call_.shape.group(), plan_.sizes.geometry);
  if (batch_head.range.q_len > 0) {  // ranges only move to the right from row to row
    batch_head.keys = {.begin = key_range(batch_head.range, window_of(call_.params), 0).begin,
                       .end = key_range(batch_head.range, window_of(call_.params), batch_head.range.q_len - 1).end};
  }
  return batch_head;
}

void ForwardRun::run() {
  clear_maps();
  if (plan_.rows == 0) return;
  if (plan_.head_tasks) {
    spread_tasks(executor_, plan_.workers, plan_.batch_heads,
                 [&](std::int64_t worker, std::int64_t number) { run_head(worker, number); });
    return;
  }
  for (std::int64_t first = 0; first < plan_.batch_heads; first += plan_.round_heads) {
    run_rounds(first, std::min(plan_.round_heads, plan_.batch_heads - first));
  }
}

// Everything about one batch head on one thread, in the memory of its worker.
void ForwardRun::run_head(std::int64_t worker_index, std::int64_t number) {
  const Round round{.first_head = number,
                    .batch_heads = 1,
                    .first_buffer = worker_index,
                    .tile_begin = 0,
                    .tile_end = plan_.tiles,
                    .row_begin = 0,
                    .row_end = plan_.rows};
  Worker& worker = workers_[static_cast<std::size_t>(worker_index)];
  const BatchHead here = batch_head(round, 0);
  for (std::int64_t tile = 0; tile < plan_.tiles; ++tile) pack_tile(worker, here, tile, round, true);
  for (std::int64_t block = 0; block < here.blocks.count(); ++block) attend_block(worker, here, block, round);
  if (call_.stats.column_mass.defined()) {
    for (std::int64_t tile = 0; tile < plan_.tiles; ++tile) column_mass(worker, here, tile, round);
  }
  if (call_.stats.weights.defined()) exact_weights(worker, here, round);
}

void ForwardRun::run_rounds(std::int64_t first_head, std::int64_t batch_heads) {
  Round round{.first_head = first_head,
              .batch_heads = batch_heads,
              .first_buffer = 0,
              .tile_begin = 0,
              .tile_end = plan_.tiles,
              .row_begin = 0,
              .row_end = plan_.rows};
  if (plan_.whole()) {
    pack(round, true);
    attend(round);
    if (plan_.second_pass) second_pass(round);
    return;
  }
  for (round.row_begin = 0; round.row_begin < plan_.rows; round.row_begin += plan_.round_rows) {
    round.row_end = std::min(plan_.rows, round.row_begin + plan_.round_rows);
    for (round.tile_begin = 0; round.tile_begin < plan_.tiles; round.tile_begin += plan_.round_tiles) {
      round.tile_end = std::min(plan_.tiles, round.tile_begin + plan_.round_tiles);
      pack(round, true);
      attend(round);
    }
  }
  if (!plan_.second_pass) return;
  for (round.tile_begin = 0; round.tile_begin < plan_.tiles; round.tile_begin += plan_.round_tiles) {
    round.tile_end = std::min(plan_.tiles, round.tile_begin + plan_.round_tiles);
    pack(round, false);
    second_pass(round);
  }
}

void ForwardRun::pack(const Round& round, bool values) {
  const std::int64_t tiles = round.tile_end - round.tile_begin;
  spread(round.batch_heads * tiles, [&](const Worker& worker, std::int64_t task) {
    pack_tile(worker, batch_head(round, task / tiles), round.tile_begin + task % tiles, round, values);
  });
}

void ForwardRun::pack_tile(const Worker& worker, const BatchHead& batch_head, std::int64_t tile, const Round& round,
                           bool values) {
  const Geometry& g = plan_.sizes.geometry;
  const std::int64_t first = tile * g.tile_keys,
                     keys = std::min<std::int64_t>(g.tile_keys, batch_head.keys.end - first);
  if (keys <= 0 || first + g.tile_keys <= batch_head.keys.begin) return;
  const std::int64_t b = batch_head.range.batch_entry, key = batch_head.range.kv_begin + first;
  const std::int64_t here = (tile - round.tile_begin) * g.tile_keys;
  const PackedKeys packed_here = packed(batch_head, round);
  auto* to_keys = static_cast<std::byte*>(const_cast<void*>(packed_here.keys));
  auto* to_values = static_cast<std::byte*>(const_cast<void*>(packed_here.values));
  const SourceRows source{.data = row_pointer(call_.k, b, batch_head.kv_head, key),
                          .row_stride = call_.k.stride(2),
                          .kind = element_kind(call_.k.dtype),
                          .rows = static_cast<int>(keys),
                          .dim = static_cast<int>(call_.shape.head_dim),
                          .normalise = call_.params.score == Score::cosine};
  kernels_.pack_keys(source, to_keys + here * plan_.sizes.depth * g.element_bytes, worker.normalised);
  if (!values) return;
  const SourceRows value_source{.data = row_pointer(call_.v, b, batch_head.kv_head, key),
                                .row_stride = call_.v.stride(2),
                                .kind = element_kind(call_.v.dtype),
                                .rows = static_cast<int>(keys),
                                .dim = static_cast<int>(call_.shape.value_dim),
                                .normalise = false};
  const bool not_finite =
      kernels_.pack_values(value_source, to_values + here * g.panel * g.element_bytes, packed_here.value_stride);
  not_finite_[batch_head.buffer * plan_.round_tiles + tile - round.tile_begin] = not_finite;
}

PackedKeys ForwardRun::packed(const BatchHead& batch_head, const Round& round) const {
  const Geometry& g = plan_.sizes.geometry;
  const std::int64_t round_keys = plan_.round_tiles * g.tile_keys;
  return {.keys = packed_keys_ + batch_head.buffer * round_keys * plan_.sizes.depth * g.element_bytes,
          .values = packed_values_ + batch_head.buffer * round_keys * plan_.sizes.value_columns * g.element_bytes,
          .value_stride = round_keys * g.panel,
          .begin = round.tile_begin * g.tile_keys,
          .end = std::min(round.tile_end * g.tile_keys, batch_head.keys.end),
          .values_not_finite = not_finite_ + batch_head.buffer * plan_.round_tiles};
}

void ForwardRun::attend(const Round& round) {
  if (plan_.segments) {  // cells are summed over rows in order
    spread(round.batch_heads, [&](Worker& worker, std::int64_t index) {
      const BatchHead here = batch_head(round, index);
      const std::int64_t end = std::min(round.row_end, here.blocks.rows);
      for (std::int64_t r = round.row_begin; r < end; r += here.blocks.block_rows) {
        attend_block(worker, here, r / here.blocks.block_rows, round);
      }
    });
    return;
  }
  const RowBlocks longest(plan_.rows, plan_.sizes.geometry);
  const std::int64_t first = plan_.whole() ? 0 : round.row_begin / longest.block_rows;
  const std::int64_t blocks = plan_.whole() ? longest.count() : (plan_.round_rows / longest.block_rows);
  spread(round.batch_heads * blocks, [&](Worker& worker, std::int64_t task) {
    const BatchHead here = batch_head(round, task / blocks);
    // The last rows of a causal sequence see the most keys: they go first.
    const std::int64_t block = first + (blocks - 1 - task % blocks);
    if (block < here.blocks.count()) attend_block(worker, here, block, round);
  });
}

void ForwardRun::set_row(QueryRow& row, const BatchHead& batch_head, std::int64_t r) const {
  const std::int64_t group = call_.shape.group(), i = r / group, head = batch_head.kv_head * group + r % group;
  query_rows_.set(row, batch_head.range, batch_head.sequence, head, i);
  row.q = row_pointer(call_.q, batch_head.range.batch_entry, head, batch_head.range.q_begin + i);
  row.out = row_pointer(call_.out, batch_head.range.batch_entry, head, batch_head.range.q_begin + i);
}

// Rows of one head that have the layout of a left operand need no copy. Whole groups of rows should be close together:
// rows a power of two apart would share the sets of a cache.
bool ForwardRun::in_place(const ForwardBlock& block) const {
  const Geometry& g = plan_.sizes.geometry;
  if (g.left_rows > 1 && (block.row_count % g.left_rows != 0 || call_.q.stride(2) != plan_.sizes.depth)) return false;
  return static_cast<int>(size_of(call_.q.dtype)) == g.element_bytes && plan_.sizes.depth == call_.shape.head_dim &&
         call_.params.score != Score::cosine && call_.shape.group() == 1 &&
         reinterpret_cast<std::uintptr_t>(block.rows[0].q) % 4 == 0 && call_.q.stride(2) * g.element_bytes % 4 == 0;
}

// For rows that follow each other in the sequence.
void ForwardRun::set_queries(const Worker& worker, ForwardBlock& block) const {
  if (in_place(block)) {
    block.q = block.rows[0].q;
    block.q_stride = call_.q.stride(2);
  } else {
    pack_queries(worker, block);
  }
}

void ForwardRun::pack_queries(const Worker& worker, ForwardBlock& block) const {
  block.q = worker.packed_q;
  block.q_stride = plan_.sizes.depth;
  const std::int64_t bytes = plan_.sizes.depth * plan_.sizes.geometry.element_bytes;
  for (int r = 0; r < block.row_count; ++r) {
    const SourceRows source{.data = block.rows[r].q,
                            .row_stride = 0,
                            .kind = element_kind(call_.q.dtype),
                            .rows = 1,
                            .dim = static_cast<int>(call_.shape.head_dim),
                            .normalise = call_.params.score == Score::cosine};
    kernels_.pack_rows(source, static_cast<std::byte*>(worker.packed_q) + r * bytes, worker.normalised);
  }
}

ForwardBlock ForwardRun::make_block(const Worker& worker, const BatchHead& batch_head, const Round& round,
                                    int rows) const {
  return {.rule = &query_rows_.rule(),
          .rows = worker.rows,
          .row_count = rows,
          .head_dim = static_cast<int>(call_.shape.head_dim),
          .value_dim = static_cast<int>(call_.shape.value_dim),
          .q = nullptr,
          .q_stride = 0,
          .keys = packed(batch_head, round),
          .state = worker.state,
          .first_keys = round.tile_begin == 0,
          .pooled = {.bounds = segment_bounds_.data(),
                     .segments = static_cast<std::int64_t>(segment_cells_.size()),
                     .sums = worker.sums,
                     .maxima = worker.maxima},
          .soon = {},
          .scratch = worker.scratch};
}

void ForwardRun::attend_block(Worker& worker, const BatchHead& batch_head, std::int64_t block_number,
                              const Round& round) {
  const std::int64_t first_row = block_number * batch_head.blocks.block_rows;
  const int rows = static_cast<int>(std::min(batch_head.blocks.block_rows, batch_head.blocks.rows - first_row));
  for (int r = 0; r < rows; ++r) set_row(worker.rows[r], batch_head, first_row + r);
  ForwardBlock block = make_block(worker, batch_head, round, rows);
  set_queries(worker, block);
  if (!plan_.whole()) {
    const std::int64_t offset = first_row - round.row_begin;
    block.state = between_.state;
    for (float** part : {&block.state.max, &block.state.sum}) *part += offset;
    if (block.state.weighted) {
      block.state.weighted += offset;
      block.state.squares += offset;
    }
    block.state.out += offset * block.state.out_stride;
    block.pooled.sums = between_.sums + offset * block.pooled.segments;
    block.pooled.maxima = between_.maxima + offset * block.pooled.segments;
  }
  if (call_.carried.defined()) carry(worker, block, first_row);
  if (block.first_keys) reset(block);
  if (plan_.head_tasks && plan_.tiles == 1) block.soon = soon_needed(block, round, block_number);
  kernels_.forward_block(block);
  if (call_.carried.defined() && !call_.carried.last) return keep_carried(block, first_row);
  if (round.tile_end < plan_.tiles) return;
  finish(worker, block, batch_head, first_row);
}

// Kernels that read and write out in whole groups of rows need a copy: rows past the last one belong to others.
bool ForwardRun::copies_carried() const { return plan_.sizes.geometry.left_rows > 1; }

// The block goes on from where the call before has left its rows. Such a call packs all its keys at once.
void ForwardRun::carry(const Worker& worker, ForwardBlock& block, std::int64_t first_row) const {
  const CarriedRows& carried = call_.carried;
  block.state = {.max = carried.max + first_row,
                 .sum = carried.sum + first_row,
                 .weighted = carried.weighted ? carried.weighted + first_row : nullptr,
                 .squares = carried.squares ? carried.squares + first_row : nullptr,
                 .out = carried.out + first_row * carried.out_stride,
                 .out_stride = carried.out_stride};
  block.first_keys = carried.first;
  if (!copies_carried()) return;
  const float* from = block.state.out;
  block.state.out = worker.state.out;
  block.state.out_stride = worker.state.out_stride;
  for (std::int64_t r = 0; r < block.row_count && !carried.first; ++r) {
    std::copy_n(from + r * carried.out_stride, call_.shape.value_dim, block.state.out + r * block.state.out_stride);
  }
}

// Leaves the rows to the next call.
void ForwardRun::keep_carried(const ForwardBlock& block, std::int64_t first_row) const {
  if (!copies_carried()) return;
  const CarriedRows& carried = call_.carried;
  for (std::int64_t r = 0; r < block.row_count; ++r) {
    std::copy_n(block.state.out + r * block.state.out_stride, call_.shape.value_dim,
                carried.out + (first_row + r) * carried.out_stride);
  }
}

// For short sequences: what this block writes, and its share of the memory that the next batch head needs.
SoonNeeded ForwardRun::soon_needed(const ForwardBlock& block, Round round, std::int64_t block_number) const {
  const auto value_bytes = static_cast<int>(call_.shape.value_dim * size_of(call_.out.dtype));
  SoonNeeded soon;
  soon.areas[0] = {.data = block.rows[0].out,
                   .stride = call_.out.stride(2) * static_cast<std::int64_t>(size_of(call_.out.dtype)),
                   .rows = block.row_count,
                   .bytes = value_bytes};
  round.first_head += plan_.workers;  // what this thread comes to next, about
  if (round.first_head >= plan_.batch_heads) return soon;
  const BatchHead next = batch_head(round, 0);
  const std::int64_t blocks = next.blocks.count();
  if (block_number >= blocks) return soon;
  auto rows_of = [&](const ConstTensorView& view, std::int64_t first, std::int64_t head, std::int64_t len) {
    const std::int64_t begin = len * block_number / blocks, end = len * (block_number + 1) / blocks;
    return MemoryRows{.data = row_pointer(view, next.range.batch_entry, head, first + begin),
                      .stride = view.stride(2) * static_cast<std::int64_t>(size_of(view.dtype)),
                      .rows = static_cast<int>(end - begin),
                      .bytes = static_cast<int>(view.size(3) * size_of(view.dtype))};
  };
  soon.areas[1] = rows_of(call_.k, next.range.kv_begin, next.kv_head, next.keys.end);
  soon.areas[2] = rows_of(call_.v, next.range.kv_begin, next.kv_head, next.keys.end);
  soon.areas[3] = rows_of(call_.q, next.range.q_begin, next.kv_head * call_.shape.group(), next.range.q_len);
  return soon;
}

void ForwardRun::reset(const ForwardBlock& block) const {
  const RowStates& state = block.state;
  const auto rows = static_cast<std::size_t>(block.row_count);
  std::fill_n(state.max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, rows, 0.0f);
  if (state.weighted) {
    std::fill_n(state.weighted, rows, 0.0f);
    std::fill_n(state.squares, rows, 0.0f);
  }
  std::fill_n(block.pooled.sums, rows * static_cast<std::size_t>(block.pooled.segments), 0.0f);
}

void ForwardRun::finish(const Worker& worker, const ForwardBlock& block, const BatchHead& batch_head,
                        std::int64_t first_row) {
  const std::int64_t group = call_.shape.group();
  const RowStates& state = block.state;
  if (!statistics_.any() && !call_.params.logits.sinks.defined() && !normalisers_ && !block.pooled.segments) {
    for (int r = 0; r < block.row_count; ++r) {
      // Rounded as below: statistics never change the result.
      worker.factors[r] = state.sum[r] == 0.0f ? 0.0f : 1.0f / state.sum[r] * call_.dropout.keep_scale;
    }
    kernels_.store_rows(block, worker.factors, element_kind(call_.out.dtype));
    return;
  }
  const float scale = block.rule->transforms ? 1.0f : block.rule->scale;
  for (int r = 0; r < block.row_count; ++r) {
    const std::int64_t i = (first_row + r) / group, head = batch_head.kv_head * group + (first_row + r) % group;
    const RowEnd end{.max = state.max[r],
                     .scale = scale,
                     .fused = plan_.sizes.geometry.fused,
                     .sum = state.sum[r],
                     .weighted = state.weighted ? state.weighted[r] : 0.0f,
                     .squares = state.squares ? state.squares[r] : 0.0f,
                     .sink = query_rows_.sink(head)};
    const RowNormaliser normaliser =
        statistics_.finish(end, batch_head.range.batch_entry, head, batch_head.range.q_begin + i);
    worker.factors[r] = normaliser.factor * call_.dropout.keep_scale;
    if (normalisers_) normalisers_[normaliser_index(batch_head, first_row + r)] = normaliser;
    if (block.pooled.segments) pool_row(block, batch_head, first_row + r, r, normaliser);
  }
  kernels_.store_rows(block, worker.factors, element_kind(call_.out.dtype));
}

void run_forward(const ForwardCall& call, const KernelTable& kernels) {
  Executor& executor = executor_of(call.execution);
  ForwardRun(call, kernels, executor).run();
}

}  // namespace rootdk::cpu
