// One case of the benchmark: the tensors, the runs with the peak measured between them, the textbook computation.

#include <algorithm>
#include <functional>
#include <random>

#include "core/check.h"
#include "tools/bench/bench.h"
#include "tools/bench/cuda_bench.h"
#include "tools/bench/naive.h"
#include "tools/bench/peak.h"

namespace rootdk::tools {
namespace {

constexpr double kSampleSeconds = 4e-3;  // shorter runs are timed several at a time
constexpr int kNaiveRuns = 3;

Tensor normal_values(DType dtype, std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  Tensor values(DType::f32, shape);
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  for (float& x : values.values<float>()) x = normal(generator);
  return dtype == DType::f32 ? std::move(values) : convert(values, dtype);
}

// The tensors of a case, and the call that is timed.
class Problem {
 public:
  explicit Problem(const BenchCase& c)
      : bench_(c),
        q_(normal_values(c.dtype, {c.batch, c.heads, c.len, c.head_dim}, 1)),
        k_(normal_values(c.dtype, {c.batch, c.kv_heads, c.kv_len, c.head_dim}, 2)),
        v_(normal_values(c.dtype, {c.batch, c.kv_heads, c.kv_len, c.value_dim}, 3)),
        out_(c.dtype, {c.batch, c.heads, c.len, c.value_dim}) {
    if (c.stats || c.backward) lse_ = Tensor(DType::f32, {c.batch, c.heads, c.len});
    if (c.stats) {
      for (Tensor* row : {&max_logit_, &max_weight_, &entropy_, &sum_p2_}) {
        *row = Tensor(DType::f32, {c.batch, c.heads, c.len});
      }
    }
    if (c.backward) {
      grad_out_ = normal_values(c.dtype, {c.batch, c.heads, c.len, c.value_dim}, 4);
      grad_q_ = Tensor(c.dtype, q_.shape());
      grad_k_ = Tensor(c.dtype, k_.shape());
      grad_v_ = Tensor(c.dtype, v_.shape());
      forward();  // backward reads what it leaves
    }
  }

  void run() { bench_.backward ? backward() : forward(); }

  std::string implementation() {
    const Explanation answer = bench_.backward
                                   ? explain_backward(saved(), upstream(), gradients(), params(), execution())
                                   : explain(q_, k_, v_, out_, params(), statistics(), execution());
    require(!answer.chosen.empty(), "bench: ", answer.error);
    return answer.chosen;
  }

  // The textbook computation on the same numbers in f32.
  void run_naive(Tensor& out) const {
    const Tensor q = convert(q_, DType::f32), k = convert(k_, DType::f32), v = convert(v_, DType::f32);
    const NaiveAttention naive(bench_.causal, bench_.threads);
    if (!bench_.backward) return naive.forward(q, k, v, out);
    Tensor grad_q(DType::f32, q.shape()), grad_k(DType::f32, k.shape()), grad_v(DType::f32, v.shape());
    naive.backward(q, k, v, convert(grad_out_, DType::f32), grad_q, grad_k, grad_v);
  }

 private:
  void forward() { attention(q_, k_, v_, out_, params(), statistics(), execution()); }
  void backward() { attention_backward(saved(), upstream(), gradients(), params(), execution()); }

  AttentionParams params() const { return {.causal = bench_.causal}; }
  Execution execution() const {
    return {.target = bench_.target, .cpu = {.executor = &shared_executor(bench_.threads)}};
  }
  AttentionStats statistics() {
    return {.lse = lse_, .max_logit = max_logit_, .max_weight = max_weight_, .entropy = entropy_, .sum_p2 = sum_p2_};
  }
  AttentionSaved saved() const { return {.q = q_, .k = k_, .v = v_, .out = out_, .lse = lse_, .entropy = {}}; }
  AttentionUpstream upstream() const { return {.out = grad_out_, .lse = {}, .entropy = {}}; }
  AttentionGradients gradients() { return {.q = grad_q_, .k = grad_k_, .v = grad_v_}; }

  BenchCase bench_;
  Tensor q_, k_, v_, out_, lse_, max_logit_, max_weight_, entropy_, sum_p2_;
  Tensor grad_out_, grad_q_, grad_k_, grad_v_;
};

}  // namespace

BenchCase BenchCase::resolved() const {
  BenchCase c = *this;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.kv_len == 0) c.kv_len = c.len;
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  return c;
}

double BenchCase::flops() const {
  double pairs = static_cast<double>(len) * static_cast<double>(kv_len);
  if (causal) {
    pairs = 0;
    for (std::int64_t i = 0; i < len; ++i) {
      pairs += static_cast<double>(std::clamp<std::int64_t>(i + 1 + kv_len - len, 0, kv_len));
    }
  }
  const double forward = 2.0 * pairs * static_cast<double>(batch * heads) * static_cast<double>(head_dim + value_dim);
  return backward ? 2.5 * forward : forward;
}

double BenchCase::kv_bytes() const {
  return static_cast<double>(batch * kv_heads * kv_len * (head_dim + value_dim)) * static_cast<double>(size_of(dtype));
}

BenchResult run_attention_bench(const BenchCase& given) {
  const BenchCase bench = given.resolved();
  if (bench.cuda) return run_cuda_bench(bench);
  Problem problem(bench);
  BenchResult result;
  result.implementation = problem.implementation();
  PeakMeter peak(result.implementation, shared_executor(bench.threads));
  result.peak_bytes = peak_bytes_of([&] { problem.run(); });
  peak.measure();  // finds its length

  const double first = seconds_of(bench.threads, [&] { problem.run(); });
  const int runs_a_sample = std::max(1, static_cast<int>(kSampleSeconds / std::max(first, 1e-7)));
  std::vector<double> samples;
  for (int i = 0; i < bench.repeat; ++i) {
    peak.measure();
    const double seconds = seconds_of(bench.threads, [&] {
      for (int run = 0; run < runs_a_sample; ++run) problem.run();
    });
    samples.push_back(seconds / runs_a_sample);
  }
  peak.measure();
  std::sort(samples.begin(), samples.end());
  result.best_seconds = samples.front();
  result.median_seconds = samples[samples.size() / 2];
  result.gflops = 1e-9 * bench.flops() / result.best_seconds;
  result.peak_gflops = 1e-9 * peak.best_flops_per_second();
  if (bench.decode) result.bytes_per_second = bench.kv_bytes() / result.best_seconds;

  if (bench.naive && has_blas()) {
    result.has_naive = true;
    Tensor out(DType::f32, {bench.batch, bench.heads, bench.len, bench.value_dim});
    result.naive_peak_bytes =
        peak_bytes_of([&] { result.naive_seconds = seconds_of(bench.threads, [&] { problem.run_naive(out); }); });
    for (int i = 1; i < std::min(kNaiveRuns, bench.repeat); ++i) {
      result.naive_seconds = std::min(result.naive_seconds, seconds_of(bench.threads, [&] { problem.run_naive(out); }));
    }
  }
  return result;
}

}  // namespace rootdk::tools
