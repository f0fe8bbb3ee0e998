#include "core/fp8_values.h"

#include <bit>
#include <cmath>

#include "core/strided.h"

namespace rootdk {
namespace {

// The rows of one sequence in q or k, whose blocks of 128 have a scale each.
struct SequenceRows {
  std::int64_t batch_entry = 0, head = 0;
  std::int64_t begin = 0, count = 0;
  std::int64_t first_block = 0;
};

template <class T>
void scaled_rows(const ConstTensorView& numbers, const ConstTensorView& scales, const SequenceRows& rows,
                 const TensorView& to) {
  const auto number = read<Float8E4M3, 4>(numbers);
  const auto scale = read<float, 3>(scales);
  const auto value = write<T, 4>(to);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const auto factor = static_cast<T>(scale(rows.batch_entry, rows.head, rows.first_block + i / kFp8Block));
    const std::int64_t r = rows.begin + i;
    for (std::int64_t d = 0; d < numbers.size(3); ++d) {
      value(rows.batch_entry, rows.head, r, d) =
          static_cast<T>(static_cast<float>(number(rows.batch_entry, rows.head, r, d))) * factor;
    }
  }
}

// The values of one sequence and key head, with a scale for each channel.
template <class T>
void scaled_channels(const QuantizedViews& numbers, const SequenceRows& rows, std::int64_t sequence,
                     const TensorView& to) {
  const auto number = read<Float8E4M3, 4>(numbers.v);
  const auto scale = read<float, 3>(numbers.v_scales);
  const auto value = write<T, 4>(to);
  for (std::int64_t r = rows.begin; r < rows.begin + rows.count; ++r) {
    for (std::int64_t d = 0; d < numbers.v.size(3); ++d) {
      value(rows.batch_entry, rows.head, r, d) =
          static_cast<T>(static_cast<float>(number(rows.batch_entry, rows.head, r, d))) *
          static_cast<T>(scale(sequence, rows.head, d));
    }
  }
}

template <class T>
void fill_values(const QuantizedViews& numbers, const AttentionShape& shape, const AttentionParams& params,
                 Fp8Values& to, Executor& executor) {
  executor.parallel_for(shape.batch * shape.heads, [&](std::int64_t task) {
    const std::int64_t sequence = task / shape.heads, head = task % shape.heads;
    const SequenceRange range = sequence_range(shape, params, sequence);
    const auto first_block = [&](std::int64_t begin) { return shape.packed ? fp8_first_block(begin, sequence) : 0; };
    SequenceRows rows{.batch_entry = range.batch_entry,
                      .head = head,
                      .begin = range.q_begin,
                      .count = range.q_len,
                      .first_block = first_block(range.q_begin)};
    scaled_rows<T>(numbers.q, numbers.q_scales, rows, to.q);
    if (head >= shape.kv_heads) return;
    rows = {.batch_entry = range.batch_entry,
            .head = head,
            .begin = range.kv_begin,
            .count = range.kv_len,
            .first_block = first_block(range.kv_begin)};
    scaled_rows<T>(numbers.k, numbers.k_scales, rows, to.k);
    scaled_channels<T>(numbers, rows, sequence, to.v);
  });
}

TensorView unwritten(const ConstTensorView& view) {
  TensorView result;
  if (!view.defined()) return result;
  result = TensorView(const_cast<void*>(view.data), view.dtype,
                      std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), view.device);
  result.strides = view.strides;
  return result;
}

// The largest power of two that divides the number of channels.
std::size_t rotated_together(std::size_t channels) { return channels & (~channels + 1); }

void flip_signs(std::span<float> x) {
  for (std::size_t d = 0; d < x.size(); ++d) {
    if ((static_cast<std::uint32_t>(d) * 0x9e3779b1u) >> 31) x[d] = -x[d];
  }
}

// H is symmetric.
void multiply_hadamard(std::span<float> x) {
  const std::size_t c = rotated_together(x.size());
  const float factor = 1.0f / std::sqrt(static_cast<float>(c));
  for (std::size_t distance = 1; distance < c; distance *= 2) {
    for (std::size_t d = 0; d < x.size(); ++d) {
      if (d & distance) continue;
      const float a = x[d], b = x[d + distance];
      x[d] = a + b;
      x[d + distance] = a - b;
    }
  }
  for (float& value : x) value *= factor;
}

}  // namespace

Fp8Values values_of(const QuantizedViews& numbers, const AttentionShape& shape, const AttentionParams& params,
                    DType dtype, Executor& executor) {
  const auto like = [&](const TensorView& view) {
    return Tensor(dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
  };
  Fp8Values values{.q = like(numbers.q), .k = like(numbers.k), .v = like(numbers.v)};
  if (dtype == DType::f64) {
    fill_values<double>(numbers, shape, params, values, executor);
  } else {
    fill_values<float>(numbers, shape, params, values, executor);
  }
  return values;
}

QuantizedViews numbers_of(const Fp8ForwardCall& call) {
  const Fp8Params& fp8 = call.params.fp8;
  return {.q = unwritten(call.q),
          .k = unwritten(call.k),
          .v = unwritten(call.v),
          .q_scales = unwritten(fp8.q_scales),
          .k_scales = unwritten(fp8.k_scales),
          .v_scales = unwritten(fp8.v_scales),
          .q_shift = unwritten(fp8.q_shift)};
}

void rotate_channels(std::span<float> x) {
  flip_signs(x);
  multiply_hadamard(x);
}

void rotate_channels_back(std::span<float> x) {
  multiply_hadamard(x);
  flip_signs(x);
}

}  // namespace rootdk
