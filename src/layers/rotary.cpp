#include "layers/rotary.h"

#include <cmath>

#include "core/check.h"
#include "layers/rows.h"

namespace rootdk {
namespace {

// One head: pair p is (first + p step, second + p step). sign -1 turns back.
struct PairPlaces {
  std::int64_t step, second;
};

ROOTDK_VECTOR_CLONES void rotate_head(const float* x, const float* cosine, const float* sine, float sign,
                                      PairPlaces places, std::int64_t pairs, float* out) {
  for (std::int64_t p = 0; p < pairs; ++p) {
    const float a = x[p * places.step], b = x[p * places.step + places.second];
    out[p * places.step] += a * cosine[p] - sign * b * sine[p];
    out[p * places.step + places.second] += b * cosine[p] + sign * a * sine[p];
  }
}

// out += rotation (or its transpose) of x.
void add_rotated(const Context& context, const RopeTable& table, const Node& like, const float* x, float* out,
                 float sign) {
  const std::int64_t width = like.width(), head_dim = table.head_dim, pairs = table.pairs;
  const PairPlaces places = table.layout == RopeLayout::half_split ? PairPlaces{.step = 1, .second = pairs}
                                                                   : PairPlaces{.step = 2, .second = 1};
  const float *cosine = table.cosine.view().as<float>(), *sine = table.sine.view().as<float>();
  for_row_blocks(context, like.rows(), kFewRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = row * width; head < (row + 1) * width; head += head_dim) {
        rotate_head(x + head, cosine + row * pairs, sine + row * pairs, sign, places, pairs, out + head);
        for (std::int64_t d = 2 * pairs; d < head_dim; ++d) out[head + d] += x[head + d];
      }
    }
  });
}

}  // namespace

std::shared_ptr<const RopeTable> make_rope_table(std::int64_t head_dim, const RopeParams& params,
                                                 std::span<const std::int32_t> positions) {
  auto table = std::make_shared<RopeTable>();
  table->layout = params.layout;
  table->head_dim = head_dim;
  table->pairs = (params.rotary_dim ? params.rotary_dim : head_dim) / 2;
  Tensor frequencies(DType::f64, {table->pairs});
  const double factor = rope_frequencies(frequencies, head_dim, params);
  const auto rows = static_cast<std::int64_t>(positions.size());
  table->cosine = Tensor(DType::f32, {rows, table->pairs});
  table->sine = Tensor(DType::f32, {rows, table->pairs});
  std::size_t entry = 0;
  for (const std::int32_t position : positions) {
    for (const double frequency : frequencies.values<double>()) {
      const double angle = position * frequency;
      table->cosine.values<float>()[entry] = static_cast<float>(std::cos(angle) * factor);
      table->sine.values<float>()[entry++] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  return table;
}

Value rotate(Context& context, const Value& x, std::shared_ptr<const RopeTable> table) {
  require(x->rows() == table->cosine.size(0), "rope: ", x->rows(), " rows for ", table->cosine.size(0), " positions");
  require(x->width() % table->head_dim == 0, "rope: rows of width ", x->width(), " for heads of ", table->head_dim);
  Value out = make_value_like(x);
  add_rotated(context, *table, *x, x->data(), out->data(), 1.0f);
  if (context.tape) {
    context.tape->record([&context, x, out, table] {
      float* grad_x = x->grad_data();
      add_rotated(context, *table, *x, out->grad_data(), grad_x, -1.0f);
    });
  }
  return out;
}

}  // namespace rootdk
