// The gradients of a backward call that are not those of q, k and v: of bias, tables, slopes and sinks.

#include <algorithm>

#include "cpu/backward_run.h"

namespace rootdk::cpu {
namespace {

std::vector<double> zeros_for(const TensorView& gradient) {
  return std::vector<double>(gradient.defined() ? static_cast<std::size_t>(gradient.elements()) : 0);
}

void store_vector(const std::vector<double>& sums, const TensorView& gradient) {
  if (!gradient.defined()) return;
  const auto to = write<float, 1>(gradient);
  for (std::int64_t i = 0; i < gradient.size(0); ++i) to(i) = static_cast<float>(sums[static_cast<std::size_t>(i)]);
}

void store_matrix(const std::vector<double>& sums, const TensorView& gradient, double scale) {
  if (!gradient.defined()) return;
  const auto to = write<float, 2>(gradient);
  for (std::int64_t i = 0; i < gradient.size(0); ++i) {
    for (std::int64_t j = 0; j < gradient.size(1); ++j) {
      to(i, j) = static_cast<float>(scale * sums[static_cast<std::size_t>(i * gradient.size(1) + j)]);
    }
  }
}

}  // namespace

void BackwardRun::prepare_parameters() {
  const AttentionShape& shape = call_.shape;
  sinks_ = zeros_for(call_.gradients.sinks);
  alibi_ = zeros_for(call_.gradients.alibi_slopes);
  relative_ = zeros_for(call_.gradients.relative_table);
  additive_ = zeros_for(call_.gradients.additive_v);
  if (const TensorView& bias = call_.gradients.bias; bias.defined()) {
    bias_sums_ = bias.dtype == DType::f32 ? bias
                                          : TensorView(workspace_.take<float>(plan_.sizes.bias / sizeof(float)),
                                                       {bias.size(0), bias.size(1), bias.size(2), bias.size(3)});
    bias_ = broadcast(bias_sums_, {shape.batch, shape.heads, shape.q_len, shape.kv_len});
  }
  if (const std::int64_t columns = plan_.sizes.additive_columns) {
    additive_v_ = workspace_.take<float>(static_cast<std::size_t>(shape.heads * columns));
    const auto vector = read<float, 2>(call_.params.additive_v);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t d = 0; d < columns; ++d) {
        additive_v_[h * columns + d] = d < shape.head_dim ? vector(h, d) : 0.0f;
      }
    }
  }
}

bool BackwardRun::bias_is_summed_over_keys() const { return call_.gradients.bias.size(3) != call_.shape.kv_len; }

float* BackwardRun::bias_at(std::int64_t sequence, std::int64_t head, std::int64_t i) const {
  return &write<float, 4>(bias_)(sequence, head, i, 0);
}

void BackwardRun::clear_outputs() {
  fill_zero(call_.gradients.column_mass);
  fill_zero(bias_sums_);
}

// Adds the sums of a batch head to those of the call, in order.
void BackwardRun::add_head_sums(const BatchHead& batch_head) {
  const BackwardSizes& sizes = plan_.sizes;
  const ParameterSums& from = head_sums_[static_cast<std::size_t>(batch_head.buffer)];
  auto add = [](std::vector<double>& to, std::int64_t row, const double* values, std::int64_t count) {
    if (to.empty()) return;
    for (std::int64_t i = 0; i < count; ++i) to[static_cast<std::size_t>(row * count + i)] += values[i];
  };
  const bool shared_table = sizes.relative_entries && call_.gradients.relative_table.size(0) == 1;
  for (std::int64_t g = 0; g < sizes.group; ++g) {
    const std::int64_t head = batch_head.kv_head * sizes.group + g;
    add(sinks_, head, from.sinks + g, 1);
    add(alibi_, head, from.alibi + g, 1);
    add(relative_, shared_table ? 0 : head, from.relative + g * sizes.relative_entries, sizes.relative_entries);
    for (std::int64_t d = 0; !additive_.empty() && d < call_.shape.head_dim; ++d) {
      additive_[static_cast<std::size_t>(head * call_.shape.head_dim + d)] +=
          from.additive[g * sizes.additive_columns + d];
    }
  }
}

void BackwardRun::store_parameters() {
  store_vector(sinks_, call_.gradients.sinks);
  store_vector(alibi_, call_.gradients.alibi_slopes);
  store_matrix(relative_, call_.gradients.relative_table, 1.0);
  store_matrix(additive_, call_.gradients.additive_v, call_.logit_scale);
  const TensorView& bias = call_.gradients.bias;
  if (!bias.defined() || bias.dtype == DType::f32) return;
  const auto sums = write<float, 4>(bias_sums_);
  with_floating_type(bias.dtype, [&](auto type) {
    using Type = decltype(type);
    const auto to = write<Type, 4>(bias);
    for (std::int64_t b = 0; b < bias.size(0); ++b) {
      for (std::int64_t h = 0; h < bias.size(1); ++h) {
        for (std::int64_t i = 0; i < bias.size(2); ++i) {
          for (std::int64_t j = 0; j < bias.size(3); ++j) to(b, h, i, j) = Type(sums(b, h, i, j));
        }
      }
    }
  });
}

}  // namespace rootdk::cpu
