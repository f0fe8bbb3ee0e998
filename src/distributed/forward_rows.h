#pragma once

// The rows of out that one rank computes. On kernels that carry rows each goes on from chunk to chunk, in the order of
// attend() calls; elsewhere (f64, the reference) it merges the results of its chunks in that order.

#include <optional>
#include <vector>

#include "distributed/carried_rows.h"
#include "distributed/weight_maps.h"

namespace rootdk::distributed {

// What a rank computes: some rows of some heads of the whole.
struct RowsHere {
  ConstTensorView q{};             // [batch, heads here, rows here, head_dim]
  TensorView out{};                // [batch, heads here, rows here, value_dim]
  AttentionStats stats{};          // of the rows
  std::int64_t first_head = 0;     // of the whole
  std::vector<LocalRun> blocks{};  // of queries
  WeightMaps* maps = nullptr;      // takes the same tiles; null: not asked for
};

class ForwardRows {
 public:
  ForwardRows(const Whole& whole, const Tiles& tiles, const RowsHere& rows, Executor& executor);

  // k and v [batch, kv_heads from first_kv_head on, keys of the run, width].
  void attend(const Run& keys, const ConstTensorView& k, const ConstTensorView& v, std::int64_t first_kv_head);
  // Divides, takes the sinks [heads of the whole] in, and writes out and the statistics.
  void finish(const ConstTensorView& sinks);

 private:
  // The sums of a row so far, relative to exp(top).
  struct RowState {
    double top, sum = 0;
    double entropy = 0;  // sum of e (H - lse) over chunks, e = exp(lse - top)
    double squares = 0;  // sum of e^2 sum_p2
    double max_logit;
  };
  template <class T>
  void attend_tile(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v);
  template <class T>
  void merge(RowState& state, T* sum, const T* out, const double* statistics) const;
  template <class T>
  void finish_row(std::int64_t b, std::int64_t h, std::int64_t i, double sink) const;
  template <class T>
  T* sums(std::int64_t b, std::int64_t h, std::int64_t i) const;
  RowState& state(std::int64_t b, std::int64_t h, std::int64_t i);
  const RowState& state(std::int64_t b, std::int64_t h, std::int64_t i) const;

  const Whole& whole_;
  const Tiles& tiles_;
  RowsHere rows_;
  Executor& executor_;
  std::int64_t heads_, length_;
  bool needs_entropy_, needs_squares_, needs_max_;
  std::optional<RowsCarried> carried_;  // in place of what follows
  std::vector<RowState> states_;        // [batch, heads here, rows here]
  Tensor sums_;                         // [batch, heads here, rows here, value_dim] in f32, where out has 16 bits
};

}  // namespace rootdk::distributed
