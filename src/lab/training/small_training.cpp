#include "lab/training/small_training.h"

#include <algorithm>
#include <cmath>

#include "layers/loss.h"
#include "layers/optimizer.h"

namespace rootdk::lab {

void initialise(const Parameters& parameters, Random& random) {
  for (const Parameter& parameter : parameters) {
    const bool is_norm = parameter.name.ends_with("norm.weight"), is_bias = parameter.name.ends_with("bias");
    const double deviation =
        parameter.name.ends_with("table") ? 1.0 : 1 / std::sqrt(static_cast<double>(parameter.value->width()));
    for (float& x : parameter.value->value().values<float>()) {
      x = is_norm ? 1.0f : is_bias ? 0.0f : static_cast<float>(deviation * random.normal());
    }
  }
}

std::int64_t right_answers(const Value& logits, std::span<const std::int32_t> answers) {
  std::int64_t right = 0;
  for (std::size_t row = 0; row < answers.size(); ++row) {
    const float* begin = logits->data() + static_cast<std::int64_t>(row) * logits->width();
    right += std::max_element(begin, begin + logits->width()) - begin == answers[row];
  }
  return right;
}

double train_and_judge(const Parameters& parameters, int steps, double learning_rate,
                       const std::function<Examples(Context&)>& forward) {
  AdamW optimizer(parameters, {.beta2 = 0.999, .weight_decay = 0});
  std::int64_t right = 0, asked = 0;
  for (int step = 0; step < steps; ++step) {
    Tape tape;
    Context context{.tape = &tape, .executor = &shared_executor(1)};
    const Examples examples = forward(context);
    if (step >= steps - std::max(1, steps / 10)) {
      right += right_answers(examples.logits, examples.answers);
      asked += static_cast<std::int64_t>(examples.answers.size());
    }
    cross_entropy(context, examples.logits, examples.answers);
    tape.backward();
    optimizer.step(learning_rate);
    drop_gradients(parameters);
  }
  return static_cast<double>(right) / static_cast<double>(asked);
}

}  // namespace rootdk::lab
