#pragma once

// One backward call: its memory and its order of work. A task is one block of query rows of one batch head. It goes
// through the blocks of keys in order and adds to their gradients; it may enter a block only after the task before it
// has left it. So every sum has one order for any number of threads, without atomics or partial sums.

#include <atomic>
#include <vector>

#include "core/strided.h"
#include "cpu/backward_plan.h"
#include "cpu/query_rows.h"
#include "cpu/spread_tasks.h"
#include "cpu/workspace.h"

namespace rootdk::cpu {

class BackwardRun {
 public:
  BackwardRun(const BackwardCall& call, const BackwardTable& kernels, Executor& executor);
  void run();

 private:
  // Sums of the parameters' gradients of one batch head, for each query head of its group.
  struct ParameterSums {
    double* sinks = nullptr;     // [group]
    double* alibi = nullptr;     // [group]
    double* relative = nullptr;  // [group, entries]
    double* additive = nullptr;  // [group, additive_columns]; a task has its own in f32
  };
  // A block of keys in memory: its operands and its gradients.
  struct KeyBlock {
    std::byte* k = nullptr;
    std::byte* k_rows = nullptr;
    std::byte* v = nullptr;
    float* grad_k = nullptr;
    float* grad_v = nullptr;
    bool* k_not_finite = nullptr;
  };
  // Working memory of one thread.
  struct Worker {
    void* scratch = nullptr;
    BackwardRow* rows = nullptr;
    float* bias_sums = nullptr;  // [rows]
    std::byte* q_left = nullptr;
    std::byte* grad_out_left = nullptr;
    std::byte* q_rows = nullptr;
    std::byte* grad_out_rows = nullptr;
    float* grad_q = nullptr;      // [rows, head_columns]
    ParameterSums sums;           // of the task in work
    float* additive = nullptr;    // [group, additive_columns] of the task in work
    float* normalised = nullptr;  // cosine: rows divided by their length
    KeyBlock keys;                // two sweeps: every worker packs its own
  };
  // One key head of one sequence of the batch.
  struct BatchHead {
    std::int64_t sequence = 0, kv_head = 0;
    SequenceRange range;
    std::int64_t buffer = 0;  // its index in key_blocks_ and head_sums_
    QueryBlocks blocks;
  };
  // Which gradients a sweep adds to: those of the keys, those of the queries with what is summed over keys, or both.
  struct Sweep {
    bool keys = true, queries = true;
  };
  // A block of queries, ready for the kernel.
  struct QueryBlock {
    std::int64_t first_row = 0;
    BackwardQueries queries;
    KeyRange keys;  // that any row sees
  };

  Worker take_worker();
  ParameterSums take_sums();
  KeyBlock take_key_block();
  BatchHead batch_head(std::int64_t number, std::int64_t buffer) const;
  std::int64_t key_blocks(const BatchHead& batch_head) const;
  template <class Body>
  void spread(std::int64_t tasks, Body body) {
    spread_tasks(executor_, plan_.workers, tasks, [&](std::int64_t worker, std::int64_t task) {
      body(workers_[static_cast<std::size_t>(worker)], task);
    });
  }

  // A task in the order of all tasks of a round, and the one that goes through the blocks of keys before it.
  struct Turn {
    std::int64_t number = 0, before = -1;
  };

  void run_round(std::int64_t first_head, std::int64_t batch_heads);
  void run_task(Worker& worker, const BatchHead& batch_head, std::int64_t block, Turn turn);
  void wait_for(std::int64_t task, std::int64_t progress) const;
  void run_two_sweeps();
  void sweep_keys(Worker& worker, const BatchHead& batch_head, std::int64_t block);
  void sweep_queries(Worker& worker, const BatchHead& batch_head, std::int64_t block);
  bool meet(const QueryBlock& queries, std::int64_t block) const;
  void attend(const Worker& worker, const QueryBlock& queries, const BatchHead& batch_head, std::int64_t block,
              const KeyBlock& keys, Sweep sweep) const;

  void pack_keys(const Worker& worker, const BatchHead& batch_head, std::int64_t block, const KeyBlock& to) const;
  void store_keys(const Worker& worker, const BatchHead& batch_head, std::int64_t block, const KeyBlock& from) const;
  QueryBlock prepare(Worker& worker, const BatchHead& batch_head, std::int64_t block, Sweep sweep) const;
  void dots_with_out(const BatchHead& batch_head, std::int64_t first_row, int count, float* dots) const;
  BackwardRow make_row(const Worker& worker, const BatchHead& batch_head, std::int64_t r, float dot) const;
  void set_gradients(const Worker& worker, const BatchHead& batch_head, std::int64_t r, Sweep sweep,
                     BackwardRow& row) const;
  void pack_queries(const Worker& worker, const BatchHead& batch_head, std::int64_t first_row,
                    BackwardQueries& queries) const;
  void store_queries(const Worker& worker, const QueryBlock& block, const BatchHead& batch_head) const;
  void add_task_sums(const Worker& worker, const QueryBlock& block, const BatchHead& batch_head);
  void clear(const ParameterSums& sums) const;

  void prepare_parameters();
  void clear_outputs();
  void add_head_sums(const BatchHead& batch_head);
  void store_parameters();
  bool bias_is_summed_over_keys() const;
  float* bias_at(std::int64_t sequence, std::int64_t head, std::int64_t i) const;

  const BackwardCall& call_;
  const BackwardTable& kernels_;
  Executor& executor_;
  BackwardPlan plan_;
  QueryRows query_rows_;
  Workspace workspace_;
  Strided<const float, 3> lse_, entropy_, grad_lse_, grad_entropy_;
  std::vector<Worker> workers_;
  std::vector<KeyBlock> key_blocks_;                 // [round_heads, key_blocks]
  std::vector<ParameterSums> head_sums_;             // [round_heads]
  std::vector<std::atomic<std::int64_t>> progress_;  // [tasks]: blocks of keys that a task has left behind
  TensorView bias_sums_;         // f32 gradient of the bias: the caller's, or a buffer where that is of 16 bits
  TensorView bias_;              // the same, broadcast to [batch, heads, q_len, kv_len]
  float* additive_v_ = nullptr;  // [heads, additive_columns]
  // Of the whole call, in the shapes of the gradients.
  std::vector<double> sinks_, alibi_, relative_, additive_;
};

}  // namespace rootdk::cpu
