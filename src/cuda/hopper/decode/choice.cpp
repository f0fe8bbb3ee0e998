#include "cuda/hopper/decode/choice.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/hopper/decode/kernels.h"
#include "cuda/hopper/shared/head_dims.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr std::int64_t kMaxQueries = 16;
constexpr std::int64_t kFewKeys = 256;
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

template <class Element>
DirectKernel direct_kernel_of(int head_dim, int rows) {
  switch (head_dim) {
    case 64: return direct_decode_kernel_of<Element, 64>(rows);
    case 128: return direct_decode_kernel_of<Element, 128>(rows);
    default: return direct_decode_kernel_of<Element, 256>(rows);
  }
}

// Picks the direct kernel for few rows and few keys. Above that many bytes the ring of tiles is as fast: it keeps more
// of them on their way. Each key head has a cluster of blocks, as many as there are multiprocessors for.
void choose_direct(DecodeChoice& choice, const ForwardCall& call) {
  constexpr std::int64_t kMostBytes = std::int64_t{24} << 20;  // of keys and values
  const AttentionShape& s = call.shape;
  const std::int64_t rows = s.q_len * s.group(), heads = s.batch * s.kv_heads;
  const std::int64_t bytes = heads * s.kv_len * (s.head_dim + s.value_dim) * 2;
  if (rows > kDirectRows || bytes > kMostBytes) return;
  const int head_dim = padded_dim(kCacheHeadDims, s.head_dim, s.value_dim);
  choice.direct = call.q.dtype == DType::bf16 ? direct_kernel_of<BFloat16>(head_dim, static_cast<int>(rows))
                                              : direct_kernel_of<Float16>(head_dim, static_cast<int>(rows));
  std::int64_t splits = 1;
  while (splits < kMostClusterBlocks && 2 * splits * heads <= kMultiprocessors &&
         2 * s.kv_len > splits * choice.direct.block_keys) {
    splits *= 2;
  }
  choice.splits = static_cast<int>(splits);
  choice.split_tiles = static_cast<int>(divide_up(divide_up(s.kv_len, kTensorTileKeys), splits));
}

// Picks the split with the shortest estimated time: waves of blocks, times the key tiles of a block, plus the cost of
// starting blocks and of merging parts.
void choose_split(DecodeChoice& choice, std::int64_t heads, std::int64_t tiles) {
  const std::int64_t resident = kMultiprocessors * choice.kernel.blocks_per_multiprocessor;
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t splits = 1; splits <= std::min<std::int64_t>(tiles, kMaxSplits); ++splits) {
    const std::int64_t part = divide_up(tiles, splits), parts = divide_up(tiles, part);
    const double time =
        static_cast<double>(divide_up(heads * parts, resident)) * (static_cast<double>(part) + kStartTiles) +
        kMergeTiles * static_cast<double>(parts > 1 ? parts : 0);
    if (time >= best) continue;
    best = time;
    choice.splits = static_cast<int>(parts);
    choice.split_tiles = static_cast<int>(part);
  }
}

}  // namespace

bool is_decode(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  // Decode has one block on a multiprocessor, which takes its time however few its keys are.
  const bool few_keys_of_many_heads =
      s.q_len > 1 && s.kv_len <= kFewKeys && s.batch * s.kv_heads > 2 * kMultiprocessors;
  return !few_keys_of_many_heads && s.q_len <= kMaxQueries && s.q_len * s.group() <= kDecodeRows && s.head_dim % 8 == 0 && !s.packed &&
         !call.params.mask.defined();
}

DecodeChoice choose_decode(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  const int head_dim = padded_dim(kHeadDims, s.head_dim, s.value_dim);
  DecodeChoice choice;
  choice.kernel = call.q.dtype == DType::bf16 ? kernel_of<BFloat16>(head_dim) : kernel_of<Float16>(head_dim);
  choice.rows = s.batch * s.heads * s.q_len;
  choice.value_dim = s.value_dim;
  choose_split(choice, s.batch * s.kv_heads, divide_up(s.kv_len, choice.kernel.block_kv));
  choose_direct(choice, call);
  choice.repairs = s.q_len > 1 || call.params.bias.defined() || call.dropout.threshold > 0;
  return choice;
}

}  // namespace rootdk::cuda::hopper
