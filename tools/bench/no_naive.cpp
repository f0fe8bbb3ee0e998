// Without a BLAS there is no textbook computation to compare with.
#include "tools/bench/naive.h"

namespace rootdk::tools {

bool has_blas() { return false; }
void NaiveAttention::forward(const Tensor&, const Tensor&, const Tensor&, Tensor&) const {}
void NaiveAttention::backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&,
                              Tensor&) const {}

}  // namespace rootdk::tools
