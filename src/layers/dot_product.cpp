#include "layers/dot_product.h"

#include <algorithm>

#include "core/check.h"

namespace rootdk {
namespace {

template <class View, class T>
View split_heads(T* data, const Tensor& matrix, std::int64_t batch, std::int64_t heads) {
  const std::int64_t rows = matrix.size(0), width = matrix.elements() / (rows ? rows : 1);
  require(batch > 0 && rows % batch == 0 && heads > 0 && width % heads == 0, "attention: ", describe(matrix),
          " does not split into batch ", batch, " and heads ", heads);
  return View(data, {batch, rows / batch, heads, width / heads}).transposed(1, 2);
}

ConstTensorView view_of(const Value& value) { return value ? ConstTensorView(value->value()) : ConstTensorView(); }

// Everything a call needs, kept alive for the backward pass.
struct SavedCall {
  DotProductInput input;
  AttentionParams params;
  Value out;
  Tensor lse;
  Tensor entropy;  // where the loss counts it
};

AttentionStats prepare_stats(AttentionCapture* capture, const ConstTensorView& q, const ConstTensorView& k,
                             StatsRequest& request) {
  AttentionStats stats;
  if (!capture) return stats;
  const std::int64_t batch = q.size(0), heads = q.size(1), q_len = q.size(2), kv_len = k.size(2);
  auto fill = [](Tensor& tensor, TensorView& wanted, std::initializer_list<std::int64_t> shape) {
    tensor = Tensor(DType::f32, shape);
    wanted = tensor;
  };
  if (capture->want_weights) fill(capture->weights, stats.weights, {batch, heads, q_len, kv_len});
  if (capture->want_stats || capture->want_profile) {
    fill(capture->max_logit, stats.max_logit, {batch, heads, q_len});
    fill(capture->entropy, stats.entropy, {batch, heads, q_len});
  }
  if (capture->want_profile) {
    fill(capture->max_weight, stats.max_weight, {batch, heads, q_len});
    fill(capture->sum_p2, stats.sum_p2, {batch, heads, q_len});
    fill(capture->column_mass, stats.column_mass, {batch, heads, kv_len});
    fill(capture->pooled_map, stats.pooled_map,
         {batch, heads, std::min(capture->map_side, q_len), std::min(capture->map_side, kv_len)});
    const std::int64_t sampled = std::min(capture->sampled_rows, q_len);
    capture->weight_rows = Tensor(DType::i32, {sampled});
    for (std::int64_t r = 0; r < sampled; ++r) {  // the last row of each of `sampled` equal stretches
      capture->weight_rows.values<std::int32_t>()[static_cast<std::size_t>(r)] =
          static_cast<std::int32_t>((r + 1) * q_len / sampled - 1);
    }
    request.weight_rows = capture->weight_rows;
    fill(capture->weights, stats.weights, {batch, heads, sampled, kv_len});
  }
  return stats;
}

void dot_product_backward(const Context& context, const SavedCall& saved) {
  const DotProductInput& in = saved.input;
  Tensor grad_q(DType::f32, in.q->value().shape());
  Tensor grad_k(DType::f32, in.k->value().shape()), grad_v(DType::f32, in.v->value().shape());
  AttentionGradients gradients{.q = heads_of(grad_q, in.batch, in.heads),
                               .k = heads_of(grad_k, in.batch, in.kv_heads),
                               .v = heads_of(grad_v, in.batch, in.kv_heads)};
  Tensor grad_table, grad_bias, grad_sinks, grad_additive;
  auto want = [](const Value& value, Tensor& grad, TensorView& view) {
    if (!value) return;
    grad = Tensor(DType::f32, value->value().shape());
    view = grad;
  };
  want(in.relative_table, grad_table, gradients.relative_table);
  want(in.bias, grad_bias, gradients.bias);
  want(in.sinks, grad_sinks, gradients.sinks);
  want(in.additive_v, grad_additive, gradients.additive_v);
  AttentionSaved forward{.q = heads_of(in.q->value(), in.batch, in.heads),
                         .k = heads_of(in.k->value(), in.batch, in.kv_heads),
                         .v = heads_of(in.v->value(), in.batch, in.kv_heads),
                         .out = heads_of(saved.out->value(), in.batch, in.heads),
                         .lse = saved.lse};
  AttentionUpstream upstream{.out = heads_of(std::as_const(saved.out->grad()), in.batch, in.heads)};
  Tensor grad_entropy;
  if (saved.entropy.defined()) {
    grad_entropy = Tensor(DType::f32, saved.entropy.shape());
    const double of_row = context.entropy_gradient / static_cast<double>(saved.entropy.elements());
    std::ranges::fill(grad_entropy.values<float>(), static_cast<float>(of_row));
    upstream.entropy = grad_entropy;
    forward.entropy = saved.entropy;
  }
  attention_backward(forward, upstream, gradients, saved.params, {.cpu = {.executor = context.executor}});
  in.q->add_grad(grad_q);
  in.k->add_grad(grad_k);
  in.v->add_grad(grad_v);
  if (in.relative_table) in.relative_table->add_grad(grad_table);
  if (in.bias) in.bias->add_grad(grad_bias);
  if (in.sinks) in.sinks->add_grad(grad_sinks);
  if (in.additive_v) in.additive_v->add_grad(grad_additive);
}

Tensor copy_of(const ConstTensorView& view) {  // [batch, heads, len, dim], contiguous
  Tensor copy(DType::f32, {view.size(0), view.size(1), view.size(2), view.size(3)});
  float* to = copy.view().as<float>();
  for (std::int64_t b = 0; b < view.size(0); ++b) {
    for (std::int64_t h = 0; h < view.size(1); ++h) {
      for (std::int64_t i = 0; i < view.size(2); ++i, to += view.size(3)) {
        const float* row = view.as<float>() + b * view.stride(0) + h * view.stride(1) + i * view.stride(2);
        std::copy_n(row, view.size(3), to);
      }
    }
  }
  return copy;
}

}  // namespace

ConstTensorView heads_of(const Tensor& matrix, std::int64_t batch, std::int64_t heads) {
  return split_heads<ConstTensorView>(matrix.view().as<float>(), matrix, batch, heads);
}
TensorView heads_of(Tensor& matrix, std::int64_t batch, std::int64_t heads) {
  return split_heads<TensorView>(matrix.view().as<float>(), matrix, batch, heads);
}

AttentionParams bind_tensors(const DotProductInput& input, AttentionParams params) {
  params.logits.relative_table = view_of(input.relative_table);
  params.bias = view_of(input.bias);
  params.logits.sinks = view_of(input.sinks);
  params.additive_v = view_of(input.additive_v);
  if (input.alibi) params.logits.alibi_slopes = *input.alibi;
  if (input.padding && input.padding->kv_lengths.defined()) params.kv_lengths = input.padding->kv_lengths;
  if (input.padding && input.padding->keep.defined()) params.mask = input.padding->keep;
  return params;
}

void add_attention_times(const Context& context, double start, const ConstTensorView& q, std::int64_t kv_len,
                         bool causal) {
  if (!context.times) return;
  const double pairs = static_cast<double>(q.size(2)) * static_cast<double>(kv_len) * (causal ? 0.5 : 1.0);
  context.times->attention_seconds += layer_clock(*context.times) - start;
  context.times->attention_flops +=
      4.0 * static_cast<double>(q.size(0)) * static_cast<double>(q.size(1)) * pairs * static_cast<double>(q.size(3));
}

Value dot_product_attention(Context& context, const DotProductInput& input, AttentionParams params,
                            AttentionCapture* capture) {
  const Tensor& q_matrix = input.q->value();
  const ConstTensorView q = heads_of(q_matrix, input.batch, input.heads);
  const ConstTensorView k = heads_of(std::as_const(input.k->value()), input.batch, input.kv_heads);
  const ConstTensorView v = heads_of(std::as_const(input.v->value()), input.batch, input.kv_heads);

  auto saved = std::make_shared<SavedCall>();
  saved->input = input;
  saved->params = bind_tensors(input, params);
  if (context.dropout > 0) {
    saved->params.dropout = context.dropout;
    saved->params.seed = context.next_seed();
  }
  saved->out = make_value({input.q->rows(), input.heads * v.size(3)});
  AttentionStats stats = prepare_stats(capture, q, k, saved->params.stats);
  if (capture && capture->want_operands) {
    capture->q = copy_of(q);
    capture->k = copy_of(k);
    capture->v = copy_of(v);
    capture->relative_table = input.relative_table;
    capture->sinks = input.sinks;
    capture->alibi = input.alibi;
    capture->relative_zero = params.logits.relative_zero;
  }
  if (context.tape) {
    saved->lse = Tensor(DType::f32, {input.batch, input.heads, q.size(2)});
    stats.lse = saved->lse;
    if (context.entropy_gradient != 0) {
      saved->entropy = Tensor(DType::f32, {input.batch, input.heads, q.size(2)});
      if (!stats.entropy.defined()) stats.entropy = saved->entropy;
    }
  }
  const double start = context.times ? layer_clock(*context.times) : 0.0;
  attention(q, k, v, heads_of(saved->out->value(), input.batch, input.heads), saved->params, stats,
            {.cpu = {.executor = context.executor}});
  add_attention_times(context, start, q, k.size(2), params.causal);
  if (saved->entropy.defined() && capture && capture->entropy.defined()) {
    std::ranges::copy(std::as_const(capture->entropy).values<float>(), saved->entropy.values<float>().begin());
  }
  if (context.tape) context.tape->record([&context, saved] { dot_product_backward(context, *saved); });
  return saved->out;
}

Value t5_table(Context& context, const Value& weights, const T5BucketParams& params) {
  Value table = make_value({weights->width(), 2 * params.max_distance + 1});
  t5_relative_table(weights->value(), table->value(), params);
  if (context.tape) {
    context.tape->record([weights, table, params] {
      Tensor grad_weights(DType::f32, weights->value().shape());
      t5_relative_table_backward(table->grad(), grad_weights, params);
      weights->add_grad(grad_weights);
    });
  }
  return table;
}

Value transformer_xl_term(Context& context, const Value& q, const Value& v_bias, const Value& r,
                          const RelativeTermShape& shape, double scale) {
  const std::int64_t head_dim = q->width() / shape.heads;
  auto as_rows = [=](auto* data, std::int64_t rows) {  // [heads, rows, head_dim]
    using View =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>, ConstTensorView, TensorView>;
    return View(data, {rows, shape.heads, head_dim}).transposed(0, 1);
  };
  const std::int64_t distances = r->rows(), heads = shape.heads;
  Value bias = make_value({shape.batch, heads, q->rows() / shape.batch, shape.kv_len});
  const ConstTensorView v_view(std::as_const(*v_bias).data(), {heads, head_dim});
  transformer_xl_bias(heads_of(std::as_const(q->value()), shape.batch, heads), v_view,
                      as_rows(std::as_const(*r).data(), distances), bias->value(), {.scale = scale});
  if (context.tape) {
    context.tape->record([=] {
      Tensor grad_q(DType::f32, q->value().shape()), grad_v(DType::f32, {heads, head_dim});
      Tensor grad_r(DType::f32, r->value().shape());
      transformer_xl_bias_backward(heads_of(std::as_const(q->value()), shape.batch, heads), v_view,
                                   as_rows(std::as_const(*r).data(), distances), bias->grad(),
                                   heads_of(grad_q, shape.batch, heads), grad_v,
                                   as_rows(grad_r.view().as<float>(), distances), {.scale = scale});
      q->add_grad(grad_q);
      v_bias->add_grad(grad_v);
      r->add_grad(grad_r);
    });
  }
  return bias;
}

}  // namespace rootdk
