#pragma once

// Training of this project's own language models. A step is a pure function of the settings, the text and the state:
// bit-identical for any number of threads, and after kill and resume.

#include <filesystem>
#include <memory>

#include "layers/optimizer.h"
#include "models/transformer.h"

namespace rootdk {

struct TrainSettings {
  LanguageModelConfig model;
  std::string tokenizer = "char";  // char or bpe
  std::int64_t batch = 8;
  std::int64_t accumulate = 1;  // parts of a batch that run one after another and add up their gradients: less memory
  std::int64_t steps = 1000;
  ScheduleKind schedule = ScheduleKind::cosine;
  double learning_rate = 2e-3;
  std::int64_t warmup_steps = 50;
  AdamWParams adam{};
  double clip = 1.0;  // largest gradient norm; 0: no clipping
  double dropout = 0.0;
  double qk_clip = 0.0;            // largest logit before a head's projections are shrunk; 0: off
  double entropy_weight = 0.0;     // what the loss counts a nat of mean attention entropy less by; 0: off
  bool recompute = false;          // activations of each block again in the backward pass: less memory, same bits
  bool fp8 = false;                // attention in e4m3, forward; validation is not
  double validation_share = 0.05;  // of the text, at its end
  std::uint64_t seed = 1;
};

struct StepReport {
  std::int64_t step = 0;  // steps done
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  std::vector<float> max_logit;  // a layer each, where the step was watched
  std::vector<double> entropy;   // the mean over heads and rows, in nats
  int clipped_heads = 0;         // by QK-clip
};

class Trainer {
 public:
  // text is tokenized, cut into training and validation parts, and sampled by (seed, step, row).
  Trainer(const TrainSettings& settings, std::string_view text, Executor* executor = nullptr);
  // Continues from the folder's training.safetensors with the settings in it. The text must be the same.
  static Trainer resume(const std::filesystem::path& folder, std::string_view text, Executor* executor = nullptr);

  const TrainSettings& settings() const { return settings_; }
  const Transformer& model() const { return *model_; }
  std::int64_t steps_done() const { return optimizer_->steps; }
  std::int64_t tokens_per_step() const { return settings_.batch * settings_.model.context; }

  // One step; watched: with each layer's max logit and entropy.
  StepReport step(bool watched);
  // The mean loss over up to `batches` batches of the validation part, in order.
  double validation_loss(std::int64_t batches) const;

  // The file of a folder that holds the state.
  static std::filesystem::path state_file(const std::filesystem::path& folder);
  // Whether the folder holds a state.
  static bool has_state(const std::filesystem::path& folder);
  // The state, in one file that is put in place in one step: a kill at any time leaves the last whole one.
  void save_state(const std::filesystem::path& folder) const;
  // config.json, tokenizer.json and model.safetensors for the other commands.
  void save_model(const std::filesystem::path& folder, DType dtype = DType::f32) const;

 private:
  Trainer() = default;
  void build(std::string_view text);
  // Rows [row, row + rows) of a step's batch.
  ModelInput sample_batch(std::int64_t step, std::int64_t row, std::int64_t rows,
                          std::vector<std::int32_t>& targets) const;
  // Adds the gradients of one part of a step's batch, and what it tells to the report. Returns the largest logit of
  // each head, by layer.
  std::vector<std::vector<float>> run_part(std::int64_t part, bool watched, StepReport& report);

  TrainSettings settings_;
  std::string tokenizer_json_;
  std::uint64_t text_hash_ = 0;
  std::vector<std::int32_t> train_, validation_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<AdamW> optimizer_;
  Executor* executor_ = nullptr;
};

}  // namespace rootdk
