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
  for (int i = 0; i < plan_.slots; ++i) slots_.push_back(take_slot());
  const auto keys = static_cast<std::size_t>(plan_.chunk_pairs * plan_.span_tiles * plan_.sizes.geometry.tile_keys);
  const auto element = static_cast<std::size_t>(plan_.sizes.geometry.element_bytes);
  packed_keys_ = workspace_.take<std::byte>(keys * static_cast<std::size_t>(plan_.sizes.depth) * element);
  packed_values_ = workspace_.take<std::byte>(keys * static_cast<std::size_t>(plan_.sizes.value_columns) * element);
  not_finite_ = workspace_.take<std::uint8_t>(static_cast<std::size_t>(plan_.chunk_pairs * plan_.span_tiles));
  if (!plan_.whole()) {
    const auto rows = static_cast<std::size_t>(plan_.chunk_rows);
    between_.state = take_states(rows);
    between_.sums = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
    between_.maxima = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
  }
  if (plan_.second_pass) {
    normalisers_ = workspace_.take<RowNormaliser>(static_cast<std::size_t>(plan_.chunk_pairs * plan_.rows));
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

ForwardRun::Slot ForwardRun::take_slot() {
  const ForwardSizes& sizes = plan_.sizes;
  const int head_dim = static_cast<int>(call_.shape.head_dim), value_dim = static_cast<int>(call_.shape.value_dim);
  const auto rows = static_cast<std::size_t>(sizes.geometry.block_rows);
  Slot slot;
  slot.scratch = workspace_.take<std::byte>(kernels_.forward_scratch_bytes(head_dim, value_dim));
  slot.packed_q = workspace_.take<std::byte>(rows * static_cast<std::size_t>(sizes.depth) *
                                             static_cast<std::size_t>(sizes.geometry.element_bytes));
  slot.rows = workspace_.take<QueryRow>(rows);
  slot.state = take_states(rows);
  slot.sums = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
  slot.maxima = workspace_.take<float>(rows * static_cast<std::size_t>(plan_.segments));
  slot.factors = workspace_.take<float>(rows);
  slot.row_max = workspace_.take<float>(rows);
  slot.row_scale = workspace_.take<float>(rows);
  if (call_.params.score == Score::cosine) {
    slot.normalised = workspace_.take<float>(
        static_cast<std::size_t>(std::max(sizes.geometry.tile_keys, sizes.geometry.block_rows) * head_dim));
  }
  slot.columns = workspace_.take<float>(static_cast<std::size_t>(sizes.geometry.tile_keys));
  return slot;
}

ForwardRun::Pair ForwardRun::pair(const Step& step, std::int64_t index) const {
  const std::int64_t number = step.first_pair + index;
  Pair pair{.sequence = number / call_.shape.kv_heads,
            .kv_head = number % call_.shape.kv_heads,
            .span = {},
            .place = step.first_place + index,
            .blocks = {},
            .keys = {}};
  pair.span = sequence_span(call_.shape, call_.params, pair.sequence);
  pair.blocks = RowBlocks(pair.span.q_len * call_.shape.group(), plan_.sizes.geometry);
  if (pair.span.q_len > 0) {  // ranges only move to the right from row to row
    pair.keys = {.begin = key_range(pair.span, window_of(call_.params), 0).begin,
                 .end = key_range(pair.span, window_of(call_.params), pair.span.q_len - 1).end};
  }
  return pair;
}

void ForwardRun::run() {
  clear_maps();
  if (plan_.rows == 0) return;
  if (plan_.pair_tasks) {
    spread_tasks(executor_, plan_.slots, plan_.pairs,
                 [&](std::int64_t slot, std::int64_t number) { run_pair(slot, number); });
    return;
  }
  for (std::int64_t first = 0; first < plan_.pairs; first += plan_.chunk_pairs) {
    run_chunk(first, std::min(plan_.chunk_pairs, plan_.pairs - first));
  }
}

// Everything about one pair on one thread, in the memory of its slot.
void ForwardRun::run_pair(std::int64_t slot_number, std::int64_t number) {
  const Step step{.first_pair = number,
                  .pairs = 1,
                  .first_place = slot_number,
                  .tile_begin = 0,
                  .tile_end = plan_.tiles,
                  .row_begin = 0,
                  .row_end = plan_.rows};
  Slot& slot = slots_[static_cast<std::size_t>(slot_number)];
  const Pair here = pair(step, 0);
  for (std::int64_t tile = 0; tile < plan_.tiles; ++tile) pack_tile(slot, here, tile, step, true);
  for (std::int64_t block = 0; block < here.blocks.count(); ++block) attend_block(slot, here, block, step);
  if (call_.stats.column_mass.defined()) {
    for (std::int64_t tile = 0; tile < plan_.tiles; ++tile) column_mass(slot, here, tile, step);
  }
  if (call_.stats.weights.defined()) exact_weights(slot, here, step);
}

void ForwardRun::run_chunk(std::int64_t first_pair, std::int64_t pairs) {
  Step step{.first_pair = first_pair,
            .pairs = pairs,
            .first_place = 0,
            .tile_begin = 0,
            .tile_end = plan_.tiles,
            .row_begin = 0,
            .row_end = plan_.rows};
  if (plan_.whole()) {
    pack(step, true);
    attend(step);
    if (plan_.second_pass) second_pass(step);
    return;
  }
  for (step.row_begin = 0; step.row_begin < plan_.rows; step.row_begin += plan_.chunk_rows) {
    step.row_end = std::min(plan_.rows, step.row_begin + plan_.chunk_rows);
    for (step.tile_begin = 0; step.tile_begin < plan_.tiles; step.tile_begin += plan_.span_tiles) {
      step.tile_end = std::min(plan_.tiles, step.tile_begin + plan_.span_tiles);
      pack(step, true);
      attend(step);
    }
  }
  if (!plan_.second_pass) return;
  for (step.tile_begin = 0; step.tile_begin < plan_.tiles; step.tile_begin += plan_.span_tiles) {
    step.tile_end = std::min(plan_.tiles, step.tile_begin + plan_.span_tiles);
    pack(step, false);
    second_pass(step);
  }
}

void ForwardRun::pack(const Step& step, bool values) {
  const std::int64_t tiles = step.tile_end - step.tile_begin;
  spread(step.pairs * tiles, [&](const Slot& slot, std::int64_t task) {
    pack_tile(slot, pair(step, task / tiles), step.tile_begin + task % tiles, step, values);
  });
}

void ForwardRun::pack_tile(const Slot& slot, const Pair& pair, std::int64_t tile, const Step& step, bool values) {
  const Geometry& g = plan_.sizes.geometry;
  const std::int64_t first = tile * g.tile_keys, keys = std::min<std::int64_t>(g.tile_keys, pair.keys.end - first);
  if (keys <= 0 || first + g.tile_keys <= pair.keys.begin) return;
  const std::int64_t b = pair.span.batch_entry, key = pair.span.kv_begin + first;
  const std::int64_t here = (tile - step.tile_begin) * g.tile_keys;
  const PackedKeys packed_here = packed(pair, step);
  auto* to_keys = static_cast<std::byte*>(const_cast<void*>(packed_here.keys));
  auto* to_values = static_cast<std::byte*>(const_cast<void*>(packed_here.values));
  const SourceRows source{.data = row_pointer(call_.k, b, pair.kv_head, key),
                          .row_stride = call_.k.stride(2),
                          .kind = element_kind(call_.k.dtype),
                          .rows = static_cast<int>(keys),
                          .dim = static_cast<int>(call_.shape.head_dim),
                          .normalise = call_.params.score == Score::cosine};
  kernels_.pack_keys(source, to_keys + here * plan_.sizes.depth * g.element_bytes, slot.normalised);
  if (!values) return;
  const SourceRows value_source{.data = row_pointer(call_.v, b, pair.kv_head, key),
                                .row_stride = call_.v.stride(2),
                                .kind = element_kind(call_.v.dtype),
                                .rows = static_cast<int>(keys),
                                .dim = static_cast<int>(call_.shape.value_dim),
                                .normalise = false};
  const bool not_finite =
      kernels_.pack_values(value_source, to_values + here * g.panel * g.element_bytes, packed_here.value_stride);
  not_finite_[pair.place * plan_.span_tiles + tile - step.tile_begin] = not_finite;
}

PackedKeys ForwardRun::packed(const Pair& pair, const Step& step) const {
  const Geometry& g = plan_.sizes.geometry;
  const std::int64_t span_keys = plan_.span_tiles * g.tile_keys;
  return {.keys = packed_keys_ + pair.place * span_keys * plan_.sizes.depth * g.element_bytes,
          .values = packed_values_ + pair.place * span_keys * plan_.sizes.value_columns * g.element_bytes,
          .value_stride = span_keys * g.panel,
          .begin = step.tile_begin * g.tile_keys,
          .end = std::min(step.tile_end * g.tile_keys, pair.keys.end),
          .values_not_finite = not_finite_ + pair.place * plan_.span_tiles};
}

void ForwardRun::attend(const Step& step) {
  if (plan_.segments) {  // cells are summed over rows in order
    spread(step.pairs, [&](Slot& slot, std::int64_t index) {
      const Pair here = pair(step, index);
      const std::int64_t end = std::min(step.row_end, here.blocks.rows);
      for (std::int64_t r = step.row_begin; r < end; r += here.blocks.block_rows) {
        attend_block(slot, here, r / here.blocks.block_rows, step);
      }
    });
    return;
  }
  const RowBlocks longest(plan_.rows, plan_.sizes.geometry);
  const std::int64_t first = plan_.whole() ? 0 : step.row_begin / longest.block_rows;
  const std::int64_t blocks = plan_.whole() ? longest.count() : (plan_.chunk_rows / longest.block_rows);
  spread(step.pairs * blocks, [&](Slot& slot, std::int64_t task) {
    const Pair here = pair(step, task / blocks);
    // The last rows of a causal sequence see the most keys: they go first.
    const std::int64_t block = first + (blocks - 1 - task % blocks);
    if (block < here.blocks.count()) attend_block(slot, here, block, step);
  });
}

void ForwardRun::set_row(QueryRow& row, const Pair& pair, std::int64_t r) const {
  const std::int64_t group = call_.shape.group(), i = r / group, head = pair.kv_head * group + r % group;
  query_rows_.set(row, pair.span, pair.sequence, head, i);
  row.q = row_pointer(call_.q, pair.span.batch_entry, head, pair.span.q_begin + i);
  row.out = row_pointer(call_.out, pair.span.batch_entry, head, pair.span.q_begin + i);
}

// Rows of one head that lie as the kernel reads them need no copy. Whole groups of rows want to lie close together:
// rows a power of two apart would share the sets of a cache.
bool ForwardRun::in_place(const ForwardBlock& block) const {
  const Geometry& g = plan_.sizes.geometry;
  if (g.left_rows > 1 && (block.row_count % g.left_rows != 0 || call_.q.stride(2) != plan_.sizes.depth)) return false;
  return static_cast<int>(size_of(call_.q.dtype)) == g.element_bytes && plan_.sizes.depth == call_.shape.head_dim &&
         call_.params.score != Score::cosine && call_.shape.group() == 1 &&
         reinterpret_cast<std::uintptr_t>(block.rows[0].q) % 4 == 0 && call_.q.stride(2) * g.element_bytes % 4 == 0;
}

// For rows that follow each other in the sequence.
void ForwardRun::set_queries(const Slot& slot, ForwardBlock& block) const {
  if (in_place(block)) {
    block.q = block.rows[0].q;
    block.q_stride = call_.q.stride(2);
  } else {
    pack_queries(slot, block);
  }
}

void ForwardRun::pack_queries(const Slot& slot, ForwardBlock& block) const {
  block.q = slot.packed_q;
  block.q_stride = plan_.sizes.depth;
  const std::int64_t bytes = plan_.sizes.depth * plan_.sizes.geometry.element_bytes;
  for (int r = 0; r < block.row_count; ++r) {
    const SourceRows source{.data = block.rows[r].q,
                            .row_stride = 0,
                            .kind = element_kind(call_.q.dtype),
                            .rows = 1,
                            .dim = static_cast<int>(call_.shape.head_dim),
                            .normalise = call_.params.score == Score::cosine};
    kernels_.pack_rows(source, static_cast<std::byte*>(slot.packed_q) + r * bytes, slot.normalised);
  }
}

ForwardBlock ForwardRun::make_block(const Slot& slot, const Pair& pair, const Step& step, int rows) const {
  return {.rule = &query_rows_.rule(),
          .rows = slot.rows,
          .row_count = rows,
          .head_dim = static_cast<int>(call_.shape.head_dim),
          .value_dim = static_cast<int>(call_.shape.value_dim),
          .q = nullptr,
          .q_stride = 0,
          .keys = packed(pair, step),
          .state = slot.state,
          .first_keys = step.tile_begin == 0,
          .pooled = {.bounds = segment_bounds_.data(),
                     .segments = static_cast<std::int64_t>(segment_cells_.size()),
                     .sums = slot.sums,
                     .maxima = slot.maxima},
          .soon = {},
          .scratch = slot.scratch};
}

void ForwardRun::attend_block(Slot& slot, const Pair& pair, std::int64_t block_number, const Step& step) {
  const std::int64_t first_row = block_number * pair.blocks.block_rows;
  const int rows = static_cast<int>(std::min(pair.blocks.block_rows, pair.blocks.rows - first_row));
  for (int r = 0; r < rows; ++r) set_row(slot.rows[r], pair, first_row + r);
  ForwardBlock block = make_block(slot, pair, step, rows);
  set_queries(slot, block);
  if (!plan_.whole()) {
    const std::int64_t offset = first_row - step.row_begin;
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
  if (block.first_keys) reset(block);
  if (plan_.pair_tasks && plan_.tiles == 1) block.soon = soon_needed(block, step, block_number);
  kernels_.forward_block(block);
  if (step.tile_end == plan_.tiles) finish(slot, block, pair, first_row);
}

// Of short sequences: what this block writes, and its share of what the next pair reads.
SoonNeeded ForwardRun::soon_needed(const ForwardBlock& block, Step step, std::int64_t block_number) const {
  const auto value_bytes = static_cast<int>(call_.shape.value_dim * size_of(call_.out.dtype));
  SoonNeeded soon;
  soon.areas[0] = {.data = block.rows[0].out,
                   .stride = call_.out.stride(2) * static_cast<std::int64_t>(size_of(call_.out.dtype)),
                   .rows = block.row_count,
                   .bytes = value_bytes};
  step.first_pair += plan_.slots;  // what this thread comes to next, about
  if (step.first_pair >= plan_.pairs) return soon;
  const Pair next = pair(step, 0);
  const std::int64_t blocks = next.blocks.count();
  if (block_number >= blocks) return soon;
  auto rows_of = [&](const ConstTensorView& view, std::int64_t first, std::int64_t head, std::int64_t len) {
    const std::int64_t begin = len * block_number / blocks, end = len * (block_number + 1) / blocks;
    return MemoryRows{.data = row_pointer(view, next.span.batch_entry, head, first + begin),
                      .stride = view.stride(2) * static_cast<std::int64_t>(size_of(view.dtype)),
                      .rows = static_cast<int>(end - begin),
                      .bytes = static_cast<int>(view.size(3) * size_of(view.dtype))};
  };
  soon.areas[1] = rows_of(call_.k, next.span.kv_begin, next.kv_head, next.keys.end);
  soon.areas[2] = rows_of(call_.v, next.span.kv_begin, next.kv_head, next.keys.end);
  soon.areas[3] = rows_of(call_.q, next.span.q_begin, next.kv_head * call_.shape.group(), next.span.q_len);
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

void ForwardRun::finish(const Slot& slot, const ForwardBlock& block, const Pair& pair, std::int64_t first_row) {
  const std::int64_t group = call_.shape.group();
  const RowStates& state = block.state;
  if (!statistics_.any() && !call_.params.logits.sinks.defined() && !normalisers_ && !block.pooled.segments) {
    for (int r = 0; r < block.row_count; ++r) {
      slot.factors[r] = state.sum[r] == 0.0f ? 0.0f : call_.dropout.keep_scale / state.sum[r];
    }
    kernels_.store_rows(block, slot.factors, element_kind(call_.out.dtype));
    return;
  }
  const float scale = block.rule->transforms ? 1.0f : block.rule->scale;
  for (int r = 0; r < block.row_count; ++r) {
    const std::int64_t i = (first_row + r) / group, head = pair.kv_head * group + (first_row + r) % group;
    const RowEnd end{.max = state.max[r],
                     .scale = scale,
                     .fused = plan_.sizes.geometry.fused,
                     .sum = state.sum[r],
                     .weighted = state.weighted ? state.weighted[r] : 0.0f,
                     .squares = state.squares ? state.squares[r] : 0.0f,
                     .sink = query_rows_.sink(head)};
    const RowNormaliser normaliser = statistics_.finish(end, pair.span.batch_entry, head, pair.span.q_begin + i);
    slot.factors[r] = normaliser.factor * call_.dropout.keep_scale;
    if (normalisers_) normalisers_[normaliser_index(pair, first_row + r)] = normaliser;
    if (block.pooled.segments) pool_row(block, pair, first_row + r, r, normaliser);
  }
  kernels_.store_rows(block, slot.factors, element_kind(call_.out.dtype));
}

void run_forward(const ForwardCall& call, const KernelTable& kernels) {
  Executor& executor = executor_of(call.execution);
  ForwardRun(call, kernels, executor).run();
}

}  // namespace rootdk::cpu
