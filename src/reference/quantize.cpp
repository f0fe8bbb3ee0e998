// The specification of quantize_for_attention: rootdk/fp8.h in code. Unlike the rest of the reference it computes in
// f32, in one order, so that every implementation finds the same numbers.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/fp8_values.h"
#include "core/strided.h"
#include "reference/implementations.h"

namespace rootdk::reference {
namespace {

using Row = std::vector<float>;

// [rows][channels]: one sequence of one head, in f32.
using Rows = std::vector<Row>;

Rows rows_of(const ConstTensorView& x, std::int64_t batch_entry, std::int64_t head, std::int64_t begin,
             std::int64_t count) {
  Rows rows(static_cast<std::size_t>(count), Row(static_cast<std::size_t>(x.size(3))));
  with_floating_type(x.dtype, [&](auto type) {
    const auto from = read<decltype(type), 4>(x);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < x.size(3); ++d) {
        const auto value = static_cast<float>(to_double(from(batch_entry, head, begin + i, d)));
        rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(d)] = value;
      }
    }
  });
  return rows;
}

// 128 keys at a time in order, then these sums in order.
Row mean_key(const Rows& keys, std::int64_t head_dim) {
  Row total(static_cast<std::size_t>(head_dim), 0.0f);
  const auto block = static_cast<std::size_t>(kFp8Block);
  for (std::size_t first = 0; first < keys.size(); first += block) {
    for (std::size_t d = 0; d < total.size(); ++d) {
      float sum = 0;
      for (std::size_t j = first; j < std::min(first + block, keys.size()); ++j) {
        sum += std::isfinite(keys[j][d]) ? keys[j][d] : 0.0f;
      }
      total[d] += sum;
    }
  }
  // Sums that overflow take nothing off: any vector will do.
  for (float& x : total) x = std::isfinite(x) && !keys.empty() ? x / static_cast<float>(keys.size()) : 0.0f;
  return total;
}

// The scale of the numbers, and what they are multiplied by.
struct ScalePair {
  float scale = 1, inverse = 1;
};

ScalePair scale_for(float largest) {
  constexpr auto kLargest = static_cast<float>(Float8E4M3::kLargest);
  const float scale = largest / kLargest;
  if (scale < kFp8SmallestScale) return {};
  return {.scale = scale, .inverse = kLargest / largest};
}

void raise_to(float& largest, float x) {
  if (std::isfinite(x) && std::fabs(x) > largest) largest = std::fabs(x);
}

Float8E4M3 number_of(float x, float inverse) {
  return Float8E4M3(std::isfinite(x) ? x * inverse : std::numeric_limits<float>::quiet_NaN());
}

// One sequence of one head on its way into numbers and a scale for each block of rows.
struct BlockTarget {
  TensorView numbers, scales;
  std::int64_t batch_entry = 0, head = 0, begin = 0, first_block = 0;
};

void quantise_blocks(const Rows& rows, const BlockTarget& to) {
  const auto number = write<Float8E4M3, 4>(to.numbers);
  const auto scale = write<float, 3>(to.scales);
  const auto block = static_cast<std::size_t>(kFp8Block);
  for (std::size_t first = 0; first < rows.size(); first += block) {
    const std::size_t end = std::min(first + block, rows.size());
    float largest = 0;
    for (std::size_t i = first; i < end; ++i) {
      for (const float x : rows[i]) raise_to(largest, x);
    }
    const ScalePair pair = scale_for(largest);
    scale(to.batch_entry, to.head, to.first_block + static_cast<std::int64_t>(first) / kFp8Block) = pair.scale;
    for (std::size_t i = first; i < end; ++i) {
      for (std::size_t d = 0; d < rows[i].size(); ++d) {
        number(to.batch_entry, to.head, to.begin + static_cast<std::int64_t>(i), d) =
            number_of(rows[i][d], pair.inverse);
      }
    }
  }
}

// One sequence and key head with the queries that attend to it.
class QuantizeHead {
 public:
  QuantizeHead(const QuantizeCall& call, std::int64_t sequence, std::int64_t kv_head)
      : call_(call),
        sequence_(sequence),
        kv_head_(kv_head),
        range_(sequence_range(call.shape, call.params, sequence)) {}

  void run() const {
    const Row mean = keys();
    values();
    for (std::int64_t g = 0; g < call_.shape.group(); ++g) queries(kv_head_ * call_.shape.group() + g, mean);
  }

 private:
  std::int64_t first_block(std::int64_t begin) const {
    return call_.shape.packed ? fp8_first_block(begin, sequence_) : 0;
  }

  // Returns the mean that was taken off.
  Row keys() const {
    Rows rows = rows_of(call_.k, range_.batch_entry, kv_head_, range_.kv_begin, range_.kv_visible);
    Row mean(static_cast<std::size_t>(call_.shape.head_dim), 0.0f);
    if (takes_mean_off(call_.params)) mean = mean_key(rows, call_.shape.head_dim);
    for (Row& row : rows) {
      for (std::size_t d = 0; d < row.size(); ++d) row[d] -= mean[d];
      if (call_.params.fp8.rotate) rotate_channels(row);
    }
    // Padding: zeros.
    rows.resize(static_cast<std::size_t>(range_.kv_len), Row(mean.size(), 0.0f));
    quantise_blocks(rows, {.numbers = call_.to.k,
                           .scales = call_.to.k_scales,
                           .batch_entry = range_.batch_entry,
                           .head = kv_head_,
                           .begin = range_.kv_begin,
                           .first_block = first_block(range_.kv_begin)});
    if (call_.to.key_mean.defined()) {
      const auto to = write<float, 3>(call_.to.key_mean);
      for (std::size_t d = 0; d < mean.size(); ++d) to(sequence_, kv_head_, d) = mean[d];
    }
    return mean;
  }

  void values() const {
    const Rows rows = rows_of(call_.v, range_.batch_entry, kv_head_, range_.kv_begin, range_.kv_visible);
    const auto number = write<Float8E4M3, 4>(call_.to.v);
    const auto scale = write<float, 3>(call_.to.v_scales);
    for (std::int64_t d = 0; d < call_.shape.value_dim; ++d) {
      const auto channel = static_cast<std::size_t>(d);
      float largest = 0;
      for (const Row& row : rows) raise_to(largest, row[channel]);
      const ScalePair pair = scale_for(largest);
      scale(sequence_, kv_head_, d) = pair.scale;
      for (std::int64_t j = 0; j < range_.kv_len; ++j) {
        number(range_.batch_entry, kv_head_, range_.kv_begin + j, d) =
            j < range_.kv_visible ? number_of(rows[static_cast<std::size_t>(j)][channel], pair.inverse) : Float8E4M3();
      }
    }
  }

  void queries(std::int64_t head, const Row& mean) const {
    Rows rows = rows_of(call_.q, range_.batch_entry, head, range_.q_begin, range_.q_len);
    if (call_.to.q_shift.defined()) shift(rows, head, mean);
    if (call_.params.fp8.rotate) {
      for (Row& row : rows) rotate_channels(row);
    }
    quantise_blocks(rows, {.numbers = call_.to.q,
                           .scales = call_.to.q_scales,
                           .batch_entry = range_.batch_entry,
                           .head = head,
                           .begin = range_.q_begin,
                           .first_block = first_block(range_.q_begin)});
  }

  // What each row's scores lost with the mean.
  void shift(const Rows& rows, std::int64_t head, const Row& mean) const {
    const auto to = write<float, 3>(call_.to.q_shift);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      double dot = 0;
      if (takes_mean_off(call_.params)) {
        for (std::size_t d = 0; d < mean.size(); ++d) dot += static_cast<double>(rows[i][d]) * mean[d];
      }
      to(range_.batch_entry, head, range_.q_begin + static_cast<std::int64_t>(i)) = static_cast<float>(dot);
    }
  }

  const QuantizeCall& call_;
  std::int64_t sequence_, kv_head_;
  SequenceRange range_;
};

// Packed sequences leave some scales unused; they are 1.
void fill_with_ones(const TensorView& scales) {
  const auto scale = write<float, 3>(scales);
  for (std::int64_t b = 0; b < scales.size(0); ++b) {
    for (std::int64_t h = 0; h < scales.size(1); ++h) {
      for (std::int64_t i = 0; i < scales.size(2); ++i) scale(b, h, i) = 1.0f;
    }
  }
}

void quantize(const QuantizeCall& call) {
  fill_with_ones(call.to.q_scales);
  fill_with_ones(call.to.k_scales);
  executor_of(call.execution).parallel_for(call.shape.batch * call.shape.kv_heads, [&](std::int64_t task) {
    QuantizeHead(call, task / call.shape.kv_heads, task % call.shape.kv_heads).run();
  });
}

constexpr QuantizeImplementation kQuantize[] = {{.name = "reference", .answer = [](const QuantizeCall& call) {
                                                   return accept_unless(refuse_device(call.q.device), quantize);
                                                 }}};

}  // namespace

std::span<const QuantizeImplementation> quantize_implementations() { return kQuantize; }

}  // namespace rootdk::reference
