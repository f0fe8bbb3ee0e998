#include "layers/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "layers/rows.h"

namespace rootdk {
namespace {

struct AdamStep {
  float beta1, beta2, eps, rate, decay;  // rate: learning rate with both corrections; decay: 1 - rate * weight_decay
  float second_correction;               // 1 / (1 - beta2^t)
};

ROOTDK_VECTOR_CLONES void adam_block(const AdamStep& step, const float* grad, float* first, float* second, float* value,
                                     std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    first[i] = step.beta1 * first[i] + (1.0f - step.beta1) * grad[i];
    second[i] = step.beta2 * second[i] + (1.0f - step.beta2) * grad[i] * grad[i];
    value[i] =
        value[i] * step.decay - step.rate * first[i] / (__builtin_sqrtf(second[i] * step.second_correction) + step.eps);
  }
}

bool decays(const Parameter& parameter) { return parameter.value->value().rank() >= 2; }

double sum_of_squares(const float* x, std::int64_t count) {
  double lanes[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int lane = 0; lane < 4; ++lane) lanes[lane] += static_cast<double>(x[i + lane]) * x[i + lane];
  }
  for (; i < count; ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

}  // namespace

void drop_gradients(const Parameters& parameters) {
  for (const Parameter& parameter : parameters) parameter.value->drop_grad();
}

double clip_gradients(const Parameters& parameters, double max_norm) {
  double squares = 0;
  for (const Parameter& parameter : parameters) {
    if (!parameter.value->has_grad()) continue;
    squares += sum_of_squares(parameter.value->grad_data(), parameter.value->value().elements());
  }
  const double norm = std::sqrt(squares);
  if (max_norm > 0 && norm > max_norm) {
    const auto factor = static_cast<float>(max_norm / norm);
    for (const Parameter& parameter : parameters) {
      if (!parameter.value->has_grad()) continue;
      for (float& g : parameter.value->grad().values<float>()) g *= factor;
    }
  }
  return norm;
}

AdamW::AdamW(const Parameters& parameters, const AdamWParams& params) : parameters_(parameters), params_(params) {
  for (const Parameter& parameter : parameters_) {
    first.emplace_back(DType::f32, parameter.value->value().shape());
    second.emplace_back(DType::f32, parameter.value->value().shape());
  }
}

void AdamW::step(double learning_rate) {
  ++steps;
  const auto t = static_cast<double>(steps);
  const double first_correction = 1.0 / (1.0 - std::pow(params_.beta1, t));
  AdamStep step{.beta1 = static_cast<float>(params_.beta1),
                .beta2 = static_cast<float>(params_.beta2),
                .eps = static_cast<float>(params_.eps),
                .rate = static_cast<float>(learning_rate * first_correction),
                .decay = 1.0f,
                .second_correction = static_cast<float>(1.0 / (1.0 - std::pow(params_.beta2, t)))};
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Node& node = *parameters_[i].value;
    if (!node.has_grad()) continue;
    step.decay = decays(parameters_[i]) ? static_cast<float>(1.0 - learning_rate * params_.weight_decay) : 1.0f;
    adam_block(step, node.grad_data(), first[i].values<float>().data(), second[i].values<float>().data(), node.data(),
               node.value().elements());
  }
}

Sgd::Sgd(const Parameters& parameters, const SgdParams& params) : parameters_(parameters), params_(params) {
  for (const Parameter& parameter : parameters_) velocity.emplace_back(DType::f32, parameter.value->value().shape());
}

void Sgd::step(double learning_rate) {
  const auto rate = static_cast<float>(learning_rate), momentum = static_cast<float>(params_.momentum);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Node& node = *parameters_[i].value;
    if (!node.has_grad()) continue;
    const float decay = decays(parameters_[i]) ? static_cast<float>(params_.weight_decay) : 0.0f;
    std::span<float> speed = velocity[i].values<float>();
    for (std::size_t j = 0; j < speed.size(); ++j) {
      const float grad = node.grad_data()[j] + decay * node.data()[j];
      speed[j] = momentum * speed[j] + grad;
      node.data()[j] -= rate * (params_.nesterov ? grad + momentum * speed[j] : speed[j]);
    }
  }
}

std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::constant: return "constant";
    case ScheduleKind::linear: return "linear";
    case ScheduleKind::cosine: return "cosine";
    case ScheduleKind::inverse_sqrt: return "inverse_sqrt";
  }
  return "unknown";
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  switch (kind) {
    case ScheduleKind::constant: return peak;
    case ScheduleKind::linear: return peak * (1.0 - (1.0 - final_fraction) * done);
    case ScheduleKind::cosine:
      return peak * (final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + std::cos(std::numbers::pi * done)));
    case ScheduleKind::inverse_sqrt:
      return peak * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, warmup_steps)) /
                              static_cast<double>(std::max<std::int64_t>(1, std::max(step + 1, warmup_steps))));
  }
  return peak;
}

}  // namespace rootdk
