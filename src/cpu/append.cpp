// New keys and values on their way into the pages of a cache: the same numbers as the reference writes, token by token
// over the threads. What is neither rotated nor quantised needs no double: widening is exact, and rounding happens
// once.

#include "cpu/append.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/strided.h"

namespace rootdk::cpu {
namespace {

// Elements below which threads cost more than they bring.
constexpr std::int64_t kWorthThreads = std::int64_t{1} << 16;

// One of k and v: rows [1, kv_heads, tokens, dim] and the pages of one layer they go to.
struct Part {
  ConstTensorView rows;
  TensorView pages, scales;
  bool rotated = false;
};

std::int8_t nearest(double x, std::int8_t) {
  constexpr double kRoundToInteger = 0x1.8p52;  // adding it leaves no room for a fraction
  const double bounded = x < -127 ? -127 : x > 127 ? 127 : x;
  return static_cast<std::int8_t>((bounded + kRoundToInteger) - kRoundToInteger);
}
Float8E4M3 nearest(double x, Float8E4M3) { return Float8E4M3(x); }

// As in the reference: the largest magnitude becomes the largest number of the type, and a row that is not finite gets
// the scale NaN.
template <class Stored>
float quantise(const std::vector<double>& row, double largest_stored, Stored* to) {
  double largest = 0;
  bool finite = true;
  for (const double x : row) {
    const double magnitude = std::fabs(x);
    finite = finite && magnitude <= std::numeric_limits<double>::max();
    largest = magnitude > largest ? magnitude : largest;
  }
  const auto scale = finite ? static_cast<float>(largest / largest_stored) : std::numeric_limits<float>::quiet_NaN();
  if (!(scale > 0)) {
    std::fill_n(to, row.size(), Stored{});
    return scale;
  }
  for (std::size_t d = 0; d < row.size(); ++d) to[d] = nearest(row[d] / scale, Stored{});
  return scale;
}

// Rotated, or to be quantised: through double, rounded once.
template <class From>
void store_wide(const Part& part, const From* from, std::int64_t offset, const Rotation& rotation,
                const std::vector<double>& cosine, const std::vector<double>& sine, std::vector<double>& row) {
  const std::int64_t dim = part.rows.size(3);
  row.resize(static_cast<std::size_t>(dim));
  for (std::size_t d = 0; d < row.size(); ++d) row[d] = to_double(from[d]);
  if (part.rotated) rotation.apply(row, cosine, sine);
  if (part.pages.dtype == DType::i8) {
    part.scales.as<float>()[offset] = quantise(row, 127, part.pages.as<std::int8_t>() + offset * dim);
    return;
  }
  if (part.pages.dtype == DType::f8e4m3) {
    part.scales.as<float>()[offset] = quantise(row, Float8E4M3::kLargest, part.pages.as<Float8E4M3>() + offset * dim);
    return;
  }
  with_floating_type(part.pages.dtype, [&](auto type) {
    auto* to = part.pages.as<decltype(type)>() + offset * dim;
    for (std::size_t d = 0; d < row.size(); ++d) to[d] = from_double<decltype(type)>(row[d]);
  });
}

template <class From>
void store_plain(const Part& part, const From* from, std::int64_t offset) {
  const std::int64_t dim = part.rows.size(3);
  with_floating_type(part.pages.dtype, [&](auto type) {
    using To = decltype(type);
    To* to = part.pages.as<To>() + offset * dim;
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(to, from, static_cast<std::size_t>(dim) * sizeof(To));
    } else if constexpr (std::is_same_v<From, double>) {
      for (std::int64_t d = 0; d < dim; ++d) to[d] = from_double<To>(from[d]);
    } else {
      for (std::int64_t d = 0; d < dim; ++d) to[d] = static_cast<To>(static_cast<float>(from[d]));
    }
  });
}

// Token i of a sequence's new tokens, every head of k and v.
void append_token(const AppendCall& call, const CallSequence& sequence, std::int64_t i) {
  const KvShape& shape = call.shape;
  const std::int64_t position = sequence.position + i, page = sequence.pages[position / shape.page_size];
  std::vector<double> cosine(call.rotation.frequency.size()), sine(cosine.size()), row;
  if (!call.rotation.empty()) call.rotation.angles(position, cosine, sine);
  const Part parts[] = {{call.k, call.storage.k, call.storage.k_scales, !call.rotation.empty()},
                        {call.v, call.storage.v, call.storage.v_scales}};
  for (const Part& part : parts) {
    with_floating_type(part.rows.dtype, [&](auto type) {
      using From = decltype(type);
      const auto rows = read<From, 4>(part.rows);
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        // Row of [layers, pages, kv_heads, page_size].
        const std::int64_t block = (call.layer * part.pages.size(1) + page) * shape.kv_heads + head;
        const std::int64_t offset = block * shape.page_size + position % shape.page_size;
        const From* from = &rows(0, head, sequence.row + i, 0);
        if (part.rotated || is_quantised(part.pages.dtype)) {
          store_wide(part, from, offset, call.rotation, cosine, sine, row);
        } else {
          store_plain(part, from, offset);
        }
      }
    });
  }
}

}  // namespace

void run_append(const AppendCall& call) {
  copy_pages(call);
  struct Token {
    const CallSequence* sequence;
    std::int64_t i;
  };
  std::vector<Token> tokens;
  tokens.reserve(static_cast<std::size_t>(call.shape.tokens));
  for (const CallSequence& sequence : call.sequences) {
    for (std::int64_t i = 0; i < sequence.tokens; ++i) tokens.push_back({&sequence, i});
  }
  auto append_one = [&](std::int64_t t) {
    append_token(call, *tokens[static_cast<std::size_t>(t)].sequence, tokens[static_cast<std::size_t>(t)].i);
  };
  const KvShape& shape = call.shape;
  if (shape.tokens * shape.kv_heads * (shape.head_dim + shape.value_dim) < kWorthThreads) {
    for (std::int64_t t = 0; t < shape.tokens; ++t) append_one(t);
  } else {
    executor_of(call.execution).parallel_for(shape.tokens, append_one);
  }
}

}  // namespace rootdk::cpu
