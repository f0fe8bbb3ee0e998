// How a product with stored weights is cut into tasks: by its shape alone, and no cut shows in the result.

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "core/linear_call.h"
#include "cpu/decode_targets.h"
#include "cpu/spread_tasks.h"
#include "cpu/workspace.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

constexpr std::size_t kMaxTargets = 8;
constexpr std::int64_t kDirectOuts = 64;   // outputs of a task with few rows
constexpr std::int64_t kIntegerOuts = 64;  // outputs of a task with integer weights
constexpr std::int64_t kNarrowOuts = 64;   // outputs of a task with bf16 weights that round x
constexpr std::int64_t kSpreadRows = 8;    // rows that one thread makes integers of sooner than another wakes up
constexpr std::int64_t kPanelRows = 512;   // rows of a task with many: their x stays in the last cache
constexpr std::int64_t kSmall = 1 << 16;   // multiply-adds that are done sooner than another thread wakes up

int workers_of(const LinearCall& call, const Executor& executor, std::int64_t tasks) {
  const bool small = call.rows * call.weight.rows * call.weight.columns <= kSmall;
  return small ? 1 : static_cast<int>(std::min<std::int64_t>(executor.threads(), tasks));
}

Executor& executor_of(const LinearCall& call) {
  return call.execution.cpu.executor ? *call.execution.cpu.executor : default_executor();
}

// Weights that are floats.
class FloatRun {
 public:
  FloatRun(const LinearCall& call, const LinearTable& kernels)
      : call_(call),
        kernels_(kernels),
        direct_(call.rows <= kDirectRows),
        outs_(direct_ ? kDirectOuts : kPanelOuts),
        rows_(direct_ ? kDirectRows : kPanelRows) {}

  void run() const {
    Executor& executor = executor_of(call_);
    const std::int64_t panels = (call_.weight.rows + outs_ - 1) / outs_;
    const std::int64_t tasks = panels * ((call_.rows + rows_ - 1) / rows_);
    const int workers = workers_of(call_, executor, tasks);
    const std::size_t bytes = direct_ ? 0 : Workspace::aligned(kernels_.panel_bytes(call_.weight.columns));
    Workspace memory(bytes * static_cast<std::size_t>(workers));
    std::byte* scratch = direct_ ? nullptr : memory.take<std::byte>(bytes * static_cast<std::size_t>(workers));
    spread_tasks(executor, workers, tasks, [&](std::int64_t worker, std::int64_t task) {
      LinearBlock block = block_of(task % panels * outs_, task / panels * rows_);
      block.scratch = scratch + static_cast<std::size_t>(worker) * bytes;
      (direct_ ? kernels_.direct : kernels_.panel)(block);
    });
  }

 private:
  LinearBlock block_of(std::int64_t out, std::int64_t row) const {
    const WeightMatrix& w = call_.weight;
    const std::int64_t row_bytes = bytes_of_row(w.format, w.columns);
    return {.x = call_.x + row * w.columns,
            .rows = static_cast<int>(std::min(rows_, call_.rows - row)),
            .columns = w.columns,
            .kind = static_cast<WeightKind>(w.format),
            .w = static_cast<const std::byte*>(w.data) + out * row_bytes,
            .row_bytes = row_bytes,
            .outs = static_cast<int>(std::min(outs_, w.rows - out)),
            .bias = call_.bias ? call_.bias + out : nullptr,
            .y = call_.y + row * w.rows + out,
            .y_stride = w.rows};
  }

  const LinearCall& call_;
  const LinearTable& kernels_;
  bool direct_;
  std::int64_t outs_, rows_;
};

// bf16 weights that round x. A target without their products widens the rounded numbers again.
class NarrowRun {
 public:
  NarrowRun(const LinearCall& call, const LinearTable& kernels) : call_(call), kernels_(kernels) {}

  void run() const {
    const std::int64_t columns = call_.weight.columns;
    // One line longer than a multiple of the first cache's ways: rows that lie a power of two apart share its sets.
    const std::int64_t stride = (columns + 63) / 64 * 64 + 32;
    Workspace memory(Workspace::aligned(static_cast<std::size_t>(call_.rows * stride) * sizeof(std::uint16_t)));
    auto* x = memory.take<std::uint16_t>(static_cast<std::size_t>(call_.rows * stride));
    Executor& executor = executor_of(call_);
    const int rounders = call_.rows < kSpreadRows ? 1 : executor.threads();
    spread_tasks(executor, rounders, call_.rows, [&](std::int64_t, std::int64_t row) {
      kernels_.round_bf16(call_.x + row * columns, columns, x + row * stride);
    });
    if (!kernels_.narrow) return run_widened(x, stride);

    const std::int64_t cuts = (call_.weight.rows + kNarrowOuts - 1) / kNarrowOuts;
    const std::int64_t tasks = cuts * ((call_.rows + kPanelRows - 1) / kPanelRows);
    spread_tasks(executor, workers_of(call_, executor, tasks), tasks, [&](std::int64_t, std::int64_t task) {
      const std::int64_t out = task % cuts * kNarrowOuts, row = task / cuts * kPanelRows;
      const WeightMatrix& w = call_.weight;
      kernels_.narrow({.x = x + row * stride,
                       .x_stride = stride,
                       .rows = static_cast<int>(std::min(kPanelRows, call_.rows - row)),
                       .columns = columns,
                       .w = static_cast<const std::uint16_t*>(w.data) + out * columns,
                       .outs = static_cast<int>(std::min(kNarrowOuts, w.rows - out)),
                       .bias = call_.bias ? call_.bias + out : nullptr,
                       .y = call_.y + row * w.rows + out,
                       .y_stride = w.rows});
    });
  }

 private:
  void run_widened(const std::uint16_t* x, std::int64_t stride) const {
    const std::int64_t columns = call_.weight.columns;
    std::vector<float> widened(static_cast<std::size_t>(call_.rows * columns));
    for (std::int64_t i = 0; i < call_.rows * columns; ++i) {
      widened[static_cast<std::size_t>(i)] =
          std::bit_cast<float>(static_cast<std::uint32_t>(x[i / columns * stride + i % columns]) << 16);
    }
    LinearCall call = call_;
    call.x = widened.data();
    FloatRun(call, kernels_).run();
  }

  const LinearCall& call_;
  const LinearTable& kernels_;
};

// Integer weights: the rows of x become integers first.
class IntegerRun {
 public:
  IntegerRun(const LinearCall& call, const LinearTable& kernels)
      : call_(call), kernels_(kernels), blocks_(blocks_of(call.weight.columns)) {}

  void run() const {
    Executor& executor = executor_of(call_);
    const std::int64_t cuts = (call_.weight.rows + kIntegerOuts - 1) / kIntegerOuts;
    const std::int64_t tasks = cuts * ((call_.rows + kPanelRows - 1) / kPanelRows);
    const int workers = workers_of(call_, executor, tasks);
    const auto numbers = static_cast<std::size_t>(call_.rows * blocks_ * kWeightBlock);
    const auto blocks = static_cast<std::size_t>(call_.rows * blocks_);
    const std::size_t unpacked = Workspace::aligned(kernels_.unpacked_bytes(blocks_));
    Workspace memory(Workspace::aligned(numbers) + Workspace::aligned(kernels_.wants_pairs ? 2 * numbers : 0) +
                     2 * Workspace::aligned(4 * blocks) + unpacked * static_cast<std::size_t>(workers));
    IntegerRows x{.bytes = memory.take<std::int8_t>(numbers)};
    if (kernels_.wants_pairs) x.pairs = memory.take<std::int16_t>(numbers);
    x.scales = memory.take<float>(blocks);
    x.sums = memory.take<std::int32_t>(blocks);
    std::byte* scratch = memory.take<std::byte>(unpacked * static_cast<std::size_t>(workers));

    spread_tasks(executor, call_.rows < kSpreadRows ? 1 : workers, call_.rows, [&](std::int64_t, std::int64_t row) {
      kernels_.round_row(call_.x + row * call_.weight.columns, call_.weight.columns, rows_from(x, row));
    });
    spread_tasks(executor, workers, tasks, [&](std::int64_t worker, std::int64_t task) {
      IntegerBlock block = block_of(x, task % cuts * kIntegerOuts, task / cuts * kPanelRows);
      block.scratch = scratch + static_cast<std::size_t>(worker) * unpacked;
      kernels_.integers(block);
    });
  }

 private:
  IntegerRows rows_from(const IntegerRows& x, std::int64_t row) const {
    const std::int64_t number = row * blocks_ * kWeightBlock;
    return {.bytes = x.bytes + number,
            .pairs = x.pairs ? x.pairs + number : nullptr,
            .scales = x.scales + row * blocks_,
            .sums = x.sums + row * blocks_};
  }
  IntegerBlock block_of(const IntegerRows& x, std::int64_t out, std::int64_t row) const {
    const WeightMatrix& w = call_.weight;
    const std::int64_t group = out / kWeightGroup;
    return {.x = rows_from(x, row),
            .rows = static_cast<int>(std::min(kPanelRows, call_.rows - row)),
            .blocks = blocks_,
            .kind = static_cast<WeightKind>(w.format),
            .w = static_cast<const std::byte*>(w.data) + group * bytes_of_group(w.format, w.columns),
            .row_scales = w.row_scales ? w.row_scales + out : nullptr,
            .block_scales = w.block_scales ? w.block_scales + group * blocks_ * kWeightGroup : nullptr,
            .outs = static_cast<int>(std::min(kIntegerOuts, w.rows - out)),
            .bias = call_.bias ? call_.bias + out : nullptr,
            .y = call_.y + row * w.rows + out,
            .y_stride = w.rows};
  }

  const LinearCall& call_;
  const LinearTable& kernels_;
  std::int64_t blocks_;
};

static_assert(kIntegerOuts % kWeightGroup == 0);
static_assert(static_cast<int>(WeightKind::i4) == static_cast<int>(WeightFormat::i4));

void run(const LinearCall& call, const LinearTable& kernels) {
  if (call.rows == 0 || call.weight.rows == 0) return;
  if (is_integer(call.weight.format)) {
    IntegerRun(call, kernels).run();
  } else if (call.weight.rounds_x) {
    NarrowRun(call, kernels).run();
  } else {
    FloatRun(call, kernels).run();
  }
}

template <std::size_t I>
LinearImplementation implementation() {
  return {.name = decode_targets()[I].name, .answer = [](const LinearCall&) {
            return accept_unless<LinearCall>(decode_targets()[I].missing(), [](const LinearCall& accepted) {
              run(accepted, decode_targets()[I].linear());
            });
          }};
}

template <std::size_t... I>
std::array<LinearImplementation, kMaxTargets> make(std::index_sequence<I...>) {
  return {(I < decode_targets().size() ? implementation<I>() : LinearImplementation{})...};
}

}  // namespace

ROOTDK_API std::span<const LinearImplementation> linear_implementations() {
  static const auto all = make(std::make_index_sequence<kMaxTargets>{});
  return std::span(all).first(decode_targets().size());
}

}  // namespace rootdk::cpu
