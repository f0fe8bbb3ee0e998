#include "lab/naive.h"

#include <algorithm>
#include <cmath>

#include "layers/products.h"

namespace rootdk::lab {

void naive_attention(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out, double scale) {
  const std::int64_t q_len = q.size(2), kv_len = k.size(2), head_dim = q.size(3), value_dim = v.size(3);
  const Context context{};
  Tensor matrix(DType::f32, {q_len, kv_len});
  float* s = matrix.view().as<float>();
  multiply(context, {.rows = q_len, .columns = kv_len, .inner = head_dim}, {q.view().as<float>(), head_dim},
           {k.view().as<float>(), head_dim, Transpose::yes}, s);
  context.threads().parallel_for(q_len, [&](std::int64_t i) {
    float* row = s + i * kv_len;
    const float top = *std::max_element(row, row + kv_len);
    float sum = 0;
    for (std::int64_t j = 0; j < kv_len; ++j) {
      row[j] = std::exp((row[j] - top) * static_cast<float>(scale));
      sum += row[j];
    }
    for (std::int64_t j = 0; j < kv_len; ++j) row[j] /= sum;
  });
  multiply(context, {.rows = q_len, .columns = value_dim, .inner = kv_len}, {s, kv_len},
           {v.view().as<float>(), value_dim}, out.view().as<float>());
}

}  // namespace rootdk::lab
