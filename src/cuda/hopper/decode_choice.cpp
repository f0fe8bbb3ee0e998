#include "cuda/hopper/decode_choice.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/hopper/forward_kernels.h"
#include "cuda/hopper/forward_launch.h"
#include "cuda/launch/kernel.h"
#include "cuda/launch/tensor_map.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr std::int64_t kMaxQueries = 16;
constexpr std::int64_t kMultiprocessors = 132;  // of a full Hopper: a constant, so that the split depends on the shape
constexpr int kMaxSplits = 128;
// In units of the time of one key tile: filling the ring of a block, and merging one more part.
constexpr double kStartTiles = 3, kMergeTiles = 0.05;

template <class Element>
DecodeKernel kernel_of(int head_dim) {
  switch (head_dim) {
    case 64: return decode_kernel_of<Element, 64>();
    case 96: return decode_kernel_of<Element, 96>();
    case 128: return decode_kernel_of<Element, 128>();
    case 192: return decode_kernel_of<Element, 192>();
    default: return decode_kernel_of<Element, 256>();
  }
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The split with the shortest time: waves of blocks times the tiles each walks, with what starting and merging cost.
void choose_split(DecodeChoice& choice, std::int64_t heads, std::int64_t tiles) {
  const std::int64_t slots = kMultiprocessors * choice.kernel.blocks_per_multiprocessor;
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t splits = 1; splits <= std::min<std::int64_t>(tiles, kMaxSplits); ++splits) {
    const std::int64_t part = divide_up(tiles, splits), parts = divide_up(tiles, part);
    const double time =
        static_cast<double>(divide_up(heads * parts, slots)) * (static_cast<double>(part) + kStartTiles) +
        kMergeTiles * static_cast<double>(parts > 1 ? parts : 0);
    if (time >= best) continue;
    best = time;
    choice.splits = static_cast<int>(parts);
    choice.split_tiles = static_cast<int>(part);
  }
}

}  // namespace

std::optional<DecodeChoice> choose_decode(const ForwardCall& call, int head_dim) {
  const AttentionShape& s = call.shape;
  const bool decode = s.q_len <= kMaxQueries && s.q_len * s.group() <= kDecodeRows && s.head_dim % 8 == 0 &&
                      !s.packed && !call.params.mask.defined();
  if (!decode) return std::nullopt;
  DecodeChoice choice;
  choice.kernel = call.q.dtype == DType::bf16 ? kernel_of<BFloat16>(head_dim) : kernel_of<Float16>(head_dim);
  choice.rows = s.batch * s.heads * s.q_len;
  choice.value_dim = s.value_dim;
  choose_split(choice, s.batch * s.kv_heads, divide_up(s.kv_len, choice.kernel.block_kv));
  return choice;
}

void launch_decode(const ForwardCall& call, const DecodeChoice& choice) {
  const DecodeKernel& kernel = choice.kernel;
  const auto stream = static_cast<cudaStream_t>(call.execution.stream);
  ForwardParams params = make_params(call);
  params.splits = choice.splits;
  params.split_tiles = choice.split_tiles;
  if (choice.splits > 1) {
    auto* workspace = static_cast<std::byte*>(call.execution.workspace);
    params.partial_sums = reinterpret_cast<float4*>(workspace);
    params.partial_out = reinterpret_cast<float*>(workspace + choice.sums_bytes());
  }
  const ForwardMaps maps{
      .q = {}, .k = make_tensor_map(call.k, kernel.block_kv, 64), .v = make_tensor_map(call.v, kernel.block_kv, 64)};
  const std::int64_t blocks = call.shape.batch * call.shape.kv_heads * choice.splits;
  launch_kernel({.function = kernel.function,
                 .name = "the Hopper decode kernel",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(static_cast<unsigned>(kernel.threads)),
                 .shared_bytes = kernel.shared_bytes,
                 .stream = stream,
                 .device = call.q.device.index},
                maps, params);
  if (choice.splits == 1) return;
  launch_kernel({.function = kernel.merge,
                 .name = "the merge of decode",
                 .grid = dim3(static_cast<unsigned>(divide_up(choice.rows, kDecodeMergeThreads / 32))),
                 .block = dim3(kDecodeMergeThreads),
                 .stream = stream,
                 .device = call.q.device.index,
                 .starts_early = true},
                params);
}

}  // namespace rootdk::cuda::hopper
