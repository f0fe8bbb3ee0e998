#pragma once

// Attention on random q and k, seen through the statistics that the kernels report.

#include <cstdint>
#include <vector>

#include "lab/claim.h"
#include "lab/sampling.h"

namespace rootdk::lab {

// Independent logits of (q, k) pairs, both standard normal: one key a query, so that lse is the logit itself.
std::vector<double> sample_logits(const Bench& bench, Random& random, std::int64_t count, std::int64_t head_dim,
                                  const AttentionParams& params);

// What the rows of attention over kv_len random keys did. One fresh set of keys a batch entry; the rows of a set come
// one after another. Rows that share their keys are not independent, so intervals count sets: the mean of each.
struct RowSample {
  std::vector<double> entropy, max_weight, sum_p2, max_logit;
  std::int64_t rows_per_set = 1;

  double share_over(double weight) const;                     // of the rows whose largest weight is above `weight`
  Interval share_over_interval(double weight) const;          // of that share
  Interval mean_of(const std::vector<double>& values) const;  // values: one of the fields
};
struct RowSetup {
  std::int64_t rows = 1024;  // in all
  std::int64_t kv_len = 64;
  std::int64_t head_dim = 64;
};
RowSample sample_rows(const Bench& bench, Random& random, const RowSetup& setup, const AttentionParams& params);

// The same queries and keys for several parameters: they need not be drawn again.
struct RowInputs {
  Tensor q, k;  // [sets, 1, rows of a set, head_dim], [sets, 1, kv_len, head_dim]
};
RowInputs random_rows(Random& random, const RowSetup& setup);

// The statistics of one given attention call, over all its rows.
RowSample row_statistics(const Bench& bench, const Tensor& q, const Tensor& k, const AttentionParams& params);

// The n x n weights of one head: q [1, 1, q_len, d] against k [1, 1, kv_len, d], row by row.
std::vector<std::vector<double>> weights_of(const Bench& bench, const Tensor& q, const Tensor& k,
                                            const AttentionParams& params);

std::vector<double> doubles(const Tensor& tensor);

}  // namespace rootdk::lab
