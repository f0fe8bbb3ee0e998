#pragma once

// A call that is validated and has its implementation: all that is left is to run it. It can run again with other
// addresses, which the holder sets.

#include "core/attention_call.h"
#include "core/implementation.h"

namespace rootdk::dispatch {

template <class Call>
struct Planned {
  Call call;
  Answer<Call> answer;
};

// Throw what attention() and attention_backward() throw. Not for e4m3.
Planned<ForwardCall> plan_attention(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                                    const AttentionParams& params, const AttentionStats& stats,
                                    const Execution& execution);
Planned<BackwardCall> plan_attention_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                              const AttentionGradients& gradients, const AttentionParams& params,
                                              const Execution& execution);

// The workspace comes from the caller's allocator where there is one.
void run_planned(Planned<ForwardCall>& planned);
void run_planned(Planned<BackwardCall>& planned);

}  // namespace rootdk::dispatch
