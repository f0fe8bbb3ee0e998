#include "models/train_settings.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/json_fields.h"

namespace rootdk {

ScheduleKind schedule_named(const std::string& name) {
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::inverse_sqrt}) {
    if (name == name_of(kind)) return kind;
  }
  fail("train: schedule \"", name, "\" is not supported; supported: constant, linear, cosine, inverse_sqrt");
}

namespace {

// A number that training uses and its state keeps: JSON has no infinity.
void require_finite(double value, const char* name) {
  require(std::isfinite(value), "train: ", name, " ", value, " is not finite");
}

}  // namespace

void check_settings(const TrainSettings& settings) {
  require_finite(settings.learning_rate, "learning rate");
  require_finite(settings.clip, "clip");
  require_finite(settings.qk_clip, "qk_clip");
  require_finite(settings.entropy_weight, "entropy weight");
  require_finite(settings.adam.weight_decay, "weight decay");
  require_finite(settings.model.softcap, "softcap");
  require(settings.batch > 0 && settings.batch <= 65536, "train: batch ", settings.batch,
          " is not between 1 and 65536");
  require(settings.accumulate > 0 && settings.batch % settings.accumulate == 0, "train: batch ", settings.batch,
          " cannot be cut into ", settings.accumulate, " equal parts");
  require(settings.model.context > 0 && settings.model.context <= (1 << 20), "train: context ", settings.model.context,
          " is not between 1 and ", 1 << 20);
  require(settings.steps >= 0, "train: steps ", settings.steps, " must not be negative");
  require(settings.warmup_steps >= 0, "train: warmup ", settings.warmup_steps, " must not be negative");
  require(settings.learning_rate > 0, "train: learning rate ", settings.learning_rate, " must be positive");
  require(settings.dropout >= 0 && settings.dropout < 1, "train: dropout ", settings.dropout, " is not in [0, 1)");
  require(settings.clip >= 0 && settings.qk_clip >= 0, "train: clip ", settings.clip, " and qk_clip ", settings.qk_clip,
          " must not be negative");
  require(settings.qk_clip == 0 || !settings.model.qk_norm, "train: qk_clip ", settings.qk_clip,
          " has no effect under QK-norm, which fixes the length of queries and keys");
  require(settings.validation_share >= 0 && settings.validation_share < 1, "train: validation share ",
          settings.validation_share, " is not in [0, 1)");
  require(settings.adam.weight_decay >= 0, "train: weight decay ", settings.adam.weight_decay, " must not be negative");
  require(settings.model.softcap >= 0, "train: softcap ", settings.model.softcap, " must not be negative");
  require(settings.model.layers > 0 && settings.model.layers <= 4096, "train: layers ", settings.model.layers,
          " is not between 1 and 4096");
  require(settings.model.d_model > 0 && settings.model.heads > 0, "train: d_model ", settings.model.d_model,
          " and heads ", settings.model.heads, " must be positive");
}

std::string settings_json(const TrainSettings& settings) {
  const LanguageModelConfig& model = settings.model;
  return nlohmann::json{{"vocab_size", model.vocab_size},
                        {"d_model", model.d_model},
                        {"layers", model.layers},
                        {"heads", model.heads},
                        {"kv_heads", model.kv_heads},
                        {"d_ff", model.d_ff},
                        {"context", model.context},
                        {"position_encoding", model.position_encoding},
                        {"scale", model.scale},
                        {"qk_norm", model.qk_norm},
                        {"softcap", model.softcap},
                        {"tokenizer", settings.tokenizer},
                        {"batch", settings.batch},
                        {"accumulate", settings.accumulate},
                        {"steps", settings.steps},
                        {"schedule", name_of(settings.schedule)},
                        {"learning_rate", settings.learning_rate},
                        {"warmup_steps", settings.warmup_steps},
                        {"beta1", settings.adam.beta1},
                        {"beta2", settings.adam.beta2},
                        {"eps", settings.adam.eps},
                        {"weight_decay", settings.adam.weight_decay},
                        {"clip", settings.clip},
                        {"dropout", settings.dropout},
                        {"qk_clip", settings.qk_clip},
                        {"entropy_weight", settings.entropy_weight},
                        {"recompute", settings.recompute},
                        {"fp8", settings.fp8},
                        {"validation_share", settings.validation_share},
                        {"seed", settings.seed}}
      .dump();
}

TrainSettings parse_settings(std::string_view json_text, const std::string& where) {
  const Json document = parse_json(json_text, where);
  const JsonFields fields(document, where);
  TrainSettings settings;
  LanguageModelConfig& model = settings.model;
  model.vocab_size = fields.size({"vocab_size"});
  model.d_model = fields.size({"d_model"});
  model.layers = fields.size({"layers"});
  model.heads = fields.size({"heads"});
  model.kv_heads = fields.integer({"kv_heads"}, 0);
  model.d_ff = fields.integer({"d_ff"}, 0);
  model.context = fields.size({"context"});
  model.position_encoding = fields.text({"position_encoding"}, model.position_encoding);
  model.scale = fields.text({"scale"}, model.scale);
  model.qk_norm = fields.boolean({"qk_norm"}, false);
  model.softcap = fields.number({"softcap"}, 0.0);
  settings.tokenizer = fields.text({"tokenizer"}, settings.tokenizer);
  settings.batch = fields.size({"batch"});
  settings.accumulate = fields.integer({"accumulate"}, 1);
  settings.steps = fields.integer({"steps"});
  settings.schedule = schedule_named(fields.text({"schedule"}, "cosine"));
  settings.learning_rate = fields.number({"learning_rate"}, settings.learning_rate);
  settings.warmup_steps = fields.integer({"warmup_steps"}, settings.warmup_steps);
  settings.adam = {.beta1 = fields.number({"beta1"}, 0.9),
                   .beta2 = fields.number({"beta2"}, 0.95),
                   .eps = fields.number({"eps"}, 1e-8),
                   .weight_decay = fields.number({"weight_decay"}, 0.1)};
  settings.clip = fields.number({"clip"}, 1.0);
  settings.dropout = fields.number({"dropout"}, 0.0);
  settings.qk_clip = fields.number({"qk_clip"}, 0.0);
  settings.entropy_weight = fields.number({"entropy_weight"}, 0.0);
  settings.recompute = fields.boolean({"recompute"}, false);
  settings.fp8 = fields.boolean({"fp8"}, false);
  settings.validation_share = fields.number({"validation_share"}, settings.validation_share);
  settings.seed = fields.natural({"seed"}, 1);
  return settings;
}

}  // namespace rootdk
