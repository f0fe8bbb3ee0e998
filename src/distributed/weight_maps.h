#pragma once

// The attention weights of the rows that a rank computes: as they are, and pooled into a map of the whole. Each tile is
// computed once more for them, with the weights and the lse of its own keys; the lse of the whole row comes last.

#include <vector>

#include "distributed/exact_sum.h"
#include "distributed/tile.h"

namespace rootdk::distributed {

class WeightMaps {
 public:
  // q [batch, heads here, rows here, head_dim], from first_head of the whole on.
  WeightMaps(const Whole& whole, const Tiles& tiles, const ConstTensorView& q, std::int64_t first_head,
             const AttentionStats& stats, const ConstTensorView& weight_rows);

  static bool asked_for(const AttentionStats& stats) { return stats.pooled_map.defined() || stats.weights.defined(); }

  // Tiles of different rows may come at once; those of a row come in order of their keys.
  void attend(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v);
  // lse [batch, heads here, rows here] of the whole rows.
  void finish(const std::vector<LocalRun>& blocks, const ConstTensorView& lse, Executor& executor);
  // Adds up the pooled map of all ranks.
  void share(Transport& transport, double timeout_seconds);

 private:
  struct Chosen {
    std::int64_t row = 0;    // of this rank
    std::int64_t index = 0;  // in stats.weights
  };
  template <class T>
  void attend_tile(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v);
  template <class T>
  void pool(const TilePlace& place, std::int64_t row, double lse, const T* weights, std::int64_t keys);
  template <class T>
  void keep(const TilePlace& place, std::int64_t row, double lse, const T* weights, std::int64_t keys);
  template <class T>
  void finish_pooled(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t query, double lse);
  template <class T>
  void finish_weights(std::int64_t b, std::int64_t h, const Chosen& chosen, const Sequence& sequence, double lse);
  std::size_t at(std::int64_t b, std::int64_t h, std::int64_t row) const {
    return static_cast<std::size_t>((b * heads_ + h) * rows_ + row);
  }
  double& chunk_lse(std::int64_t b, std::int64_t h, std::int64_t index, std::int64_t chunk);

  const Whole& whole_;
  const Tiles& tiles_;
  ConstTensorView q_;
  std::int64_t first_head_, heads_, rows_;
  TensorView map_, weights_;
  bool every_row_;              // of the weights
  std::vector<Chosen> chosen_;  // sorted by row
  std::int64_t chunks_ = 0;     // of the longest sequence
  std::vector<double> lse_;     // [batch, heads, chosen rows, chunks]
  std::vector<double> tops_;    // [batch, heads, rows]: what the cells of a row are relative to
  Tensor cells_;                // [batch, heads, rows, columns of the map]
  std::vector<UnitSum> sums_;   // [batch, heads of the whole, rows of the map, columns]
};

}  // namespace rootdk::distributed
