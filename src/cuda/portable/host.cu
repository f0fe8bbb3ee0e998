#include "cuda/portable/host.h"

#include <limits>
#include <sstream>

#include "cuda/common/make_rule.h"
#include "cuda/launch/device.h"

namespace rootdk::cuda::portable {
namespace {

constexpr std::size_t kVectorBytes = 16;

bool rows_are_vectors(const void* data, std::size_t element, const std::int64_t* strides, std::int64_t columns) {
  const auto whole = [&](std::int64_t elements) { return elements * static_cast<std::int64_t>(element) % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0 && whole(strides[0]) && whole(strides[1]) &&
         whole(strides[2]) && whole(columns);
}

}  // namespace

template <class View>
Matrix make_matrix(const View& view, bool converts) {
  Matrix matrix;
  if (!view.defined()) return matrix;
  matrix.data = const_cast<void*>(static_cast<const void*>(view.data));
  matrix.dtype = view.dtype;
  for (int i = 0; i < 3; ++i) matrix.strides[i] = view.stride(i);
  matrix.columns = static_cast<int>(view.size(3));
  matrix.vectors = !converts && rows_are_vectors(view.data, size_of(view.dtype), matrix.strides, view.size(3));
  return matrix;
}
template Matrix make_matrix(const TensorView&, bool);
template Matrix make_matrix(const ConstTensorView&, bool);

void* Workspace::take(std::size_t bytes) {
  const std::size_t offset = bytes_;
  bytes_ += (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  return memory_ ? memory_ + offset : nullptr;
}

float* Workspace::floats(std::int64_t count) {
  return static_cast<float*>(take(static_cast<std::size_t>(count) * sizeof(float)));
}

DeviceView<float, 3> Workspace::rows(std::int64_t a, std::int64_t b, std::int64_t c) {
  DeviceView<float, 3> view;
  view.data = floats(a * b * c);
  view.strides[0] = b * c;
  view.strides[1] = c;
  view.strides[2] = 1;
  return view;
}

NormArguments norm_arguments(const ConstTensorView& x, const Matrix& matrix, Workspace& workspace) {
  Matrix scaled = matrix;
  const std::size_t element = size_of(x.dtype);
  const std::int64_t elements = x.size(0) * x.size(1) * x.size(2) * x.size(3);
  scaled.data = workspace.take(static_cast<std::size_t>(elements) * element);
  scaled.strides[2] = x.size(3);
  scaled.strides[1] = x.size(2) * scaled.strides[2];
  scaled.strides[0] = x.size(1) * scaled.strides[1];
  scaled.vectors = rows_are_vectors(scaled.data, element, scaled.strides, x.size(3));
  return {.x = matrix,
          .scaled = scaled,
          .inverse_norm = workspace.rows(x.size(0), x.size(1), x.size(2)),
          .exponent = workspace.rows(x.size(0), x.size(1), x.size(2)),
          .batch = static_cast<int>(x.size(0)),
          .heads = static_cast<int>(x.size(1)),
          .rows = static_cast<int>(x.size(2))};
}

DeviceView<const float, 3> as_const(const DeviceView<float, 3>& view) {
  return {view.data, {view.strides[0], view.strides[1], view.strides[2]}};
}

void set_norms(LogitRule& rule, const NormArguments& q, const NormArguments& k) {
  rule.q_inverse_norm = as_const(q.inverse_norm);
  rule.k_inverse_norm = as_const(k.inverse_norm);
}

std::string refuse_device(const ConstTensorView& q) {
  if (q.device.kind != DeviceKind::cuda) return "tensors lie on the CPU";
  const DeviceTraits& device = device_traits(q.device.index);
  std::ostringstream reason;
  if (!device.error.empty()) {
    reason << "no CUDA device " << q.device.index << ": " << device.error;
  } else if (device.capability < 80) {
    reason << "needs compute capability 8.0 or newer, device " << q.device.index << " has " << device.capability / 10
           << "." << device.capability % 10;
  } else if (q.dtype == DType::f64) {
    reason << "f64 runs on the reference alone";
  }
  return reason.str();
}

std::string refuse_call(const ConstTensorView& q, const AttentionShape& shape, const AttentionParams& params) {
  if (std::string reason = refuse_device(q); !reason.empty()) return reason;
  std::ostringstream reason;
  if (shape.head_dim > kLargestDim || shape.value_dim > kLargestDim) {
    reason << "head_dim " << shape.head_dim << " or value_dim " << shape.value_dim << " is over " << kLargestDim;
    return reason.str();
  }
  return refuse_sizes(shape, params);
}

std::string refuse_shared_bytes(const Device& device, int bytes) {
  const int most = device_traits(device.index).max_shared_bytes;
  if (bytes <= most) return {};
  std::ostringstream reason;
  reason << "a block needs " << bytes << " bytes of shared memory, device " << device.index << " has " << most;
  return reason.str();
}

std::string refuse_blocks(std::int64_t blocks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (blocks <= kMost) return {};
  std::ostringstream reason;
  reason << "the call needs " << blocks << " blocks, a launch has at most " << kMost;
  return reason.str();
}

}  // namespace rootdk::cuda::portable
