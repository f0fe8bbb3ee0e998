#pragma once

// What the distributed calls share: a checked call, and the passes over it.

#include "distributed/forward_rows.h"
#include "distributed/stream.h"

namespace rootdk::distributed {

// A call after the ranks have agreed on it.
struct Call {
  Whole whole{};
  DistributedParams distributed{};  // keys filled in, scheme chosen
  AttentionParams params{};
  Execution execution{};
  bool weights_of_rows = false;  // stats.weights is asked for

  Executor& executor() const { return executor_of(execution); }
  // Items that may be in memory at a time.
  std::int64_t capacity() const;
};

// The tensors of a rank against the shares; the whole that they are rows of. Throws with the values.
Call make_call(std::string_view operation, const Transport& transport, const ConstTensorView& q,
               const ConstTensorView& k, const ConstTensorView& v, const DistributedParams& distributed,
               const AttentionParams& params, const Execution& execution, bool weights_of_rows = false);
// Without everything that has the sizes of the whole, for the checks of attention().
AttentionParams params_of_rank(AttentionParams params);

// Whether the mask and the bias have a row for each query. If not, one row stands for all.
struct RowsGiven {
  bool mask = false, bias = false;
};
// Every rank tells how many rows it has; throws on every rank where they differ in kind.
RowsGiven agree_on_rows(Transport& transport, const Call& call, std::int64_t rows);

// k and v of some heads: [batch, heads here, rows here, width].
struct KeysOfHeads {
  ConstTensorView k{}, v{};
  std::int64_t first_head = 0;  // of the whole
};
// Chunks of keys pass by (forward.cpp). The blocks of the rows are those that the call gives to this rank.
void attend_stream(Transport& transport, const Call& call, const Tiles& tiles, RowsHere rows, const KeysOfHeads& keys);
// Heads exchanged, among all ranks or in groups (heads.cpp).
void attend_heads(Transport& transport, const Call& call, const Tiles& tiles, const ConstTensorView& q,
                  const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                  const AttentionStats& stats);

// The sums over queries (key_pass.cpp): gradients of k and v, of a bias that has one row for all queries, and
// column_mass; each not given: not computed.
void key_pass(Transport& transport, const Call& call, const Tiles& tiles, const AttentionSaved& saved,
              const AttentionUpstream& upstream, const AttentionGradients& gradients, const RowsGiven& given);

}  // namespace rootdk::distributed
