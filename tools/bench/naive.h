#pragma once

#include "rootdk/rootdk.h"

namespace rootdk::tools {

// Whether this build has a BLAS for the textbook computation.
bool has_blas();

// The textbook computation of attention, head by head: a BLAS product into the n x n matrix, the softmax over it, a
// BLAS product. Tensors are f32, contiguous [batch, heads, len, dim].
class NaiveAttention {
 public:
  NaiveAttention(bool causal, int threads) : causal_(causal), threads_(threads) {}

  void forward(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out) const;
  void backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad_out, Tensor& grad_q,
                Tensor& grad_k, Tensor& grad_v) const;

 private:
  bool causal_;
  int threads_;
};

}  // namespace rootdk::tools
