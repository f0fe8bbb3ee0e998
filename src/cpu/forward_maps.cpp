// What a forward call tells beyond its rows: the pooled map, and in a second pass column_mass and exact weights.

#include <algorithm>
#include <cmath>

#include "core/strided.h"
#include "cpu/forward_run.h"

namespace rootdk::cpu {
namespace {

std::int64_t cell_begin(std::int64_t cell, std::int64_t length, std::int64_t cells) { return cell * length / cells; }

// The cell that holds an index: the last that begins at or before it.
std::int64_t cell_of(std::int64_t index, std::int64_t length, std::int64_t cells) {
  return ((index + 1) * cells - 1) / length;
}

}  // namespace

void ForwardRun::make_segments() {
  const std::int64_t columns = call_.stats.pooled_map.size(3), length = call_.shape.kv_len;
  const std::int64_t tile = plan_.sizes.geometry.tile_keys;
  const auto buffers = static_cast<std::size_t>(plan_.round_heads);
  cells_.assign(buffers, std::vector<double>(static_cast<std::size_t>(call_.shape.group() * columns)));
  cell_row_.assign(buffers, 0);
  segment_bounds_.push_back(0);
  for (std::int64_t c = 0; c < columns; ++c) {
    const std::int64_t end = cell_begin(c + 1, length, columns);
    while (segment_bounds_.back() < end) {
      const std::int64_t tile_end = (segment_bounds_.back() / tile + 1) * tile;
      segment_bounds_.push_back(std::min(end, tile_end));
      segment_cells_.push_back(c);
    }
  }
}

void ForwardRun::pool_row(const ForwardBlock& block, const BatchHead& batch_head, std::int64_t r, int local,
                          RowNormaliser normaliser) {
  const std::int64_t group = call_.shape.group(), i = r / group, columns = call_.stats.pooled_map.size(3);
  const std::int64_t map_rows = call_.stats.pooled_map.size(2), map_row = cell_of(i, call_.shape.q_len, map_rows);
  auto& current = cell_row_[static_cast<std::size_t>(batch_head.buffer)];
  if (map_row != current) {
    flush_cells(batch_head, current);
    current = map_row;
  }
  double* cells = cells_[static_cast<std::size_t>(batch_head.buffer)].data() + r % group * columns;
  const float base = normaliser.max * (block.rule->transforms ? 1.0f : block.rule->scale);
  for (std::int64_t s = 0; s < block.pooled.segments; ++s) {
    const float sum = block.pooled.sums[local * block.pooled.segments + s];
    if (sum == 0.0f) continue;
    const double max = block.pooled.maxima[local * block.pooled.segments + s];
    cells[segment_cells_[static_cast<std::size_t>(s)]] += sum * std::exp2(max - base) * normaliser.factor;
  }
  if (r == batch_head.blocks.rows - 1) {
    flush_cells(batch_head, map_row);
    current = 0;
  }
}

void ForwardRun::flush_cells(const BatchHead& batch_head, std::int64_t map_row) {
  const std::int64_t group = call_.shape.group(), columns = call_.stats.pooled_map.size(3);
  const std::int64_t map_rows = call_.stats.pooled_map.size(2), length = call_.shape.q_len;
  const auto map = write<float, 4>(call_.stats.pooled_map);
  const auto queries =
      static_cast<double>(cell_begin(map_row + 1, length, map_rows) - cell_begin(map_row, length, map_rows));
  std::vector<double>& cells = cells_[static_cast<std::size_t>(batch_head.buffer)];
  for (std::int64_t g = 0; g < group; ++g) {
    for (std::int64_t c = 0; c < columns; ++c) {
      map(batch_head.sequence, batch_head.kv_head * group + g, map_row, c) =
          static_cast<float>(cells[static_cast<std::size_t>(g * columns + c)] / queries);
    }
  }
  std::fill(cells.begin(), cells.end(), 0.0);
}

// Keys that no row sees keep a mass and a weight of zero.
void ForwardRun::clear_maps() {
  fill_zero(call_.stats.column_mass);
  fill_zero(call_.stats.weights);
  if (plan_.rows == 0 || call_.shape.kv_len == 0) fill_zero(call_.stats.pooled_map);
}

void ForwardRun::second_pass(const Round& round) {
  if (call_.stats.column_mass.defined()) {
    const std::int64_t tiles = round.tile_end - round.tile_begin;
    spread(round.batch_heads * tiles, [&](Worker& worker, std::int64_t task) {
      column_mass(worker, batch_head(round, task / tiles), round.tile_begin + task % tiles, round);
    });
  }
  if (call_.stats.weights.defined()) {
    spread(round.batch_heads,
           [&](Worker& worker, std::int64_t index) { exact_weights(worker, batch_head(round, index), round); });
  }
}

// The mass of the keys of one tile: rows are summed in order, head by head.
void ForwardRun::column_mass(Worker& worker, const BatchHead& batch_head, std::int64_t tile, const Round& round) {
  const Geometry& g = plan_.sizes.geometry;
  const std::int64_t first = tile * g.tile_keys, end = std::min(first + g.tile_keys, batch_head.keys.end);
  if (first >= end || first + g.tile_keys <= batch_head.keys.begin) return;
  const std::int64_t group = call_.shape.group(), here = (tile - round.tile_begin) * g.tile_keys;
  const auto mass = write<float, 3>(call_.stats.column_mass);
  for (std::int64_t head = 0; head < group; ++head) {
    for (std::int64_t i = 0; i < batch_head.range.q_len; i += kFewestBlockRows) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kFewestBlockRows, batch_head.range.q_len - i));
      for (int r = 0; r < rows; ++r) {
        const std::int64_t combined = (i + r) * group + head;
        set_row(worker.rows[r], batch_head, combined);
        worker.row_max[r] = normalisers_[normaliser_index(batch_head, combined)].max;
        worker.row_scale[r] = normalisers_[normaliser_index(batch_head, combined)].factor;
      }
      std::fill_n(worker.columns, g.tile_keys, 0.0f);
      WeightsBlock block{.block = make_block(worker, batch_head, round, rows),
                         .max = worker.row_max,
                         .factor = worker.row_scale,
                         .column_sums = worker.columns,
                         .weights = nullptr};
      set_queries(worker, block.block);
      PackedKeys& keys = block.block.keys;
      keys.keys = static_cast<const std::byte*>(keys.keys) + here * plan_.sizes.depth * g.element_bytes;
      keys.begin = first;
      keys.end = end;
      kernels_.weights_block(block);
      for (std::int64_t j = first; j < end; ++j) {
        mass(batch_head.range.batch_entry, batch_head.kv_head * group + head, batch_head.range.kv_begin + j) +=
            worker.columns[j - first];
      }
    }
  }
}

void ForwardRun::exact_weights(Worker& worker, const BatchHead& batch_head, const Round& round) {
  const auto weights = write<float, 4>(call_.stats.weights);
  const ConstTensorView& chosen = call_.params.stats.weight_rows;
  const std::int64_t group = call_.shape.group(), count = call_.stats.weights.size(2);
  std::vector<float*> targets(static_cast<std::size_t>(plan_.sizes.geometry.block_rows));
  int rows = 0;
  auto run_rows = [&] {
    if (rows == 0) return;
    WeightsBlock block{.block = make_block(worker, batch_head, round, rows),
                       .max = worker.row_max,
                       .factor = worker.row_scale,
                       .column_sums = nullptr,
                       .weights = targets.data(),
                       .weights_stride = call_.stats.weights.stride(3)};
    pack_queries(worker, block.block);
    kernels_.weights_block(block);
    rows = 0;
  };
  for (std::int64_t w = 0; w < count; ++w) {
    const std::int64_t tensor_row = chosen.defined() ? read<std::int32_t, 1>(chosen)(w) : w;
    const std::int64_t i = tensor_row - batch_head.range.q_begin;
    if (i < 0 || i >= batch_head.range.q_len) continue;
    for (std::int64_t g = 0; g < group; ++g) {
      const std::int64_t combined = i * group + g;
      set_row(worker.rows[rows], batch_head, combined);
      worker.row_max[rows] = normalisers_[normaliser_index(batch_head, combined)].max;
      worker.row_scale[rows] = normalisers_[normaliser_index(batch_head, combined)].factor;
      targets[static_cast<std::size_t>(rows)] =
          weights.at(batch_head.range.batch_entry, batch_head.kv_head * group + g, w, batch_head.range.kv_begin);
      if (++rows == plan_.sizes.geometry.block_rows) run_rows();
    }
  }
  run_rows();
}

}  // namespace rootdk::cpu
