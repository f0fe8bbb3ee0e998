// rootdk train: a small language model from a text.

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "models/train.h"
#include "models/train_log.h"
#include "models/train_settings.h"
#include "models/training_folder.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/heap.h"
#include "tools/options.h"
#include "tools/text_file.h"

namespace rootdk::tools {
namespace {

struct TrainVerb {
  TrainSettings settings;
  std::vector<std::string> texts;
  std::string out, schedule = "cosine", save_dtype = "f32", log_json, log_csv, tensorboard;
  bool resume = false, json = false;
  std::int64_t log_every = 20, save_every = 200, stop_after = 0, evaluate_every = 0;
  int threads = 0;
  const Option* vocab = nullptr;  // whether it was given
  std::string given_settings;     // options on the command line that --resume does not read
};

// One line: on a terminal it stays in place, in a log each one stands.
void print_progress(const StepReport& report, std::int64_t steps, double tokens_per_second) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  std::fprintf(stderr, "%sstep %lld/%lld  loss %.4f  %.0f tokens/s  max logit", terminal ? "\r\x1b[K" : "",
               static_cast<long long>(report.step), static_cast<long long>(steps), report.loss, tokens_per_second);
  for (const float logit : report.max_logit) std::fprintf(stderr, " %.1f", logit);
  std::fprintf(stderr, "  entropy");
  for (const double nats : report.entropy) std::fprintf(stderr, " %.2f", nats);
  if (report.clipped_heads > 0) std::fprintf(stderr, "  clipped %d", report.clipped_heads);
  if (!terminal || report.step == steps) std::fputc('\n', stderr);
  std::fflush(stderr);
}

constexpr std::int64_t kValidationBatches = 64;

std::string validation_text(double loss) {
  if (std::isnan(loss)) return "no validation: the text's last part is shorter than a context";
  char text[64];
  std::snprintf(text, sizeof text, "validation loss %.4f", loss);
  return text;
}

// The texts of all files, one after another, each ending with its line.
std::string read_texts(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& file : files) {
    if (!all.empty() && all.back() != '\n') all += '\n';
    all += read_text_file(file);
  }
  return all;
}

// Where the numbers of a step go beside the terminal.
class Logs {
 public:
  Logs(const TrainVerb& options, std::int64_t from) {
    if (!options.log_json.empty()) logs_.push_back(json_log(options.log_json, from));
    if (!options.log_csv.empty()) logs_.push_back(csv_log(options.log_csv, from));
    if (!options.tensorboard.empty()) logs_.push_back(tensorboard_log(options.tensorboard, from));
  }
  bool wanted() const { return !logs_.empty(); }
  void add(const StepReport& report, double validation, double tokens_per_second) {
    LogEntry entry{.step = report.step,
                   .numbers = {{"loss", report.loss},
                               {"validation_loss", validation},
                               {"gradient_norm", report.gradient_norm},
                               {"learning_rate", report.learning_rate},
                               {"tokens_per_second", tokens_per_second},
                               {"clipped_heads", report.clipped_heads}}};
    for (std::size_t i = 0; i < report.max_logit.size(); ++i) {
      entry.numbers.emplace_back("layer_" + std::to_string(i) + "/max_logit", report.max_logit[i]);
      entry.numbers.emplace_back("layer_" + std::to_string(i) + "/entropy", report.entropy[i]);
    }
    for (const auto& log : logs_) log->add(entry);
  }

 private:
  std::vector<std::unique_ptr<TrainLog>> logs_;
};

void run_train(const TrainVerb& options) {
  keep_freed_memory();
  require(options.resume || options.vocab->count() == 0 || options.settings.tokenizer == "bpe", "train: --vocab ",
          options.settings.model.vocab_size,
          " is for the bpe tokenizer; the char tokenizer has as many tokens as the text has characters");
  const std::string text = read_texts(options.texts);
  const std::optional<DType> dtype = parse_dtype(options.save_dtype);
  // From the first moment: two trainings into one folder would each replace the other's files.
  const TrainingFolder folder(options.out);
  require(options.resume || !Trainer::has_state(options.out), options.out,
          " holds a training: --resume goes on with it; to begin anew, name another folder or empty this one");
  if (options.resume && !options.given_settings.empty()) {
    std::fprintf(stderr, "not read, as a training goes on with the settings it began with:%s\n",
                 options.given_settings.c_str());
  }
  Executor* executor = options.threads > 0 ? &shared_executor(options.threads) : nullptr;
  Trainer trainer =
      options.resume ? Trainer::resume(options.out, text, executor) : Trainer(options.settings, text, executor);
  const std::int64_t steps = trainer.settings().steps, begun_at = trainer.steps_done();
  require(options.stop_after >= 0, "train: --stop-after ", options.stop_after, " must not be negative");
  const std::int64_t last = options.stop_after > 0 ? std::min(steps, begun_at + options.stop_after) : steps;
  std::fprintf(stderr, "%lld parameters, vocabulary %lld, steps %lld to %lld of %lld tokens\n",
               static_cast<long long>(trainer.model().parameter_count()),
               static_cast<long long>(trainer.settings().model.vocab_size), static_cast<long long>(begun_at),
               static_cast<long long>(last), static_cast<long long>(trainer.tokens_per_step()));
  Logs logs(options, begun_at);
  const auto start = std::chrono::steady_clock::now();
  StepReport report;
  while (trainer.steps_done() < last) {
    const std::int64_t next = trainer.steps_done() + 1;
    const bool evaluated = options.evaluate_every > 0 && next % options.evaluate_every == 0;
    const bool watched = next % options.log_every == 0 || next == last || (evaluated && logs.wanted());
    report = trainer.step(watched);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double rate = static_cast<double>((report.step - begun_at) * trainer.tokens_per_step()) / seconds;
    if (watched) print_progress(report, steps, rate);
    const double validation = evaluated ? trainer.validation_loss(kValidationBatches) : NAN;
    if (evaluated)
      std::fprintf(stderr, "step %lld  %s\n", static_cast<long long>(next), validation_text(validation).c_str());
    if (watched) logs.add(report, validation, rate);
    if (next % options.save_every == 0 && next != last) trainer.save_state(options.out);
  }
  trainer.save_state(options.out);
  trainer.save_model(options.out, *dtype);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double validation = trainer.validation_loss(kValidationBatches);
  if (options.json) {
    const nlohmann::ordered_json result = {
        {"out", options.out},
        {"parameters", trainer.model().parameter_count()},
        {"steps", trainer.steps_done()},
        {"train_loss", begun_at < last ? nlohmann::ordered_json(report.loss) : nullptr},
        {"validation_loss", std::isfinite(validation) ? nlohmann::ordered_json(validation) : nullptr},
        {"seconds", seconds},
        {"tokens_per_second",
         static_cast<double>((trainer.steps_done() - begun_at) * trainer.tokens_per_step()) / seconds},
        {"max_logit", report.max_logit},
        {"entropy", report.entropy}};
    std::puts(result.dump(2).c_str());
  } else if (begun_at == last) {
    std::printf("no steps left to train: %lld of %lld are done; %s; written to %s\n", static_cast<long long>(begun_at),
                static_cast<long long>(steps), validation_text(validation).c_str(), options.out.c_str());
  } else {
    std::printf("trained %lld steps in %.1f s; loss %.4f, %s; written to %s\n",
                static_cast<long long>(trainer.steps_done() - begun_at), seconds, report.loss,
                validation_text(validation).c_str(), options.out.c_str());
  }
}

void add_model_options(Command& verb, TrainVerb& options) {
  LanguageModelConfig& model = options.settings.model;
  verb.add_option("--tokenizer", options.settings.tokenizer, "char, or bpe trained on the text")
      ->one_of({"char", "bpe"})
      ->show_default();
  options.vocab = verb.add_option("--vocab", model.vocab_size, "Vocabulary of the bpe tokenizer")->type_name("N");
  verb.add_option("--d-model", model.d_model, "Width of the model")->show_default()->type_name("N");
  verb.add_option("--layers", model.layers, "Number of blocks")->show_default()->type_name("N");
  verb.add_option("--heads", model.heads, "Query heads of a block")->show_default()->type_name("N");
  verb.add_option("--kv-heads", model.kv_heads, "Key heads (default: as many as heads)")->type_name("N");
  verb.add_option("--d-ff", model.d_ff, "Width of the feed-forward (default: 8/3 of d-model)")->type_name("N");
  verb.add_option("--context", model.context, "Tokens of a sequence")->show_default()->type_name("N");
  verb.add_option("--position", model.position_encoding, "Position encoding")
      ->one_of({"sinusoidal", "learned", "rope", "alibi", "none"})
      ->show_default();
  verb.add_option("--scale", model.scale, "Factor on the scores")->one_of({"none", "1/d", "1/sqrt(d)"})->show_default();
  verb.add_flag("--qk-norm", model.qk_norm, "Normalise queries and keys");
  verb.add_option("--softcap", model.softcap, "Cap on the scores; 0: none")->type_name("C");
}

void add_training_options(Command& verb, TrainVerb& options) {
  TrainSettings& settings = options.settings;
  verb.add_option("--batch", settings.batch, "Sequences a step")->show_default()->type_name("N");
  verb.add_option("--accumulate", settings.accumulate,
                  "Parts of a batch that run one after another: less memory, the same step but for rounding")
      ->show_default()
      ->type_name("N");
  verb.add_option("--steps", settings.steps, "Steps of the optimiser")->show_default()->type_name("N");
  verb.add_option("--lr", settings.learning_rate, "Peak learning rate")->show_default()->type_name("X");
  verb.add_option("--warmup", settings.warmup_steps, "Steps of linear warm-up")->show_default()->type_name("N");
  verb.add_option("--schedule", options.schedule, "Learning rate after the warm-up")
      ->one_of({"constant", "linear", "cosine", "inverse_sqrt"})
      ->show_default();
  verb.add_option("--weight-decay", settings.adam.weight_decay, "Weight decay of AdamW")
      ->show_default()
      ->type_name("X");
  verb.add_option("--clip", settings.clip, "Largest gradient norm; 0: none")->show_default()->type_name("X");
  verb.add_option("--qk-clip", settings.qk_clip, "Largest logit before projections are shrunk; 0: off")->type_name("X");
  verb.add_option("--entropy-weight", settings.entropy_weight,
                  "What a nat of mean attention entropy takes from the loss: above 0 for flatter attention; 0: off")
      ->type_name("X");
  verb.add_flag("--recompute", settings.recompute,
                "Keep the input of each block alone and compute it again on the way back: less memory, same bits");
  verb.add_flag("--fp8", settings.fp8, "Attention in e4m3, with gradients straight through the rounding");
  verb.add_option("--dropout", settings.dropout, "Probability, in every block")->show_default()->type_name("P");
  add_seed_option(verb, settings.seed, "Seed of weights, order and dropout");
}

}  // namespace

void add_train_command(Command& program) {
  Command* verb = program.add_subcommand("train", "Train a small language model on a text");
  auto options = std::make_shared<TrainVerb>();
  options->settings.model.vocab_size = 512;
  verb->add_option("--text", options->texts, "Text to learn; given several times, the files follow one another")
      ->required()
      ->type_name("FILE");
  verb->add_option("--out", options->out, "Folder for checkpoints and the model")->required()->type_name("DIR");
  const std::size_t before = verb->options().size();
  add_model_options(*verb, *options);
  add_training_options(*verb, *options);
  const std::vector<const Option*> all = verb->options();
  const std::vector<const Option*> settings(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
  verb->add_flag("--resume", options->resume, "Continue from DIR with its saved settings");
  verb->add_option("--stop-after", options->stop_after, "End this run after N steps; --resume continues")
      ->type_name("N");
  verb->add_option("--log-every", options->log_every, "Steps between two lines of progress")
      ->between(1, std::numeric_limits<std::int64_t>::max())
      ->show_default()
      ->type_name("N");
  verb->add_option("--evaluate-every", options->evaluate_every,
                   "Steps between two validation losses; 0: at the end alone")
      ->between(0, std::numeric_limits<std::int64_t>::max())
      ->show_default()
      ->type_name("N");
  verb->add_option("--log-json", options->log_json, "Lines of JSON with the numbers of logged steps")
      ->type_name("FILE");
  verb->add_option("--log-csv", options->log_csv, "The same as CSV")->type_name("FILE");
  verb->add_option("--tensorboard", options->tensorboard, "The same as event files of TensorBoard")->type_name("DIR");
  verb->add_option("--save-every", options->save_every, "Steps between two checkpoints of the state")
      ->between(1, std::numeric_limits<std::int64_t>::max())
      ->show_default()
      ->type_name("N");
  verb->add_option("--save-dtype", options->save_dtype, "Element type of model.safetensors")
      ->one_of({"f32", "bf16", "f16"})
      ->show_default();
  add_threads_option(*verb, options->threads);
  verb->add_flag("--json", options->json, "Print JSON at the end");
  verb->callback([options, settings] {
    for (const Option* setting : settings) {
      if (setting->count() > 0) options->given_settings += " " + setting->name();
    }
    options->settings.schedule = schedule_named(options->schedule);
    run_train(*options);
  });
}

}  // namespace rootdk::tools
