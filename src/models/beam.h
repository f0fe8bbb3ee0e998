#pragma once

// Beam search: the likeliest continuations, of which several are followed at once. Beams fork the cache and share its
// pages.

#include "models/generate.h"

namespace rootdk {

struct BeamParams {
  std::int64_t beams = 4;
  std::int64_t max_new = 64;
  double length_penalty = 1.0;  // a continuation counts with its log probability over length^penalty
  bool stop_at_end = true;
  std::optional<DType> cache_type{};
  Executor* executor = nullptr;
};

struct BeamResult {
  std::vector<std::int32_t> ids;  // as in Generation
  std::int64_t new_tokens = 0;
  double log_probability = 0;  // of the new tokens together
  double score = 0;            // over length^penalty
};

// At most `beams` continuations, the best first. Of equal scores the one found first.
std::vector<BeamResult> beam_search(const Transformer& model, const std::vector<std::int32_t>& prompt,
                                    const BeamParams& params);

}  // namespace rootdk
