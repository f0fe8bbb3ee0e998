#pragma once

// Checks of the tensors of the plain operations (positions, merge_states): floating, on the CPU, of the shape asked
// for.

#include <initializer_list>

#include "core/view_check.h"

namespace rootdk::reference {

void require_operand(const NamedView& tensor, int rank);
void require_operand(const NamedView& tensor, std::initializer_list<std::int64_t> shape);
// An output: its elements must not share memory either.
void require_result(const NamedView& tensor, int rank);
void require_result(const NamedView& tensor, std::initializer_list<std::int64_t> shape);

// Positions of tokens: i32 or i64 [batch or 1, len], or not given: offset, offset + 1, ...
class Positions {
 public:
  Positions(std::string_view operation, const ConstTensorView& view, std::int64_t offset, std::int64_t batch,
            std::int64_t len);
  std::int64_t operator()(std::int64_t b, std::int64_t i) const;

 private:
  ConstTensorView view_;
  std::int64_t offset_ = 0;
};

}  // namespace rootdk::reference
