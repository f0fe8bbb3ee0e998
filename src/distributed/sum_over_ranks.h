#pragma once

// Sums that have no order, over all ranks: each rank adds up some of them and sends the values to all.

#include <type_traits>
#include <vector>

#include "distributed/exact_sum.h"
#include "rootdk/distributed.h"

namespace rootdk::distributed {

// The values of the sums, the same on every rank. own: as many on every rank.
template <class Sum>
std::vector<double> sum_over_ranks(Transport& transport, const std::vector<Sum>& own, double timeout_seconds) {
  static_assert(std::is_trivially_copyable_v<Sum>);
  const auto ranks = static_cast<std::size_t>(transport.size()), here = static_cast<std::size_t>(transport.rank());
  auto first_of = [&](std::size_t rank) { return rank * own.size() / ranks; };
  const std::size_t count = first_of(here + 1) - first_of(here);
  std::vector<std::size_t> sent(ranks), received(ranks, count * sizeof(Sum));
  for (std::size_t r = 0; r < ranks; ++r) sent[r] = (first_of(r + 1) - first_of(r)) * sizeof(Sum);
  std::vector<Sum> parts(ranks * count);
  transport.all_to_all(own.data(), sent, parts.data(), received, timeout_seconds);

  std::vector<double> mine(ranks * count);  // once for each rank
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum;
    for (std::size_t r = 0; r < ranks; ++r) sum.add(parts[r * count + i]);
    for (std::size_t r = 0; r < ranks; ++r) mine[r * count + i] = sum.value();
  }
  std::vector<double> values(own.size());
  for (std::size_t r = 0; r < ranks; ++r) {
    sent[r] = count * sizeof(double);
    received[r] = (first_of(r + 1) - first_of(r)) * sizeof(double);
  }
  transport.all_to_all(mine.data(), sent, values.data(), received, timeout_seconds);
  return values;
}

}  // namespace rootdk::distributed
