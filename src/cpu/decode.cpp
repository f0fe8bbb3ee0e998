#include "cpu/decode.h"

#include <algorithm>
#include <vector>

#include "core/strided.h"
#include "cpu/query_rows.h"
#include "cpu/row_statistics.h"
#include "cpu/spread_tasks.h"
#include "cpu/workspace.h"

namespace rootdk::cpu {
namespace {

// Query rows of one key head that are computed together: enough to amortise packing the keys for a prompt.
constexpr std::int64_t kMaxRows = 384;

CacheKind cache_kind(DType dtype) {
  switch (dtype) {
    case DType::bf16: return CacheKind::bf16;
    case DType::f16: return CacheKind::f16;
    case DType::i8: return CacheKind::i8;
    case DType::f8e4m3: return CacheKind::f8e4m3;
    default: return CacheKind::f32;
  }
}

// Shorter runs of one head in a page are read slowly: the processor's prefetching starts anew with each. Then the heads
// of a page, which are adjacent in memory, are processed side by side.
constexpr std::int64_t kLongRunBytes = 16 << 10;

// Rows from which on arithmetic is the limit, not memory.
constexpr std::int64_t kFewRowsOfPages = 16;

// Some of the new tokens of one sequence.
struct TokenBlock {
  const CallSequence* sequence = nullptr;
  std::int64_t first = 0, tokens = 0;     // of the sequence's new tokens
  KeyGap unseen = {};                     // what the window hides from all of them
  std::vector<std::int64_t> chunks = {};  // beginnings of the chunks in which some key is seen

  std::int64_t position(std::int64_t i) const { return sequence->position + first + i; }
  std::int64_t key_end() const { return position(tokens); }
};

KeyGap key_gap(const KeyRange& range) { return {range.begin, std::max(range.begin, range.end)}; }

bool inside(std::int64_t begin, std::int64_t end, const KeyGap& gap) { return begin >= gap.begin && end <= gap.end; }

class AttendRun {
 public:
  AttendRun(const AttendCall& call, const DecodeTable& kernels)
      : call_(call),
        kernels_(kernels),
        shape_(call.shape),
        // Rows see every key up to their own; keys that the window hides are listed apart (`hidden`).
        rows_({.batch = 1, .heads = shape_.heads, .kv_heads = shape_.kv_heads}, call.params.logits, call.logit_scale,
              {.causal = true}),
        statistics_(call.stats),
        executor_(executor_of(call.execution)),
        tokens_per_block_(std::max<std::int64_t>(1, kMaxRows / shape_.group())),
        out_stride_((shape_.value_dim + 63) / 64 * 64) {
    for (const CallSequence& sequence : call.sequences) cut(sequence);
    block_rows_ = static_cast<int>((longest_block() * shape_.group() + kRowBlock - 1) / kRowBlock * kRowBlock);
    const std::int64_t run_bytes =
        shape_.page_size * shape_.head_dim * static_cast<std::int64_t>(size_of(call.k.dtype));
    if (run_bytes < kLongRunBytes && longest_block() * shape_.group() <= kFewRowsOfPages)
      heads_together_ = std::min<std::int64_t>(shape_.kv_heads, kMaxHeadsTogether);
    // Idle threads would cost more than memory read in short runs.
    if (chunk_count() / heads_together_ < 4 * executor_.threads()) heads_together_ = 1;
  }

  void run() {
    if (blocks_.empty()) return;
    if (!call_.rotation.empty()) {  // angles are computed once for all heads
      rotated_.resize(static_cast<std::size_t>(shape_.heads * shape_.tokens * shape_.head_dim));
      executor_.parallel_for(shape_.tokens, [this](std::int64_t row) { rotate_query(row); });
    }
    // Whole rows in one task where there are tasks enough; else a task a chunk. Both add the chunks in order: the
    // result has the same bits.
    const auto whole = static_cast<std::int64_t>(blocks_.size()) * head_groups();
    if (executor_.threads() == 1 || whole >= 4 * executor_.threads() || !chunks_fit()) {
      run_whole(whole);
    } else {
      run_chunks();
    }
  }

 private:
  // Rows, states and scratch of one key head of a task.
  struct HeadBuffers {
    QueryRow* rows;
    KeyGap* hidden;
    float* q;  // [rows, head_dim]
    RowStates state, chunk;
    void* scratch;
  };
  using Worker = std::vector<HeadBuffers>;  // buffers of one thread, one a key head

  std::int64_t longest_block() const {
    std::int64_t tokens = 0;
    for (const TokenBlock& block : blocks_) tokens = std::max(tokens, block.tokens);
    return tokens;
  }

  std::int64_t head_groups() const { return (shape_.kv_heads + heads_together_ - 1) / heads_together_; }

  // The key heads of a group.
  struct Heads {
    std::int64_t first, count;
  };
  Heads heads_of_group(std::int64_t group) const {
    const std::int64_t first = group * heads_together_;
    return {first, std::min(heads_together_, shape_.kv_heads - first)};
  }

  void cut(const CallSequence& sequence) {
    const KeyGap evicted{sequence.gap_begin, sequence.gap_end};
    for (std::int64_t first = 0; first < sequence.tokens; first += tokens_per_block_) {
      TokenBlock block{
          .sequence = &sequence, .first = first, .tokens = std::min(tokens_per_block_, sequence.tokens - first)};
      // The first token's window reaches farthest back.
      block.unseen = key_gap(key_gaps(sequence, call_.params, block.position(0)).hidden);
      for (std::int64_t begin = 0; begin < block.key_end(); begin += kChunkKeys) {
        const std::int64_t end = std::min<std::int64_t>(begin + kChunkKeys, block.key_end());
        if (!inside(begin, end, evicted) && !inside(begin, end, block.unseen)) block.chunks.push_back(begin);
      }
      blocks_.push_back(std::move(block));
    }
  }

  // q as floats, rotated: [kv_heads, tokens, group, head_dim], so that the rows of a task lie side by side.
  float* rotated(std::int64_t kv_head, std::int64_t row) {
    return rotated_.data() + (kv_head * shape_.tokens + row) * shape_.group() * shape_.head_dim;
  }

  void rotate_query(std::int64_t row) {
    const Rotation& rotation = call_.rotation;
    std::vector<double> cosine(rotation.frequency.size()), sine(rotation.frequency.size());
    std::vector<double> wide(static_cast<std::size_t>(shape_.head_dim));
    rotation.angles(position_of(row), cosine, sine);
    with_floating_type(call_.q.dtype, [&](auto type) {
      using T = decltype(type);
      const auto q = read<T, 4>(call_.q);
      for (std::int64_t head = 0; head < shape_.heads; ++head) {
        const T* from = &q(0, head, row, 0);
        float* to = rotated(head / shape_.group(), row) + head % shape_.group() * shape_.head_dim;
        for (std::size_t d = 0; d < wide.size(); ++d) wide[d] = to_double(from[d]);
        rotation.apply(wide, cosine, sine);
        for (std::size_t d = 0; d < wide.size(); ++d) to[d] = static_cast<float>(from_double<T>(wide[d]));
      }
    });
  }

  // The queries of a block and key head as floats: [tokens, group, head_dim].
  void widen_queries(const TokenBlock& block, std::int64_t kv_head, float* to) const {
    with_floating_type(call_.q.dtype, [&](auto type) {
      using T = decltype(type);
      const auto q = read<T, 4>(call_.q);
      for (std::int64_t r = 0; r < block.tokens * shape_.group(); ++r) {
        const std::int64_t head = kv_head * shape_.group() + r % shape_.group();
        const T* from = &q(0, head, block.sequence->row + block.first + r / shape_.group(), 0);
        for (std::int64_t d = 0; d < shape_.head_dim; ++d, ++to) *to = static_cast<float>(from[d]);
      }
    });
  }

  std::int64_t position_of(std::int64_t row) const {
    const auto after = std::upper_bound(call_.sequences.begin(), call_.sequences.end(), row,
                                        [](std::int64_t r, const CallSequence& sequence) { return r < sequence.row; });
    // Sequences without tokens begin at the same row as the next: the last one that begins here holds the row.
    const CallSequence& sequence = *(after - 1);
    return sequence.position + row - sequence.row;
  }

  std::size_t state_bytes() const {
    const auto rows = static_cast<std::size_t>(block_rows_);
    return 4 * Workspace::aligned(rows * sizeof(float)) +
           Workspace::aligned(rows * static_cast<std::size_t>(out_stride_) * sizeof(float));
  }

  std::size_t head_buffer_bytes() const {
    const auto rows = static_cast<std::size_t>(block_rows_);
    return Workspace::aligned(rows * sizeof(QueryRow)) + Workspace::aligned(rows * sizeof(KeyGap)) +
           Workspace::aligned(rows * static_cast<std::size_t>(shape_.head_dim) * sizeof(float)) +
           Workspace::aligned(scratch_bytes());
  }

  const DecodeFunction& kernel() const { return kernels_.kinds[static_cast<int>(cache_kind(call_.k.dtype))]; }

  std::size_t scratch_bytes() const {
    return kernel().scratch_bytes(static_cast<int>(shape_.head_dim), static_cast<int>(shape_.value_dim), block_rows_);
  }

  RowStates take_state(Workspace& memory) const {
    const auto rows = static_cast<std::size_t>(block_rows_);
    RowStates state;
    state.max = memory.take<float>(rows);
    state.sum = memory.take<float>(rows);
    state.weighted = memory.take<float>(rows);
    state.squares = memory.take<float>(rows);
    state.out = memory.take<float>(rows * static_cast<std::size_t>(out_stride_));
    state.out_stride = out_stride_;
    if (!statistics_.needs_sums()) state.weighted = state.squares = nullptr;
    return state;
  }

  HeadBuffers take_head_buffers(Workspace& memory) const {
    const auto rows = static_cast<std::size_t>(block_rows_);
    HeadBuffers buffers{};
    buffers.rows = memory.take<QueryRow>(rows);
    buffers.hidden = memory.take<KeyGap>(rows);
    buffers.q = memory.take<float>(rows * static_cast<std::size_t>(shape_.head_dim));
    buffers.scratch = memory.take<std::byte>(scratch_bytes());
    return buffers;
  }

  // Points the rows of the buffers at the block: row r is token r / group, head r % group of the key head.
  void set_rows(const HeadBuffers& buffers, const TokenBlock& block, std::int64_t kv_head) const {
    const SequenceRange range{.q_len = block.tokens, .kv_len = block.key_end(), .kv_visible = block.key_end()};
    for (std::int64_t i = 0; i < block.tokens; ++i) {
      const KeyGap hidden = key_gap(key_gaps(*block.sequence, call_.params, block.position(i)).hidden);
      for (std::int64_t g = 0; g < shape_.group(); ++g) {
        rows_.set(buffers.rows[i * shape_.group() + g], range, 0, kv_head * shape_.group() + g, i);
        buffers.hidden[i * shape_.group() + g] = hidden;
      }
    }
    if (call_.rotation.empty()) widen_queries(block, kv_head, buffers.q);
  }

  template <class T>
  static const T* page_part(const ConstTensorView& view, std::int64_t kv_head) {
    return view.defined()
               ? view.as<T>() + kv_head * view.stride(1) * static_cast<std::int64_t>(size_of(view.dtype) / sizeof(T))
               : nullptr;
  }

  // The chunk that begins there, of one key head.
  DecodeBlock chunk_work(const HeadBuffers& buffers, const TokenBlock& block, std::int64_t kv_head, std::int64_t begin,
                         const RowStates& state) {
    DecodeBlock work;
    work.rule = &rows_.rule();
    work.rows = buffers.rows;
    work.hidden = buffers.hidden;
    work.q = call_.rotation.empty() ? buffers.q : rotated(kv_head, block.sequence->row + block.first);
    work.q_is_bf16 = call_.q.dtype == DType::bf16;
    work.row_count = static_cast<int>(block.tokens * shape_.group());
    work.head_dim = static_cast<int>(shape_.head_dim);
    work.value_dim = static_cast<int>(shape_.value_dim);
    work.cache = {.k = page_part<std::byte>(call_.k, kv_head),
                  .v = page_part<std::byte>(call_.v, kv_head),
                  .k_scales = page_part<float>(call_.k_scales, kv_head),
                  .v_scales = page_part<float>(call_.v_scales, kv_head),
                  .k_page_stride = call_.k.stride(0),
                  .v_page_stride = call_.v.stride(0),
                  .scale_page_stride = call_.k_scales.defined() ? call_.k_scales.stride(0) : 0,
                  .k_row_stride = shape_.head_dim,
                  .v_row_stride = shape_.value_dim,
                  .pages = block.sequence->pages,
                  .page_size = shape_.page_size,
                  .kind = cache_kind(call_.k.dtype)};
    work.begin = begin;
    work.end = std::min<std::int64_t>(begin + kChunkKeys, block.key_end());
    work.fetch_end = block.key_end();  // the next chunks run on the same thread
    work.evicted = {block.sequence->gap_begin, block.sequence->gap_end};
    work.unseen = block.unseen;
    work.state = state;
    work.scratch = buffers.scratch;
    return work;
  }

  void merge(const RowStates& into, const RowStates& later, const TokenBlock& block) const {
    kernels_.merge(into, later, static_cast<int>(block.tokens * shape_.group()), static_cast<int>(shape_.value_dim));
  }

  // Statistics and output of a block whose keys have all been seen.
  void finish(const TokenBlock& block, std::int64_t kv_head, const RowStates& state) const {
    const ElementKind kind = element_kind(call_.out.dtype);
    const auto element = static_cast<std::int64_t>(size_of(call_.out.dtype));
    for (std::int64_t r = 0; r < block.tokens * shape_.group(); ++r) {
      const std::int64_t head = kv_head * shape_.group() + r % shape_.group();
      const std::int64_t row = block.sequence->row + block.first + r / shape_.group();
      const RowNormaliser normaliser = statistics_.finish({.max = state.max[r],
                                                           .sum = state.sum[r],
                                                           .weighted = state.weighted ? state.weighted[r] : 0.0f,
                                                           .squares = state.squares ? state.squares[r] : 0.0f,
                                                           .sink = rows_.sink(head)},
                                                          0, head, row);
      std::byte* out = call_.out.as<std::byte>() + (head * call_.out.stride(1) + row * call_.out.stride(2)) * element;
      kernels_.store_row(state.out + r * state.out_stride, normaliser.factor, static_cast<int>(shape_.value_dim), out,
                         kind);
    }
  }

  void run_whole(std::int64_t tasks) {
    const int workers = static_cast<int>(std::min<std::int64_t>(executor_.threads(), tasks));
    const auto heads = static_cast<std::size_t>(workers * heads_together_);
    Workspace memory(heads * (head_buffer_bytes() + 2 * state_bytes()));
    std::vector<Worker> buffers(static_cast<std::size_t>(workers));
    for (Worker& one : buffers) {
      for (std::int64_t h = 0; h < heads_together_; ++h) {
        one.push_back(take_head_buffers(memory));
        one.back().state = take_state(memory);
        one.back().chunk = take_state(memory);
      }
    }
    spread_tasks(executor_, workers, tasks, [&](std::int64_t s, std::int64_t task) {
      const Worker& own = buffers[static_cast<std::size_t>(s)];
      const TokenBlock& block = blocks_[static_cast<std::size_t>(task / head_groups())];
      const Heads heads = heads_of_group(task % head_groups());
      for (std::int64_t h = 0; h < heads.count; ++h) set_rows(own[static_cast<std::size_t>(h)], block, heads.first + h);
      for (std::size_t c = 0; c < block.chunks.size(); ++c) {
        DecodeBlock work[kMaxHeadsTogether];
        for (std::int64_t h = 0; h < heads.count; ++h) {
          const HeadBuffers& head = own[static_cast<std::size_t>(h)];
          work[h] = chunk_work(head, block, heads.first + h, block.chunks[c], c == 0 ? head.state : head.chunk);
        }
        kernel().run(work, static_cast<int>(heads.count));
        for (std::int64_t h = 0; c > 0 && h < heads.count; ++h) {
          merge(own[static_cast<std::size_t>(h)].state, own[static_cast<std::size_t>(h)].chunk, block);
        }
      }
      for (std::int64_t h = 0; h < heads.count; ++h) {
        finish(block, heads.first + h, own[static_cast<std::size_t>(h)].state);
      }
    });
  }

  // Chunks of all blocks and key heads.
  std::int64_t chunk_count() const {
    std::size_t chunks = 0;
    for (const TokenBlock& block : blocks_) chunks += block.chunks.size();
    return static_cast<std::int64_t>(chunks) * shape_.kv_heads;
  }

  // Whether there is memory for a state of every chunk.
  bool chunks_fit() const {
    constexpr std::size_t kEnough = std::size_t{256} << 20;
    const std::size_t limit = call_.execution.cpu.workspace_limit ? call_.execution.cpu.workspace_limit : kEnough;
    return static_cast<std::size_t>(chunk_count()) * state_bytes() <= limit;
  }

  void run_chunks() {
    // The chunks of one block and key head are adjacent in `states`.
    struct Task {
      const TokenBlock* block;
      Heads heads;
      std::size_t chunk;
      const RowStates* states;  // of the first head
    };
    struct Row {
      const TokenBlock* block;
      std::int64_t kv_head;
      const RowStates* states;
    };
    const auto count = static_cast<std::size_t>(chunk_count());
    const int workers = static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(executor_.threads()), count));
    Workspace memory(static_cast<std::size_t>(workers * heads_together_) * head_buffer_bytes() + count * state_bytes());
    std::vector<Worker> buffers(static_cast<std::size_t>(workers));
    for (Worker& one : buffers) {
      for (std::int64_t h = 0; h < heads_together_; ++h) one.push_back(take_head_buffers(memory));
    }
    std::vector<RowStates> states(count);
    for (RowStates& state : states) state = take_state(memory);
    std::vector<Task> tasks;
    std::vector<Row> rows;
    const RowStates* at = states.data();
    for (const TokenBlock& block : blocks_) {
      const std::size_t chunks = block.chunks.size();
      for (std::int64_t group = 0; group < head_groups(); ++group) {
        const Heads heads = heads_of_group(group);
        for (std::size_t c = 0; c < chunks; ++c) tasks.push_back({&block, heads, c, at});
        for (std::int64_t h = 0; h < heads.count; ++h, at += chunks) rows.push_back({&block, heads.first + h, at});
      }
    }
    spread_tasks(executor_, workers, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t s, std::int64_t index) {
      const Worker& own = buffers[static_cast<std::size_t>(s)];
      const Task& task = tasks[static_cast<std::size_t>(index)];
      const TokenBlock& block = *task.block;
      DecodeBlock work[kMaxHeadsTogether];
      for (std::int64_t h = 0; h < task.heads.count; ++h) {
        const HeadBuffers& head = own[static_cast<std::size_t>(h)];
        set_rows(head, block, task.heads.first + h);
        work[h] = chunk_work(head, block, task.heads.first + h, block.chunks[task.chunk],
                             task.states[static_cast<std::size_t>(h) * block.chunks.size() + task.chunk]);
      }
      kernel().run(work, static_cast<int>(task.heads.count));
    });
    executor_.parallel_for(static_cast<std::int64_t>(rows.size()), [&](std::int64_t i) {
      const Row& row = rows[static_cast<std::size_t>(i)];
      for (std::size_t c = 1; c < row.block->chunks.size(); ++c) merge(row.states[0], row.states[c], *row.block);
      finish(*row.block, row.kv_head, row.states[0]);
    });
  }

  const AttendCall& call_;
  const DecodeTable& kernels_;
  KvShape shape_;
  QueryRows rows_;
  RowStatistics statistics_;
  Executor& executor_;
  std::int64_t tokens_per_block_, out_stride_;
  std::int64_t heads_together_ = 1;  // key heads that a task walks side by side; bits do not depend on it
  int block_rows_ = 0;
  std::vector<TokenBlock> blocks_;
  std::vector<float> rotated_;
};

}  // namespace

void run_attend(const AttendCall& call, const DecodeTable& kernels) { AttendRun(call, kernels).run(); }

}  // namespace rootdk::cpu
