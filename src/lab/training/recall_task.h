#pragma once

// Associative recall: a context of (key, value) pairs, one of the keys as the question, its value as the answer. One
// attention layer can solve it, if its softmax learns to find the key.

#include <cstdint>
#include <optional>
#include <vector>

#include "lab/claim.h"
#include "layers/multi_head_attention.h"

namespace rootdk::lab {

struct RecallTask {
  std::int64_t pairs = 32;   // in a context: the keys that the softmax chooses among
  std::int64_t keys = 64;    // that exist
  std::int64_t values = 16;  // that exist; chance is 1 / values
  std::int64_t d_model = 64, head_dim = 512;
  std::int64_t batch = 32;
  double embedding_deviation = 1;  // at the start; 1: queries have variance 1, as theory says, and keys 2
};

// How the scores are kept in hand.
struct Remedy {
  const char* name = "";
  Score score = Score::dot;
  Scale scale = Scale::inverse_sqrt_head_dim();
  double softcap = 0;
  bool qk_norm = false;
  double qk_clip = 0;  // largest logit that is let through; 0: none
};

enum class Optimizer { adam, sgd_momentum };

struct TrainingRun {
  RecallTask task{};
  Remedy remedy{};
  Optimizer optimizer = Optimizer::adam;
  double learning_rate = 1e-3;
  int steps = 600;
  std::uint64_t seed = 1;
};

// What one run showed, step by step where it is a history.
struct TrainingResult {
  double accuracy = 0;  // over the last steps, on contexts never seen before
  bool finite = true;   // false: the weights went to NaN or infinity
  std::vector<double> steps, max_logit, entropy, gradient_norm, loss;
};

TrainingResult train_recall(const TrainingRun& run);

}  // namespace rootdk::lab
