#include "tools/bench/bench.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/arguments.h"
#include "tools/bench/decode_bench.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

struct BenchOptions {
  BenchCase bench;
  std::string dtype, device = "cpu";
  PageOrder page_order = PageOrder::random;
  bool json = false, no_naive = false;
};

const char* operation_of(const BenchCase& c) { return c.decode ? "decode" : c.backward ? "backward" : "forward"; }

std::string where(const BenchCase& c) {
  return c.cuda ? std::string("CUDA") : format("%d thread%s", c.threads, c.threads == 1 ? "" : "s");
}

void print_text(const BenchCase& c, const BenchResult& r) {
  std::printf("%s %s, batch %lld, heads %lld (kv %lld), len %lld (kv %lld), head_dim %lld%s%s, %s: %s\n",
              operation_of(c), std::string(name_of(c.dtype)).c_str(), static_cast<long long>(c.batch),
              static_cast<long long>(c.heads), static_cast<long long>(c.kv_heads), static_cast<long long>(c.len),
              static_cast<long long>(c.kv_len), static_cast<long long>(c.head_dim), c.causal ? ", causal" : "",
              c.stats ? ", statistics" : "", where(c).c_str(), r.implementation.c_str());
  Table table(1);
  table.add({"time", format("%.3f ms best, %.3f ms median", 1e3 * r.best_seconds, 1e3 * r.median_seconds)});
  table.add({"rate", format("%.1f GFLOP/s", r.gflops)});
  if (r.peak_gflops > 0) {
    table.add({"of the peak", format("%.1f %% of %.1f GFLOP/s", 100 * r.gflops / r.peak_gflops, r.peak_gflops)});
  }
  if (r.bytes_per_second > 0) table.add({"keys and values", format("%.3f TB/s", 1e-12 * r.bytes_per_second)});
  if (r.peak_bytes_per_second > 0) {
    table.add({"of a copy", format("%.1f %% of %.3f TB/s", 100 * r.bytes_per_second / r.peak_bytes_per_second,
                                   1e-12 * r.peak_bytes_per_second)});
  }
  table.add({"memory", format("%.1f MiB beyond the tensors", static_cast<double>(r.peak_bytes) / 0x1p20)});
  if (r.has_naive) {
    table.add({"textbook", format("%.3f ms, %.1f MiB: %.2f times as long", 1e3 * r.naive_seconds,
                                  static_cast<double>(r.naive_peak_bytes) / 0x1p20, r.naive_seconds / r.best_seconds)});
  }
  std::fputs(table.text().c_str(), stdout);
}

void print_text(const DecodeBenchCase& c, const DecodeBenchResult& r) {
  const std::string order = c.page_order == PageOrder::filled ? " as filled" : " in random order";
  const std::string layout = c.page ? "pages of " + std::to_string(c.page) + order : "contiguous";
  std::printf("decode %s, batch %lld, heads %lld (kv %lld), %lld keys, head_dim %lld, %s, %d thread%s: %s\n",
              std::string(name_of(c.dtype)).c_str(), static_cast<long long>(c.batch), static_cast<long long>(c.heads),
              static_cast<long long>(c.kv_heads), static_cast<long long>(c.kv_len), static_cast<long long>(c.head_dim),
              layout.c_str(), c.threads, c.threads == 1 ? "" : "s", r.implementation.c_str());
  const double rate = c.bytes() / r.best_seconds;
  Table table(1);
  table.add({"time", format("%.3f ms best, %.3f ms median", 1e3 * r.best_seconds, 1e3 * r.median_seconds)});
  table.add({"keys and values", format("%.2f GB/s", 1e-9 * rate)});
  table.add(
      {"of reading alone", format("%.1f %% of %.2f GB/s", 100 * rate / r.read_bandwidth, 1e-9 * r.read_bandwidth)});
  table.add({"tokens", format("%.1f a second", static_cast<double>(c.batch * c.tokens) / r.best_seconds)});
  std::fputs(table.text().c_str(), stdout);
}

// A cache may have types that tensors do not have.
DType cache_dtype(const std::string& name) {
  for (const DType quantised : {DType::i8, DType::f8e4m3}) {
    if (name == name_of(quantised)) return quantised;
  }
  return parse_dtype(name).value_or(DType::f32);
}

// On the CPU decoding reads a KV cache.
void run_decode(const BenchOptions& options) {
  const BenchCase& b = options.bench;
  DecodeBenchCase bench{.batch = b.batch,
                        .heads = b.heads,
                        .kv_heads = b.kv_heads,
                        .kv_len = b.kv_len,
                        .head_dim = b.head_dim,
                        .value_dim = b.value_dim,
                        .page = b.page,
                        .page_order = options.page_order,
                        .tokens = b.len,
                        .threads = b.threads,
                        .repeat = b.repeat,
                        .target = b.target};
  bench.dtype = cache_dtype(options.dtype);
  bench = bench.resolved();
  const DecodeBenchResult result = run_decode_bench(bench);
  if (options.json) {
    std::puts(to_json(bench, result).dump().c_str());
  } else {
    print_text(bench, result);
  }
}

void run_bench(const BenchOptions& options) {
  if (options.bench.decode && options.device != "cuda") return run_decode(options);
  BenchCase bench = options.bench;
  bench.dtype = cache_dtype(options.dtype);
  bench.cuda = options.device == "cuda";
  bench.naive = !options.no_naive;
  bench = bench.resolved();
  const BenchResult result = run_attention_bench(bench);
  if (options.json) {
    std::puts(to_json(bench, result).dump().c_str());
  } else {
    print_text(bench, result);
  }
}

void add_attention_bench(Command& bench, const char* name, const char* help, const BenchCase& defaults) {
  Command* verb = bench.add_subcommand(name, help);
  auto options = std::make_shared<BenchOptions>();
  options->bench = defaults;
  BenchCase& c = options->bench;
  // The value given by `defaults` is part of the help, or what stands for 0.
  const auto size = [&](const char* option, std::int64_t& value, const std::string& text,
                        const std::string& otherwise = "") {
    const std::string standard = value ? std::to_string(value) : otherwise;
    verb->add_option(option, value, text + " (default: " + standard + ")")
        ->between(1, std::int64_t{1} << 31)
        ->type_name("N");
  };
  if (defaults.decode) {
    verb->add_option("--dtype", options->dtype, "Element type of the cache (default: f32)")
        ->one_of({"f32", "bf16", "f16", "i8", "f8e4m3"});
    verb->add_option("--page", c.page, "Tokens of a page of the cache, 16 to 256 (default: contiguous)")
        ->between(0, 256)
        ->type_name("N");
    verb->add_choice<PageOrder>("--page-order", options->page_order,
                                {{"filled", PageOrder::filled}, {"random", PageOrder::random}},
                                "Pages in order, as in a fresh cache, or anywhere (default: random; on the CPU)");
  } else {
    add_dtype_option(*verb, options->dtype, "Element type (default: f32)");
  }
  size("--batch", c.batch, "Sequences");
  size("--heads", c.heads, "Query heads");
  size("--kv-heads", c.kv_heads, "Key heads", "as many as query heads");
  size("--len", c.len, defaults.decode ? "New tokens a sequence" : "Queries a sequence");
  size("--kv-len", c.kv_len, "Keys a sequence", "as many as queries");
  size("--head-dim", c.head_dim, "Size of a query and a key");
  size("--value-dim", c.value_dim, "Size of a value", "as a key");
  if (!defaults.decode) {
    verb->add_flag("--causal", c.causal, "Keys up to the query's position; counts only the work that is left");
    verb->add_flag("--stats", c.stats, "With all statistics of a row");
    verb->add_flag("--no-naive", options->no_naive, "Leave out the textbook computation");
  }
  add_threads_option(*verb, c.threads, "Threads (default: 1)");
  verb->add_option("--device", options->device, "Where to run (default: cpu)")->one_of({"cpu", "cuda"});
  verb->add_option("--target", c.target, "Force an implementation")->type_name("NAME");
  verb->add_option("--repeat", c.repeat, "Runs (default: 10)")->between(1, 100000)->type_name("N");
  verb->add_flag("--json", options->json, "Print one JSON object");
  verb->callback([options] { run_bench(*options); });
}

}  // namespace

nlohmann::ordered_json to_json(const BenchCase& c, const BenchResult& r) {
  nlohmann::ordered_json json = {{"operation", operation_of(c)},
                                 {"device", c.cuda ? "cuda" : "cpu"},
                                 {"implementation", r.implementation},
                                 {"dtype", name_of(c.dtype)},
                                 {"batch", c.batch},
                                 {"heads", c.heads},
                                 {"kv_heads", c.kv_heads},
                                 {"len", c.len},
                                 {"kv_len", c.kv_len},
                                 {"head_dim", c.head_dim},
                                 {"value_dim", c.value_dim},
                                 {"page", c.page},
                                 {"causal", c.causal},
                                 {"stats", c.stats},
                                 {"threads", c.threads},
                                 {"repeat", c.repeat},
                                 {"seconds", r.best_seconds},
                                 {"seconds_best", r.best_seconds},
                                 {"seconds_median", r.median_seconds},
                                 {"gflops", r.gflops},
                                 {"peak_gflops", nullptr},
                                 {"fraction_of_peak", nullptr},
                                 {"naive_seconds", nullptr},
                                 {"naive_peak_bytes", nullptr},
                                 {"speedup_vs_naive", nullptr},
                                 {"peak_bytes", r.peak_bytes}};
  if (r.peak_gflops > 0) {
    json["peak_gflops"] = r.peak_gflops;
    json["fraction_of_peak"] = r.gflops / r.peak_gflops;
  }
  if (c.decode) {
    json["bytes_per_second"] = r.bytes_per_second;
    json["copy_bytes_per_second"] = nullptr;
    if (r.peak_bytes_per_second > 0) json["copy_bytes_per_second"] = r.peak_bytes_per_second;
  }
  if (r.has_naive) {
    json["naive_seconds"] = r.naive_seconds;
    json["naive_peak_bytes"] = r.naive_peak_bytes;
    json["speedup_vs_naive"] = r.naive_seconds / r.best_seconds;
  }
  return json;
}

void add_bench_command(Command& program) {
  Command* bench = program.add_subcommand("bench", "Measure the kernels against this machine's peak");
  bench->require_subcommand();
  add_attention_bench(*bench, "forward", "The forward pass", {});
  add_attention_bench(*bench, "backward", "The backward pass", {.backward = true});
  add_attention_bench(*bench, "decode", "New tokens over a KV cache: bytes a second",
                      {.decode = true, .batch = 16, .heads = 32, .kv_heads = 8, .len = 1, .kv_len = 8192});
  add_model_bench(*bench);
  add_generate_bench(*bench);
  add_distributed_bench(*bench);
  add_linear_bench(*bench);
}

}  // namespace rootdk::tools
