// rootdk bench model: the forward pass of a whole encoder with random weights, and where its time goes.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "models/transformer.h"
#include "tools/arguments.h"
#include "tools/bench/bench.h"
#include "tools/bench/peak.h"
#include "tools/options.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

// The shape of BERT base.
struct ModelBench {
  std::int64_t d_model = 768, layers = 12, heads = 12, d_ff = 3072, tokens = 512, batch = 1, vocab = 30522;
  int threads = 1, repeat = 3;
  bool json = false;
};

struct ModelBenchResult {
  double seconds = 0;
  LayerTimes times{};  // of the best run
  double peak_flops = 0;
  std::string implementation{};

  double flops() const { return times.product_flops + times.attention_flops; }
  double share(double part) const { return part / seconds; }
};

TransformerConfig encoder_config(const ModelBench& bench) {
  TransformerConfig config;
  config.architecture = "bert";
  config.d_model = bench.d_model;
  config.vocab_size = config.decoder_vocab_size = bench.vocab;
  config.max_position = bench.tokens;
  config.token_types = 2;
  config.positions = PositionEncoding::learned;
  config.output = ModelOutput::hidden_states;
  BlockConfig block;
  block.attention = {.d_model = bench.d_model, .heads = bench.heads, .qkv_bias = true, .out_bias = true};
  block.feed_forward = {.d_model = bench.d_model, .d_ff = bench.d_ff, .activation = Activation::gelu, .bias = true};
  block.norm_bias = true;
  block.placement = NormPlacement::post;
  config.stack = {.blocks = std::vector<BlockConfig>(static_cast<std::size_t>(bench.layers), block),
                  .embedding_norm = true,
                  .norm = block.norm,
                  .norm_bias = true};
  return config;
}

std::string implementation_of(const ModelBench& bench) {
  Tensor sample(DType::f32, {1, bench.heads, 1, bench.d_model / bench.heads});
  return explain(sample, sample, sample, sample).chosen;
}

ModelBenchResult run(const ModelBench& bench) {
  Transformer model(encoder_config(bench));
  initialize(model, 1);
  ModelInput input{.batch = bench.batch};
  for (std::int64_t i = 0; i < bench.batch * bench.tokens; ++i) {
    input.ids.push_back(static_cast<std::int32_t>(i * 7919 % bench.vocab));
  }
  Executor& executor = shared_executor(bench.threads);
  ModelBenchResult result{.implementation = implementation_of(bench)};
  PeakMeter peak(result.implementation, executor);
  for (int i = -1; i < bench.repeat; ++i) {  // the first run warms up
    if (peak.exists()) peak.measure();
    LayerTimes times{.processor_time = bench.threads == 1};
    Context context{.executor = &executor, .times = &times};
    const double seconds = seconds_of(bench.threads, [&] { model.forward(context, input); });
    if (i < 0 || (result.seconds > 0 && seconds >= result.seconds)) continue;
    result.seconds = seconds;
    result.times = times;
  }
  result.peak_flops = peak.exists() ? peak.best_flops_per_second() : 0.0;
  return result;
}

nlohmann::ordered_json to_json(const ModelBench& bench, const ModelBenchResult& r) {
  nlohmann::ordered_json json = {
      {"operation", "model"},
      {"implementation", r.implementation},
      {"d_model", bench.d_model},
      {"layers", bench.layers},
      {"heads", bench.heads},
      {"d_ff", bench.d_ff},
      {"tokens", bench.tokens},
      {"batch", bench.batch},
      {"threads", bench.threads},
      {"seconds", r.seconds},
      {"tokens_per_second", static_cast<double>(bench.batch * bench.tokens) / r.seconds},
      {"product_share", r.share(r.times.product_seconds)},
      {"attention_share", r.share(r.times.attention_seconds)},
      {"product_and_attention_share", r.share(r.times.product_seconds + r.times.attention_seconds)},
      {"product_gflops", 1e-9 * r.times.product_flops / r.times.product_seconds},
      {"attention_gflops", 1e-9 * r.times.attention_flops / r.times.attention_seconds},
      {"gflops", 1e-9 * r.flops() / r.seconds},
      {"peak_gflops", nullptr},
      {"fraction_of_peak", nullptr}};
  if (r.peak_flops > 0) {
    json["peak_gflops"] = 1e-9 * r.peak_flops;
    json["fraction_of_peak"] = r.flops() / r.seconds / r.peak_flops;
  }
  return json;
}

void print_text(const ModelBench& bench, const ModelBenchResult& r) {
  std::printf(
      "encoder of %lld layers, d_model %lld, heads %lld, d_ff %lld, %lld tokens, %d thread%s: attention on %s\n",
      static_cast<long long>(bench.layers), static_cast<long long>(bench.d_model), static_cast<long long>(bench.heads),
      static_cast<long long>(bench.d_ff), static_cast<long long>(bench.batch * bench.tokens), bench.threads,
      bench.threads == 1 ? "" : "s", r.implementation.c_str());
  Table table(1);
  table.add({"time", format("%.1f ms", 1e3 * r.seconds)});
  table.add({"products", format("%.1f %% of the time, %.1f GFLOP/s", 100 * r.share(r.times.product_seconds),
                                1e-9 * r.times.product_flops / r.times.product_seconds)});
  table.add({"attention", format("%.1f %% of the time, %.1f GFLOP/s", 100 * r.share(r.times.attention_seconds),
                                 1e-9 * r.times.attention_flops / r.times.attention_seconds)});
  table.add({"rate", format("%.1f GFLOP/s", 1e-9 * r.flops() / r.seconds)});
  if (r.peak_flops > 0) {
    table.add({"of the peak",
               format("%.1f %% of %.1f GFLOP/s", 100 * r.flops() / r.seconds / r.peak_flops, 1e-9 * r.peak_flops)});
  }
  std::fputs(table.text().c_str(), stdout);
}

}  // namespace

void add_model_bench(Command& bench) {
  Command* verb = bench.add_subcommand("model", "A whole encoder: how much of its time is products and attention");
  auto options = std::make_shared<ModelBench>();
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    verb->add_option(name, value, help)->between(1, std::int64_t{1} << 20)->show_default()->type_name("N");
  };
  size("--d-model", options->d_model, "Width");
  size("--layers", options->layers, "Blocks");
  size("--heads", options->heads, "Heads");
  size("--d-ff", options->d_ff, "Width of the feed-forward");
  size("--tokens", options->tokens, "Tokens a sequence");
  size("--batch", options->batch, "Sequences");
  add_threads_option(*verb, options->threads, "Threads (default: 1)");
  verb->add_option("--repeat", options->repeat, "Runs; the best counts")
      ->between(1, 10000)
      ->show_default()
      ->type_name("N");
  verb->add_flag("--json", options->json, "Print one JSON object");
  verb->callback([options] {
    const ModelBenchResult result = run(*options);
    if (options->json) {
      std::puts(to_json(*options, result).dump().c_str());
    } else {
      print_text(*options, result);
    }
  });
}

}  // namespace rootdk::tools
