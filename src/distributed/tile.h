#pragma once

// One tile: a head, a block of queries (or some rows of one), a chunk of keys (or some keys of one), on the kernels of
// attention(). Its bits depend on nothing else.

#include "core/implementation.h"
#include "distributed/whole.h"

namespace rootdk::distributed {

// A mask and a bias with the rows of some queries and all keys: [batch or 1, heads or 1, rows or 1, kv_len or 1].
struct RowTensors {
  ConstTensorView mask{}, bias{};
};

// Where a tile lies: its head and batch entry count in the whole.
struct TilePlace {
  std::int64_t batch = 0, head = 0;
  Run queries{}, keys{};
  std::int64_t local_query = 0;           // first row in the tensors that have rows: mask and bias
  const RowTensors* travelled = nullptr;  // what came along with the queries, in place of the tensors of this rank
};

// Views of one batch entry and one head: [1, 1, rows, width].
ConstTensorView head_of(const ConstTensorView& view, std::int64_t batch, std::int64_t head);
TensorView head_of(const TensorView& view, std::int64_t batch, std::int64_t head);

class Tiles {
 public:
  Tiles(const Whole& whole, const AttentionParams& params, const Execution& execution, DType dtype);

  // Keys of the tile that the batch entry has; none where block_mask keeps none of them.
  std::int64_t visible(const TilePlace& place) const;
  // out and statistics are those of the tile alone, with no sink; out is f32 where q has 16 bits.
  void forward(const TilePlace& place, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
               const TensorView& out, const AttentionStats& stats) const;
  // Whether the kernels go on with rows where the tile before has left them.
  bool carries_rows() const { return forward_.carries_rows; }
  // The same with rows that are carried from tile to tile, in order of the keys. Where carried.last, k and v have no
  // rows, out and the statistics of the whole rows are written, and the sink takes part.
  void forward(const TilePlace& place, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
               const TensorView& out, const AttentionStats& stats, const CarriedRows& carried) const;
  // saved and upstream are those of the whole rows. Gradients are f32 where q has 16 bits.
  void backward(const TilePlace& place, const AttentionSaved& saved, const AttentionUpstream& upstream,
                const AttentionGradients& gradients) const;
  // The gradient of the logits [1, 1, rows, keys that are visible], f32 where q has 16 bits.
  void logit_gradient(const TilePlace& place, const AttentionSaved& saved, const AttentionUpstream& upstream,
                      const TensorView& gradient) const;

 private:
  ForwardCall call_at(const TilePlace& place, const ConstTensorView& q, const ConstTensorView& k,
                      const ConstTensorView& v, bool sinks, std::unique_ptr<bool[]>& mask_memory) const;
  AttentionParams params_at(const TilePlace& place, std::int64_t keys, bool sinks,
                            std::unique_ptr<bool[]>& mask_memory) const;
  bool keeps_any_block(const TilePlace& place) const;
  ConstTensorView mask_of(const TilePlace& place, std::int64_t keys, std::unique_ptr<bool[]>& memory) const;
  ConstTensorView bias_of(const TilePlace& place, std::int64_t keys) const;
  AttentionShape shape_at(const TilePlace& place, std::int64_t keys) const;

  const Whole& whole_;
  AttentionParams params_;
  Execution execution_;
  double logit_scale_ = 1;
  DropoutRule dropout_;
  ConstTensorView block_mask_;  // with all its dimensions
  Answer<ForwardCall> forward_;
  Answer<BackwardCall> backward_;
};

}  // namespace rootdk::distributed
