#include "tools/bench/naive.h"

#include <cblas.h>
#include <dlfcn.h>

#include <cmath>
#include <limits>
#include <vector>

namespace rootdk::tools {
namespace {

// Loaded when a benchmark first asks for it: OpenBLAS starts threads as it is loaded, which every other verb would pay
// for, and which spin for ever where memory is short.
struct Blas {
  decltype(&cblas_sgemm) sgemm = nullptr;
  void (*set_num_threads)(int) = nullptr;  // OpenBLAS only; other libraries keep their own number of threads

  Blas() {
    void* library = dlopen(ROOTDK_BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    sgemm = reinterpret_cast<decltype(sgemm)>(dlsym(library, "cblas_sgemm"));
    set_num_threads = reinterpret_cast<decltype(set_num_threads)>(dlsym(library, "openblas_set_num_threads"));
  }
};

const Blas& blas() {
  static const Blas loaded;
  return loaded;
}

struct Sizes {
  int q_len, kv_len, head_dim, value_dim;
  std::int64_t batch, heads, group;
  float scale;

  Sizes(const Tensor& q, const Tensor& k, const Tensor& v)
      : q_len(static_cast<int>(q.size(2))),
        kv_len(static_cast<int>(k.size(2))),
        head_dim(static_cast<int>(q.size(3))),
        value_dim(static_cast<int>(v.size(3))),
        batch(q.size(0)),
        heads(q.size(1)),
        group(q.size(1) / k.size(1)),
        scale(1.0f / std::sqrt(static_cast<float>(head_dim))) {}
  std::size_t matrix() const { return static_cast<std::size_t>(q_len) * static_cast<std::size_t>(kv_len); }
};

// Row-major c [m, n] = alpha a b + beta c, a and b transposed on request.
struct Product {
  bool a_transposed = false, b_transposed = false;
  float alpha = 1.0f, beta = 0.0f;

  void operator()(int m, int n, int depth, const float* a, const float* b, float* c) const {
    blas().sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m,
                 n, depth, alpha, a, a_transposed ? m : depth, b, b_transposed ? depth : n, beta, c, n);
  }
};

void softmax_rows(std::vector<float>& matrix, const Sizes& s, bool causal) {
  for (int i = 0; i < s.q_len; ++i) {
    float* row = matrix.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(s.kv_len);
    const int end = causal ? std::min(s.kv_len, std::max(0, i + 1 + s.kv_len - s.q_len)) : s.kv_len;
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int j = 0; j < end; ++j) largest = std::max(largest, row[j]);
    for (int j = 0; j < end; ++j) sum += row[j] = std::exp(row[j] - largest);
    for (int j = 0; j < end; ++j) row[j] /= sum;
    for (int j = end; j < s.kv_len; ++j) row[j] = 0;
  }
}

template <class Tensor_>
auto* head_of(Tensor_& tensor, std::int64_t b, std::int64_t h) {
  const std::int64_t size = tensor.size(2) * tensor.size(3);
  return tensor.template values<float>().data() + (b * tensor.size(1) + h) * size;
}
const float* head_of(const Tensor& tensor, std::int64_t b, std::int64_t h) {
  const std::int64_t size = tensor.size(2) * tensor.size(3);
  return tensor.values<float>().data() + (b * tensor.size(1) + h) * size;
}

}  // namespace

bool has_blas() { return blas().sgemm != nullptr; }

void NaiveAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out) const {
  if (blas().set_num_threads) blas().set_num_threads(threads_);
  const Sizes s(q, k, v);
  std::vector<float> weights(s.matrix());  // [q_len, kv_len]
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const Product scores{.b_transposed = true, .alpha = s.scale};
      scores(s.q_len, s.kv_len, s.head_dim, head_of(q, b, h), head_of(k, b, h / s.group), weights.data());
      softmax_rows(weights, s, causal_);
      Product{}(s.q_len, s.value_dim, s.kv_len, weights.data(), head_of(v, b, h / s.group), head_of(out, b, h));
    }
  }
}

void NaiveAttention::backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad_out, Tensor& grad_q,
                              Tensor& grad_k, Tensor& grad_v) const {
  if (blas().set_num_threads) blas().set_num_threads(threads_);
  const Sizes s(q, k, v);
  std::vector<float> weights(s.matrix()), grad(s.matrix());  // [q_len, kv_len]
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t kv = h / s.group;
      const float first = h % s.group == 0 ? 0.0f : 1.0f;  // heads of a group add up
      Product{.b_transposed = true, .alpha = s.scale}(s.q_len, s.kv_len, s.head_dim, head_of(q, b, h),
                                                      head_of(k, b, kv), weights.data());
      softmax_rows(weights, s, causal_);
      Product{.a_transposed = true, .beta = first}(s.kv_len, s.value_dim, s.q_len, weights.data(),
                                                   head_of(grad_out, b, h), head_of(grad_v, b, kv));
      Product{.b_transposed = true}(s.q_len, s.kv_len, s.value_dim, head_of(grad_out, b, h), head_of(v, b, kv),
                                    grad.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(s.q_len); ++i) {
        const std::size_t begin = i * static_cast<std::size_t>(s.kv_len),
                          end = begin + static_cast<std::size_t>(s.kv_len);
        float mean = 0;
        for (std::size_t j = begin; j < end; ++j) mean += weights[j] * grad[j];
        for (std::size_t j = begin; j < end; ++j) grad[j] = weights[j] * (grad[j] - mean);
      }
      Product{.alpha = s.scale}(s.q_len, s.head_dim, s.kv_len, grad.data(), head_of(k, b, kv), head_of(grad_q, b, h));
      Product{.a_transposed = true, .alpha = s.scale, .beta = first}(s.kv_len, s.head_dim, s.q_len, grad.data(),
                                                                     head_of(q, b, h), head_of(grad_k, b, kv));
    }
  }
}

}  // namespace rootdk::tools
