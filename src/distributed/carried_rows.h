#pragma once

// Rows of out that go from chunk to chunk in the kernels' own sums: they have the bits of one call of attention().

#include <vector>

#include "distributed/tile.h"

namespace rootdk::distributed {

class RowsCarried {
 public:
  // out [batch, heads here, rows here, value_dim] and the statistics of its rows; heads from first_head on.
  RowsCarried(const Whole& whole, const Tiles& tiles, const ConstTensorView& q, const TensorView& out,
              const AttentionStats& stats, std::int64_t first_head);

  // One head of k and v.
  void attend(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v);
  // Writes the rows of a block and their statistics. place has no keys.
  void finish(const TilePlace& place);

 private:
  CarriedRows carried(const TilePlace& place);

  const Tiles& tiles_;
  ConstTensorView q_;
  TensorView out_;
  AttentionStats stats_;
  std::int64_t first_head_, heads_, rows_, value_dim_, head_dim_;
  bool in_place_;                                      // the sums lie in out
  std::vector<float> max_, sum_, weighted_, squares_;  // [batch, heads, rows]
  Tensor sums_;                                        // [batch, heads, rows, columns]
  std::vector<std::uint8_t> begun_;                    // [batch, heads, rows]: at the first row of a block
};

}  // namespace rootdk::distributed
