#include "cuda/hopper/forward/launch.h"

#include <algorithm>

#include "cuda/hopper/forward/tile_counter.h"
#include "cuda/hopper/shared/make_params.h"
#include "cuda/launch/device.h"
#include "cuda/launch/kernel.h"
#include "cuda/launch/tensor_map.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr std::int64_t kL2Share = 32 << 20;     // bytes of k and v that stay in L2 next to everything else
constexpr std::int64_t kQuietShare = 20 << 20;  // bytes of k and v that stay in L2 while each block works on a head
constexpr std::int64_t kMostHeadsTogether = 64;

std::int64_t bytes_of_head(const AttentionShape& s) { return s.kv_len * (s.head_dim + s.value_dim) * 2; }

// If all rows cost the same, heads are processed one by one, and many blocks read a head's k and v at the same time.
// Under causal masking the longest rows come first, over as many heads as fit into L2. Packed sequences differ in
// length: there it matters most that the longest rows of any sequence come first.
int heads_together(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  if (!call.params.causal) return 1;
  const std::int64_t cached = s.group() * std::max<std::int64_t>(1, kL2Share / bytes_of_head(s));
  const std::int64_t wanted = s.packed ? kMostHeadsTogether : std::min(cached, kMostHeadsTogether);
  return static_cast<int>(std::min(wanted, s.heads * s.batch));
}

// Few keys. Returns the number of blocks.
int deal_short(const ForwardCall& call, const ForwardChoice& choice, ForwardParams& params) {
  params.short_rows = choice.short_rows;
  params.q_tiles = static_cast<int>((call.shape.q_len + choice.short_rows - 1) / choice.short_rows);
  params.tiles = params.q_tiles * params.heads * params.sequences;
  if (choice.short_shape.stages == 1) return params.tiles;
  return std::min(params.tiles, device_traits(call.q.device.index).multiprocessors * choice.short_shape.blocks);
}

// Tiles of two heights, in waves.
int deal_mixed(const ForwardCall& call, const ForwardChoice& choice, ForwardParams& params) {
  params.tall_tiles = static_cast<int>(choice.heights.tall);
  params.q_tiles = static_cast<int>(choice.heights.tall + choice.heights.low);
  params.tiles = params.q_tiles * params.heads * params.sequences;
  return std::min(params.tiles, device_traits(call.q.device.index).multiprocessors);
}

}  // namespace

int deal_tiles(const ForwardCall& call, const ForwardKernelHandle& kernel, int* tile_counter, ForwardParams& params) {
  const AttentionShape& s = call.shape;
  params.q_tiles = static_cast<int>((s.q_len + kernel.block_q - 1) / kernel.block_q);
  params.tiles = params.q_tiles * params.heads * params.sequences;
  params.heads_together = heads_together(call);
  const int blocks = std::min(params.tiles, device_traits(call.q.device.index).multiprocessors);
  const bool in_shares = !tile_counter && blocks * bytes_of_head(s) <= kQuietShare;
  if (in_shares) params.tile_share = (params.tiles + blocks - 1) / blocks;
  params.tile_counter = tile_counter;
  if (tile_counter) {
    clear_tile_counter(tile_counter, static_cast<cudaStream_t>(call.execution.cuda.stream), call.q.device.index);
  }
  return blocks;
}

void launch_forward(const ForwardCall& call, const ForwardChoice& choice) {
  const ForwardKernelHandle& kernel = choice.kernel;
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);

  ForwardParams params = make_params(call);
  int* const tile_counter = choice.counts_tiles ? static_cast<int*>(call.execution.cuda.workspace) : nullptr;
  const int blocks = choice.short_rows > 0     ? deal_short(call, choice, params)
                     : choice.heights.time > 0 ? deal_mixed(call, choice, params)
                                               : deal_tiles(call, kernel, tile_counter, params);
  ForwardMaps maps{.q = make_tensor_map(call.q, kernel.block_q, 64),
                   .k = make_tensor_map(call.k, kernel.block_kv, 64),
                   .v = make_tensor_map(call.v, kernel.block_kv, 64),
                   .out = make_tensor_map(call.out, 16, 64)};
  launch_kernel({.function = kernel.function,
                 .name = "the Hopper forward kernel",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(static_cast<unsigned>(kernel.threads)),
                 .shared_bytes = kernel.shared_bytes,
                 .stream = stream,
                 .device = call.q.device.index,
                 .starts_early = choice.counts_tiles},
                maps, params);
}

}  // namespace rootdk::cuda::hopper
