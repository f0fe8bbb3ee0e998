// The same numbers the plain way and fused: time, and the memory of the n x n matrix.

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "rootdk/attention.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

constexpr std::int64_t kHeadDim = 64;
constexpr double kMebi = 1024.0 * 1024.0;

// softmax(q kᵀ / √d) v as one would write it down: an n x n matrix, and three loops over it.
void naive_attention(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out) {
  const auto n = static_cast<std::size_t>(q.size(2)), d = static_cast<std::size_t>(kHeadDim);
  const auto query = q.values<float>(), key = k.values<float>(), value = v.values<float>();
  const auto result = out.values<float>();
  const float scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  std::vector<float> weights(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      float score = 0;
      for (std::size_t x = 0; x < d; ++x) score += query[i * d + x] * key[j * d + x];
      weights[i * n + j] = score * scale;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (std::size_t j = 0; j < n; ++j) largest = std::max(largest, weights[i * n + j]);
    for (std::size_t j = 0; j < n; ++j) sum += weights[i * n + j] = std::exp(weights[i * n + j] - largest);
    for (std::size_t j = 0; j < n; ++j) weights[i * n + j] /= sum;
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t x = 0; x < d; ++x) result[i * d + x] += weights[i * n + j] * value[j * d + x];
    }
  }
}

double best_seconds(int runs, const std::function<void()>& body) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

struct Problem {
  explicit Problem(std::int64_t n)
      : q(normal_tensor({1, 1, n, kHeadDim}, 8)),
        k(normal_tensor({1, 1, n, kHeadDim}, 9)),
        v(normal_tensor({1, 1, n, kHeadDim}, 10)),
        out(DType::f32, {1, 1, n, kHeadDim}) {}

  double fused_seconds(int runs, int threads) {
    const Execution execution{.cpu = {.executor = threads ? &shared_executor(threads) : nullptr}};
    return best_seconds(runs, [&] { attention(q, k, v, out, {}, {}, execution); });
  }
  std::string implementation() { return explain(q, k, v, out).chosen; }
  double flops() const { return 4.0 * static_cast<double>(q.size(2)) * static_cast<double>(q.size(2)) * kHeadDim; }
  double matrix_mebibytes() const { return std::pow(static_cast<double>(q.size(2)), 2) * sizeof(float) / kMebi; }

  Tensor q, k, v, out;
};

double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.values<float>().size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a.values<float>()[i]) - b.values<float>()[i]));
  }
  return largest;
}

std::vector<std::string> row(const std::string& way, double seconds, const Problem& problem,
                             const std::string& memory) {
  return {way, format("%.1f ms", 1e3 * seconds), format("%.1f GFLOP/s", 1e-9 * problem.flops() / seconds), memory};
}

}  // namespace

void show_speed(const Style& style) {
  Problem small(2048);
  const std::string implementation = small.implementation();
  // The reference is there to be read, not to be fast: keep its part short.
  const bool fast = implementation != "reference";
  if (!fast) small = Problem(512);
  const std::int64_t n = small.q.size(2);
  Tensor naive_out(DType::f32, {1, 1, n, kHeadDim});
  const double naive = best_seconds(1, [&] { naive_attention(small.q, small.k, small.v, naive_out); });
  const double one_thread = small.fused_seconds(fast ? 5 : 1, 1);
  const int threads = default_executor().threads();

  print_text(format("One head, n = %d, d_k = %d, f32. This machine's choice: ", static_cast<int>(n), int{kHeadDim}) +
             style.green(implementation) + ".");
  print_line();
  Table table(1);
  table.add({style.dim("method"), style.dim("time"), style.dim("rate"), style.dim("n x n matrix")});
  table.add(row("plain loops, 1 thread", naive, small, format("%.0f MiB", small.matrix_mebibytes())));
  table.add(row(implementation + ", 1 thread", one_thread, small, "none"));
  if (threads > 1) {
    table.add(
        row(implementation + format(", %d threads", threads), small.fused_seconds(fast ? 5 : 1, 0), small, "none"));
  }
  std::fputs(table.text().c_str(), stdout);
  print_line();
  print_text(format("On one thread %.1f times as fast as plain C++ loops; largest difference %.1e.", naive / one_thread,
                    largest_difference(small.out, naive_out)));

  constexpr std::int64_t kLong = 16384;
  constexpr double kPatience = 4.0;  // seconds
  const double expected = one_thread * std::pow(static_cast<double>(kLong) / static_cast<double>(n), 2);
  if (expected < kPatience) {
    Problem large(kLong);
    const double seconds = large.fused_seconds(1, 0);
    print_text(format("n = %d takes %.2f s. Its matrix would be %.0f MiB a head; q, k, v and the output are %.0f MiB.",
                      static_cast<int>(kLong), seconds, large.matrix_mebibytes(),
                      4.0 * static_cast<double>(large.q.bytes()) / kMebi));
  }
}

}  // namespace rootdk::tools
