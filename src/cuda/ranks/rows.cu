#include <algorithm>
#include <type_traits>

#include "core/check.h"
#include "cuda/common/device_view.h"
#include "cuda/launch/kernel.h"
#include "cuda/ranks/rows.h"

namespace rootdk::cuda {
namespace {

constexpr int kThreads = 256, kRows = 64;   // of a block
constexpr std::int64_t kMostHeads = 65535;  // a grid's second size

struct RowSizes {
  std::int64_t heads = 0, batch_heads = 0, rows = 0;
  int packs = 0;  // of a row
};

// Elements that are read or written at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T x[N];
};

// A block has kRows rows of one head.
template <class To, class From, int N, RowUpdate Update>
__global__ void update_kernel(DeviceView<To, 4> to, DeviceView<const From, 4> from, RowSizes sizes) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(kRows), sizes.rows - first));
  for (std::int64_t bh = blockIdx.y; bh < sizes.batch_heads; bh += gridDim.y) {
    const std::int64_t entry = bh / sizes.heads, head = bh % sizes.heads;
    for (int i = threadIdx.x; i < rows * sizes.packs; i += kThreads) {
      const int row = i / sizes.packs, column = i % sizes.packs * N;
      auto& target = *reinterpret_cast<Pack<To, N>*>(to.at(entry, head, first + row, column));
      const auto source = *reinterpret_cast<const Pack<From, N>*>(from.at(entry, head, first + row, column));
      Pack<To, N> result = Update == RowUpdate::add ? target : Pack<To, N>{};
#pragma unroll
      for (int e = 0; e < N; ++e) {
        if constexpr (Update == RowUpdate::add) {
          result.x[e] += static_cast<To>(source.x[e]);
        } else {
          result.x[e] = static_cast<To>(source.x[e]);
        }
      }
      target = result;
    }
  }
}

template <class To, class From, int N, RowUpdate Update>
void launch(const TensorView& to, const ConstTensorView& from, cudaStream_t stream) {
  const RowSizes sizes{.heads = to.size(1),
                       .batch_heads = to.size(0) * to.size(1),
                       .rows = to.size(2),
                       .packs = static_cast<int>(to.size(3) / N)};
  const dim3 grid(static_cast<unsigned>((sizes.rows + kRows - 1) / kRows),
                  static_cast<unsigned>(std::min(sizes.batch_heads, kMostHeads)));
  launch_kernel({.function = reinterpret_cast<const void*>(&update_kernel<To, From, N, Update>),
                 .name = "rows of a rank",
                 .grid = grid,
                 .block = dim3(kThreads),
                 .stream = stream,
                 .device = to.device.index},
                device_view<To, 4>(to), device_view<const From, 4>(from), sizes);
}

// Whether rows consist of packs of n elements at addresses that are multiples of their size.
bool has_packs(const ConstTensorView& view, std::int64_t n) {
  const auto bytes = static_cast<std::uintptr_t>(n) * size_of(view.dtype);
  return view.stride(3) == 1 && view.size(3) % n == 0 && reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0 &&
         view.stride(0) % n == 0 && view.stride(1) % n == 0 && view.stride(2) % n == 0;
}

template <class To, class From, RowUpdate Update>
void launch_packs(const TensorView& to, const ConstTensorView& from, cudaStream_t stream) {
  constexpr int kPack = std::is_same_v<To, From> ? 16 / sizeof(To) : 4;
  if (has_packs(to, kPack) && has_packs(from, kPack)) return launch<To, From, kPack, Update>(to, from, stream);
  launch<To, From, 1, Update>(to, from, stream);
}

void copy_rows(const TensorView& to, const ConstTensorView& from, cudaStream_t stream) {
  constexpr RowUpdate kCopy = RowUpdate::copy;
  if (to.dtype == from.dtype) {
    switch (to.dtype) {
      case DType::f32: return launch_packs<float, float, kCopy>(to, from, stream);
      case DType::bf16: return launch_packs<__nv_bfloat16, __nv_bfloat16, kCopy>(to, from, stream);
      case DType::f16: return launch_packs<__half, __half, kCopy>(to, from, stream);
      case DType::f64: return launch_packs<double, double, kCopy>(to, from, stream);
      default: break;
    }
  }
  if (from.dtype == DType::f32 && to.dtype == DType::bf16) {
    return launch_packs<__nv_bfloat16, float, kCopy>(to, from, stream);
  }
  if (from.dtype == DType::f32 && to.dtype == DType::f16) return launch_packs<__half, float, kCopy>(to, from, stream);
  fail(ErrorKind::internal, "rows of a rank: ", name_of(from.dtype), " cannot become ", name_of(to.dtype));
}

void add_rows(const TensorView& to, const ConstTensorView& from, cudaStream_t stream) {
  constexpr RowUpdate kAdd = RowUpdate::add;
  if (to.dtype == DType::f32) {
    switch (from.dtype) {
      case DType::f32: return launch_packs<float, float, kAdd>(to, from, stream);
      case DType::bf16: return launch_packs<float, __nv_bfloat16, kAdd>(to, from, stream);
      case DType::f16: return launch_packs<float, __half, kAdd>(to, from, stream);
      default: break;
    }
  }
  if (to.dtype == DType::f64 && from.dtype == DType::f64) return launch_packs<double, double, kAdd>(to, from, stream);
  fail(ErrorKind::internal, "rows of a rank: ", name_of(from.dtype), " cannot be added to ", name_of(to.dtype));
}

}  // namespace

void update_rows(const TensorView& to, const ConstTensorView& from, RowUpdate update, cudaStream_t stream) {
  if (to.elements() == 0) return;
  update == RowUpdate::add ? add_rows(to, from, stream) : copy_rows(to, from, stream);
}

}  // namespace rootdk::cuda
