#include "rootdk/positions.h"

#include "c_api/convert.h"
#include "c_api/status.h"
#include "core/check.h"

using namespace rootdk::c_api;

namespace {

rootdk::T5BucketParams t5(int32_t bidirectional, int64_t buckets, int64_t max_distance) {
  return {.bidirectional = bidirectional != 0, .buckets = buckets, .max_distance = max_distance};
}

}  // namespace

rootdk_status rootdk_rope(const rootdk_tensor* x, const rootdk_tensor* out, const rootdk_rope_params* params,
                          const rootdk_tensor* positions) {
  return guarded([&] { rootdk::rope(view(x), view(out), convert(params), view(positions)); });
}

rootdk_status rootdk_rope_backward(const rootdk_tensor* grad_out, const rootdk_tensor* grad_x,
                                   const rootdk_rope_params* params, const rootdk_tensor* positions) {
  return guarded([&] { rootdk::rope_backward(view(grad_out), view(grad_x), convert(params), view(positions)); });
}

rootdk_status rootdk_rope_frequencies(const rootdk_tensor* out, int64_t head_dim, const rootdk_rope_params* params,
                                      double* attention_factor) {
  return guarded([&] {
    const double factor = rootdk::rope_frequencies(view(out), head_dim, convert(params));
    if (attention_factor) *attention_factor = factor;
  });
}

rootdk_status rootdk_sinusoidal_positions(const rootdk_tensor* out, int32_t layout, double base, int64_t offset) {
  return guarded([&] {
    rootdk::sinusoidal_positions(
        view(out), {.layout = static_cast<rootdk::SinusoidalLayout>(layout), .base = base, .offset = offset});
  });
}

rootdk_status rootdk_add_learned_positions(const rootdk_tensor* x, const rootdk_tensor* table,
                                           const rootdk_tensor* positions, int64_t offset) {
  return guarded([&] { rootdk::add_learned_positions(view(x), view(table), view(positions), offset); });
}

rootdk_status rootdk_add_learned_positions_backward(const rootdk_tensor* grad_x, const rootdk_tensor* grad_table,
                                                    const rootdk_tensor* positions, int64_t offset) {
  return guarded(
      [&] { rootdk::add_learned_positions_backward(view(grad_x), view(grad_table), view(positions), offset); });
}

rootdk_status rootdk_t5_bucket(int64_t distance, int32_t bidirectional, int64_t buckets, int64_t max_distance,
                               int64_t* bucket) {
  return guarded([&] {
    rootdk::require(bucket != nullptr, "t5_bucket: bucket is null");
    *bucket = rootdk::t5_bucket(distance, t5(bidirectional, buckets, max_distance));
  });
}

rootdk_status rootdk_t5_relative_table(const rootdk_tensor* weights, const rootdk_tensor* table, int32_t bidirectional,
                                       int64_t buckets, int64_t max_distance) {
  return guarded(
      [&] { rootdk::t5_relative_table(view(weights), view(table), t5(bidirectional, buckets, max_distance)); });
}

rootdk_status rootdk_t5_relative_table_backward(const rootdk_tensor* grad_table, const rootdk_tensor* grad_weights,
                                                int32_t bidirectional, int64_t buckets, int64_t max_distance) {
  return guarded([&] {
    rootdk::t5_relative_table_backward(view(grad_table), view(grad_weights), t5(bidirectional, buckets, max_distance));
  });
}

rootdk_status rootdk_alibi_slopes(const rootdk_tensor* out) {
  return guarded([&] { rootdk::alibi_slopes(view(out)); });
}

rootdk_status rootdk_transformer_xl_bias(const rootdk_tensor* q, const rootdk_tensor* v_bias, const rootdk_tensor* r,
                                         const rootdk_tensor* bias, double scale, int64_t zero) {
  return guarded(
      [&] { rootdk::transformer_xl_bias(view(q), view(v_bias), view(r), view(bias), {.scale = scale, .zero = zero}); });
}

rootdk_status rootdk_transformer_xl_bias_backward(const rootdk_tensor* q, const rootdk_tensor* v_bias,
                                                  const rootdk_tensor* r, const rootdk_tensor* grad_bias,
                                                  const rootdk_tensor* grad_q, const rootdk_tensor* grad_v_bias,
                                                  const rootdk_tensor* grad_r, double scale, int64_t zero) {
  return guarded([&] {
    rootdk::transformer_xl_bias_backward(view(q), view(v_bias), view(r), view(grad_bias), view(grad_q),
                                         view(grad_v_bias), view(grad_r), {.scale = scale, .zero = zero});
  });
}
