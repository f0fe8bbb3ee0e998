#include "cpu/few_queries.h"

#include <algorithm>
#include <vector>

#include "core/strided.h"
#include "cpu/query_rows.h"
#include "cpu/row_pointer.h"
#include "cpu/row_statistics.h"
#include "cpu/spread_tasks.h"
#include "cpu/workspace.h"

namespace rootdk::cpu {
namespace {

// The rows of a key head (queries times the heads that share it) up to which packing does not pay.
constexpr std::int64_t kMostRows = 16;

// Rows that are computed together, as in attend(): what a row gives does not depend on it.
constexpr std::int64_t kRowsTogether = 384;

constexpr std::int32_t kOnePage[] = {0};
constexpr std::int64_t kPageOfAnyLength = std::int64_t{1} << 62;

CacheKind cache_kind(DType dtype) {
  return dtype == DType::bf16 ? CacheKind::bf16 : dtype == DType::f16 ? CacheKind::f16 : CacheKind::f32;
}

class FewQueriesRun {
 public:
  FewQueriesRun(const ForwardCall& call, const DecodeTable& kernels)
      : call_(call),
        kernels_(kernels),
        shape_(call.shape),
        query_rows_(shape_, call_.params, call.logit_scale, {}),
        statistics_(call_.stats),
        executor_(executor_of(call.execution)),
        out_stride_((shape_.value_dim + 63) / 64 * 64),
        most_chunks_(std::max<std::int64_t>(1, (shape_.kv_len + kChunkKeys - 1) / kChunkKeys)) {
    for (std::int64_t sequence = 0; sequence < shape_.batch; ++sequence) cut(sequence);
  }

  void run() {
    const auto tasks = static_cast<std::int64_t>(blocks_.size());
    if (tasks == 0) return;
    // Whole rows in one task where there are tasks enough; else a task a chunk. Both add the chunks in order: the
    // result has the same bits.
    const int threads = executor_.threads();
    if (threads == 1 || most_chunks_ == 1 || tasks >= 4 * threads || !chunks_fit(tasks)) {
      run_whole(tasks);
    } else {
      run_chunks(tasks);
    }
  }

 private:
  // Some queries of one sequence and key head.
  struct QueryBlock {
    SequenceRange range;
    std::int64_t sequence = 0, kv_head = 0;
    std::int64_t first = 0, queries = 0;
    std::int64_t begin = 0, end = 0;  // keys that some row attends to
    std::int64_t first_chunk = 0, chunks = 1;
  };

  struct WorkerBuffers {
    QueryRow* rows;
    KeyGap* hidden;
    float* q;
    RowStates state, chunk;
    std::byte* scratch;
  };

  void cut(std::int64_t sequence) {
    const SequenceRange range = sequence_range(shape_, call_.params, sequence);
    const std::int64_t most = std::max<std::int64_t>(1, kRowsTogether / shape_.group());
    for (std::int64_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      for (std::int64_t first = 0; first < range.q_len; first += most) {
        QueryBlock block{.range = range, .sequence = sequence, .kv_head = kv_head, .first = first};
        block.queries = std::min(most, range.q_len - first);
        see_keys(block);
        blocks_.push_back(block);
        const std::int64_t rows = rows_of(block);
        padded_rows_ = std::max(padded_rows_, (rows + kRowBlock - 1) / kRowBlock * kRowBlock);
      }
    }
  }

  void see_keys(QueryBlock& block) const {
    // Later queries neither begin nor end earlier.
    block.begin = key_range(block.range, window_of(call_.params), block.first).begin;
    block.end = key_range(block.range, window_of(call_.params), block.first + block.queries - 1).end;
    if (block.end <= block.begin) {
      block.begin = block.end = 0;
      return;
    }
    block.first_chunk = block.begin / kChunkKeys;
    block.chunks = (block.end + kChunkKeys - 1) / kChunkKeys - block.first_chunk;
  }

  std::int64_t rows_of(const QueryBlock& block) const { return block.queries * shape_.group(); }

  std::size_t state_bytes() const {
    const auto rows = static_cast<std::size_t>(padded_rows_);
    return 4 * Workspace::aligned(rows * sizeof(float)) +
           Workspace::aligned(rows * static_cast<std::size_t>(out_stride_) * sizeof(float));
  }

  const DecodeFunction& kernel() const { return kernels_.kinds[static_cast<int>(cache_kind(call_.k.dtype))]; }

  std::size_t scratch_bytes() const {
    return kernel().scratch_bytes(static_cast<int>(shape_.head_dim), static_cast<int>(shape_.value_dim),
                                  static_cast<int>(padded_rows_));
  }

  std::size_t buffers_bytes() const {
    const auto rows = static_cast<std::size_t>(padded_rows_);
    return Workspace::aligned(rows * sizeof(QueryRow)) + Workspace::aligned(rows * sizeof(KeyGap)) +
           Workspace::aligned(rows * static_cast<std::size_t>(shape_.head_dim) * sizeof(float)) +
           Workspace::aligned(scratch_bytes());
  }

  RowStates take_state(Workspace& memory) const {
    const auto rows = static_cast<std::size_t>(padded_rows_);
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

  WorkerBuffers take_buffers(Workspace& memory) const {
    const auto rows = static_cast<std::size_t>(padded_rows_);
    WorkerBuffers buffers{};
    buffers.rows = memory.take<QueryRow>(rows);
    buffers.hidden = memory.take<KeyGap>(rows);
    buffers.q = memory.take<float>(rows * static_cast<std::size_t>(shape_.head_dim));
    buffers.scratch = memory.take<std::byte>(scratch_bytes());
    std::fill_n(buffers.hidden, rows, KeyGap{});
    return buffers;
  }

  // Row r is query r / group of head r % group of the key head.
  void set_rows(const WorkerBuffers& buffers, const QueryBlock& block) const {
    const std::int64_t group = shape_.group(), head_dim = shape_.head_dim;
    for (std::int64_t r = 0; r < rows_of(block); ++r) {
      const std::int64_t head = block.kv_head * group + r % group, i = block.first + r / group;
      query_rows_.set(buffers.rows[r], block.range, block.sequence, head, i);
      const std::byte* from = row_pointer(call_.q, block.range.batch_entry, head, block.range.q_begin + i);
      with_floating_type(call_.q.dtype, [&](auto type) {
        const auto* elements = reinterpret_cast<const decltype(type)*>(from);
        for (std::int64_t d = 0; d < head_dim; ++d) buffers.q[r * head_dim + d] = static_cast<float>(elements[d]);
      });
    }
  }

  void run_chunk(const WorkerBuffers& buffers, const QueryBlock& block, std::int64_t chunk,
                 const RowStates& state) const {
    DecodeBlock work;
    work.rule = &query_rows_.rule();
    work.rows = buffers.rows;
    work.hidden = buffers.hidden;
    work.q = buffers.q;
    work.q_is_bf16 = call_.q.dtype == DType::bf16;
    work.row_count = static_cast<int>(rows_of(block));
    work.head_dim = static_cast<int>(shape_.head_dim);
    work.value_dim = static_cast<int>(shape_.value_dim);
    work.cache.k = row_pointer(call_.k, block.range.batch_entry, block.kv_head, block.range.kv_begin);
    work.cache.v = row_pointer(call_.v, block.range.batch_entry, block.kv_head, block.range.kv_begin);
    work.cache.k_row_stride = call_.k.stride(2);
    work.cache.v_row_stride = call_.v.stride(2);
    work.cache.pages = kOnePage;
    work.cache.page_size = kPageOfAnyLength;
    work.cache.kind = cache_kind(call_.k.dtype);
    work.begin = (block.first_chunk + chunk) * kChunkKeys;
    work.end = std::min<std::int64_t>(work.begin + kChunkKeys, block.end);
    work.fetch_end = block.end;
    work.unseen = {0, block.begin};
    work.state = state;
    work.scratch = buffers.scratch;
    kernel().run(&work, 1);
  }

  void merge(const RowStates& into, const RowStates& later, const QueryBlock& block) const {
    kernels_.merge(into, later, static_cast<int>(rows_of(block)), static_cast<int>(shape_.value_dim));
  }

  // Statistics and output of a block whose keys have all been added.
  void finish(const QueryBlock& block, const RowStates& state) const {
    const ElementKind kind = element_kind(call_.out.dtype);
    for (std::int64_t r = 0; r < rows_of(block); ++r) {
      const std::int64_t head = block.kv_head * shape_.group() + r % shape_.group();
      const std::int64_t i = block.range.q_begin + block.first + r / shape_.group();
      const RowNormaliser normaliser = statistics_.finish({.max = state.max[r],
                                                           .sum = state.sum[r],
                                                           .weighted = state.weighted ? state.weighted[r] : 0.0f,
                                                           .squares = state.squares ? state.squares[r] : 0.0f,
                                                           .sink = query_rows_.sink(head)},
                                                          block.range.batch_entry, head, i);
      kernels_.store_row(state.out + r * state.out_stride, normaliser.factor, static_cast<int>(shape_.value_dim),
                         row_pointer(call_.out, block.range.batch_entry, head, i), kind);
    }
  }

  void run_whole(std::int64_t tasks) const {
    const int workers = static_cast<int>(std::min<std::int64_t>(executor_.threads(), tasks));
    Workspace memory(static_cast<std::size_t>(workers) * (buffers_bytes() + 2 * state_bytes()));
    std::vector<WorkerBuffers> buffers(static_cast<std::size_t>(workers));
    for (WorkerBuffers& one : buffers) {
      one = take_buffers(memory);
      one.state = take_state(memory);
      one.chunk = take_state(memory);
    }
    spread_tasks(executor_, workers, tasks, [&](std::int64_t s, std::int64_t index) {
      const WorkerBuffers& own = buffers[static_cast<std::size_t>(s)];
      // The last queries of a causal sequence see the most keys: they go first.
      const QueryBlock& task = blocks_[static_cast<std::size_t>(tasks - 1 - index)];
      set_rows(own, task);
      run_chunk(own, task, 0, own.state);
      for (std::int64_t c = 1; c < task.chunks; ++c) {
        run_chunk(own, task, c, own.chunk);
        merge(own.state, own.chunk, task);
      }
      finish(task, own.state);
    });
  }

  // Whether every chunk can have its own state.
  bool chunks_fit(std::int64_t blocks) const {
    constexpr std::size_t kEnough = std::size_t{256} << 20;
    const std::size_t limit = call_.execution.cpu.workspace_limit ? call_.execution.cpu.workspace_limit : kEnough;
    return static_cast<std::size_t>(blocks * most_chunks_) * state_bytes() <= limit;
  }

  void run_chunks(std::int64_t blocks) const {
    const std::int64_t tasks = blocks * most_chunks_;
    const int workers = static_cast<int>(std::min<std::int64_t>(executor_.threads(), tasks));
    Workspace memory(static_cast<std::size_t>(workers) * buffers_bytes() +
                     static_cast<std::size_t>(tasks) * state_bytes());
    std::vector<WorkerBuffers> buffers(static_cast<std::size_t>(workers));
    for (WorkerBuffers& one : buffers) one = take_buffers(memory);
    std::vector<RowStates> states(static_cast<std::size_t>(tasks));  // [blocks, most_chunks]
    for (RowStates& state : states) state = take_state(memory);
    spread_tasks(executor_, workers, tasks, [&](std::int64_t s, std::int64_t index) {
      const QueryBlock& task = blocks_[static_cast<std::size_t>(index / most_chunks_)];
      const std::int64_t chunk = index % most_chunks_;
      if (chunk >= task.chunks) return;
      const WorkerBuffers& own = buffers[static_cast<std::size_t>(s)];
      set_rows(own, task);
      run_chunk(own, task, chunk, states[static_cast<std::size_t>(index)]);
    });
    executor_.parallel_for(blocks, [&](std::int64_t index) {
      const QueryBlock& task = blocks_[static_cast<std::size_t>(index)];
      const RowStates* own = &states[static_cast<std::size_t>(index * most_chunks_)];
      for (std::int64_t c = 1; c < task.chunks; ++c) merge(own[0], own[c], task);
      finish(task, own[0]);
    });
  }

  const ForwardCall& call_;
  const DecodeTable& kernels_;
  AttentionShape shape_;
  QueryRows query_rows_;
  RowStatistics statistics_;
  Executor& executor_;
  std::int64_t padded_rows_ = 0;  // of the largest block
  std::int64_t out_stride_, most_chunks_;
  std::vector<QueryBlock> blocks_;
};

}  // namespace

std::string refuse_few_queries(const ForwardCall& call, bool asked_for) {
  const AttentionShape& shape = call.shape;
  if (shape.origin.is_tile) return "the call is a tile of a larger one";
  if (!asked_for && shape.packed) return "packed sequences run on it where it is asked for by name";
  if (!asked_for && shape.q_len * shape.group() > kMostRows) {
    return std::to_string(shape.q_len) + " queries of " + std::to_string(shape.group()) +
           " heads for each key head are more than " + std::to_string(kMostRows) +
           " rows, which run on it where it is asked for by name";
  }
  if (call.params.score != Score::dot) return "it has the dot score alone";
  if (call.dropout.threshold) return "it has no dropout";
  if (call.params.compute == DType::f8e4m3) return "it does not round weights to f8e4m3";
  return "";
}

void run_few_queries(const ForwardCall& call, const DecodeTable& kernels) { FewQueriesRun(call, kernels).run(); }

}  // namespace rootdk::cpu
