#include "layers/elementwise.h"

#include <cmath>

#include "core/check.h"
#include "layers/rows.h"
#include "layers/stored_matrix.h"
#include "layers/vector_math.h"
#include "rootdk/dropout.h"

namespace rootdk {
namespace {

ROOTDK_VECTOR_CLONES void add_block(const float* x, const float* y, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = x[i] + y[i];
}

// out += factor * x
ROOTDK_VECTOR_CLONES void add_scaled_block(const float* x, float factor, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] += factor * x[i];
}

void add_scaled(const Context& context, const float* x, float factor, float* out, std::int64_t count) {
  for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    add_scaled_block(x + begin, factor, out + begin, end - begin);
  });
}

// out [row] += scale * x where kept. The rule's (batch, head, i, j) is here (0, 0, row, column).
void add_kept(const Context& context, const DropoutRule& rule, const Node& like, const float* x, float* out) {
  const std::int64_t width = like.width();
  for_row_blocks(context, like.rows(), kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t d = 0; d < width; d += 8) {  // eight elements share one block of random words
        const PhiloxWords words =
            philox4x32_10({static_cast<std::uint32_t>(d / 8), static_cast<std::uint32_t>(row), 0u, 0u}, rule.seed);
        for (std::int64_t lane = 0; lane < std::min<std::int64_t>(8, width - d); ++lane) {
          const std::uint32_t bits = (words[static_cast<std::size_t>(lane / 2)] >> (16 * (lane % 2))) & 0xffffu;
          if (bits >= rule.threshold) out[row * width + d + lane] += rule.keep_scale * x[row * width + d + lane];
        }
      }
    }
  });
}

}  // namespace

Value add(Context& context, const Value& x, const Value& y) {
  const std::int64_t count = x->value().elements();
  require(count == y->value().elements(), "add: ", describe(x->value()), " and ", describe(y->value()));
  Value out = make_unwritten_like(x);
  for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    add_block(x->data() + begin, y->data() + begin, out->data() + begin, end - begin);
  });
  if (context.tape) {
    context.tape->record([&context, x, y, out, count] {
      add_scaled(context, out->grad_data(), 1.0f, x->grad_data(), count);
      add_scaled(context, out->grad_data(), 1.0f, y->grad_data(), count);
    });
  }
  return out;
}

Value scale(Context& context, const Value& x, double factor) {
  const std::int64_t count = x->value().elements();
  const auto f = static_cast<float>(factor);
  Value out = make_value_like(x);
  add_scaled(context, x->data(), f, out->data(), count);
  if (context.tape) {
    context.tape->record(
        [&context, x, out, f, count] { add_scaled(context, out->grad_data(), f, x->grad_data(), count); });
  }
  return out;
}

Value softcap(Context& context, const Value& x, double cap) {
  const std::int64_t count = x->value().elements();
  const auto c = static_cast<float>(cap);
  Value out = make_value_like(x);
  for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out->data()[i] = c * std::tanh(x->data()[i] / c);
  });
  if (context.tape) {
    context.tape->record([&context, x, out, c, count] {
      const float* grad_out = out->grad_data();
      float* grad_x = x->grad_data();
      for_row_blocks(context, count, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const float t = out->data()[i] / c;
          grad_x[i] += (1.0f - t * t) * grad_out[i];
        }
      });
    });
  }
  return out;
}

Value add_row(Context& context, const Value& x, const Value& b) {
  const std::int64_t rows = x->rows(), width = x->width();
  require(b->value().elements() == width, "add_row: rows of width ", width, " and a vector ", describe(b->value()));
  Value out = make_value_like(x);
  for_row_blocks(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      add_block(x->data() + row * width, b->data(), out->data() + row * width, width);
    }
  });
  if (context.tape) {
    context.tape->record([&context, x, b, out, rows, width] {
      const float* grad_out = out->grad_data();
      add_scaled(context, grad_out, 1.0f, x->grad_data(), rows * width);
      sum_over_rows(context, rows, width, b->grad_data(), [&](std::int64_t begin, std::int64_t end, float* sums) {
        for (std::int64_t row = begin; row < end; ++row) add_scaled_block(grad_out + row * width, 1.0f, sums, width);
      });
    });
  }
  return out;
}

Value dropout(Context& context, const Value& x) {
  if (context.dropout == 0.0) return x;
  const DropoutRule rule = DropoutRule::make(context.dropout, context.next_seed());
  Value out = make_value_like(x);
  add_kept(context, rule, *x, x->data(), out->data());
  if (context.tape) {
    context.tape->record([&context, x, out, rule] {
      float* grad_x = x->grad_data();
      add_kept(context, rule, *x, out->grad_data(), grad_x);
    });
  }
  return out;
}

Value embed(Context& context, std::span<const std::int32_t> ids, const Value& table) {
  const std::int64_t width = table->width();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] >= 0 && ids[i] < table->rows(), "embed: id ", ids[i], " at place ", i, " is outside the table's ",
            table->rows(), " entries");
  }
  Value out = make_value({static_cast<std::int64_t>(ids.size()), width});
  const WeightMatrix entries = matrix_of(*table);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    widen_row(entries, ids[i], out->data() + static_cast<std::int64_t>(i) * width);
  }
  if (context.tape) {
    context.tape->record([table, out, width, kept = std::vector<std::int32_t>(ids.begin(), ids.end())] {
      float* grad_table = table->grad_data();
      const float* grad_out = out->grad_data();
      for (std::size_t i = 0; i < kept.size(); ++i) {  // in order: rows that share an id add up the same way always
        add_scaled_block(grad_out + static_cast<std::int64_t>(i) * width, 1.0f, grad_table + kept[i] * width, width);
      }
    });
  }
  return out;
}

}  // namespace rootdk
