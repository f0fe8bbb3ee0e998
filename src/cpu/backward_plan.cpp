#include "cpu/backward_plan.h"

#include <algorithm>

#include "core/check.h"
#include "cpu/workspace.h"

namespace rootdk::cpu {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }
std::size_t aligned_count(std::int64_t count, std::size_t bytes) {
  return Workspace::aligned(static_cast<std::size_t>(count) * bytes);
}

// Packed keys and gradients in memory at a time, a thread.
constexpr std::size_t kRoundBytes = std::size_t{8} << 20;

BackwardSizes sizes_of(const BackwardCall& call, const BackwardTable& kernels) {
  const int head_dim = static_cast<int>(call.shape.head_dim), value_dim = static_cast<int>(call.shape.value_dim);
  BackwardSizes s;
  s.geometry = kernels.geometry(head_dim, value_dim);
  const BackwardGeometry& g = s.geometry;
  const auto element = static_cast<std::size_t>(g.element_bytes);
  s.depth = round_up(head_dim, g.depth_multiple);
  s.value_depth = round_up(value_dim, g.depth_multiple);
  s.head_columns = round_up(head_dim, g.panel);
  s.value_columns = round_up(value_dim, g.panel);
  s.query_rows = round_up(kBackwardRows, g.panel);
  s.group = call.shape.group();
  if (call.gradients.relative_table.defined()) s.relative_entries = call.gradients.relative_table.size(1);
  if (call.params.score == Score::additive) s.additive_columns = s.head_columns;

  s.k = aligned_count(g.key_block * s.depth, element);
  s.k_rows = aligned_count(g.key_block * s.head_columns, element);
  s.v = aligned_count(g.key_block * s.value_depth, element);
  s.grad_k = aligned_count(g.key_block * s.head_columns, sizeof(float));
  s.grad_v = aligned_count(g.key_block * s.value_columns, sizeof(float));
  s.key_block = s.k + s.k_rows + s.v + s.grad_k + s.grad_v + Workspace::kAlignment;
  s.parameters = aligned_count(s.group * (2 + s.relative_entries + s.additive_columns), sizeof(double));
  const std::int64_t normalised = call.params.score == Score::cosine ? std::max(g.key_block, kBackwardRows) : 2;
  s.worker = Workspace::aligned(kernels.scratch_bytes(head_dim, value_dim)) +
             aligned_count(kBackwardRows, sizeof(BackwardRow)) + aligned_count(kBackwardRows, sizeof(float)) +
             aligned_count(kBackwardRows * s.depth, element) + aligned_count(kBackwardRows * s.value_depth, element) +
             aligned_count(s.query_rows * s.head_columns, element) +
             aligned_count(s.query_rows * s.value_columns, element) +
             aligned_count(kBackwardRows * s.head_columns, sizeof(float)) + s.parameters +
             aligned_count(s.group * s.additive_columns, sizeof(float)) +
             aligned_count(normalised * s.head_columns, sizeof(float));
  const TensorView& bias = call.gradients.bias;
  if (bias.defined() && bias.dtype != DType::f32) {
    s.bias = aligned_count(bias.size(0) * bias.size(1) * bias.size(2) * bias.size(3), sizeof(float));
  }
  s.additive = aligned_count(call.shape.heads * s.additive_columns, sizeof(float));
  return s;
}

bool heads_share_a_bias(const BackwardCall& call) {
  const TensorView& bias = call.gradients.bias;
  return bias.defined() &&
         ((bias.size(0) == 1 && call.shape.batch > 1) || (bias.size(1) == 1 && call.shape.kv_heads > 1));
}

}  // namespace

QueryBlocks::QueryBlocks(std::int64_t row_count, int register_rows) : rows(row_count) {
  const std::int64_t blocks = std::max<std::int64_t>(1, ceil_div(rows, kBackwardRows));
  block_rows =
      std::min<std::int64_t>(kBackwardRows, round_up(std::max<std::int64_t>(1, ceil_div(rows, blocks)), register_rows));
}

std::size_t BackwardPlan::bytes() const {
  const auto heads_here = static_cast<std::size_t>(round_heads), threads = static_cast<std::size_t>(workers);
  const std::size_t blocks = two_sweeps ? threads : heads_here * static_cast<std::size_t>(key_blocks);
  return threads * sizes.worker + blocks * sizes.key_block + heads_here * sizes.parameters + sizes.bias +
         sizes.additive;
}

BackwardPlan plan_backward(const BackwardCall& call, const BackwardTable& kernels, int threads) {
  const AttentionShape& shape = call.shape;
  BackwardPlan plan;
  plan.sizes = sizes_of(call, kernels);
  plan.batch_heads = shape.batch * shape.kv_heads;
  plan.row_blocks = QueryBlocks(shape.q_len * shape.group(), plan.sizes.geometry.rows).count();
  plan.key_blocks = ceil_div(shape.kv_len, plan.sizes.geometry.key_block);
  plan.chained = heads_share_a_bias(call);
  const std::int64_t tasks = plan.batch_heads * std::max(plan.row_blocks, plan.key_blocks);
  plan.workers = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, threads));
  const std::size_t head_bytes =
      std::max<std::size_t>(1, static_cast<std::size_t>(plan.key_blocks) * plan.sizes.key_block);
  const auto fitting = static_cast<std::int64_t>(kRoundBytes * static_cast<std::size_t>(plan.workers) / head_bytes);
  plan.round_heads =
      plan.workers == 1 ? 1 : std::clamp<std::int64_t>(fitting, 1, std::max<std::int64_t>(1, plan.batch_heads));

  const std::size_t limit = call.execution.cpu.workspace_limit;
  if (limit == 0) return plan;
  while (plan.round_heads > 1 && plan.bytes() > limit) plan.round_heads /= 2;
  const int wanted = plan.workers;
  while (plan.workers > 1 && plan.bytes() > limit) --plan.workers;
  if (plan.bytes() <= limit) return plan;
  plan.two_sweeps = true;
  plan.workers = wanted;
  while (plan.workers > 1 && plan.bytes() > limit) --plan.workers;
  require(plan.bytes() <= limit, "attention_backward: workspace_limit ", limit, " bytes is below the ", plan.bytes(),
          " that the smallest tiles of this call take");
  return plan;
}

}  // namespace rootdk::cpu
