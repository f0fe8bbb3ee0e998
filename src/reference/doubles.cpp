#include "reference/doubles.h"

namespace rootdk::reference {

void round_into(const TensorView& target, const Tensor& source) {
  with_floating_type(target.dtype, [&](auto type) {
    using T = decltype(type);
    T* base = target.as<T>();
    std::array<std::int64_t, kMaxRank> index{};
    for (const double value : source.values<double>()) {
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < static_cast<std::size_t>(target.rank); ++d) offset += index[d] * target.strides[d];
      base[offset] = from_double<T>(value);
      for (auto d = static_cast<std::size_t>(target.rank); d-- > 0;) {
        if (++index[d] < target.shape[d]) break;
        index[d] = 0;
      }
    }
  });
}

}  // namespace rootdk::reference
