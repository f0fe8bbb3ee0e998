#include "lab/probe.h"

#include <algorithm>

namespace rootdk::lab {

std::vector<double> doubles(const Tensor& tensor) {
  const auto values = tensor.values<float>();
  return {values.begin(), values.end()};
}

double RowSample::share_over(double weight) const {
  const auto hits = std::count_if(max_weight.begin(), max_weight.end(), [&](double w) { return w > weight; });
  return static_cast<double>(hits) / static_cast<double>(max_weight.size());
}

Interval RowSample::mean_of(const std::vector<double>& values) const {
  std::vector<double> sets;
  const auto rows = static_cast<std::size_t>(rows_per_set);
  for (std::size_t begin = 0; begin + rows <= values.size(); begin += rows)
    sets.push_back(mean(std::span(values).subspan(begin, rows)));
  return mean_interval(sets);
}

Interval RowSample::share_over_interval(double weight) const {
  std::vector<double> over;
  for (double w : max_weight) over.push_back(w > weight ? 1 : 0);
  const Interval normal = mean_of(over);
  // No hit or no miss tells nothing about the spread: then as if only one row of each set had been drawn.
  if (normal.high > normal.low) return {normal.value, std::max(0.0, normal.low), std::min(1.0, normal.high)};
  const auto sets = static_cast<std::int64_t>(over.size()) / rows_per_set;
  return share_interval(normal.value > 0.5 ? sets : 0, sets);
}

std::vector<double> sample_logits(const Bench& bench, Random& random, std::int64_t count, std::int64_t head_dim,
                                  const AttentionParams& params) {
  const Tensor q = random.normal_tensor({count, 1, 1, head_dim}), k = random.normal_tensor({count, 1, 1, head_dim});
  const Tensor v(DType::f32, {count, 1, 1, 1});
  Tensor out(DType::f32, {count, 1, 1, 1}), lse(DType::f32, {count, 1, 1});
  bench.attend(q, k, v, out, params, {.lse = lse});
  return doubles(lse);
}

RowSample row_statistics(const Bench& bench, const Tensor& q, const Tensor& k, const AttentionParams& params) {
  const std::int64_t batch = q.size(0), heads = q.size(1), q_len = q.size(2);
  const Tensor v(DType::f32, {batch, k.size(1), k.size(2), 1});
  Tensor out(DType::f32, {batch, heads, q_len, 1});
  Tensor entropy(DType::f32, {batch, heads, q_len}), max_weight(DType::f32, {batch, heads, q_len});
  Tensor sum_p2(DType::f32, {batch, heads, q_len}), max_logit(DType::f32, {batch, heads, q_len});
  bench.attend(q, k, v, out, params,
               {.max_logit = max_logit, .max_weight = max_weight, .entropy = entropy, .sum_p2 = sum_p2});
  return {doubles(entropy), doubles(max_weight), doubles(sum_p2), doubles(max_logit), q_len};
}

RowInputs random_rows(Random& random, const RowSetup& setup) {
  constexpr std::int64_t kRowsPerKeySet = 4;  // few rows share keys, so that rows are nearly independent
  const std::int64_t sets = (setup.rows + kRowsPerKeySet - 1) / kRowsPerKeySet;
  Tensor q = random.normal_tensor({sets, 1, kRowsPerKeySet, setup.head_dim});
  return {std::move(q), random.normal_tensor({sets, 1, setup.kv_len, setup.head_dim})};
}

RowSample sample_rows(const Bench& bench, Random& random, const RowSetup& setup, const AttentionParams& params) {
  const RowInputs inputs = random_rows(random, setup);
  return row_statistics(bench, inputs.q, inputs.k, params);
}

std::vector<std::vector<double>> weights_of(const Bench& bench, const Tensor& q, const Tensor& k,
                                            const AttentionParams& params) {
  const std::int64_t q_len = q.size(2), kv_len = k.size(2);
  const Tensor v(DType::f32, {1, 1, kv_len, 1});
  Tensor out(DType::f32, {1, 1, q_len, 1}), weights(DType::f32, {1, 1, q_len, kv_len});
  bench.attend(q, k, v, out, params, {.weights = weights});
  const std::vector<double> flat = doubles(weights);
  std::vector<std::vector<double>> rows;
  for (std::int64_t i = 0; i < q_len; ++i)
    rows.emplace_back(flat.begin() + i * kv_len, flat.begin() + (i + 1) * kv_len);
  return rows;
}

}  // namespace rootdk::lab
