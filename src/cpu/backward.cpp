#include "cpu/backward.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "cpu/backward_run.h"

namespace rootdk::cpu {
namespace {

constexpr std::int64_t kDone = std::numeric_limits<std::int64_t>::max();

Strided<const float, 3> row_values(const ConstTensorView& view) {
  return view.defined() ? read<float, 3>(view) : Strided<const float, 3>();
}

}  // namespace

BackwardRun::BackwardRun(const BackwardCall& call, const BackwardTable& kernels, Executor& executor)
    : call_(call),
      kernels_(kernels),
      executor_(executor),
      plan_(plan_backward(call, kernels, executor.threads())),
      query_rows_(call.shape, call_.params, call.logit_scale, call.dropout),
      workspace_(plan_.bytes()),
      lse_(row_values(call.saved.lse)),
      entropy_(row_values(call.saved.entropy)),
      grad_lse_(row_values(call.upstream.lse)),
      grad_entropy_(row_values(call.upstream.entropy)),
      progress_(static_cast<std::size_t>(plan_.round_heads * plan_.row_blocks)) {
  for (int i = 0; i < plan_.workers; ++i) workers_.push_back(take_worker());
  if (!plan_.two_sweeps) {
    for (std::int64_t i = 0; i < plan_.round_heads * plan_.key_blocks; ++i) key_blocks_.push_back(take_key_block());
  }
  for (std::int64_t i = 0; i < plan_.round_heads; ++i) head_sums_.push_back(take_sums());
  prepare_parameters();
}

BackwardRun::Worker BackwardRun::take_worker() {
  const BackwardSizes& sizes = plan_.sizes;
  const auto element = static_cast<std::size_t>(sizes.geometry.element_bytes);
  const int head_dim = static_cast<int>(call_.shape.head_dim), value_dim = static_cast<int>(call_.shape.value_dim);
  auto operand = [&](std::int64_t rows, std::int64_t columns) {
    return workspace_.take<std::byte>(static_cast<std::size_t>(rows * columns) * element);
  };
  auto floats = [&](std::int64_t rows, std::int64_t columns) {
    return workspace_.take<float>(static_cast<std::size_t>(rows * columns));
  };
  Worker worker;
  worker.scratch = workspace_.take<std::byte>(kernels_.scratch_bytes(head_dim, value_dim));
  worker.rows = workspace_.take<BackwardRow>(kBackwardRows);
  worker.bias_sums = floats(kBackwardRows, 1);
  worker.q_left = operand(kBackwardRows, sizes.depth);
  worker.grad_out_left = operand(kBackwardRows, sizes.value_depth);
  worker.q_rows = operand(sizes.query_rows, sizes.head_columns);
  worker.grad_out_rows = operand(sizes.query_rows, sizes.value_columns);
  worker.grad_q = floats(kBackwardRows, sizes.head_columns);
  worker.sums = take_sums();
  worker.additive = floats(sizes.group, sizes.additive_columns);
  const bool cosine = call_.params.score == Score::cosine;
  worker.normalised = floats(cosine ? std::max(sizes.geometry.key_block, kBackwardRows) : 2, sizes.head_columns);
  if (plan_.two_sweeps) worker.keys = take_key_block();
  return worker;
}

BackwardRun::ParameterSums BackwardRun::take_sums() {
  const BackwardSizes& sizes = plan_.sizes;
  auto* sums = workspace_.take<double>(
      static_cast<std::size_t>(sizes.group * (2 + sizes.relative_entries + sizes.additive_columns)));
  return {.sinks = sums,
          .alibi = sums + sizes.group,
          .relative = sums + 2 * sizes.group,
          .additive = sums + (2 + sizes.relative_entries) * sizes.group};
}

BackwardRun::KeyBlock BackwardRun::take_key_block() {
  const BackwardSizes& sizes = plan_.sizes;
  return {.k = workspace_.take<std::byte>(sizes.k),
          .k_rows = workspace_.take<std::byte>(sizes.k_rows),
          .v = workspace_.take<std::byte>(sizes.v),
          .grad_k = workspace_.take<float>(sizes.grad_k / sizeof(float)),
          .grad_v = workspace_.take<float>(sizes.grad_v / sizeof(float)),
          .k_not_finite = workspace_.take<bool>(1)};
}

BackwardRun::BatchHead BackwardRun::batch_head(std::int64_t number, std::int64_t buffer) const {
  const std::int64_t sequence = number / call_.shape.kv_heads;
  const SequenceRange range = sequence_range(call_.shape, call_.params, sequence);
  return {.sequence = sequence,
          .kv_head = number % call_.shape.kv_heads,
          .range = range,
          .buffer = buffer,
          .blocks = QueryBlocks(range.q_len * call_.shape.group(), plan_.sizes.geometry.rows)};
}

std::int64_t BackwardRun::key_blocks(const BatchHead& batch_head) const {
  const std::int64_t block = plan_.sizes.geometry.key_block;
  return (batch_head.range.kv_len + block - 1) / block;
}

void BackwardRun::run() {
  clear_outputs();
  if (plan_.two_sweeps) {
    run_two_sweeps();
  } else {
    for (std::int64_t first = 0; first < plan_.batch_heads; first += plan_.round_heads) {
      run_round(first, std::min(plan_.round_heads, plan_.batch_heads - first));
    }
  }
  store_parameters();
}

void BackwardRun::run_round(std::int64_t first_head, std::int64_t batch_heads) {
  const std::int64_t blocks = plan_.key_blocks, row_blocks = plan_.row_blocks;
  auto key_block = [&](std::int64_t task) { return key_blocks_[static_cast<std::size_t>(task)]; };
  spread(batch_heads * blocks, [&](Worker& worker, std::int64_t task) {
    pack_keys(worker, batch_head(first_head + task / blocks, task / blocks), task % blocks, key_block(task));
  });
  for (auto& progress : progress_) progress.store(0, std::memory_order_relaxed);
  for (const ParameterSums& sums : head_sums_) clear(sums);
  // Batch heads side by side, so that threads do not wait for each other; in sequence where they share a gradient.
  spread(batch_heads * row_blocks, [&](Worker& worker, std::int64_t task) {
    const std::int64_t buffer = plan_.chained ? task / row_blocks : task % batch_heads;
    const std::int64_t block = plan_.chained ? task % row_blocks : task / batch_heads;
    run_task(worker, batch_head(first_head + buffer, buffer), block,
             {.number = task, .before = task - (plan_.chained ? 1 : batch_heads)});
  });
  spread(batch_heads * blocks, [&](Worker& worker, std::int64_t task) {
    store_keys(worker, batch_head(first_head + task / blocks, task / blocks), task % blocks, key_block(task));
  });
  for (std::int64_t i = 0; i < batch_heads; ++i) add_head_sums(batch_head(first_head + i, i));
}

// A task that waits was handed out after the one it waits for, which therefore is at work on some thread or has ended.
void BackwardRun::wait_for(std::int64_t task, std::int64_t progress) const {
  if (task < 0) return;
  const auto& other = progress_[static_cast<std::size_t>(task)];
  for (int spins = 0; other.load(std::memory_order_acquire) < progress; ++spins) {
    if (spins > 64) std::this_thread::yield();
  }
}

void BackwardRun::run_task(Worker& worker, const BatchHead& batch_head, std::int64_t block, Turn turn) {
  auto& progress = progress_[static_cast<std::size_t>(turn.number)];
  if (block < batch_head.blocks.count()) {
    const QueryBlock queries = prepare(worker, batch_head, block, {});
    for (std::int64_t b = 0; b < key_blocks(batch_head); ++b) {
      wait_for(turn.before, b + 1);
      const auto buffer = static_cast<std::size_t>(batch_head.buffer * plan_.key_blocks + b);
      attend(worker, queries, batch_head, b, key_blocks_[buffer], {});
      progress.store(b + 1, std::memory_order_release);
    }
    store_queries(worker, queries, batch_head);
    wait_for(turn.before, kDone);
    add_task_sums(worker, queries, batch_head);
  } else {
    wait_for(turn.before, kDone);
  }
  progress.store(kDone, std::memory_order_release);
}

void BackwardRun::run_two_sweeps() {
  const std::int64_t row_blocks = plan_.row_blocks;
  for (std::int64_t number = 0; number < plan_.batch_heads; ++number) {
    const BatchHead here = batch_head(number, 0);
    spread(key_blocks(here), [&](Worker& worker, std::int64_t block) { sweep_keys(worker, here, block); });
    for (auto& progress : progress_) progress.store(0, std::memory_order_relaxed);
    clear(head_sums_[0]);
    spread(row_blocks, [&](Worker& worker, std::int64_t block) { sweep_queries(worker, here, block); });
    add_head_sums(here);
  }
}

// dk and dv of one block of keys, from all queries in order.
void BackwardRun::sweep_keys(Worker& worker, const BatchHead& batch_head, std::int64_t block) {
  constexpr Sweep kSweep{.keys = true, .queries = false};
  pack_keys(worker, batch_head, block, worker.keys);
  for (std::int64_t b = 0; b < batch_head.blocks.count(); ++b) {
    attend(worker, prepare(worker, batch_head, b, kSweep), batch_head, block, worker.keys, kSweep);
  }
  store_keys(worker, batch_head, block, worker.keys);
}

// dq of one block of queries, from all keys in order.
void BackwardRun::sweep_queries(Worker& worker, const BatchHead& batch_head, std::int64_t block) {
  constexpr Sweep kSweep{.keys = false, .queries = true};
  if (block < batch_head.blocks.count()) {
    const QueryBlock queries = prepare(worker, batch_head, block, kSweep);
    for (std::int64_t b = 0; b < key_blocks(batch_head); ++b) {
      if (!meet(queries, b)) continue;
      pack_keys(worker, batch_head, b, worker.keys);
      attend(worker, queries, batch_head, b, worker.keys, kSweep);
    }
    store_queries(worker, queries, batch_head);
    wait_for(block - 1, kDone);
    add_task_sums(worker, queries, batch_head);
  } else {
    wait_for(block - 1, kDone);
  }
  progress_[static_cast<std::size_t>(block)].store(kDone, std::memory_order_release);
}

bool BackwardRun::meet(const QueryBlock& queries, std::int64_t block) const {
  const std::int64_t size = plan_.sizes.geometry.key_block, first = block * size;
  return queries.keys.begin < first + size && queries.keys.end > first;
}

// One tile: a block of queries meets a block of keys.
void BackwardRun::attend(const Worker& worker, const QueryBlock& queries, const BatchHead& batch_head,
                         std::int64_t block, const KeyBlock& keys, Sweep sweep) const {
  if (!meet(queries, block)) return;
  const std::int64_t size = plan_.sizes.geometry.key_block, first = block * size;
  BackwardTile tile{.rule = &query_rows_.rule(),
                    .head_dim = static_cast<int>(call_.shape.head_dim),
                    .value_dim = static_cast<int>(call_.shape.value_dim),
                    .dropout_scale = call_.dropout.keep_scale,
                    .bias_stride = bias_.stride(3),
                    .mass_stride = call_.gradients.column_mass.stride(2),
                    .entropy = static_cast<bool>(grad_entropy_),
                    .queries = queries.queries,
                    .keys = {.begin = first,
                             .keys = static_cast<int>(std::min(size, batch_head.range.kv_visible - first)),
                             .k = keys.k,
                             .k_rows = keys.k_rows,
                             .v = keys.v,
                             .k_not_finite = *keys.k_not_finite,
                             .grad_k = nullptr,
                             .grad_v = nullptr},
                    .scratch = worker.scratch};
  if (sweep.keys && call_.gradients.k.defined()) tile.keys.grad_k = keys.grad_k;
  if (sweep.keys && call_.gradients.v.defined()) tile.keys.grad_v = keys.grad_v;
  if (!sweep.queries || !call_.gradients.q.defined()) tile.queries.grad_q = nullptr;
  kernels_.tile(tile);
}

void run_backward(const BackwardCall& call, const BackwardTable& kernels) {
  Executor& executor = executor_of(call.execution);
  BackwardRun(call, kernels, executor).run();
}

}  // namespace rootdk::cpu
