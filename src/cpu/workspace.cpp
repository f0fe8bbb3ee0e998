#include "cpu/workspace.h"

#include <cstdlib>

#include "core/check.h"
#include "core/out_of_memory.h"

namespace rootdk::cpu {
namespace {

constexpr std::size_t kKept = std::size_t{64} << 20;

// The block that this thread's last call left.
thread_local Workspace::Block kept_block;

}  // namespace

Workspace::Block::~Block() { std::free(memory); }

Workspace::Workspace(std::size_t bytes) {
  bytes = aligned(bytes);
  if (kept_block.bytes >= bytes) {
    block_ = std::move(kept_block);
    return;
  }
  kept_block = Block();
  block_.memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
  if (!block_.memory) throw OutOfMemory("the scratch memory of a call", bytes);
  block_.bytes = bytes;
}

Workspace::~Workspace() {
  if (block_.bytes <= kKept && block_.bytes > kept_block.bytes) kept_block = std::move(block_);
}

void* Workspace::take_bytes(std::size_t bytes) {
  require(used_ + aligned(bytes) <= block_.bytes, "internal: a workspace of ", block_.bytes, " bytes is asked for ",
          bytes, " more after ", used_);
  void* taken = block_.memory + used_;
  used_ += aligned(bytes);
  return taken;
}

}  // namespace rootdk::cpu
