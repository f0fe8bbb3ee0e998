#include "layers/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rootdk {
namespace {

Parameters one_matrix(std::initializer_list<float> values) {
  Value value = make_value({1, static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), value->data());
  return {{"w", value}};
}

void set_grad(const Parameters& parameters, std::initializer_list<float> values) {
  std::copy(values.begin(), values.end(), parameters[0].value->grad_data());
}

// The update written out in double.
TEST(AdamW, FollowsTheFormulaForSeveralSteps) {
  const Parameters parameters = one_matrix({1.0f, -2.0f});
  AdamW adam(parameters, {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1});
  double w[] = {1.0, -2.0}, m[] = {0, 0}, v[] = {0, 0};
  for (int t = 1; t <= 5; ++t) {
    const double g[] = {0.3 * t, -0.1};
    set_grad(parameters, {static_cast<float>(g[0]), static_cast<float>(g[1])});
    adam.step(0.01);
    for (int i = 0; i < 2; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.99 * v[i] + 0.01 * g[i] * g[i];
      w[i] -= 0.01 * 0.1 * w[i];
      w[i] -= 0.01 * (m[i] / (1 - std::pow(0.9, t))) / (std::sqrt(v[i] / (1 - std::pow(0.99, t))) + 1e-6);
      EXPECT_NEAR(parameters[0].value->data()[i], w[i], 1e-5);
    }
  }
}

TEST(AdamW, VectorsDoNotDecay) {
  Value bias = make_value({1});
  bias->data()[0] = 5.0f;
  AdamW adam({{"b", bias}}, {.weight_decay = 0.5});
  bias->grad();
  adam.step(0.1);
  EXPECT_FLOAT_EQ(bias->data()[0], 5.0f);
}

TEST(Sgd, MomentumAndNesterov) {
  const Parameters plain = one_matrix({0.0f}), ahead = one_matrix({0.0f});
  Sgd sgd(plain, {.momentum = 0.5}), nesterov(ahead, {.momentum = 0.5, .nesterov = true});
  for (int step = 0; step < 2; ++step) {
    set_grad(plain, {1.0f});
    set_grad(ahead, {1.0f});
    sgd.step(0.1);
    nesterov.step(0.1);
  }
  EXPECT_NEAR(plain[0].value->data()[0], -(0.1 + 0.15), 1e-6);
  EXPECT_NEAR(ahead[0].value->data()[0], -(0.15 + 0.175), 1e-6);
}

TEST(Clip, ScalesToTheNormAndReportsIt) {
  const Parameters parameters = one_matrix({0, 0});
  set_grad(parameters, {3.0f, 4.0f});
  EXPECT_NEAR(clip_gradients(parameters, 10.0), 5.0, 1e-6);
  EXPECT_FLOAT_EQ(parameters[0].value->grad_data()[1], 4.0f);
  EXPECT_NEAR(clip_gradients(parameters, 1.0), 5.0, 1e-6);
  EXPECT_FLOAT_EQ(parameters[0].value->grad_data()[0], 0.6f);
}

TEST(Schedule, WarmsUpAndDecays) {
  Schedule schedule{
      .kind = ScheduleKind::cosine, .peak = 1.0, .warmup_steps = 10, .total_steps = 110, .final_fraction = 0.1};
  EXPECT_NEAR(schedule.at(0), 0.1, 1e-9);
  EXPECT_NEAR(schedule.at(9), 1.0, 1e-9);
  EXPECT_NEAR(schedule.at(60), 0.55, 1e-9);
  EXPECT_NEAR(schedule.at(500), 0.1, 1e-9);
  schedule.kind = ScheduleKind::linear;
  EXPECT_NEAR(schedule.at(60), 0.55, 1e-9);
  schedule.kind = ScheduleKind::inverse_sqrt;
  EXPECT_NEAR(schedule.at(39), 0.5, 1e-9);
  schedule.kind = ScheduleKind::constant;
  EXPECT_NEAR(schedule.at(39), 1.0, 1e-9);
}

}  // namespace
}  // namespace rootdk
