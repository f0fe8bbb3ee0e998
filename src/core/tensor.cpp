#include "rootdk/tensor.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <sstream>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "core/large_pages.h"
#include "core/out_of_memory.h"
#include "core/strided.h"

namespace rootdk {
namespace {

constexpr std::align_val_t kAlignment{64};

// Sizes whose product would not fit in memory are refused here, before anything is allocated.
std::int64_t checked_elements(std::span<const std::int64_t> shape, DType dtype) {
  require(shape.size() <= kMaxRank, "tensor: rank ", shape.size(), " is over the maximum ", kMaxRank);
  const std::int64_t limit = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(size_of(dtype));
  std::int64_t count = 1;
  bool empty = false;
  for (std::int64_t size : shape) {
    require(size >= 0, "tensor: size ", size, " is negative");
    empty |= size == 0;
    // An empty tensor still has strides, which multiply its other sizes.
    const std::int64_t factor = size == 0 ? 1 : size;
    if (count > limit / factor) {
      fail("tensor: the sizes ", shape_text(shape), " of ", name_of(dtype),
           " multiply to more bytes than 64 bits hold");
    }
    count *= factor;
  }
  return empty ? 0 : count;
}

}  // namespace

template <class Void>
BasicTensorView<Void>::BasicTensorView(Void* memory, DType type, std::span<const std::int64_t> sizes, Device where)
    : data(memory), dtype(type), device(where), rank(static_cast<int>(sizes.size())) {
  checked_elements(sizes, type);
  std::int64_t step = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    shape[i] = sizes[i];
    strides[i] = step;
    step *= sizes[i] > 0 ? sizes[i] : 1;
  }
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::transposed(int a, int b) const {
  require(a >= 0 && a < rank && b >= 0 && b < rank, "transposed: dimensions ", a, " and ", b, " of a tensor of rank ",
          rank);
  BasicTensorView result = *this;
  std::swap(result.shape[static_cast<std::size_t>(a)], result.shape[static_cast<std::size_t>(b)]);
  std::swap(result.strides[static_cast<std::size_t>(a)], result.strides[static_cast<std::size_t>(b)]);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::slice(int dimension, std::int64_t begin, std::int64_t end) const {
  require(dimension >= 0 && dimension < rank, "slice: dimension ", dimension, " of a tensor of rank ", rank);
  require(begin >= 0 && begin <= end && end <= size(dimension), "slice: [", begin, ", ", end, ") of dimension ",
          dimension, " with size ", size(dimension));
  BasicTensorView result = *this;
  using Byte = std::conditional_t<kWritable, std::byte, const std::byte>;
  result.data = static_cast<Byte*>(data) + begin * stride(dimension) * static_cast<std::int64_t>(size_of(dtype));
  result.shape[static_cast<std::size_t>(dimension)] = end - begin;
  return result;
}

template struct BasicTensorView<void>;
template struct BasicTensorView<const void>;

std::string describe(const ConstTensorView& view) {
  if (!view.defined()) return "no tensor";
  std::ostringstream text;
  text << name_of(view.dtype) << ' ';
  if (view.rank <= kMaxRank) {
    text << shape_text({view.shape.data(), static_cast<std::size_t>(view.rank)});
  } else {  // filled by hand: there are no more sizes to read
    text << "of rank " << view.rank;
  }
  if (view.device.kind == DeviceKind::cuda) text << " on cuda:" << view.device.index;
  return text.str();
}

void Tensor::Free::operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }

Tensor::Tensor(DType dtype, std::initializer_list<std::int64_t> shape)
    : Tensor(dtype, std::span(shape.begin(), shape.size())) {}

Tensor::Tensor(DType dtype, std::span<const std::int64_t> shape) : Tensor(unwritten(dtype, shape)) {
  std::memset(memory_.get(), 0, bytes());
}

Tensor Tensor::unwritten(DType dtype, std::span<const std::int64_t> shape) {
  const auto bytes = static_cast<std::size_t>(checked_elements(shape, dtype)) * size_of(dtype);
  Tensor tensor;
  tensor.memory_.reset(static_cast<std::byte*>(::operator new[](bytes ? bytes : 1, kAlignment, std::nothrow)));
  if (!tensor.memory_) throw OutOfMemory("a tensor", bytes);
  ask_for_large_pages(tensor.memory_.get(), bytes);
  tensor.view_ = TensorView(tensor.memory_.get(), dtype, shape);
  return tensor;
}

void Tensor::require_dtype(DType asked) const {
  if (asked == dtype()) return;
  fail("tensor: values of ", name_of(asked), " are asked of ", describe(view_));
}

namespace {

void fill_zero(float* data, const std::int64_t* sizes, const std::int64_t* strides, int rank) {
  for (std::int64_t i = 0; i < sizes[0]; ++i) {
    if (rank == 1) {
      data[i * strides[0]] = 0.0f;
    } else {
      fill_zero(data + i * strides[0], sizes + 1, strides + 1, rank - 1);
    }
  }
}

}  // namespace

void fill_zero(const TensorView& view) {
  if (!view.defined()) return;
  if (view.dtype != DType::f32) fail("internal: ", describe(view), " filled as f32");
  fill_zero(view.as<float>(), view.shape.data(), view.strides.data(), view.rank);
}

float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == x) return nearest;
  // Of the two floats around x, take the one whose last bit is set: no later rounding can then tie by accident.
  const float towards = static_cast<double>(nearest) < x ? std::numeric_limits<float>::infinity()
                                                         : -std::numeric_limits<float>::infinity();
  return std::bit_cast<std::uint32_t>(nearest) & 1u ? nearest : std::nextafter(nearest, towards);
}

namespace {

// One rounding: types other than f64 are exact in f32.
template <class To, class From>
To converted(From x) {
  if constexpr (std::is_same_v<From, double> || std::is_same_v<To, double>) {
    return from_double<To>(to_double(x));
  } else {
    return static_cast<To>(static_cast<float>(x));
  }
}

// Row by row: the last dimension in one loop.
template <class From, class To>
void convert_elements(const ConstTensorView& source, To* target) {
  if (source.elements() == 0) return;
  const From* base = source.as<From>();
  const int last = source.rank - 1;
  const std::int64_t columns = source.size(last), stride = source.stride(last);
  std::array<std::int64_t, kMaxRank> index{};
  for (std::int64_t rows = source.elements() / columns; rows > 0; --rows, target += columns) {
    const From* row = base;
    for (int i = 0; i < last; ++i) row += index[static_cast<std::size_t>(i)] * source.stride(i);
    for (std::int64_t column = 0; column < columns; ++column) target[column] = converted<To>(row[column * stride]);
    for (int i = last; i-- > 0;) {
      if (++index[static_cast<std::size_t>(i)] < source.size(i)) break;
      index[static_cast<std::size_t>(i)] = 0;
    }
  }
}

}  // namespace

Tensor convert(const ConstTensorView& source, DType dtype) {
  require(source.defined(), "convert: no tensor given");
  require(is_floating(source.dtype) && is_floating(dtype), "convert: ", name_of(source.dtype), " to ", name_of(dtype),
          " is not a conversion between floating types");
  require(source.device.kind == DeviceKind::cpu, "convert: the tensor lies on ", describe(source), ", not on the CPU");
  Tensor result(dtype, std::span(source.shape.data(), static_cast<std::size_t>(source.rank)));
  with_floating_type(source.dtype, [&](auto from) {
    with_floating_type(dtype, [&](auto to) {
      convert_elements<decltype(from), decltype(to)>(source, result.view().as<decltype(to)>());
    });
  });
  return result;
}

}  // namespace rootdk
