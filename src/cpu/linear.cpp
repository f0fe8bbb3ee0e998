// How a product with stored weights is cut into tasks: by its shape alone, and no cut shows in the result.

#include <algorithm>
#include <array>
#include <utility>

#include "core/linear_call.h"
#include "cpu/decode_targets.h"
#include "cpu/spread_tasks.h"
#include "cpu/workspace.h"

namespace rootdk::cpu {
namespace {

constexpr std::size_t kMaxTargets = 8;
constexpr std::int64_t kDirectOuts = 64;  // outputs of a task with few rows
constexpr std::int64_t kPanelRows = 512;  // rows of a task with many: their x stays in the last cache
constexpr std::int64_t kSmall = 1 << 16;  // multiply-adds that are done sooner than another thread wakes up

class LinearRun {
 public:
  LinearRun(const LinearCall& call, const LinearTable& kernels)
      : call_(call),
        kernels_(kernels),
        direct_(call.rows <= kDirectRows),
        outs_(direct_ ? kDirectOuts : kPanelOuts),
        rows_(direct_ ? kDirectRows : kPanelRows) {}

  void run() const {
    if (call_.rows == 0 || call_.weight.rows == 0) return;
    Executor& executor = call_.execution.cpu.executor ? *call_.execution.cpu.executor : default_executor();
    const std::int64_t panels = (call_.weight.rows + outs_ - 1) / outs_;
    const std::int64_t tasks = panels * ((call_.rows + rows_ - 1) / rows_);
    const bool small = call_.rows * call_.weight.rows * call_.weight.columns <= kSmall;
    const int slots = small ? 1 : static_cast<int>(std::min<std::int64_t>(executor.threads(), tasks));
    const std::size_t bytes = direct_ ? 0 : Workspace::aligned(kernels_.panel_bytes(call_.weight.columns));
    Workspace memory(bytes * static_cast<std::size_t>(slots));
    std::byte* scratch = direct_ ? nullptr : memory.take<std::byte>(bytes * static_cast<std::size_t>(slots));
    spread_tasks(executor, slots, tasks, [&](std::int64_t slot, std::int64_t task) {
      LinearBlock block = block_of(task % panels * outs_, task / panels * rows_);
      block.scratch = scratch + static_cast<std::size_t>(slot) * bytes;
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
            .row_scales = w.row_scales ? w.row_scales + out : nullptr,
            .block_scales = w.block_scales ? w.block_scales + out * (w.columns / kWeightBlock) : nullptr,
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

static_assert(static_cast<int>(WeightKind::i4) == static_cast<int>(WeightFormat::i4));

template <std::size_t I>
LinearImplementation implementation() {
  return {.name = decode_targets()[I].name, .answer = [](const LinearCall&) {
            return accept_unless<LinearCall>(decode_targets()[I].missing(), [](const LinearCall& accepted) {
              LinearRun(accepted, decode_targets()[I].linear()).run();
            });
          }};
}

template <std::size_t... I>
std::array<LinearImplementation, kMaxTargets> make(std::index_sequence<I...>) {
  return {(I < decode_targets().size() ? implementation<I>() : LinearImplementation{})...};
}

}  // namespace

std::span<const LinearImplementation> linear_implementations() {
  static const auto all = make(std::make_index_sequence<kMaxTargets>{});
  return std::span(all).first(decode_targets().size());
}

}  // namespace rootdk::cpu
