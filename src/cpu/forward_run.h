#pragma once

// One forward call at work: the memory it took, and its steps. Keys and values of a few (sequence, key head) pairs are
// packed, then blocks of rows run over them; both steps are spread over the slots, one a thread.

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
  // Working memory of one thread.
  struct Slot {
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

  // A sequence and one of its key heads.
  struct Pair {
    std::int64_t sequence = 0, kv_head = 0;
    SequenceSpan span;
    std::int64_t place = 0;  // where its packed keys lie
    RowBlocks blocks;
    KeyRange keys;  // that any row sees
  };
  // What is in work: pairs [first_pair, first_pair + pairs), packed from place `first_place` on, their tiles
  // [tile_begin, tile_end), their rows [row_begin, row_end).
  struct Step {
    std::int64_t first_pair = 0, pairs = 0, first_place = 0;
    std::int64_t tile_begin = 0, tile_end = 0;
    std::int64_t row_begin = 0, row_end = 0;
  };

  Slot take_slot();
  RowStates take_states(std::size_t rows);
  Pair pair(const Step& step, std::int64_t index) const;
  // Hands out task numbers to the slots; which slot takes which task changes no result.
  template <class Body>
  void spread(std::int64_t tasks, Body body) {
    spread_tasks(executor_, plan_.slots, tasks,
                 [&](std::int64_t slot, std::int64_t task) { body(slots_[static_cast<std::size_t>(slot)], task); });
  }

  void run_pair(std::int64_t slot, std::int64_t number);
  void run_chunk(std::int64_t first_pair, std::int64_t pairs);
  void pack(const Step& step, bool values);
  void pack_tile(const Slot& slot, const Pair& pair, std::int64_t tile, const Step& step, bool values);
  void attend(const Step& step);
  void attend_block(Slot& slot, const Pair& pair, std::int64_t block, const Step& step);
  ForwardBlock make_block(const Slot& slot, const Pair& pair, const Step& step, int rows) const;
  PackedKeys packed(const Pair& pair, const Step& step) const;
  SoonNeeded soon_needed(const ForwardBlock& block, Step step, std::int64_t block_number) const;
  void set_row(QueryRow& row, const Pair& pair, std::int64_t r) const;
  void set_queries(const Slot& slot, ForwardBlock& block) const;
  void pack_queries(const Slot& slot, ForwardBlock& block) const;
  bool in_place(const ForwardBlock& block) const;
  void reset(const ForwardBlock& block) const;
  void finish(const Slot& slot, const ForwardBlock& block, const Pair& pair, std::int64_t first_row);

  // The pooled map: segments of a row's keys, and the cell row that is being summed.
  void make_segments();
  void pool_row(const ForwardBlock& block, const Pair& pair, std::int64_t r, int local, RowNormaliser normaliser);
  void flush_cells(const Pair& pair, std::int64_t map_row);

  // The second pass: column_mass and weights, from the normalisers of the first.
  void second_pass(const Step& step);
  void column_mass(Slot& slot, const Pair& pair, std::int64_t tile, const Step& step);
  void exact_weights(Slot& slot, const Pair& pair, const Step& step);
  void clear_maps();
  std::int64_t normaliser_index(const Pair& pair, std::int64_t r) const { return pair.place * plan_.rows + r; }

  const ForwardCall& call_;
  const KernelTable& kernels_;
  Executor& executor_;
  ForwardPlan plan_;
  QueryRows query_rows_;
  RowStatistics statistics_;
  Workspace workspace_;
  std::vector<Slot> slots_;
  std::byte* packed_keys_ = nullptr;
  std::byte* packed_values_ = nullptr;
  std::uint8_t* not_finite_ = nullptr;
  Slot between_;                          // states of chunk_rows rows, where the keys come in several spans
  RowNormaliser* normalisers_ = nullptr;  // [chunk_pairs, rows]
  std::vector<std::int64_t> segment_bounds_;
  std::vector<std::int64_t> segment_cells_;
  std::vector<std::vector<double>> cells_;  // per pair of the chunk: [group, columns] of the cell row in work
  std::vector<std::int64_t> cell_row_;
};

}  // namespace rootdk::cpu
