#pragma once

// One forward call: its memory and its order of work. The call runs in rounds. A round packs the keys and values of a
// few batch heads, then runs blocks of query rows over them; both are spread over the workers, one worker a thread.

#include <vector>

#include "cpu/forward_plan.h"
#include "cpu/query_rows.h"
#include "cpu/row_statistics.h"
#include "cpu/spread_tasks.h"
#include "cpu/workspace.h"

namespace rootdk::cpu {

class ForwardRun {
 public:
  ForwardRun(const ForwardCall& call, const KernelTable& kernels, Executor& executor);
  void run();

 private:
  // One worker: the working memory of one thread.
  struct Worker {
    void* scratch = nullptr;
    void* packed_q = nullptr;
    QueryRow* rows = nullptr;
    RowStates state;
    float* sums = nullptr;        // pooled map: [rows, segments]
    float* maxima = nullptr;      // pooled map: [rows, segments]
    float* factors = nullptr;     // [rows]
    float* row_max = nullptr;     // [rows] of the second pass
    float* row_scale = nullptr;   // [rows] of the second pass
    float* normalised = nullptr;  // cosine: rows divided by their length
    float* columns = nullptr;     // [tile]
  };

  // One key head of one sequence of the batch.
  struct BatchHead {
    std::int64_t sequence = 0, kv_head = 0;
    SequenceRange range;
    std::int64_t buffer = 0;  // which of the packed buffers is its own
    RowBlocks blocks;
    KeyRange keys;  // that any row sees
  };
  // What is computed at once: batch heads from first_head on, packed into buffers from first_buffer on, of each the
  // tiles [tile_begin, tile_end) and the rows [row_begin, row_end).
  struct Round {
    std::int64_t first_head = 0, batch_heads = 0, first_buffer = 0;
    std::int64_t tile_begin = 0, tile_end = 0;
    std::int64_t row_begin = 0, row_end = 0;
  };

  Worker take_worker();
  RowStates take_states(std::size_t rows);
  BatchHead batch_head(const Round& round, std::int64_t index) const;
  // Hands out tasks to the workers; which worker takes which task changes no result.
  template <class Body>
  void spread(std::int64_t tasks, Body body) {
    spread_tasks(executor_, plan_.workers, tasks, [&](std::int64_t worker, std::int64_t task) {
      body(workers_[static_cast<std::size_t>(worker)], task);
    });
  }

  void run_head(std::int64_t worker, std::int64_t number);
  void run_rounds(std::int64_t first_head, std::int64_t batch_heads);
  void pack(const Round& round, bool values);
  void pack_tile(const Worker& worker, const BatchHead& batch_head, std::int64_t tile, const Round& round, bool values);
  void attend(const Round& round);
  void attend_block(Worker& worker, const BatchHead& batch_head, std::int64_t block, const Round& round);
  ForwardBlock make_block(const Worker& worker, const BatchHead& batch_head, const Round& round, int rows) const;
  PackedKeys packed(const BatchHead& batch_head, const Round& round) const;
  SoonNeeded soon_needed(const ForwardBlock& block, Round round, std::int64_t block_number) const;
  void set_row(QueryRow& row, const BatchHead& batch_head, std::int64_t r) const;
  void set_queries(const Worker& worker, ForwardBlock& block) const;
  void pack_queries(const Worker& worker, ForwardBlock& block) const;
  bool in_place(const ForwardBlock& block) const;
  bool copies_carried() const;
  void carry(const Worker& worker, ForwardBlock& block, std::int64_t first_row) const;
  void keep_carried(const ForwardBlock& block, std::int64_t first_row) const;
  void reset(const ForwardBlock& block) const;
  void finish(const Worker& worker, const ForwardBlock& block, const BatchHead& batch_head, std::int64_t first_row);

  // The pooled map: segments of a row's keys, and the cell row that is being summed.
  void make_segments();
  void pool_row(const ForwardBlock& block, const BatchHead& batch_head, std::int64_t r, int local,
                RowNormaliser normaliser);
  void flush_cells(const BatchHead& batch_head, std::int64_t map_row);

  // The second pass: column_mass and weights, from the normalisers of the first.
  void second_pass(const Round& round);
  void column_mass(Worker& worker, const BatchHead& batch_head, std::int64_t tile, const Round& round);
  void exact_weights(Worker& worker, const BatchHead& batch_head, const Round& round);
  void clear_maps();
  std::int64_t normaliser_index(const BatchHead& batch_head, std::int64_t r) const {
    return batch_head.buffer * plan_.rows + r;
  }

  const ForwardCall& call_;
  const KernelTable& kernels_;
  Executor& executor_;
  ForwardPlan plan_;
  QueryRows query_rows_;
  RowStatistics statistics_;
  Workspace workspace_;
  std::vector<Worker> workers_;
  std::byte* packed_keys_ = nullptr;
  std::byte* packed_values_ = nullptr;
  std::uint8_t* not_finite_ = nullptr;
  Worker between_;                        // states of round_rows rows, where the keys take several rounds
  RowNormaliser* normalisers_ = nullptr;  // [round_heads, rows]
  std::vector<std::int64_t> segment_bounds_;
  std::vector<std::int64_t> segment_cells_;
  std::vector<std::vector<double>> cells_;  // per buffer: [group, columns] of the cell row that is being summed
  std::vector<std::int64_t> cell_row_;
};

}  // namespace rootdk::cpu
