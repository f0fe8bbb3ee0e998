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
constexpr int kMaxSplits = 128;
constexpr double kMergeTiles = 0.05;  // merging one more part, in units of the time of one key tile

template <class Element>
DecodeKernel kernel_of(int head_dim) {
  switch (head_dim) {
    case 64: return tensor_decode_kernel<Element, 64>();
    case 96: return tensor_decode_kernel<Element, 96>();
    case 128: return tensor_decode_kernel<Element, 128>();
    case 192: return tensor_decode_kernel<Element, 192>();
    default: return tensor_decode_kernel<Element, 256>();
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

std::size_t sums_bytes(std::int64_t parts, std::int64_t rows) {
  return static_cast<std::size_t>(parts * rows) * sizeof(float4);
}

}  // namespace

std::size_t partials_bytes(std::int64_t parts, std::int64_t rows, std::int64_t value_dim) {
  if (parts == 1) return 0;
  return sums_bytes(parts, rows) + static_cast<std::size_t>(parts * rows * value_dim) * sizeof(float);
}

void place_partials(ForwardParams& params, void* memory, std::int64_t rows) {
  if (params.splits == 1) return;
  auto* bytes = static_cast<std::byte*>(memory);
  params.partial_sums = reinterpret_cast<float4*>(bytes);
  params.partial_out = reinterpret_cast<float*>(bytes + sums_bytes(params.splits, rows));
}

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
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  ForwardParams params = make_params(call);
  params.splits = choice.splits;
  params.split_tiles = choice.split_tiles;
  params.query_tiles = params.sequences;
  params.tile_rows = params.q_len * params.group;
  place_partials(params, call.execution.cuda.workspace, choice.rows);
  const PagedKeys no_pages;
  const ForwardMaps maps{.q = {},
                         .k = make_tensor_map(call.k, kernel.block_kv, 64),
                         .v = make_tensor_map(call.v, kernel.block_kv, 64),
                         .out = {}};
  const std::int64_t blocks = call.shape.batch * call.shape.kv_heads * choice.splits;
  launch_kernel({.function = kernel.function,
                 .name = "the Hopper decode kernel",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(static_cast<unsigned>(kernel.threads)),
                 .shared_bytes = kernel.shared_bytes,
                 .stream = stream,
                 .device = call.q.device.index},
                maps, params, no_pages);
  if (choice.splits == 1) return;
  launch_kernel({.function = kernel.merge,
                 .name = "the merge of decode",
                 .grid = dim3(static_cast<unsigned>(choice.rows)),
                 .block = dim3(kDecodeMergeThreads),
                 .stream = stream,
                 .device = call.q.device.index,
                 .starts_early = true},
                params, no_pages);
}

}  // namespace rootdk::cuda::hopper
