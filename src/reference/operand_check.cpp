#include "reference/operand_check.h"

#include "core/check.h"
#include "core/strided.h"

namespace rootdk::reference {

void require_operand(const NamedView& t, int rank) {
  require_given(t);
  require_rank(t, rank);
  require_dtype(t, {DType::f32, DType::bf16, DType::f16, DType::f64});
  require(t.view.device.kind == DeviceKind::cpu, t.operation, ": ", t.name, " is ", describe(t.view),
          ", expected a tensor on the CPU");
  require_addressable(t);
}

void require_operand(const NamedView& t, std::initializer_list<std::int64_t> shape) {
  require_operand(t, static_cast<int>(shape.size()));
  require_shape(t, shape);
}

void require_result(const NamedView& t, int rank) {
  require_operand(t, rank);
  require_no_overlap(t);
}

void require_result(const NamedView& t, std::initializer_list<std::int64_t> shape) {
  require_operand(t, shape);
  require_no_overlap(t);
}

Positions::Positions(std::string_view operation, const ConstTensorView& view, std::int64_t offset, std::int64_t batch,
                     std::int64_t len)
    : view_(view), offset_(offset) {
  std::int64_t last = 0;
  require(!__builtin_add_overflow(offset, len, &last), operation, ": offset ", offset, " plus the length ", len,
          " overflows 64 bits");
  if (!view.defined()) return;
  const NamedView positions{operation, "positions", view};
  require_dtype(positions, {DType::i32, DType::i64});
  require_broadcastable(positions, {batch, len});
  require(view.size(1) == len, operation, ": positions is ", describe(view), ", expected one for each of ", len,
          " rows");
  require_device(positions, {}, "x");
  require_addressable(positions);
}

std::int64_t Positions::operator()(std::int64_t b, std::int64_t i) const {
  if (!view_.defined()) return offset_ + i;
  const std::int64_t row = view_.size(0) == 1 ? 0 : b;
  return view_.dtype == DType::i32 ? read<std::int32_t, 2>(view_)(row, i) : read<std::int64_t, 2>(view_)(row, i);
}

}  // namespace rootdk::reference
