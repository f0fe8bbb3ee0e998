#include "models/fill_parameter.h"

#include "core/strided.h"

namespace rootdk {
namespace {

// The part of a stored tensor that a binding reads: element (row, column) of the parameter.
template <class T>
class BoundPart {
 public:
  BoundPart(const Node& parameter, const Binding& binding, const ConstTensorView& stored)
      : data_(stored.as<T>()), map_(binding.rows), matrix_(parameter.shape().size() > 1) {
    std::vector<std::int64_t> shape(binding.stored_shape);
    if (binding.entry >= 0) {
      shape.erase(shape.begin());
      std::int64_t size = 1;
      for (const std::int64_t extent : shape) size *= extent;
      data_ += binding.entry * size;
    }
    rows_ = matrix_ ? parameter.rows() : parameter.elements();
    columns_ = matrix_ ? parameter.width() : 1;
    transposed_ = matrix_ && binding.transposed;
    stride_ = transposed_ ? shape[1] : columns_;
    if (map_.group == 0) map_.group = rows_;
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  const T& operator()(std::int64_t row, std::int64_t column) const {
    const std::int64_t from = map_.offset + row / map_.group * map_.stride + row % map_.group;
    return transposed_ ? data_[column * stride_ + from] : data_[from * stride_ + column];
  }
  // Whether its rows lie one after another, as a matrix of weights wants them.
  bool in_order() const { return !transposed_ && map_.group >= rows_; }

  template <class To>
  void copy(To* to) const {
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t column = 0; column < columns_; ++column) *to++ = static_cast<To>((*this)(row, column));
    }
  }

 private:
  const T* data_;
  RowMap map_;
  bool matrix_, transposed_ = false;
  std::int64_t rows_ = 0, columns_ = 0, stride_ = 0;
};

WeightFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::bf16: return WeightFormat::bf16;
    case DType::f16: return WeightFormat::f16;
    default: return WeightFormat::f32;
  }
}

template <class T>
std::shared_ptr<const StoredMatrix> stored_matrix(const BoundPart<T>& part, const std::shared_ptr<const void>& file,
                                                  DType activations) {
  WeightMatrix matrix{.format = format_of(dtype_of<T>), .rows = part.rows(), .columns = part.columns()};
  matrix.rounds_x = matrix.format == WeightFormat::bf16 && activations == DType::bf16;
  std::shared_ptr<const void> owner = file;
  if (part.in_order()) {
    matrix.data = part.rows() > 0 && part.columns() > 0 ? &part(0, 0) : nullptr;
  } else {
    auto copy = std::make_shared<Tensor>(dtype_of<T>, std::initializer_list<std::int64_t>{part.rows(), part.columns()});
    part.copy(copy->view().template as<T>());
    matrix.data = copy->view().data;
    owner = copy;
  }
  return std::make_shared<StoredMatrix>(StoredMatrix{.matrix = matrix, .owner = std::move(owner)});
}

// Blocks of int4 do not fit every width: such a matrix becomes int8.
WeightFormat fitting(WeightFormat wanted, std::int64_t columns) {
  return wanted == WeightFormat::i4 && columns % kWeightBlock != 0 ? WeightFormat::i8 : wanted;
}

}  // namespace

void fill_parameter(Node& parameter, const Binding& binding, const std::shared_ptr<const Checkpoint>& checkpoint,
                    const LoadOptions& options) {
  const ConstTensorView stored = checkpoint->tensor(binding.stored);
  with_floating_type(stored.dtype, [&]<class T>(T) {
    const BoundPart<T> part(parameter, binding, stored);
    if (parameter.has_own_value()) return part.copy(parameter.data());
    if constexpr (!std::is_same_v<T, double>) {  // which check_bindings() refuses
      std::shared_ptr<const StoredMatrix> matrix = stored_matrix(part, checkpoint, options.activations);
      if (options.weights) {
        Executor& executor = options.executor ? *options.executor : default_executor();
        matrix = quantise(matrix->matrix, fitting(*options.weights, part.columns()), executor);
        checkpoint->release(binding.stored);
      }
      parameter.bind(std::move(matrix));
    }
  });
}

}  // namespace rootdk
