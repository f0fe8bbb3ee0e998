#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "rootdk/dtype.h"
#include "rootdk/export.h"

namespace rootdk {

enum class DeviceKind : std::int32_t { cpu = 0, cuda = 1 };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::int32_t index = 0;

  friend constexpr bool operator==(Device, Device) = default;
};

inline constexpr int kMaxRank = 6;

// A view of memory that somebody else owns: pointer, element type, device, shape and strides (in elements, any sign
// the memory allows; 0 repeats a dimension). A default-constructed view is undefined and means "not given".
// TensorView may be written through, ConstTensorView only read; the first converts to the second.
template <class Void>
struct ROOTDK_API BasicTensorView {
  static constexpr bool kWritable = !std::is_const_v<Void>;

  Void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  BasicTensorView() = default;

  BasicTensorView(Void* memory, DType type, std::span<const std::int64_t> sizes, Device where = {});

  // A contiguous, row-major view: TensorView q(pointer, {batch, heads, len, head_dim}).
  template <class T>
  requires(std::is_same_v<std::remove_const_t<T>, T> || !kWritable)
      BasicTensorView(T* memory, std::initializer_list<std::int64_t> sizes, Device where = {})
      : BasicTensorView(memory, dtype_of<std::remove_const_t<T>>, std::span(sizes.begin(), sizes.size()), where) {}

  operator BasicTensorView<const void>() const requires kWritable {
    BasicTensorView<const void> result;
    result.data = data;
    result.dtype = dtype;
    result.device = device;
    result.rank = rank;
    result.shape = shape;
    result.strides = strides;
    return result;
  }

  bool defined() const { return rank > 0; }
  std::int64_t size(int dimension) const { return shape[static_cast<std::size_t>(dimension)]; }
  std::int64_t stride(int dimension) const { return strides[static_cast<std::size_t>(dimension)]; }

  // The number of elements, counting repeated ones.
  std::int64_t elements() const {
    std::int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= size(i);
    return count;
  }

  // The same memory with two dimensions exchanged: BSHD storage seen as BHSD is view.transposed(1, 2).
  BasicTensorView transposed(int a, int b) const;

  // The part [begin, end) of one dimension.
  BasicTensorView slice(int dimension, std::int64_t begin, std::int64_t end) const;

  // The pointer as one to T; nothing is checked.
  template <class T>
  auto* as() const {
    return static_cast<std::conditional_t<kWritable, T, const T>*>(data);
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

// "f32 [2, 8, 128, 64]", for messages.
ROOTDK_API std::string describe(const ConstTensorView& view);

// A tensor that owns its memory: on the CPU, contiguous, 64-byte aligned, zeroed. One that was moved from is undefined.
class ROOTDK_API Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape);
  Tensor(DType dtype, std::span<const std::int64_t> shape);
  // Its elements hold anything: for what is written whole before it is read.
  static Tensor unwritten(DType dtype, std::span<const std::int64_t> shape);

  Tensor(Tensor&& other) noexcept : memory_(std::move(other.memory_)), view_(std::exchange(other.view_, {})) {}
  Tensor& operator=(Tensor&& other) noexcept {
    memory_ = std::move(other.memory_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }

  TensorView view() & { return view_; }
  ConstTensorView view() const& { return view_; }
  operator TensorView() & { return view_; }
  // A temporary converts, too: as an argument it lives until the call returns. What is written into one would be lost.
  operator ConstTensorView() const { return view_; }

  bool defined() const { return view_.defined(); }
  DType dtype() const { return view_.dtype; }
  int rank() const { return view_.rank; }
  std::int64_t size(int dimension) const { return view_.size(dimension); }
  std::int64_t elements() const { return view_.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype()); }
  std::span<const std::int64_t> shape() const { return {view_.shape.data(), static_cast<std::size_t>(view_.rank)}; }

  // All elements, in order. T is the element type: float, double, BFloat16, ...; any other is an error.
  template <class T>
  std::span<T> values() & {
    require_dtype(dtype_of<T>);
    return {view_.as<T>(), static_cast<std::size_t>(elements())};
  }
  template <class T>
  std::span<const T> values() const& {
    require_dtype(dtype_of<T>);
    return {view_.as<T>(), static_cast<std::size_t>(elements())};
  }
  // A view of a temporary, or its values, would be gone before they are read.
  void view() const&& = delete;
  template <class T>
  void values() const&& = delete;

 private:
  void require_dtype(DType asked) const;

  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  TensorView view_;
};

// A contiguous copy in another element type (rounding to nearest), on the CPU.
ROOTDK_API Tensor convert(const ConstTensorView& source, DType dtype);

}  // namespace rootdk
