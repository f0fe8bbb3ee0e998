#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/check.h"
#include "reference/doubles.h"
#include "reference/operand_check.h"
#include "rootdk/positions.h"

namespace rootdk {
namespace {

void check(std::string_view operation, const T5BucketParams& p) {
  const std::int64_t one_side = p.bidirectional ? p.buckets / 2 : p.buckets;
  require(one_side >= 2 && (!p.bidirectional || p.buckets % 2 == 0), operation, ": buckets ", p.buckets,
          p.bidirectional ? " must be even and at least 4 (bidirectional)" : " must be at least 2");
  require(p.max_distance > one_side / 2, operation, ": max_distance ", p.max_distance, " must be over ", one_side / 2,
          ", the number of buckets for single distances");
  require(p.max_distance < (std::int64_t{1} << 31), operation, ": max_distance ", p.max_distance,
          " must be below 2^31");
}

void check_table(std::string_view operation, const ConstTensorView& weights, const ConstTensorView& table,
                 const T5BucketParams& params) {
  check(operation, params);
  require(weights.size(0) == params.buckets, operation, ": weights has ", weights.size(0), " rows, expected buckets ",
          params.buckets);
  require(table.size(0) == weights.size(1), operation, ": heads of table is ", table.size(0), " but of weights ",
          weights.size(1));
  require(table.size(1) == 2 * params.max_distance + 1, operation, ": table has ", table.size(1),
          " entries, expected 2 max_distance + 1 = ", 2 * params.max_distance + 1);
}

std::int64_t bucket(std::int64_t distance, const T5BucketParams& p) {
  const std::int64_t one_side = p.bidirectional ? p.buckets / 2 : p.buckets;
  // Keys to the right (negative distance) have the upper half of the buckets, or bucket 0 where they cannot be seen.
  const std::int64_t first = p.bidirectional && distance < 0 ? one_side : 0;
  const std::int64_t far = std::clamp<std::int64_t>(distance, p.bidirectional ? -p.max_distance : 0, p.max_distance);
  const std::int64_t steps = std::abs(far);
  const std::int64_t single = one_side / 2;  // distances with a bucket of their own; the others share, by logarithm
  if (steps < single) return first + steps;
  const double share = std::log(static_cast<double>(steps) / static_cast<double>(single)) /
                       std::log(static_cast<double>(p.max_distance) / static_cast<double>(single));
  const auto shared = static_cast<std::int64_t>(share * static_cast<double>(one_side - single));
  return first + std::min(single + shared, one_side - 1);
}

}  // namespace

std::int64_t t5_bucket(std::int64_t distance, const T5BucketParams& params) {
  check("t5_bucket", params);
  return bucket(distance, params);
}

void t5_relative_table(ConstTensorView weights, TensorView table, const T5BucketParams& params) {
  constexpr std::string_view kName = "t5_relative_table";
  reference::require_operand({kName, "weights", weights}, 2);
  reference::require_result({kName, "table", table}, 2);
  check_table(kName, weights, table, params);
  const reference::Doubles<2> weight(weights);
  const reference::Rounded<2> result(table);
  for (std::int64_t head = 0; head < table.size(0); ++head) {
    for (std::int64_t entry = 0; entry < table.size(1); ++entry) {
      result(head, entry) = weight(bucket(entry - params.max_distance, params), head);
    }
  }
  result.round();
}

void t5_relative_table_backward(ConstTensorView grad_table, TensorView grad_weights, const T5BucketParams& params) {
  constexpr std::string_view kName = "t5_relative_table_backward";
  reference::require_operand({kName, "grad_table", grad_table}, 2);
  reference::require_result({kName, "grad_weights", grad_weights}, 2);
  check_table(kName, grad_weights, grad_table, params);
  const reference::Doubles<2> gradient(grad_table);
  const reference::Rounded<2> result(grad_weights);
  for (std::int64_t head = 0; head < grad_table.size(0); ++head) {
    for (std::int64_t entry = 0; entry < grad_table.size(1); ++entry) {
      result(bucket(entry - params.max_distance, params), head) += gradient(head, entry);
    }
  }
  result.round();
}

}  // namespace rootdk
