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

// Whether so many clusters of so many blocks run at the same time, two blocks on a multiprocessor. A cluster stays
// inside one GPC, of which a Hopper has eight with at least 14 multiprocessors; what is left over in one of them is
// lost. Clusters of two always fit: multiprocessors are built in pairs. Of more than eight blocks a GPC runs one.
bool run_together(std::int64_t clusters, std::int64_t blocks) {
  constexpr std::int64_t kGpcs = 8, kGpcBlocks = 2 * 14;
  if (blocks <= 2) return clusters * blocks <= 2 * kMultiprocessors;
  return clusters <= kGpcs * (blocks > 8 ? 1 : kGpcBlocks / blocks);
}

// Picks the direct kernel for one query of few heads: with more of them than blocks run at the same time, the ring of
// tiles is as fast. The rows of a product share what they see, and 0 times a NaN that a row may not see is NaN: a bias
// or dropout hides keys from single rows.
void choose_direct(DecodeChoice& choice, const ForwardCall& call) {
  constexpr std::int64_t kManyBlocks = 96, kManyKeys = 512;  // of a block
  const AttentionShape& s = call.shape;
  const std::int64_t heads = s.batch * s.kv_heads;
  if (s.q_len > 1 || s.group() > kDirectRows || choice.repairs || !run_together(heads, 1)) return;
  if (std::max(s.head_dim, s.value_dim) > kDirectHeadDim) return;
  const DirectKernel kernel =
      call.q.dtype == DType::bf16 ? direct_decode_kernel_of<BFloat16>() : direct_decode_kernel_of<Float16>();
  std::int64_t wanted = kMostClusterBlocks;
  while (wanted > 1 && (!run_together(heads, wanted) || 2 * s.kv_len < wanted * kernel.block_keys)) --wanted;
  const std::int64_t tiles = divide_up(s.kv_len, kTensorTileKeys), part = divide_up(tiles, wanted);
  const std::int64_t splits = divide_up(tiles, part);
  if (heads * splits < kManyBlocks && part * kTensorTileKeys > kManyKeys) return;
  choice.direct = kernel;
  choice.splits = static_cast<int>(splits);
  choice.split_tiles = static_cast<int>(part);
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
  return !few_keys_of_many_heads && s.q_len <= kMaxQueries && s.q_len * s.group() <= kDecodeRows &&
         s.head_dim % 8 == 0 && !s.packed && !call.params.mask.defined();
}

DecodeChoice choose_decode(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  const int head_dim = padded_dim(kHeadDims, s.head_dim, s.value_dim);
  DecodeChoice choice;
  choice.kernel = call.q.dtype == DType::bf16 ? kernel_of<BFloat16>(head_dim) : kernel_of<Float16>(head_dim);
  choice.rows = s.batch * s.heads * s.q_len;
  choice.value_dim = s.value_dim;
  choose_split(choice, s.batch * s.kv_heads, divide_up(s.kv_len, choice.kernel.block_kv));
  choice.repairs = s.q_len > 1 || call.params.bias.defined() || call.dropout.threshold > 0;
  choose_direct(choice, call);
  return choice;
}

}  // namespace rootdk::cuda::hopper
