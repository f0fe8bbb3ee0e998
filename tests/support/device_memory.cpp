#include "support/device_memory.h"

#include "core/check.h"

namespace rootdk::test {
namespace {

// Bytes from the first to the last element.
std::size_t extent(const ConstTensorView& view) {
  std::int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    if (view.size(d) == 0) return 0;
    require(view.stride(d) >= 0, "placement: negative strides are not supported");
    last += (view.size(d) - 1) * view.stride(d);
  }
  return static_cast<std::size_t>(last + 1) * size_of(view.dtype);
}

}  // namespace

Placement::~Placement() {
  for (void* block : blocks_) memory_->release(block);
}

void* Placement::place(const ConstTensorView& host, std::size_t bytes) {
  void* block = memory_->allocate(bytes ? bytes : 1);
  blocks_.push_back(block);
  if (bytes) memory_->upload(block, host.data, bytes);
  return block;
}

ConstTensorView Placement::input(const ConstTensorView& host) {
  if (!memory_ || !host.defined()) return host;
  ConstTensorView placed = host;
  placed.data = place(host, extent(host));
  placed.device = memory_->device();
  return placed;
}

TensorView Placement::output(const TensorView& host) {
  if (!memory_ || !host.defined()) return host;
  const std::size_t bytes = extent(host);
  TensorView placed = host;
  placed.data = place(host, bytes);
  placed.device = memory_->device();
  outputs_.push_back({placed.data, host.data, bytes});
  return placed;
}

AttentionParams Placement::params(AttentionParams p) {
  for (ConstTensorView* view : {&p.kv_lengths, &p.mask, &p.block_mask, &p.q_starts, &p.kv_starts, &p.bias,
                                &p.logits.relative_table, &p.logits.alibi_slopes, &p.logits.sinks, &p.additive_v}) {
    *view = input(*view);
  }
  return p;
}

void Placement::add_workspace(Execution& execution, std::size_t bytes) {
  if (!memory_ || bytes == 0) return;
  execution.cuda.workspace = memory_->allocate(bytes);
  execution.cuda.workspace_bytes = bytes;
  blocks_.push_back(execution.cuda.workspace);
}

void Placement::fetch() {
  if (!memory_) return;
  memory_->synchronize();
  for (const Output& output : outputs_) {
    if (output.bytes) memory_->download(output.host, output.device, output.bytes);
  }
}

}  // namespace rootdk::test
