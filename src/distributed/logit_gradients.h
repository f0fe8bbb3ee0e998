#pragma once

// Gradients of what makes the logits: a bias with rows, a relative table, slopes, the vector of the additive score and
// sinks. Those that all ranks share are sums over every row of every rank. Each row gives the same numbers wherever it
// lies, and the sum over rows has no order.

#include <functional>
#include <mutex>

#include "distributed/backward_rows.h"
#include "distributed/exact_sum.h"

namespace rootdk::distributed {

class LogitGradients {
 public:
  // What of the gradients a pass over keys gives: those not given are not computed, and a bias only if it has rows.
  LogitGradients(const Call& call, const Tiles& tiles, const AttentionGradients& gradients, const RowsGiven& given);
  bool wanted() const { return bias_.defined() || table_.defined() || slopes_.defined() || additive_.defined(); }

  // The tensors of a tile.
  using TileOf = std::function<void(const TilePlace&, AttentionSaved&, AttentionUpstream&)>;
  // The blocks of queries here that see a chunk of keys.
  void add(const Run& keys, const std::vector<const LocalRun*>& blocks, const TileOf& tile_of);
  // Adds up over all ranks.
  void finish(Transport& transport);

 private:
  void add_tile(const TilePlace& place, const TileOf& tile_of);
  template <class T>
  void add_logits(const TilePlace& place, const AttentionSaved& saved, const AttentionUpstream& upstream);
  template <class T>
  void add_to_bias(const TilePlace& place, const T* logits, std::int64_t keys);
  template <class T>
  void add_to_shared(const TilePlace& place, const T* logits, std::int64_t keys);
  template <class T>
  void add_additive(const TilePlace& place, const TileOf& tile_of);
  void write_sums(Transport& transport, const std::vector<ExactSum>& sums, const TensorView& gradient) const;

  const Call& call_;
  const Tiles& tiles_;
  Sums bias_;
  TensorView table_, slopes_, additive_;
  std::vector<ExactSum> table_sums_, slope_sums_, additive_sums_;
  std::vector<std::mutex> mutexes_;  // one for each head
};

// The gradient of the sinks: a sum over the rows of all ranks, with no pass over keys.
void sink_gradient(Transport& transport, const Call& call, const AttentionSaved& saved,
                   const AttentionUpstream& upstream, const TensorView& gradient);

}  // namespace rootdk::distributed
