#include "cpu/forward_plan.h"

#include <algorithm>

#include "core/check.h"
#include "cpu/workspace.h"

namespace rootdk::cpu {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Packed keys that stay in a core's own cache between packing and use.
constexpr std::size_t kCoreCacheBytes = std::size_t{1} << 20;
// Packed keys of a round, for each thread.
constexpr std::size_t kRoundBytes = std::size_t{8} << 20;

// A block of many rows reads tiles from beyond a core's cache seldom, blocks of few rows give every thread work. Rows
// have the same bits in both.
constexpr std::int64_t kBlocksOfThread = 4;

Geometry geometry_for(const KernelTable& kernels, const AttentionShape& shape, int threads) {
  Geometry g = kernels.geometry(static_cast<int>(shape.head_dim), static_cast<int>(shape.value_dim));
  const std::int64_t rows = shape.q_len * shape.group(), batch_heads = shape.batch * shape.kv_heads;
  if (threads > 1 && g.block_rows / 2 >= kFewestBlockRows &&
      batch_heads * ceil_div(rows, g.block_rows) < kBlocksOfThread * threads) {
    g.block_rows /= 2;
  }
  return g;
}

ForwardSizes sizes_of(const ForwardCall& call, const KernelTable& kernels, const Geometry& g, std::int64_t segments) {
  const int head_dim = static_cast<int>(call.shape.head_dim), value_dim = static_cast<int>(call.shape.value_dim);
  ForwardSizes s;
  s.geometry = g;
  s.depth = round_up(head_dim, g.depth_multiple);
  s.value_columns = round_up(value_dim, g.panel);
  const auto element = static_cast<std::size_t>(g.element_bytes);
  // Its alignment also has room for the flag of the tile.
  s.tile_bytes = static_cast<std::size_t>(g.tile_keys * (s.depth + s.value_columns)) * element + Workspace::kAlignment;
  s.state_bytes = static_cast<std::size_t>(4 + s.value_columns + 2 * segments) * sizeof(float);
  s.row_bytes = 2 * sizeof(float);
  const std::size_t normalised =
      call.params.score == Score::cosine
          ? static_cast<std::size_t>(std::max(g.tile_keys, g.block_rows) * head_dim) * sizeof(float)
          : 0;
  const auto block_rows = static_cast<std::size_t>(g.block_rows);
  s.worker_bytes = Workspace::aligned(kernels.forward_scratch_bytes(head_dim, value_dim)) +
                   Workspace::aligned(block_rows * static_cast<std::size_t>(s.depth) * element) +
                   Workspace::aligned(block_rows * sizeof(QueryRow)) + Workspace::aligned(block_rows * s.state_bytes) +
                   Workspace::aligned(block_rows * 3 * sizeof(float)) + Workspace::aligned(normalised) +
                   Workspace::aligned(static_cast<std::size_t>(g.tile_keys) * sizeof(float)) +
                   16 * Workspace::kAlignment;
  return s;
}

std::int64_t pooled_segments(const ForwardCall& call, std::int64_t tiles) {
  return call.stats.pooled_map.defined() ? call.stats.pooled_map.size(3) + tiles : 0;
}

// Everything but the packed tiles and the states between rounds.
std::size_t fixed_bytes(const ForwardPlan& plan) {
  const std::size_t second =
      plan.second_pass
          ? static_cast<std::size_t>(plan.round_heads * plan.rows) * plan.sizes.row_bytes + Workspace::kAlignment
          : 0;
  return static_cast<std::size_t>(plan.workers) * plan.sizes.worker_bytes + second + 4 * Workspace::kAlignment;
}

// Cuts the keys and the rows of a batch head into rounds, so that the call keeps to `limit`.
void split_head(ForwardPlan& plan, std::size_t limit, std::int64_t block_rows) {
  plan.round_heads = 1;
  const std::size_t row_state = plan.sizes.state_bytes, tile = plan.sizes.tile_bytes;
  constexpr std::size_t kRounding = 16 * Workspace::kAlignment;
  auto need = [&] { return fixed_bytes(plan) + tile + static_cast<std::size_t>(block_rows) * row_state + kRounding; };
  while (plan.workers > 1 && need() > limit) --plan.workers;
  require(need() <= limit, "attention: workspace_limit ", limit, " bytes is below the ", need(),
          " that the smallest tiles of this call take");
  const std::size_t spare = limit - fixed_bytes(plan) - kRounding;
  const std::size_t for_tiles = std::max(tile, spare / 2);
  plan.round_tiles = std::min<std::int64_t>(plan.tiles, static_cast<std::int64_t>(for_tiles / tile));
  if (plan.whole()) return;
  const std::size_t for_rows = spare - static_cast<std::size_t>(plan.round_tiles) * tile;
  const auto blocks = static_cast<std::int64_t>(for_rows / (static_cast<std::size_t>(block_rows) * row_state));
  plan.round_rows = std::min(round_up(plan.rows, block_rows), std::max<std::int64_t>(1, blocks) * block_rows);
}

}  // namespace

RowBlocks::RowBlocks(std::int64_t row_count, const Geometry& geometry) : rows(row_count) {
  const std::int64_t blocks = std::max<std::int64_t>(1, ceil_div(rows, geometry.block_rows));
  block_rows = std::min<std::int64_t>(geometry.block_rows,
                                      round_up(std::max<std::int64_t>(1, ceil_div(rows, blocks)), geometry.rows));
}

std::size_t ForwardPlan::bytes() const {
  std::size_t total = fixed_bytes(*this);
  total += static_cast<std::size_t>(round_heads * round_tiles) * sizes.tile_bytes + Workspace::kAlignment;
  if (!whole()) total += static_cast<std::size_t>(round_rows) * sizes.state_bytes + 8 * Workspace::kAlignment;
  return total;
}

ForwardPlan plan_forward(const ForwardCall& call, const KernelTable& kernels, int threads) {
  const AttentionShape& shape = call.shape;
  ForwardPlan plan;
  const Geometry geometry = geometry_for(kernels, shape, threads);
  plan.tiles = std::max<std::int64_t>(1, ceil_div(shape.kv_len, geometry.tile_keys));
  plan.segments = pooled_segments(call, plan.tiles);
  plan.sizes = sizes_of(call, kernels, geometry, plan.segments);
  plan.batch_heads = shape.batch * shape.kv_heads;
  plan.rows = shape.q_len * shape.group();
  plan.second_pass = call.stats.column_mass.defined() || call.stats.weights.defined();
  plan.round_tiles = plan.tiles;

  const RowBlocks blocks(plan.rows, plan.sizes.geometry);
  const std::int64_t tasks = std::max(plan.batch_heads * blocks.count(), plan.batch_heads * plan.tiles);
  plan.workers = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, threads));
  const std::size_t limit = call.execution.cpu.workspace_limit;
  const std::size_t head_bytes = static_cast<std::size_t>(plan.tiles) * plan.sizes.tile_bytes;
  plan.head_tasks = plan.workers == 1 || (head_bytes <= kCoreCacheBytes && plan.batch_heads >= 4 * plan.workers);
  const std::size_t round_bytes = kRoundBytes * static_cast<std::size_t>(plan.workers);
  plan.round_heads = plan.head_tasks ? plan.workers
                                     : std::clamp<std::int64_t>(static_cast<std::int64_t>(round_bytes / head_bytes), 1,
                                                                std::max<std::int64_t>(1, plan.batch_heads));
  if (limit == 0) return plan;
  while (!plan.head_tasks && plan.round_heads > 1 && plan.bytes() > limit) plan.round_heads /= 2;
  while (plan.workers > 1 && plan.bytes() > limit) {
    --plan.workers;
    if (plan.head_tasks) plan.round_heads = plan.workers;
  }
  if (plan.bytes() > limit) {
    plan.head_tasks = false;
    plan.workers = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, threads));
    split_head(plan, limit, blocks.block_rows);
  }
  return plan;
}

}  // namespace rootdk::cpu
