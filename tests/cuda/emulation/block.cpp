#include "cuda/emulation/block.h"

#include <ucontext.h>

#include <stdexcept>
#include <vector>

namespace rootdk::test::emulation {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr int kMaxRounds = 2'000'000;  // far more than any kernel here needs: then it hangs

struct Fiber {
  ucontext_t context = {};
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool done = false;
};

// Words that lanes exchange. A lane is at most one exchange ahead of another: two buffers are enough.
struct Warp {
  int arrived = 0;
  unsigned phase = 0;
  WarpWords words[2] = {};
};
struct Barrier {
  int arrived = 0;
  unsigned phase = 0;
};

struct Block {
  std::vector<Fiber> fibers;
  Warp warps[kMaxWarps];
  Barrier barriers[16];
  const std::function<void()>* body = nullptr;
  ucontext_t scheduler = {};
  int running = 0;
};
Block* block = nullptr;

void enter() {
  (*block->body)();
  Fiber& self = block->fibers[static_cast<std::size_t>(block->running)];
  self.done = true;
  swapcontext(&self.context, &block->scheduler);
}

template <class Meeting>
void wait_for_all(Meeting& meeting, int threads) {
  const unsigned phase = meeting.phase;
  if (++meeting.arrived == threads) {
    meeting.arrived = 0;
    ++meeting.phase;
  }
  while (meeting.phase == phase) yield();
}

}  // namespace

void run_block(int threads, int index, const std::function<void()>& body) {
  Block own;
  own.fibers.resize(static_cast<std::size_t>(threads));
  own.body = &body;
  block = &own;
  blockIdx.x = static_cast<unsigned>(index);
  for (Fiber& fiber : own.fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, enter, 0);
  }
  bool any = true;
  for (int round = 0; any; ++round) {
    if (round == kMaxRounds) throw std::runtime_error("the emulated block hangs");
    any = false;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = own.fibers[static_cast<std::size_t>(i)];
      if (fiber.done) continue;
      any = true;
      own.running = i;
      threadIdx.x = static_cast<unsigned>(i);
      swapcontext(&own.scheduler, &fiber.context);
    }
  }
}

void yield() { swapcontext(&block->fibers[static_cast<std::size_t>(block->running)].context, &block->scheduler); }

int block_threads() { return static_cast<int>(block->fibers.size()); }

void meet(int id, int threads) { wait_for_all(block->barriers[id], threads); }

const WarpWords& exchange(std::uint32_t word) {
  Warp& warp = block->warps[threadIdx.x / 32];
  WarpWords& words = warp.words[warp.phase % 2];
  words[threadIdx.x % 32] = word;
  wait_for_all(warp, 32);
  return words;
}

}  // namespace rootdk::test::emulation
