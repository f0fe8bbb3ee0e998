#include "cuda/kv/rotate_queries.h"

#include "cuda/common/rotation.h"
#include "cuda/kv/element.h"
#include "cuda/launch/kernel.h"

namespace rootdk::cuda::kv {
namespace {

constexpr int kThreads = 128;

struct RotateArguments {
  const void* q = nullptr;
  DType dtype = DType::bf16;
  std::int64_t head_stride = 0, row_stride = 0;
  int tokens = 0, head_dim = 0;
  const std::int32_t* positions = nullptr;
  void* rotated = nullptr;
  DeviceRotation rotation;
};

// One block per token and head.
__global__ void __launch_bounds__(kThreads) rotate_kernel(const __grid_constant__ RotateArguments args) {
  const std::int64_t token = blockIdx.x, head = blockIdx.y;
  const std::int64_t from = head * args.head_stride + token * args.row_stride;
  const std::int64_t to = (head * args.tokens + token) * args.head_dim;
  const auto element = [&](int d) { return load_as_double(args.q, args.dtype, from + d); };
  for (int d = static_cast<int>(threadIdx.x); d < args.head_dim; d += kThreads) {
    store_double(args.rotated, args.dtype, to + d, args.rotation.rotated(d, args.positions[token], element));
  }
}

}  // namespace

void rotate_queries(const AttendCall& call, const std::int32_t* positions, void* rotated, cudaStream_t stream) {
  const RotateArguments args{.q = call.q.data,
                             .dtype = call.q.dtype,
                             .head_stride = call.q.stride(1),
                             .row_stride = call.q.stride(2),
                             .tokens = static_cast<int>(call.shape.tokens),
                             .head_dim = static_cast<int>(call.shape.head_dim),
                             .positions = positions,
                             .rotated = rotated,
                             .rotation = DeviceRotation::make(call.rotation)};
  launch_kernel({.function = reinterpret_cast<const void*>(&rotate_kernel),
                 .name = "the rotation of queries",
                 .grid = dim3(static_cast<unsigned>(args.tokens), static_cast<unsigned>(call.shape.heads)),
                 .block = dim3(kThreads),
                 .stream = stream,
                 .device = call.q.device.index},
                args);
}

}  // namespace rootdk::cuda::kv
