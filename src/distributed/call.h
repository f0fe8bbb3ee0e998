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

  Executor& executor() const { return executor_of(execution); }
  // Items that may be in memory at a time.
  std::int64_t capacity() const;
};

// The tensors of a rank against the shares; the whole that they are rows of. Throws with the values.
Call make_call(std::string_view operation, const Transport& transport, const ConstTensorView& q,
               const ConstTensorView& k, const ConstTensorView& v, const DistributedParams& distributed,
               const AttentionParams& params, const Execution& execution);

// Heads exchanged (heads.cpp).
void attend_heads(Transport& transport, const Call& call, const Tiles& tiles, const ConstTensorView& q,
                  const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                  const AttentionStats& stats);

// The sums over queries (backward.cpp): gradients of k and v, and column_mass, each not given: not computed.
void key_pass(Transport& transport, const Call& call, const Tiles& tiles, const AttentionSaved& saved,
              const AttentionUpstream& upstream, const AttentionGradients& gradients);

}  // namespace rootdk::distributed
