#include "tools/bench/decode_bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "core/check.h"
#include "tools/bench/peak.h"
#include "tools/bench/read_bandwidth.h"

namespace rootdk::tools {
namespace {

Tensor normal_values(DType dtype, std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  Tensor values(DType::f32, shape);
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  for (float& x : values.values<float>()) x = normal(generator);
  return dtype == DType::f32 ? std::move(values) : convert(values, dtype);
}

KvCacheConfig cache_config(const DecodeBenchCase& c) {
  KvCacheConfig config{.dtype = c.dtype, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .value_dim = c.value_dim};
  if (c.page == 0) {
    config.layout = KvLayout::contiguous;
    config.max_sequences = c.batch;
    config.max_len = c.kv_len;
  } else {
    config.page_size = c.page;
    config.pages = c.batch * ((c.kv_len + c.page - 1) / c.page);
  }
  return config;
}

// A cache full of sequences, and the call that is timed.
class DecodeProblem {
 public:
  explicit DecodeProblem(const DecodeBenchCase& c)
      : bench_(c),
        q_dtype_(is_quantised(c.dtype) ? DType::bf16 : c.dtype),
        cache_(cache_config(c)),
        q_(normal_values(q_dtype_, {1, c.heads, c.batch * c.tokens, c.head_dim}, 1)),
        out_(q_dtype_, {1, c.heads, c.batch * c.tokens, c.value_dim}) {
    if (c.page > 0 && c.page_order == PageOrder::random) shuffle_pages();
    for (std::int64_t b = 0; b < c.batch; ++b) steps_.push_back({.sequence = cache_.open(), .tokens = c.tokens});
    fill();
  }

  void run() { attend(cache_, q_, out_, steps_, {}, {}, execution()); }

  std::string implementation() {
    const Explanation answer = explain_attend(cache_, q_, out_, steps_, {}, {}, execution());
    require(!answer.chosen.empty(), "bench decode: ", answer.error);
    return answer.chosen;
  }

 private:
  // Takes every page and frees them all in random order, which is the order in which they are taken again.
  void shuffle_pages() {
    std::vector<SequenceId> holders;
    const Tensor token(DType::f32, {1, bench_.kv_heads, 1, bench_.head_dim});
    const Tensor value(DType::f32, {1, bench_.kv_heads, 1, bench_.value_dim});
    for (std::int64_t p = 0; p < cache_.config().pages; ++p) {
      holders.push_back(cache_.open());
      const KvStep step{.sequence = holders.back()};
      append(cache_, token, value, {&step, 1});
    }
    std::shuffle(holders.begin(), holders.end(), std::mt19937_64(1));
    for (const SequenceId holder : holders) cache_.close(holder);
  }

  void fill() {
    const std::int64_t piece = std::min<std::int64_t>(bench_.kv_len, 512);
    const Tensor k = normal_values(DType::f32, {1, bench_.kv_heads, piece, bench_.head_dim}, 2);
    const Tensor v = normal_values(DType::f32, {1, bench_.kv_heads, piece, bench_.value_dim}, 3);
    for (const KvStep& step : steps_) {
      for (std::int64_t done = 0; done < bench_.kv_len; done += piece) {
        const std::int64_t tokens = std::min(piece, bench_.kv_len - done);
        const KvStep part{.sequence = step.sequence, .tokens = tokens};
        append(cache_, k.view().slice(2, 0, tokens), v.view().slice(2, 0, tokens), {&part, 1});
      }
    }
  }

  Execution execution() const {
    return {.target = bench_.target, .cpu = {.executor = &shared_executor(bench_.threads)}};
  }

  DecodeBenchCase bench_;
  DType q_dtype_;
  KvCache cache_;
  Tensor q_, out_;
  std::vector<KvStep> steps_;
};

const char* name_of(PageOrder order) { return order == PageOrder::filled ? "filled" : "random"; }

}  // namespace

DecodeBenchCase DecodeBenchCase::resolved() const {
  DecodeBenchCase c = *this;
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  return c;
}

double DecodeBenchCase::bytes() const {
  return static_cast<double>(batch * kv_heads * kv_len) * static_cast<double>(head_dim + value_dim) *
         static_cast<double>(size_of(dtype));
}

DecodeBenchResult run_decode_bench(const DecodeBenchCase& given) {
  const DecodeBenchCase bench = given.resolved();
  require(bench.tokens <= bench.kv_len, "bench decode: tokens ", bench.tokens, " is more than kv_len ", bench.kv_len);
  DecodeProblem problem(bench);
  DecodeBenchResult result;
  result.implementation = problem.implementation();
  constexpr double kLarge = 128 << 20;
  ReadMeter meter(result.implementation, static_cast<std::size_t>(std::max(bench.bytes(), kLarge)),
                  shared_executor(bench.threads));
  problem.run();
  std::vector<double> samples;
  for (int i = 0; i < bench.repeat; ++i) {
    meter.measure();
    samples.push_back(seconds_of(bench.threads, [&] { problem.run(); }));
  }
  std::sort(samples.begin(), samples.end());
  result.best_seconds = samples.front();
  result.median_seconds = samples[samples.size() / 2];
  result.read_bandwidth = meter.best();
  return result;
}

nlohmann::ordered_json to_json(const DecodeBenchCase& c, const DecodeBenchResult& r) {
  const double rate = c.bytes() / r.best_seconds;
  return {{"operation", "decode"},
          {"implementation", r.implementation},
          {"dtype", name_of(c.dtype)},
          {"batch", c.batch},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"kv_len", c.kv_len},
          {"head_dim", c.head_dim},
          {"value_dim", c.value_dim},
          {"page", c.page},
          {"page_order", c.page == 0 ? nullptr : nlohmann::ordered_json(name_of(c.page_order))},
          {"tokens", c.tokens},
          {"threads", c.threads},
          {"repeat", c.repeat},
          {"seconds", r.best_seconds},
          {"seconds_best", r.best_seconds},
          {"seconds_median", r.median_seconds},
          {"bytes", c.bytes()},
          {"bytes_per_second", rate},
          {"read_bandwidth", r.read_bandwidth},
          {"fraction_of_bandwidth", rate / r.read_bandwidth},
          {"tokens_per_second", static_cast<double>(c.batch * c.tokens) / r.best_seconds}};
}

}  // namespace rootdk::tools
