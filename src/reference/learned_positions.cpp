#include "core/check.h"
#include "reference/doubles.h"
#include "reference/operand_check.h"
#include "rootdk/positions.h"

namespace rootdk {
namespace {

using reference::Positions;

// The position of each token must be a row of the table.
void require_rows(std::string_view operation, const Positions& position, const ConstTensorView& x,
                  std::int64_t max_len) {
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (std::int64_t i = 0; i < x.size(1); ++i) {
      require(position(b, i) >= 0 && position(b, i) < max_len, operation, ": position ", position(b, i), " of token ",
              i, " in batch entry ", b, " is not a row of the table, which has ", max_len);
    }
  }
}

}  // namespace

void add_learned_positions(TensorView x, ConstTensorView table, ConstTensorView positions, std::int64_t offset) {
  constexpr std::string_view kName = "add_learned_positions";
  reference::require_result({kName, "x", x}, 3);
  reference::require_operand({kName, "table", table}, 2);
  require(table.size(1) == x.size(2), kName, ": dim of x is ", x.size(2), " but of table ", table.size(1));
  const Positions position(kName, positions, offset, x.size(0), x.size(1));
  require_rows(kName, position, x, table.size(0));
  const reference::Doubles<3> input(x);
  const reference::Doubles<2> encoding(table);
  const reference::Rounded<3> result(x);
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (std::int64_t i = 0; i < x.size(1); ++i) {
      for (std::int64_t d = 0; d < x.size(2); ++d) result(b, i, d) = input(b, i, d) + encoding(position(b, i), d);
    }
  }
  result.round();
}

void add_learned_positions_backward(ConstTensorView grad_x, TensorView grad_table, ConstTensorView positions,
                                    std::int64_t offset) {
  constexpr std::string_view kName = "add_learned_positions_backward";
  reference::require_operand({kName, "grad_x", grad_x}, 3);
  reference::require_result({kName, "grad_table", grad_table}, 2);
  require(grad_table.size(1) == grad_x.size(2), kName, ": dim of grad_x is ", grad_x.size(2), " but of grad_table ",
          grad_table.size(1));
  const Positions position(kName, positions, offset, grad_x.size(0), grad_x.size(1));
  require_rows(kName, position, grad_x, grad_table.size(0));
  const reference::Doubles<3> gradient(grad_x);
  const reference::Rounded<2> result(grad_table);
  for (std::int64_t b = 0; b < grad_x.size(0); ++b) {
    for (std::int64_t i = 0; i < grad_x.size(1); ++i) {
      for (std::int64_t d = 0; d < grad_x.size(2); ++d) result(position(b, i), d) += gradient(b, i, d);
    }
  }
  result.round();
}

}  // namespace rootdk
