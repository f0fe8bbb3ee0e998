#pragma once

// Optimisers, gradient clipping and learning-rate schedules. Each is element by element or a sum in a fixed order.

#include <string_view>
#include <vector>

#include "layers/tape.h"

namespace rootdk {

// Lets go of all gradients.
void drop_gradients(const Parameters& parameters);

// The Euclidean norm over all gradients; where it passes max_norm (> 0), scales them down to it.
double clip_gradients(const Parameters& parameters, double max_norm);

struct AdamWParams {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  // on matrices alone; norms, biases and vectors are left free
};

class AdamW {
 public:
  AdamW(const Parameters& parameters, const AdamWParams& params);
  void step(double learning_rate);

  // The whole state: what a checkpoint stores beside the parameters. `first` and `second` follow the parameters.
  std::int64_t steps = 0;
  std::vector<Tensor> first, second;  // running means of the gradient and of its square

 private:
  Parameters parameters_;
  AdamWParams params_;
};

struct SgdParams {
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0.0;
};

class Sgd {
 public:
  Sgd(const Parameters& parameters, const SgdParams& params);
  void step(double learning_rate);

  std::vector<Tensor> velocity;

 private:
  Parameters parameters_;
  SgdParams params_;
};

enum class ScheduleKind : std::int32_t {
  constant = 0,
  linear = 1,        // to final_fraction at total_steps
  cosine = 2,        // half a cosine to final_fraction
  inverse_sqrt = 3,  // peak sqrt(warmup / step): the original Transformer
};
std::string_view name_of(ScheduleKind kind);

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;  // linear from 0
  std::int64_t total_steps = 1;
  double final_fraction = 0.1;  // of the peak

  double at(std::int64_t step) const;  // step counts from 0
};

}  // namespace rootdk
