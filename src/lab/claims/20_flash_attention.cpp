#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "lab/claims/claims.h"
#include "lab/naive.h"
#include "lab/peak_memory.h"
#include "lab/probe.h"
#include "lab/sentence.h"
#include "lab/timing.h"

namespace rootdk::lab {
namespace {

constexpr std::int64_t kHeadDim = 64;

struct Inputs {
  Tensor q, k, v, out;

  Inputs(Random& random, std::int64_t length)
      : q(random.normal_tensor({1, 1, length, kHeadDim})),
        k(random.normal_tensor({1, 1, length, kHeadDim})),
        v(random.normal_tensor({1, 1, length, kHeadDim})),
        out(DType::f32, {1, 1, length, kHeadDim}) {}
};

// MB at the peak of a call on fresh inputs, the inputs and the output among them. Large pages and what earlier
// claims left in the heap move it by a few MB either way, so the middle of three calls counts.
double peak_mb(Random& random, std::int64_t length, const std::function<void(Inputs&)>& call) {
  std::array<double, 3> peaks;
  for (double& peak : peaks) {
    reset_peak_memory();
    const std::int64_t before = resident_memory();
    Inputs inputs(random, length);
    call(inputs);
    peak = static_cast<double>(std::max<std::int64_t>(4096, peak_memory() - before));
  }
  std::ranges::sort(peaks);
  return peaks[1] * 1e-6;
}

// Both ways at each length.
struct Measurements {
  std::vector<double> n, fused_mb, naive_mb, fused_ms, naive_ms;
  double largest_difference = 0;  // between the outputs

  double ratio() const { return naive_ms.back() / fused_ms.back(); }
};

Measurements measure(const Bench& bench, const std::vector<std::int64_t>& lengths) {
  Random random(bench.seed, 20);
  const std::function<void(Inputs&)> fused = [&](Inputs& in) { bench.attend(in.q, in.k, in.v, in.out, {}, {}); };
  const std::function<void(Inputs&)> naive = [](Inputs& in) {
    naive_attention(in.q, in.k, in.v, in.out, 1 / std::sqrt(double{kHeadDim}));
  };
  for (const auto& call : {fused, naive}) peak_mb(random, 256, call);  // the first call makes threads and buffers
  Measurements m;
  for (std::int64_t length : lengths) {
    m.n.push_back(static_cast<double>(length));
    m.fused_mb.push_back(peak_mb(random, length, fused));
    m.naive_mb.push_back(peak_mb(random, length, naive));
    Inputs inputs(random, length);
    Tensor fused_out(DType::f32, {1, 1, length, kHeadDim});
    auto run_fused = [&] { bench.attend(inputs.q, inputs.k, inputs.v, fused_out, {}, {}); };
    auto run_naive = [&] { naive(inputs); };
    const std::vector<double> seconds = best_of_rounds(bench.quick ? 2 : 3, {run_fused, run_naive});
    m.fused_ms.push_back(seconds[0] * 1e3);
    m.naive_ms.push_back(seconds[1] * 1e3);
    for (std::size_t i = 0; i < fused_out.values<float>().size(); ++i) {
      const double difference = double{fused_out.values<float>()[i]} - inputs.out.values<float>()[i];
      m.largest_difference = std::max(m.largest_difference, std::abs(difference));
    }
    bench.progress("lengths", static_cast<double>(m.n.size()) / static_cast<double>(lengths.size()));
  }
  return m;
}

Figure over_length(const char* title, const char* y_label, const std::vector<double>& n,
                   const std::vector<double>& fused, const std::vector<double>& naive, const char* caption) {
  return {.title = title,
          .x_label = "n",
          .y_label = y_label,
          .caption = caption,
          .log_x = true,
          .log_y = true,
          .series = {{.name = "fused", .x = n, .y = fused}, {.name = "n x n matrix", .x = n, .y = naive}}};
}

}  // namespace

Finding flash_attention(const Bench& bench) {
  // Long enough that the matrix outweighs what the heap adds.
  const std::vector<std::int64_t> lengths =
      bench.quick ? std::vector<std::int64_t>{1024, 2048, 4096} : std::vector<std::int64_t>{2048, 4096, 8192};
  const Measurements m = measure(bench, lengths);
  const Interval naive_exponent = power_law_exponent(m.n, m.naive_mb),
                 fused_exponent = power_law_exponent(m.n, m.fused_mb);
  Finding finding{.quantity = "naive time over fused time at the longest n",
                  .expected = 2,
                  .relation = Relation::at_least,
                  .samples = lengths.back()};
  finding.measured = exact(m.ratio());
  finding.details = {{"memory exponent of the n x n way", 2, naive_exponent},
                     {"memory exponent of the fused kernel", 1, fused_exponent},
                     {"fused peak MB at the longest n", std::nan(""), exact(m.fused_mb.back())},
                     {"naive peak MB at the longest n", std::nan(""), exact(m.naive_mb.back())},
                     {"naive time / fused time", 2, exact(m.ratio())},
                     {"largest difference of the outputs", 0, exact(m.largest_difference)}};
  finding.figures = {
      over_length("Memory over length", "peak MB", m.n, m.fused_mb, m.naive_mb,
                  "One head, d_k = 64; inputs and output included."),
      over_length("Time over length", "ms of processor time", m.n, m.fused_ms, m.naive_ms, "One head, d_k = 64.")};
  constexpr double kBetweenLinearAndSquare = 1.5;
  const bool memory_holds = naive_exponent.value > kBetweenLinearAndSquare &&
                            fused_exponent.value < kBetweenLinearAndSquare && m.largest_difference < 1e-4;
  finding.verdict = !memory_holds || m.ratio() < 1 ? Verdict::does_not_hold
                    : m.ratio() >= 2               ? Verdict::holds
                                                   : Verdict::holds_with_a_correction;
  finding.note = finding.verdict == Verdict::holds
                     ? "The same output, memory that grows as n^" + say(fused_exponent.value) + " instead of n^" +
                           say(naive_exponent.value) + ", and " + say(m.ratio()) + " times the speed at the longest n."
                 : finding.verdict == Verdict::holds_with_a_correction
                     ? "The same output and memory that grows as n^" + say(fused_exponent.value) +
                           " hold; on this machine it is " + say(m.ratio()) +
                           " times as fast at the longest n, less than 2 to 4."
                     : "The fused kernel is not what it claims to be here.";
  finding.setup = "one head, d_k = 64";
  return finding;
}

}  // namespace rootdk::lab
