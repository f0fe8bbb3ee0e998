// append() on the device: rotate in double, round once, write to the page of the token's position. The specification is
// src/reference/append.cpp.

#include "cuda/kv/append.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/common/rotation.h"
#include "cuda/kv/element.h"
#include "cuda/launch/device.h"
#include "cuda/launch/kernel.h"

namespace rootdk::cuda::kv {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// --- pages shared with another sequence ----------------------------------------------------------------------------

constexpr int kCopiesALaunch = 128;

// One of k, v and their scales: [layers, pages, kv_heads, page_size] rows of row_bytes bytes.
struct CopiedPart {
  std::byte* data = nullptr;
  std::int64_t row_bytes = 0;
};

struct CopyArguments {
  CopiedPart parts[4];
  std::int64_t layers = 0, pages = 0, kv_heads = 0, page_size = 0;
  PageCopy copies[kCopiesALaunch];
};

// One block per copy, layer, head and part.
__global__ void __launch_bounds__(kThreads) copy_pages(const __grid_constant__ CopyArguments args) {
  const PageCopy copy = args.copies[blockIdx.x];
  const CopiedPart part = args.parts[blockIdx.z];
  const std::int64_t layer = blockIdx.y / args.kv_heads, head = blockIdx.y % args.kv_heads;
  const auto at = [&](std::int64_t page) {
    return part.data + ((layer * args.pages + page) * args.kv_heads + head) * args.page_size * part.row_bytes;
  };
  for (std::int64_t i = threadIdx.x; i < copy.tokens * part.row_bytes; i += kThreads) at(copy.to)[i] = at(copy.from)[i];
}

void launch_copies(const AppendCall& call, cudaStream_t stream, int device) {
  CopyArguments args{.layers = call.storage.k.size(0),
                     .pages = call.storage.k.size(1),
                     .kv_heads = call.shape.kv_heads,
                     .page_size = call.shape.page_size};
  unsigned parts = 0;
  for (const TensorView& view : {call.storage.k, call.storage.v, call.storage.k_scales, call.storage.v_scales}) {
    if (!view.defined()) continue;
    const std::int64_t elements = view.rank == 5 ? view.size(4) : 1;
    args.parts[parts++] = {view.as<std::byte>(), elements * static_cast<std::int64_t>(size_of(view.dtype))};
  }
  for (std::size_t first = 0; first < call.copies.size(); first += kCopiesALaunch) {
    const std::size_t count = std::min<std::size_t>(kCopiesALaunch, call.copies.size() - first);
    std::copy_n(call.copies.begin() + static_cast<std::ptrdiff_t>(first), count, args.copies);
    launch_kernel(
        {.function = reinterpret_cast<const void*>(&copy_pages),
         .name = "the copy of shared pages",
         .grid = dim3(static_cast<unsigned>(count), static_cast<unsigned>(args.layers * args.kv_heads), parts),
         .block = dim3(kThreads),
         .stream = stream,
         .device = device},
        args);
  }
}

// --- new tokens ----------------------------------------------------------------------------------------------------

// Where a token is written to.
struct TokenTarget {
  std::int32_t page = 0, in_page = 0, position = 0;
};

// The new rows of k or v, and the pages of one layer that receive them.
struct AppendPart {
  const void* rows = nullptr;  // [kv_heads, tokens, dim]
  DType rows_dtype = DType::f32;
  std::int64_t head_stride = 0, row_stride = 0;
  void* pages = nullptr;  // [pages, kv_heads, page_size, dim]
  DType pages_dtype = DType::f32;
  float* scales = nullptr;  // quantised: [pages, kv_heads, page_size]
  int dim = 0;
  bool rotates = false;
};

// A launch copies all its parameters, at most 32764 bytes: few tokens use a small struct, many a large one.
constexpr int kFewTokens = 64, kManyTokens = 2500;

template <int Capacity>
struct AppendArguments {
  AppendPart parts[2];
  DeviceRotation rotation;
  int kv_heads = 0, page_size = 0, first_row = 0, tokens = 0;
  TokenTarget targets[Capacity];
};

__device__ double warp_largest(double x) {
  for (int step = 16; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, x, step);
    x = isnan(x) || other < x ? x : other;
  }
  return x;
}

__device__ inline std::int8_t nearest(double x, std::int8_t) {
  return static_cast<std::int8_t>(lrint(fmin(fmax(x, -127.0), 127.0)));
}
__device__ inline Float8E4M3 nearest(double x, Float8E4M3) { return Float8E4M3(x); }

// The scale maps the largest magnitude of the row to the largest number of the type. A row that is not finite gets the
// scale NaN, so that the error stays visible.
template <class Stored, class Value>
__device__ void store_quantised(const AppendPart& part, std::int64_t row, int lane, double largest_stored,
                                Value value) {
  double largest = 0;
  for (int d = lane; d < part.dim; d += 32) {
    const double x = value(d);
    largest = isfinite(x) && !isnan(largest) ? fmax(largest, fabs(x)) : NAN;
  }
  const auto scale = static_cast<float>(warp_largest(largest) / largest_stored);
  auto* to = static_cast<Stored*>(part.pages) + row * part.dim;
  for (int d = lane; d < part.dim; d += 32) to[d] = scale > 0 ? nearest(value(d) / scale, Stored{}) : Stored{};
  if (lane == 0) part.scales[row] = scale;
}

// One warp per token and head.
template <int Capacity>
__global__ void __launch_bounds__(kThreads) append_rows(const __grid_constant__ AppendArguments<Capacity> args) {
  const AppendPart& part = args.parts[blockIdx.y];
  const int index = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int token = index / args.kv_heads, head = index % args.kv_heads, lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= args.tokens) return;
  const TokenTarget target = args.targets[token];
  const std::int64_t from = head * part.head_stride + (args.first_row + token) * part.row_stride;
  const auto element = [&](int d) { return load_as_double(part.rows, part.rows_dtype, from + d); };
  const auto value = [&](int d) {
    return part.rotates ? args.rotation.rotated(d, target.position, element) : element(d);
  };
  const std::int64_t row =
      (static_cast<std::int64_t>(target.page) * args.kv_heads + head) * args.page_size + target.in_page;
  if (part.pages_dtype == DType::i8) {
    store_quantised<std::int8_t>(part, row, lane, 127, value);
  } else if (part.pages_dtype == DType::f8e4m3) {
    store_quantised<Float8E4M3>(part, row, lane, Float8E4M3::kLargest, value);
  } else {
    for (int d = lane; d < part.dim; d += 32) store_double(part.pages, part.pages_dtype, row * part.dim + d, value(d));
  }
}

std::vector<TokenTarget> token_targets(const AppendCall& call) {
  std::vector<TokenTarget> targets;
  targets.reserve(static_cast<std::size_t>(call.shape.tokens));
  for (const CallSequence& sequence : call.sequences) {
    for (std::int64_t position = sequence.position; position < sequence.position + sequence.tokens; ++position) {
      targets.push_back({.page = sequence.pages[position / call.shape.page_size],
                         .in_page = static_cast<std::int32_t>(position % call.shape.page_size),
                         .position = static_cast<std::int32_t>(position)});
    }
  }
  return targets;
}

AppendPart make_part(const AppendCall& call, const ConstTensorView& rows, const TensorView& pages,
                     const TensorView& scales) {
  const std::int64_t page_rows = pages.size(1) * pages.size(2) * pages.size(3);  // of a layer
  return {.rows = rows.data,
          .rows_dtype = rows.dtype,
          .head_stride = rows.stride(1),
          .row_stride = rows.stride(2),
          .pages = pages.as<std::byte>() +
                   call.layer * page_rows * pages.size(4) * static_cast<std::int64_t>(size_of(pages.dtype)),
          .pages_dtype = pages.dtype,
          .scales = scales.defined() ? scales.as<float>() + call.layer * page_rows : nullptr,
          .dim = static_cast<int>(pages.size(4)),
          .rotates = false};
}

template <int Capacity>
void launch_rows(const AppendCall& call, std::span<const TokenTarget> targets, std::int64_t first_row,
                 cudaStream_t stream, int device) {
  AppendArguments<Capacity> args;
  args.parts[0] = make_part(call, call.k, call.storage.k, call.storage.k_scales);
  args.parts[1] = make_part(call, call.v, call.storage.v, call.storage.v_scales);
  args.parts[0].rotates = !call.rotation.empty();
  args.rotation = DeviceRotation::make(call.rotation);
  args.kv_heads = static_cast<int>(call.shape.kv_heads);
  args.page_size = static_cast<int>(call.shape.page_size);
  args.first_row = static_cast<int>(first_row);
  args.tokens = static_cast<int>(targets.size());
  std::copy(targets.begin(), targets.end(), args.targets);
  const std::int64_t warps = args.tokens * call.shape.kv_heads;
  launch_kernel({.function = reinterpret_cast<const void*>(&append_rows<Capacity>),
                 .name = "append",
                 .grid = dim3(static_cast<unsigned>((warps + kWarps - 1) / kWarps), 2),
                 .block = dim3(kThreads),
                 .stream = stream,
                 .device = device},
                args);
}

void run(const AppendCall& call) {
  const int device = call.k.device.index;
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  const DeviceGuard guard(device);
  launch_copies(call, stream, device);
  const std::vector<TokenTarget> targets = token_targets(call);
  for (std::size_t first = 0; first < targets.size();) {
    const std::size_t count = std::min<std::size_t>(kManyTokens, targets.size() - first);
    const auto some = std::span(targets).subspan(first, count);
    if (count <= kFewTokens) {
      launch_rows<kFewTokens>(call, some, static_cast<std::int64_t>(first), stream, device);
    } else {
      launch_rows<kManyTokens>(call, some, static_cast<std::int64_t>(first), stream, device);
    }
    first += count;
  }
}

std::string refuse(const AppendCall& call) {
  if (call.k.device.kind != DeviceKind::cuda) return "k is not on a CUDA device";
  const DeviceTraits& device = device_traits(call.k.device.index);
  if (!device.error.empty()) return "device " + std::to_string(call.k.device.index) + ": " + device.error;
  if (device.capability < 80) return "the device is older than compute capability 8.0";
  if (call.rotation.frequency.size() > kMaxRotatedPairs) {
    return "RoPE rotates " + std::to_string(2 * call.rotation.frequency.size()) + " dimensions, more than " +
           std::to_string(2 * kMaxRotatedPairs);
  }
  return {};
}

}  // namespace

const AppendImplementation& append() {
  static const AppendImplementation implementation{
      .name = "cuda", .answer = [](const AppendCall& call) { return accept_unless(refuse(call), run); }};
  return implementation;
}

}  // namespace rootdk::cuda::kv
