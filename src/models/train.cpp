#include "models/train.h"

#include <algorithm>
#include <cmath>

#include "layers/loss.h"
#include "models/checkpoint.h"
#include "models/json_fields.h"
#include "models/tokenizer.h"
#include "models/train_settings.h"
#include "models/train_tokenizer.h"
#include "models/write_text.h"
#include "rootdk/dropout.h"

namespace rootdk {
namespace {

// FNV-1a: tells a text that is not the same.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Long texts are tokenized line by line: no token of the tokenizers made here crosses the end of one.
std::vector<std::int32_t> tokenize(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t newline = text.find('\n', begin);
    const std::size_t end = newline == std::string_view::npos ? text.size() : newline + 1;
    const std::vector<std::int32_t> line = tokenizer.encode(text.substr(begin, end - begin), false);
    ids.insert(ids.end(), line.begin(), line.end());
    begin = end;
  }
  return ids;
}

// Adds each layer's largest logit and mean entropy to the report. Returns the largest logit of each head, by layer.
std::vector<std::vector<float>> watch_heads(std::span<const AttentionCapture> captures, StepReport& report) {
  std::vector<std::vector<float>> largest;
  for (const AttentionCapture& capture : captures) {
    std::vector<float>& heads = largest.emplace_back();
    if (!capture.max_logit.defined()) continue;
    heads.assign(static_cast<std::size_t>(capture.max_logit.size(1)), -INFINITY);
    const std::span<const float> logits = capture.max_logit.values<float>();
    const auto rows = static_cast<std::size_t>(capture.max_logit.size(2));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      float& of_head = heads[i / rows % heads.size()];
      of_head = std::max(of_head, logits[i]);
    }
    report.max_logit.push_back(*std::max_element(heads.begin(), heads.end()));
    double entropy = 0;
    for (const float nats : capture.entropy.values<float>()) entropy += nats;
    report.entropy.push_back(entropy / static_cast<double>(capture.entropy.elements()));
  }
  return largest;
}

// The largest logit of each head over the parts of a batch.
void add_up(std::vector<std::vector<float>> part, std::vector<std::vector<float>>& largest) {
  if (largest.empty()) {
    largest = std::move(part);
    return;
  }
  for (std::size_t layer = 0; layer < part.size(); ++layer) {
    for (std::size_t head = 0; head < part[layer].size(); ++head) {
      largest[layer][head] = std::max(largest[layer][head], part[layer][head]);
    }
  }
}

// The loss and each layer's numbers over the parts of a batch: loss already counts by its share.
void add_up(const StepReport& part, std::int64_t parts, StepReport& report) {
  report.loss += part.loss;
  report.max_logit.resize(part.max_logit.size(), -INFINITY);
  report.entropy.resize(part.entropy.size());
  for (std::size_t i = 0; i < part.max_logit.size(); ++i) {
    report.max_logit[i] = std::max(report.max_logit[i], part.max_logit[i]);
    report.entropy[i] += part.entropy[i] / static_cast<double>(parts);
  }
}

void scale_gradients(const Parameters& parameters, float factor) {
  for (const Parameter& parameter : parameters) {
    if (!parameter.value->has_grad()) continue;
    for (float& gradient : parameter.value->grad().values<float>()) gradient *= factor;
  }
}

const char* const kStateFile = "training.safetensors";

void copy_state(const SafetensorsFile& file, const std::string& name, Tensor& into) {
  const ConstTensorView stored = file.tensor(name);
  require(stored.dtype == DType::f32 && stored.elements() == into.elements(), kStateFile, ": ", name, " is ",
          describe(stored), ", but the settings ask for ", describe(into));
  std::copy_n(stored.as<float>(), into.elements(), into.view().as<float>());
}

}  // namespace

Trainer::Trainer(const TrainSettings& settings, std::string_view text, Executor* executor)
    : settings_(settings), executor_(executor) {
  require(settings.tokenizer == "char" || settings.tokenizer == "bpe", "train: tokenizer \"", settings.tokenizer,
          "\" is not supported; supported: char, bpe");
  tokenizer_json_ = settings.tokenizer == "char" ? character_tokenizer_json(text)
                                                 : bpe_tokenizer_json(text, settings.model.vocab_size);
  build(text);
  initialize(*model_, settings_.seed);
}

void Trainer::build(std::string_view text) {
  check_settings(settings_);
  text_hash_ = hash_of(text);
  const Tokenizer tokenizer = Tokenizer::parse(tokenizer_json_, "tokenizer.json");
  settings_.model.vocab_size = tokenizer.vocab_size();
  std::vector<std::int32_t> all = tokenize(tokenizer, text);
  const auto held_out = static_cast<std::ptrdiff_t>(static_cast<double>(all.size()) * settings_.validation_share);
  validation_.assign(all.end() - held_out, all.end());
  all.resize(all.size() - static_cast<std::size_t>(held_out));
  train_ = std::move(all);
  require(static_cast<std::int64_t>(train_.size()) > settings_.model.context, "train: the text has ", train_.size(),
          " tokens to train on, but the context is ", settings_.model.context);
  model_ = std::make_unique<Transformer>(make_config(settings_.model));
  optimizer_ = std::make_unique<AdamW>(model_->parameters(), settings_.adam);
}

ModelInput Trainer::sample_batch(std::int64_t step, std::int64_t first, std::int64_t rows,
                                 std::vector<std::int32_t>& targets) const {
  const std::int64_t context = settings_.model.context;
  const auto starts = static_cast<std::uint64_t>(train_.size()) - static_cast<std::uint64_t>(context);
  ModelInput input{.batch = rows};
  for (std::int64_t row = first; row < first + rows; ++row) {
    const PhiloxWords words =
        philox4x32_10({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(row), 0u, 3u}, settings_.seed);
    const std::uint64_t word = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
    const auto start = train_.begin() + static_cast<std::ptrdiff_t>(word % starts);
    input.ids.insert(input.ids.end(), start, start + context);
    targets.insert(targets.end(), start + 1, start + context + 1);
  }
  return input;
}

std::vector<std::vector<float>> Trainer::run_part(std::int64_t part, bool watched, StepReport& report) {
  const std::int64_t number = steps_done(), rows = settings_.batch / settings_.accumulate;
  const auto part_of_all = static_cast<std::uint64_t>(number * settings_.accumulate + part);
  Tape tape;
  Context context{.tape = &tape,
                  .executor = executor_,
                  .dropout = settings_.dropout,
                  .seed = settings_.seed ^ (0x9E3779B97F4A7C15u * (part_of_all + 1)),
                  .recompute = settings_.recompute,
                  .fp8_attention = settings_.fp8,
                  .entropy_gradient = -settings_.entropy_weight / static_cast<double>(settings_.model.layers)};
  std::vector<std::int32_t> targets;
  const ModelInput input = sample_batch(number, part * rows, rows, targets);
  ModelResult result = model_->forward(context, input, {.stats = watched || settings_.qk_clip > 0});
  const double loss = cross_entropy(context, result.output, targets);
  require(std::isfinite(loss), "train: the loss is ", loss, " at step ", number,
          "; lower the learning rate, or clip gradients or logits");
  report.loss += loss / static_cast<double>(settings_.accumulate);
  result.output.reset();
  tape.backward();
  return watch_heads(result.attention, report);
}

StepReport Trainer::step(bool watched) {
  const std::int64_t number = steps_done();
  const Parameters parameters = model_->parameters();
  drop_gradients(parameters);
  StepReport report;
  std::vector<std::vector<float>> max_logits;
  for (std::int64_t part = 0; part < settings_.accumulate; ++part) {
    StepReport of_part;
    add_up(run_part(part, watched, of_part), max_logits);
    add_up(of_part, settings_.accumulate, report);
  }
  if (settings_.accumulate > 1) scale_gradients(parameters, 1.0f / static_cast<float>(settings_.accumulate));
  report.gradient_norm = clip_gradients(parameters, settings_.clip);
  report.learning_rate = Schedule{.kind = settings_.schedule,
                                  .peak = settings_.learning_rate,
                                  .warmup_steps = settings_.warmup_steps,
                                  .total_steps = settings_.steps}
                             .at(number);
  // From here on nothing fails: a step that throws has changed no weight.
  optimizer_->step(report.learning_rate);
  report.step = optimizer_->steps;
  if (settings_.qk_clip <= 0) return report;
  for (std::size_t layer = 0; layer < max_logits.size(); ++layer) {
    if (max_logits[layer].empty()) continue;
    report.clipped_heads += qk_clip(model_->blocks()[layer].attention, max_logits[layer], settings_.qk_clip);
  }
  return report;
}

double Trainer::validation_loss(std::int64_t batches) const {
  const std::int64_t context_length = settings_.model.context;
  const std::int64_t sequences = (static_cast<std::int64_t>(validation_.size()) - 1) / context_length;
  const std::int64_t wanted = std::min(sequences, batches * settings_.batch);
  double sum = 0;
  Context context{.executor = executor_};
  for (std::int64_t i = 0; i < wanted; ++i) {
    const auto start = validation_.begin() + i * context_length;
    const ModelInput input{.ids = std::vector<std::int32_t>(start, start + context_length)};
    const std::vector<std::int32_t> targets(start + 1, start + context_length + 1);
    sum += cross_entropy(context, model_->forward(context, input).output, targets);
  }
  return wanted > 0 ? sum / static_cast<double>(wanted) : NAN;
}

void Trainer::save_state(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  std::vector<NamedTensor> tensors;
  const Parameters parameters = model_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    tensors.push_back({"parameter." + parameters[i].name, std::as_const(*parameters[i].value).value()});
    tensors.push_back({"first." + parameters[i].name, optimizer_->first[i]});
    tensors.push_back({"second." + parameters[i].name, optimizer_->second[i]});
  }
  write_safetensors(state_file(folder), tensors,
                    {{"steps_done", std::to_string(steps_done())},
                     {"settings", settings_json(settings_)},
                     {"tokenizer", tokenizer_json_},
                     {"text_hash", std::to_string(text_hash_)}});
}

std::filesystem::path Trainer::state_file(const std::filesystem::path& folder) { return folder / kStateFile; }
bool Trainer::has_state(const std::filesystem::path& folder) { return std::filesystem::exists(state_file(folder)); }

Trainer Trainer::resume(const std::filesystem::path& folder, std::string_view text, Executor* executor) {
  const std::filesystem::path path = state_file(folder);
  require(has_state(folder), path.string(), ": there is no training to resume");
  const SafetensorsFile file = SafetensorsFile::open(path);
  const std::map<std::string, std::string>& metadata = file.metadata();
  auto field = [&](const std::string& name) {
    const auto found = metadata.find(name);
    require(found != metadata.end(), path.string(), ": metadata ", name, " is missing");
    return found->second;
  };
  Trainer trainer;
  trainer.executor_ = executor;
  trainer.settings_ = parse_settings(field("settings"), path.string());
  trainer.tokenizer_json_ = field("tokenizer");
  require(field("text_hash") == std::to_string(hash_of(text)), path.string(),
          ": the training began with another text than the one given");
  trainer.build(text);
  const Parameters parameters = trainer.model_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    copy_state(file, "parameter." + parameters[i].name, parameters[i].value->value());
    copy_state(file, "first." + parameters[i].name, trainer.optimizer_->first[i]);
    copy_state(file, "second." + parameters[i].name, trainer.optimizer_->second[i]);
  }
  const Json steps = parse_json(field("steps_done"), path.string());
  require(steps.is_number_unsigned(), path.string(), ": steps_done is ", JsonFields::shown(steps));
  trainer.optimizer_->steps = steps.get<std::int64_t>();
  return trainer;
}

void Trainer::save_model(const std::filesystem::path& folder, DType dtype) const {
  std::filesystem::create_directories(folder);
  std::vector<Tensor> converted;
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : model_->parameters()) {
    converted.push_back(convert(std::as_const(*parameter.value).value(), dtype));
    tensors.push_back({parameter.name, std::as_const(converted.back())});
  }
  write_safetensors(folder / "model.safetensors", tensors, {{"format", "rootdk"}});
  write_text(folder / "tokenizer.json", tokenizer_json_ + "\n");
  write_text(folder / "config.json", config_json(settings_.model) + "\n");
}

}  // namespace rootdk
