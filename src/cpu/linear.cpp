// How a product with stored weights is cut into tasks: by its shape alone, and no cut shows in the result.

#include "cpu/linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "cpu/decode_targets.h"
#include "cpu/spread_tasks.h"
#include "cpu/workspace.h"
#include "rootdk/export.h"

namespace rootdk::cpu {
namespace {

constexpr std::size_t kMaxTargets = 8;
constexpr std::int64_t kFewRowsOuts = 32;    // outputs of a task with few rows: the last ones even out
constexpr std::int64_t kManyRowsOuts = 128;  // with many: the weights of its next outputs come while it computes
constexpr std::int64_t kFewestOuts = 32;     // where there are more threads than such tasks
constexpr std::int64_t kTasksOfThread = 4;   // so many tasks even out what threads take
constexpr std::int64_t kSpreadRows = 8;      // rows that one thread rounds sooner than another wakes up
constexpr std::int64_t kPanelRows = 512;     // rows of a task with many: their x stays in the last cache
constexpr std::int64_t kAheadRows = 64;      // rows that leave a thread waiting for weights
constexpr std::int64_t kSmall = 1 << 16;     // multiply-adds that are done sooner than another thread wakes up

// What a task computes: outputs [out, out + outs) of a product for rows [row, row + rows).
struct LinearTask {
  const LinearProduct* product = nullptr;
  std::int64_t out = 0, outs = 0, row = 0, rows = 0;

  const float* bias() const { return product->bias ? product->bias + out : nullptr; }
  float* y() const { return product->y + row * product->weight.rows + out; }
  // Where its weights begin.
  const std::byte* w() const {
    const WeightMatrix& m = product->weight;
    const std::int64_t offset = is_integer(m.format) ? out / kWeightGroup * bytes_of_group(m.format, m.columns)
                                                     : out * bytes_of_row(m.format, m.columns);
    return static_cast<const std::byte*>(m.data) + offset;
  }
};

// The tasks of a call. Tasks of the same rows follow one another, so that x stays in the caches.
class LinearTasks {
 public:
  LinearTasks(const LinearCall& call, int threads) : call_(call) {
    std::int64_t all = 0;
    for (const LinearProduct& product : call.products) all += product.weight.rows;
    std::int64_t outs = call.rows <= kDirectRows ? kFewRowsOuts : kManyRowsOuts;
    while (outs > kFewestOuts && all < kTasksOfThread * threads * outs) outs /= 2;
    for (const LinearProduct& product : call.products) {
      for (std::int64_t out = 0; out < product.weight.rows; out += outs) {
        cuts_.push_back({.product = &product, .out = out, .outs = std::min(outs, product.weight.rows - out)});
      }
    }
    const bool small = call.rows * all * weight().columns <= kSmall;
    workers_ = small ? 1 : static_cast<int>(std::min<std::int64_t>(threads, count()));
  }

  const WeightMatrix& weight() const { return call_.products.front().weight; }  // of the first product
  std::int64_t count() const { return cuts() * ((call_.rows + kPanelRows - 1) / kPanelRows); }
  int workers() const { return workers_; }
  LinearTask operator[](std::int64_t number) const {
    LinearTask task = cuts_[static_cast<std::size_t>(number % cuts())];
    task.row = number / cuts() * kPanelRows;
    task.rows = std::min(kPanelRows, call_.rows - task.row);
    return task;
  }
  // The weights of a task, which may be count(): null.
  const std::byte* weights_of(std::int64_t number) const { return number < count() ? (*this)[number].w() : nullptr; }

 private:
  std::int64_t cuts() const { return static_cast<std::int64_t>(cuts_.size()); }

  const LinearCall& call_;
  std::vector<LinearTask> cuts_;
  int workers_ = 1;
};

// Runs compute(worker, task, next task) for all tasks. A thread takes its next task early where weights come from
// memory more slowly than they are multiplied; elsewhere tasks are long, and one that a thread holds keeps another
// waiting.
template <class Compute>
void run_tasks(Executor& executor, const LinearTasks& tasks, std::int64_t rows, const Compute& compute) {
  if (rows <= kAheadRows) return spread_tasks_ahead(executor, tasks.workers(), tasks.count(), compute);
  spread_tasks(executor, tasks.workers(), tasks.count(),
               [&](std::int64_t worker, std::int64_t task) { compute(worker, task, tasks.count()); });
}

Executor& executor_of(const LinearCall& call) {
  return call.execution.cpu.executor ? *call.execution.cpu.executor : default_executor();
}

// Weights that are floats.
void run_floats(const LinearCall& call, const LinearTable& kernels) {
  Executor& executor = executor_of(call);
  const LinearTasks tasks(call, executor.threads());
  const bool direct = call.rows <= kDirectRows;
  const std::int64_t columns = tasks.weight().columns;
  const std::size_t bytes = direct ? 0 : Workspace::aligned(kernels.panel_bytes(columns));
  const std::size_t all_bytes = bytes * static_cast<std::size_t>(tasks.workers());
  Workspace memory(all_bytes);
  std::byte* scratch = direct ? nullptr : memory.take<std::byte>(all_bytes);
  const auto compute = [&](std::int64_t worker, std::int64_t number, std::int64_t next) {
    const LinearTask task = tasks[number];
    const WeightMatrix& w = task.product->weight;
    (direct ? kernels.direct : kernels.panel)({.x = call.x + task.row * columns,
                                               .rows = static_cast<int>(task.rows),
                                               .columns = columns,
                                               .kind = static_cast<WeightKind>(w.format),
                                               .w = task.w(),
                                               .next_w = tasks.weights_of(next),
                                               .row_bytes = bytes_of_row(w.format, columns),
                                               .outs = static_cast<int>(task.outs),
                                               .bias = task.bias(),
                                               .y = task.y(),
                                               .y_stride = w.rows,
                                               .scratch = scratch + static_cast<std::size_t>(worker) * bytes});
  };
  run_tasks(executor, tasks, call.rows, compute);
}

// From row to row of x in bf16. Rows of weights often lie a multiple of 4 KiB apart, so that those of a tile share sets
// of the first cache. Rows of x begin a quarter of its sets apart, and leave room for them.
std::int64_t spread_stride(std::int64_t columns) {
  constexpr std::int64_t kLine = 32, kSets = 64;  // bf16 numbers of a line; sets of 32 and 48 KiB
  const std::int64_t lines = (columns + kLine - 1) / kLine, past = kSets / 4 + 1;
  return ((lines - past + kSets - 1) / kSets * kSets + past) * kLine;
}

// bf16 weights that round x. A target without their products widens the rounded numbers again.
class NarrowRun {
 public:
  NarrowRun(const LinearCall& call, const LinearTable& kernels)
      : call_(call), kernels_(kernels), columns_(call.products.front().weight.columns) {}

  void run() const {
    if (kernels_.pack_x) return run_tiles();
    const std::int64_t stride = spread_stride(columns_);
    Workspace memory(Workspace::aligned(static_cast<std::size_t>(call_.rows * stride) * sizeof(std::uint16_t)));
    auto* x = memory.take<std::uint16_t>(static_cast<std::size_t>(call_.rows * stride));
    Executor& executor = executor_of(call_);
    const int rounders = call_.rows < kSpreadRows ? 1 : executor.threads();
    spread_tasks(executor, rounders, call_.rows, [&](std::int64_t, std::int64_t row) {
      kernels_.round_bf16(call_.x + row * columns_, columns_, x + row * stride);
    });
    if (!kernels_.narrow) return run_widened(x, stride);
    multiply(executor, {.x = x, .x_stride = stride}, 1);
  }

 private:
  // x in tiles of rows; where there is one alone, it has no room for others.
  void run_tiles() const {
    const std::int64_t tiles = (call_.rows + kXTileRows - 1) / kXTileRows;
    const auto tile_rows = static_cast<int>(std::min<std::int64_t>(call_.rows, kXTileRows));
    const std::int64_t stride = (columns_ + kXTileColumns - 1) / kXTileColumns * kXTileColumns * tile_rows;
    Workspace memory(Workspace::aligned(static_cast<std::size_t>(tiles * stride) * sizeof(std::uint16_t)));
    auto* x = memory.take<std::uint16_t>(static_cast<std::size_t>(tiles * stride));
    Executor& executor = executor_of(call_);
    spread_tasks(executor, executor.threads(), tiles, [&](std::int64_t, std::int64_t tile) {
      const std::int64_t row = tile * kXTileRows;
      const auto rows = static_cast<int>(std::min<std::int64_t>(call_.rows - row, kXTileRows));
      kernels_.pack_x(call_.x + row * columns_, rows, tile_rows, columns_, x + tile * stride);
    });
    multiply(executor, {.x = x, .x_stride = stride, .tile_rows = tile_rows}, kXTileRows);
  }

  // x_rows: those that lie a stride from the next ones.
  void multiply(Executor& executor, const NarrowBlock& x, std::int64_t x_rows) const {
    const LinearTasks tasks(call_, executor.threads());
    const auto compute = [&](std::int64_t, std::int64_t number, std::int64_t next) {
      const LinearTask task = tasks[number];
      kernels_.narrow({.x = x.x + task.row / x_rows * x.x_stride,
                       .x_stride = x.x_stride,
                       .tile_rows = x.tile_rows,
                       .rows = static_cast<int>(task.rows),
                       .columns = columns_,
                       .w = reinterpret_cast<const std::uint16_t*>(task.w()),
                       .next_w = reinterpret_cast<const std::uint16_t*>(tasks.weights_of(next)),
                       .outs = static_cast<int>(task.outs),
                       .bias = task.bias(),
                       .y = task.y(),
                       .y_stride = task.product->weight.rows});
    };
    run_tasks(executor, tasks, call_.rows, compute);
  }

  void run_widened(const std::uint16_t* x, std::int64_t stride) const {
    std::vector<float> widened(static_cast<std::size_t>(call_.rows * columns_));
    for (std::int64_t i = 0; i < call_.rows * columns_; ++i) {
      widened[static_cast<std::size_t>(i)] =
          std::bit_cast<float>(static_cast<std::uint32_t>(x[i / columns_ * stride + i % columns_]) << 16);
    }
    LinearCall call = call_;
    call.x = widened.data();
    run_floats(call, kernels_);
  }

  const LinearCall& call_;
  const LinearTable& kernels_;
  std::int64_t columns_;
};

// Integer weights: the rows of x become integers first.
class IntegerRun {
 public:
  IntegerRun(const LinearCall& call, const LinearTable& kernels)
      : call_(call), kernels_(kernels), blocks_(blocks_of(call.products.front().weight.columns)) {}

  void run() const {
    Executor& executor = executor_of(call_);
    const LinearTasks tasks(call_, executor.threads());
    const std::int64_t columns = tasks.weight().columns;
    const auto kind = static_cast<WeightKind>(tasks.weight().format);
    const auto workers = static_cast<std::size_t>(tasks.workers());
    const auto rows = static_cast<std::size_t>(call_.rows);
    const bool tiled = kernels_.tiled_integers && call_.rows >= kTiledIntegerRows;
    const std::int64_t held = tiled ? (call_.rows + kXTileRows - 1) / kXTileRows * kXTileRows : call_.rows;
    const auto numbers = static_cast<std::size_t>(held * blocks_ * kWeightBlock);
    const auto blocks = static_cast<std::size_t>(held * blocks_);
    const std::size_t unpacked = Workspace::aligned(kernels_.unpacked_bytes(blocks_));
    Workspace memory(Workspace::aligned(numbers) + Workspace::aligned(kernels_.wants_pairs ? 2 * numbers : 0) +
                     2 * Workspace::aligned(4 * blocks) + Workspace::aligned(tiled ? 4 * blocks : 0) +
                     Workspace::aligned(4 * rows) + unpacked * workers);
    IntegerRows x{.bytes = memory.take<std::int8_t>(numbers)};
    if (kernels_.wants_pairs) x.pairs = memory.take<std::int16_t>(numbers);
    x.scales = memory.take<float>(blocks);
    x.starts = memory.take<std::int32_t>(blocks);
    if (tiled) x.tile_scales = memory.take<float>(blocks);
    x.factors = memory.take<float>(rows);
    std::byte* scratch = memory.take<std::byte>(unpacked * workers);

    const int rounders = call_.rows < kSpreadRows ? 1 : tasks.workers();
    const auto round = [&](std::int64_t row) {
      kernels_.round_row(call_.x + row * columns, columns, kind, rows_from(x, row));
    };
    if (tiled) {
      spread_tasks(executor, rounders, held / kXTileRows, [&](std::int64_t, std::int64_t tile) {
        const std::int64_t first = tile * kXTileRows, last = std::min(first + kXTileRows, call_.rows);
        for (std::int64_t row = first; row < last; ++row) round(row);
        interleave_scales(rows_from(x, first), last - first);
      });
    } else {
      spread_tasks(executor, rounders, call_.rows, [&](std::int64_t, std::int64_t row) { round(row); });
    }
    const auto compute = [&](std::int64_t worker, std::int64_t number, std::int64_t next) {
      IntegerBlock block = block_of(x, tasks[number]);
      block.next_w = tasks.weights_of(next);
      block.scratch = scratch + static_cast<std::size_t>(worker) * unpacked;
      (tiled ? kernels_.tiled_integers : kernels_.integers)(block);
    };
    run_tasks(executor, tasks, call_.rows, compute);
  }

 private:
  IntegerRows rows_from(const IntegerRows& x, std::int64_t row) const {
    const std::int64_t number = row * blocks_ * kWeightBlock;
    return {.bytes = x.bytes + number,
            .pairs = x.pairs ? x.pairs + number : nullptr,
            .scales = x.scales + row * blocks_,
            .starts = x.starts + row * blocks_,
            .tile_scales = x.tile_scales ? x.tile_scales + row * blocks_ : nullptr,
            .factors = x.factors + row};
  }
  // The scales of a tile of rows: those of a block of columns become neighbours.
  void interleave_scales(const IntegerRows& x, std::int64_t rows) const {
    for (std::int64_t b = 0; b < blocks_; ++b) {
      for (std::int64_t r = 0; r < kXTileRows; ++r) {
        x.tile_scales[b * kXTileRows + r] = r < rows ? x.scales[r * blocks_ + b] : 0.0f;
      }
    }
  }
  IntegerBlock block_of(const IntegerRows& x, const LinearTask& task) const {
    const WeightMatrix& w = task.product->weight;
    const std::int64_t group = task.out / kWeightGroup;
    return {.x = rows_from(x, task.row),
            .rows = static_cast<int>(task.rows),
            .blocks = blocks_,
            .kind = static_cast<WeightKind>(w.format),
            .w = task.w(),
            .row_scales = w.row_scales ? w.row_scales + task.out : nullptr,
            .block_scales = w.block_scales ? w.block_scales + group * blocks_ * kWeightGroup : nullptr,
            .outs = static_cast<int>(task.outs),
            .bias = task.bias(),
            .y = task.y(),
            .y_stride = w.rows};
  }

  const LinearCall& call_;
  const LinearTable& kernels_;
  std::int64_t blocks_;
};

static_assert(kPanelRows % kXTileRows == 0 && kXTileRows == kWeightGroup);
static_assert(kFewestOuts % kWeightGroup == 0 && kFewRowsOuts % kFewestOuts == 0 && kManyRowsOuts % kFewestOuts == 0);
static_assert(static_cast<int>(WeightKind::i4) == static_cast<int>(WeightFormat::i4));

}  // namespace

void run_linear(const LinearCall& call, const LinearTable& kernels) {
  if (call.rows == 0 || call.products.empty()) return;
  const WeightMatrix& weight = call.products.front().weight;
  if (is_integer(weight.format)) {
    IntegerRun(call, kernels).run();
  } else if (weight.rounds_x) {
    NarrowRun(call, kernels).run();
  } else {
    run_floats(call, kernels);
  }
}

namespace {

template <std::size_t I>
LinearImplementation implementation() {
  return {.name = decode_targets()[I].name, .answer = [](const LinearCall&) {
            return accept_unless<LinearCall>(decode_targets()[I].missing(), [](const LinearCall& accepted) {
              run_linear(accepted, decode_targets()[I].linear());
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

ROOTDK_API bool has_bf16_products(std::string_view implementation) {
  const auto targets = decode_targets();
  return std::any_of(targets.begin(), targets.end(), [&](const DecodeTarget& target) {
    return target.name == implementation && target.linear().narrow;
  });
}

}  // namespace rootdk::cpu
