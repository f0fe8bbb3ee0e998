#include "lab/training/recall_task.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lab/sampling.h"
#include "lab/training/small_training.h"
#include "layers/dot_product.h"
#include "layers/elementwise.h"
#include "layers/loss.h"
#include "layers/optimizer.h"

namespace rootdk::lab {
namespace {

struct Batch {
  std::vector<std::int32_t> pair_keys, pair_values;  // [batch, pairs]
  std::vector<std::int32_t> question, answer;        // [batch]
};

Batch draw(const RecallTask& task, Random& random) {
  Batch batch;
  std::vector<std::int32_t> deck(static_cast<std::size_t>(task.keys));
  std::iota(deck.begin(), deck.end(), 0);
  for (std::int64_t b = 0; b < task.batch; ++b) {
    // The first cards of a shuffled deck: keys without repetition.
    for (std::int64_t p = 0; p < task.pairs; ++p) {
      std::swap(deck[static_cast<std::size_t>(p)], deck[static_cast<std::size_t>(p + random.below(task.keys - p))]);
      batch.pair_keys.push_back(deck[static_cast<std::size_t>(p)]);
      batch.pair_values.push_back(static_cast<std::int32_t>(random.below(task.values)));
    }
    const std::int64_t asked = b * task.pairs + random.below(task.pairs);
    batch.question.push_back(batch.pair_keys[static_cast<std::size_t>(asked)]);
    batch.answer.push_back(batch.pair_values[static_cast<std::size_t>(asked)]);
  }
  return batch;
}

// Some rows of a table.
struct TableRows {
  Value table;
  std::vector<std::int32_t> ids;
};

// Row by row a[ids] + b[ids], in one pass over memory.
Value sum_of_rows(Context& context, TableRows a, TableRows b) {
  const std::int64_t width = a.table->width();
  const auto rows = static_cast<std::int64_t>(a.ids.size());
  Value sum = make_value({rows, width});
  const auto row_of = [width](auto* data, const TableRows& rows_of, std::int64_t r) {
    return data + rows_of.ids[static_cast<std::size_t>(r)] * width;
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* left = row_of(std::as_const(*a.table).data(), a, r);
    const float* right = row_of(std::as_const(*b.table).data(), b, r);
    float* to = sum->data() + r * width;
    for (std::int64_t d = 0; d < width; ++d) to[d] = left[d] + right[d];
  }
  if (context.tape) {
    context.tape->record([=, a = std::move(a), b = std::move(b)] {
      const float* gradient = sum->grad_data();
      float* a_gradient = a.table->grad_data();
      float* b_gradient = b.table->grad_data();
      for (std::int64_t r = 0; r < rows; ++r) {
        float* left = row_of(a_gradient, a, r);
        float* right = row_of(b_gradient, b, r);
        for (std::int64_t d = 0; d < width; ++d) {
          left[d] += gradient[r * width + d];
          right[d] += gradient[r * width + d];
        }
      }
    });
  }
  return sum;
}

// Key and value embeddings, one attention layer from question to pairs, and a read-out, which stands in for W_O.
class RecallModel {
 public:
  RecallModel(const RecallTask& task, const Remedy& remedy, Random& random)
      : task_(task),
        keys_(make_value({task.keys, task.d_model})),
        values_(make_value({task.values, task.d_model})),
        attention_({.d_model = task.d_model,
                    .heads = 1,
                    .head_dim = task.head_dim,
                    .value_dim = task.d_model,
                    .output_projection = false,
                    .qk_norm = remedy.qk_norm ? std::optional(NormParams{.kind = NormKind::rms}) : std::nullopt,
                    .score = remedy.score,
                    .scale = remedy.scale,
                    .softcap = remedy.softcap}),
        read_out_(task.values, task.d_model, true) {
    // Projections have variance 1 / inputs: they neither raise nor lower the variance of what they read.
    parameters_.push_back({"keys.table", keys_});
    parameters_.push_back({"values.table", values_});
    attention_.collect(parameters_, "attention");
    read_out_.collect(parameters_, "read_out");
    initialise(parameters_, random);
    for (const Value& table : {keys_, values_}) {
      for (float& x : table->value().values<float>()) x *= static_cast<float>(task.embedding_deviation);
    }
  }

  const Parameters& parameters() const { return parameters_; }
  MultiHeadAttention& attention() { return attention_; }

  // Logits over values [batch, values].
  Value operator()(Context& context, const Batch& batch, AttentionCapture* capture) const {
    const MultiHeadConfig& config = attention_.config();
    Value q = attention_.q(context, embed(context, batch.question, keys_));
    if (attention_.q_norm) q = attention_.q_norm(context, q);
    // A pair is the sum of its key and its value, and W (key + value) = W key + W value: the projections of the 64 keys
    // and 16 values serve all 1024 pairs of a batch.
    Value k = sum_of_rows(context, {attention_.k(context, keys_), batch.pair_keys},
                          {attention_.k(context, values_), batch.pair_values});
    if (attention_.k_norm) k = attention_.k_norm(context, k);
    const Value v = sum_of_rows(context, {attention_.v(context, keys_), batch.pair_keys},
                                {attention_.v(context, values_), batch.pair_values});
    const Value attended = dot_product_attention(
        context, {.batch = task_.batch, .q = q, .k = k, .v = v, .additive_v = attention_.additive_v},
        {.score = config.score, .logits = {.scale = config.scale, .softcap = config.softcap}}, capture);
    return read_out_(context, attended);
  }

 private:
  RecallTask task_;
  Value keys_, values_;
  MultiHeadAttention attention_;
  Linear read_out_;
  Parameters parameters_;
};

class Stepper {
 public:
  Stepper(const Parameters& parameters, Optimizer kind) {
    if (kind == Optimizer::adam) {
      adam_.emplace(parameters, AdamWParams{.beta2 = 0.999, .weight_decay = 0});
    } else {
      sgd_.emplace(parameters, SgdParams{.momentum = 0.9});
    }
  }
  void step(double learning_rate) { adam_ ? adam_->step(learning_rate) : sgd_->step(learning_rate); }

 private:
  std::optional<AdamW> adam_;
  std::optional<Sgd> sgd_;
};

}  // namespace

TrainingResult train_recall(const TrainingRun& run) {
  Random random(run.seed, 8000);
  RecallModel model(run.task, run.remedy, random);
  Stepper optimizer(model.parameters(), run.optimizer);
  TrainingResult result;
  const int judged = std::max(1, run.steps / 10);  // the last tenth of the steps is the examination
  std::int64_t correct = 0, asked = 0;
  for (int step = 0; step < run.steps; ++step) {
    const Batch batch = draw(run.task, random);
    Tape tape;
    Context context{.tape = &tape, .executor = &shared_executor(1)};
    AttentionCapture capture{.want_stats = true};
    const Value logits = model(context, batch, &capture);
    if (step >= run.steps - judged) {
      correct += right_answers(logits, batch.answer);
      asked += run.task.batch;
    }
    const double loss = cross_entropy(context, logits, batch.answer);
    tape.backward();
    const double gradient_norm = clip_gradients(model.parameters(), 0);
    const std::vector<double> tops(capture.max_logit.values<float>().begin(), capture.max_logit.values<float>().end());
    const std::vector<double> spread(capture.entropy.values<float>().begin(), capture.entropy.values<float>().end());
    const double top = *std::max_element(tops.begin(), tops.end());
    if (step % 10 == 0) {
      result.steps.push_back(step);
      result.max_logit.push_back(top);
      result.entropy.push_back(mean(spread));
      result.gradient_norm.push_back(gradient_norm);
      result.loss.push_back(loss);
    }
    if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) {
      result.finite = false;
      result.accuracy = 1.0 / static_cast<double>(run.task.values);  // a model of NaN answers at chance
      return result;
    }
    optimizer.step(run.learning_rate);
    drop_gradients(model.parameters());
    const float largest = static_cast<float>(top);
    if (run.remedy.qk_clip > 0) qk_clip(model.attention(), std::span(&largest, 1), run.remedy.qk_clip);
  }
  result.accuracy = static_cast<double>(correct) / static_cast<double>(asked);
  return result;
}

}  // namespace rootdk::lab
