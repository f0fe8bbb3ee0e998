#pragma once

// Checks of single tensors, shared by every operation's validation. Each throws rootdk::Error naming the operation, the
// tensor and the values.

#include <initializer_list>
#include <string_view>

#include "core/check.h"
#include "rootdk/tensor.h"

namespace rootdk {

// One tensor as an operation's messages name it.
struct NamedView {
  std::string_view operation;  // "attention"
  std::string_view name;       // "q"
  ConstTensorView view;
};

void require_given(const NamedView& tensor);
void require_rank(const NamedView& tensor, int rank);
void require_dtype(const NamedView& tensor, std::initializer_list<DType> allowed);
void require_shape(const NamedView& tensor, std::initializer_list<std::int64_t> shape);
// Each size is 1 or that of `shape`.
void require_broadcastable(const NamedView& tensor, std::initializer_list<std::int64_t> shape);
void require_contiguous_last(const NamedView& tensor);
// Sizes are not negative, the extent fits in 63 bits, and memory is there where elements are.
void require_addressable(const NamedView& tensor);
// No two elements share memory: what an output needs.
void require_no_overlap(const NamedView& tensor);
// An output is not simply an input too. Views that begin apart may still overlap: that is left to the caller.
template <class Written>
void require_apart(std::string_view operation, std::string_view name, const Written& written,
                   std::string_view read_name, const ConstTensorView& read) {
  if (written.data != read.data || written.elements() == 0 || read.elements() == 0) return;
  fail(operation, ": ", name, " and ", read_name, " begin at the same address: what is written must not overlap what ",
       "is read");
}
void require_device(const NamedView& tensor, Device device, std::string_view other);

}  // namespace rootdk
