// rootdk bench generate: tokens of a stored model behind a context of any length, for one sequence or many, against the
// rate of plain reading.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "models/checkpoint.h"
#include "tools/arguments.h"
#include "tools/bench/bench.h"
#include "tools/bench/peak.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/heap.h"
#include "tools/options.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

struct GenerateBench {
  std::string model{};
  std::optional<WeightFormat> weights{};
  std::optional<DType> cache_type{};
  std::optional<DType> activations{};
  std::int64_t sequences = 1, context = 16, prompt = 1;
  int threads = 1, repeat = 5;
  bool json = false;
};

struct GenerateBenchResult {
  double seconds = 0;  // of a call for all sequences, the median
  LayerTimes times{};  // of all calls
  double all_seconds = 0, weight_bytes = 0, cache_bytes = 0, read_bandwidth = 0;
  double read_share = 0;  // of the bandwidth that was measured just before: the median of the calls

  double bytes_per_second() const { return (weight_bytes + cache_bytes) / seconds; }
};

// Sequences whose keys are random numbers: a context costs what it costs whatever it says, and takes no prompt.
class FilledCache {
 public:
  FilledCache(const GenerateBench& bench, const Transformer& model, Context& context)
      : model_(model), cache_(model.make_cache({.dtype = bench.cache_type, .tokens = bench.sequences * 64})) {
    for (std::int64_t i = 0; i < bench.sequences; ++i) {
      steps_.push_back({.sequence = model.open_sequence(context, cache_), .tokens = bench.prompt});
      for (std::int64_t t = 0; t < bench.prompt; ++t) {
        ids_.push_back(static_cast<std::int32_t>((i * 31 + t * 7) % model.config().vocab_size));
      }
    }
    for (std::int64_t done = 0; done < bench.context; done += kChunk) {
      for (const KvStep& step : steps_) fill(step.sequence, std::min(kChunk, bench.context - done), context);
    }
    length_ = bench.context;
  }

  // One token (or prompt) for every sequence, which is forgotten again.
  void step(Context& context) {
    model_.extend(context, cache_, ids_, steps_);
    for (const KvStep& step : steps_) cache_.keys.trim(step.sequence, length_);
  }
  double bytes() const {
    const KvCacheConfig& config = cache_.keys.config();
    return static_cast<double>(static_cast<std::int64_t>(steps_.size()) * length_ * config.layers * config.kv_heads *
                               (config.head_dim + config.value_dim)) *
           static_cast<double>(size_of(config.dtype));
  }

 private:
  static constexpr std::int64_t kChunk = 1024;

  void fill(SequenceId sequence, std::int64_t tokens, Context& context) {
    const KvCacheConfig& config = cache_.keys.config();
    Tensor k(DType::f32, {1, config.kv_heads, tokens, config.head_dim});
    Tensor v(DType::f32, {1, config.kv_heads, tokens, config.value_dim});
    for (Tensor* tensor : {&k, &v}) {
      for (float& x : tensor->values<float>()) x = normal_(random_);
    }
    const KvStep step{.sequence = sequence, .tokens = tokens};
    cache_.make_room(step);
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      append(cache_.keys, k, v, step, {.layer = layer}, {.cpu = {.executor = context.executor}});
    }
  }

  const Transformer& model_;
  ModelCache cache_;
  std::vector<KvStep> steps_;
  std::vector<std::int32_t> ids_;
  std::int64_t length_ = 0;
  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
};

// What products run on here.
std::string_view first_target() {
  for (const LinearImplementation& candidate : cpu::linear_implementations()) {
    if (candidate.answer({}).refusal.empty()) return candidate.name;
  }
  return "";
}

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

GenerateBenchResult run(const GenerateBench& bench) {
  keep_freed_memory();
  Executor& executor = shared_executor(bench.threads);
  const Transformer model =
      load_model(bench.model, {.weights = bench.weights,
                               .activations = bench.activations.value_or(generation_activations()),
                               .executor = &executor});
  GenerateBenchResult result;
  result.times.processor_time = bench.threads == 1;
  Context context{.executor = &executor};
  FilledCache cache(bench, model, context);
  ReadMeter reading(first_target(), std::size_t{256} << 20, executor);
  cache.step(context);  // warms up
  context.times = &result.times;
  std::vector<double> samples, bandwidths;
  for (int i = 0; i < bench.repeat; ++i) {
    bandwidths.push_back(reading.measure());
    samples.push_back(seconds_of(bench.threads, [&] { cache.step(context); }));
    result.all_seconds += samples.back();
  }
  result.weight_bytes = result.times.weight_bytes / bench.repeat;
  result.cache_bytes = cache.bytes();
  std::vector<double> shares;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    shares.push_back((result.weight_bytes + result.cache_bytes) / samples[i] / bandwidths[i]);
  }
  result.seconds = median(samples);
  result.read_bandwidth = median(bandwidths);
  result.read_share = median(shares);
  return result;
}

void print(const GenerateBench& bench, const GenerateBenchResult& r) {
  const auto tokens = static_cast<double>(bench.sequences * bench.prompt);
  if (bench.json) {
    const nlohmann::ordered_json json = {{"operation", "generate"},
                                         {"sequences", bench.sequences},
                                         {"context", bench.context},
                                         {"tokens", bench.prompt},
                                         {"threads", bench.threads},
                                         {"seconds_median", r.seconds},
                                         {"tokens_per_second", tokens / r.seconds},
                                         {"product_share", r.times.product_seconds / r.all_seconds},
                                         {"attention_share", r.times.attention_seconds / r.all_seconds},
                                         {"product_gflops", 1e-9 * r.times.product_flops / r.times.product_seconds},
                                         {"weight_bytes", r.weight_bytes},
                                         {"cache_bytes", r.cache_bytes},
                                         {"bytes_per_second", r.bytes_per_second()},
                                         {"read_bytes_per_second", r.read_bandwidth},
                                         {"read_share", r.read_share}};
    std::puts(json.dump().c_str());
    return;
  }
  std::printf("%lld sequence%s of %lld tokens, %lld new each, %d thread%s\n", static_cast<long long>(bench.sequences),
              bench.sequences == 1 ? "" : "s", static_cast<long long>(bench.context),
              static_cast<long long>(bench.prompt), bench.threads, bench.threads == 1 ? "" : "s");
  Table table(1);
  table.add({"time", format("%.2f ms", 1e3 * r.seconds)});
  table.add({"rate", format("%.1f tokens/s", tokens / r.seconds)});
  table.add({"products", format("%.1f %% of the time, %.1f GFLOP/s", 100 * r.times.product_seconds / r.all_seconds,
                                1e-9 * r.times.product_flops / r.times.product_seconds)});
  table.add({"attention", format("%.1f %% of the time", 100 * r.times.attention_seconds / r.all_seconds)});
  table.add({"weights, cache", format("%.0f MB, %.0f MB", 1e-6 * r.weight_bytes, 1e-6 * r.cache_bytes)});
  table.add({"both are read at", format("%.1f of %.1f GB/s: %.2f of plain reading", 1e-9 * r.bytes_per_second(),
                                        1e-9 * r.read_bandwidth, r.read_share)});
  std::fputs(table.text().c_str(), stdout);
}

}  // namespace

void add_generate_bench(Command& bench) {
  Command* verb = bench.add_subcommand("generate", "Tokens of a stored decoder behind a context, one sequence or many");
  auto options = std::make_shared<GenerateBench>();
  verb->add_option("MODEL", options->model, "Folder of the model")->required();
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    verb->add_option(name, value, help)->between(1, std::int64_t{1} << 20)->show_default()->type_name("N");
  };
  size("--sequences", options->sequences, "Sequences at once");
  size("--context", options->context, "Tokens that each has already: random keys");
  size("--tokens", options->prompt, "New tokens of each: 1, or a prompt");
  add_weights_option(*verb, options->weights, "Make the weights int8 or int4 first");
  add_activations_option(*verb, options->activations);
  add_cache_option(*verb, options->cache_type);
  add_threads_option(*verb, options->threads, "Threads (default: 1, timed by the processor's clock)");
  verb->add_option("--repeat", options->repeat, "Runs; the median counts")
      ->between(1, 10000)
      ->show_default()
      ->type_name("N");
  verb->add_flag("--json", options->json, "Print one JSON object");
  verb->callback([options] { print(*options, run(*options)); });
}

}  // namespace rootdk::tools
