#pragma once

#include "core/attention_call.h"
#include "cuda/common/logit_rule.h"

namespace rootdk::cuda {

// The rule of a validated attend() call, whose keys its page tables name.
LogitRule make_rule(const AttentionShape& shape, const LogitParams& logits, double logit_scale,
                    const KeyWindow& window);

// The rule of a validated attention() call. Norms of the cosine score are left for the caller to fill in.
LogitRule make_rule(const AttentionShape& shape, const AttentionParams& params, double logit_scale,
                    const DropoutRule& dropout);

// Why the sizes of a call do not fit the 32-bit row and key arithmetic of the kernels; empty: they do.
std::string refuse_sizes(const AttentionShape& shape, const AttentionParams& params);

}  // namespace rootdk::cuda
