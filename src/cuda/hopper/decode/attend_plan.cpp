#include "cuda/hopper/decode/attend_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cuda/hopper/decode/choice.h"
#include "cuda/hopper/decode/kernels.h"
#include "cuda/hopper/shared/head_dims.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr std::size_t kPartialsBytes = std::size_t{128} << 20;  // of one launch, unless a single tile needs more
constexpr std::size_t kPartAlignment = 256;

std::size_t align(std::size_t bytes) { return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

template <class Element, int HeadDim>
DecodeKernel kernel_of(DType cache, bool many_rows) {
  switch (cache) {
    case DType::i8: return byte_decode_kernel_of<Element, HeadDim>(ByteType::int8, many_rows);
    case DType::f8e4m3: return byte_decode_kernel_of<Element, HeadDim>(ByteType::e4m3, many_rows);
    default: return cache_decode_kernel<Element, HeadDim>();
  }
}
template <class Element>
DecodeKernel kernel_of(const AttendCall& call) {
  constexpr std::int64_t kFewRows = 8;
  const bool many_rows = std::any_of(call.sequences.begin(), call.sequences.end(), [&](const CallSequence& sequence) {
    return sequence.tokens * call.shape.group() > kFewRows;
  });
  switch (padded_dim(kCacheHeadDims, call.shape.head_dim, call.shape.value_dim)) {
    case 64: return kernel_of<Element, 64>(call.k.dtype, many_rows);
    case 128: return kernel_of<Element, 128>(call.k.dtype, many_rows);
    default: return kernel_of<Element, 256>(call.k.dtype, many_rows);
  }
}

void cut_rows(const AttendCall& call, AttendPlan& plan) {
  // A tile has whole tokens, if the heads of one token fit into a tile.
  const std::int64_t group = call.shape.group(), fits = plan.kernel.rows;
  const std::int64_t most = group <= fits ? fits / group * group : fits;
  for (const CallSequence& sequence : call.sequences) {
    if (sequence.tokens == 0) continue;
    const auto table = static_cast<int>(plan.tables.size());
    const std::int64_t keys = sequence.position + sequence.tokens;
    plan.tables.insert(plan.tables.end(), sequence.pages, sequence.pages + divide_up(keys, call.shape.page_size));
    plan.chunks = std::max(plan.chunks, static_cast<int>(divide_up(keys, kChunkKeys)));
    plan.several_tokens = plan.several_tokens || sequence.tokens > 1;
    for (std::int64_t first = 0; first < sequence.tokens * group; first += most) {
      const std::int64_t rows = std::min(most, sequence.tokens * group - first), token = first / group;
      plan.tile_rows = std::max(plan.tile_rows, static_cast<int>(rows));
      plan.tiles.push_back({.row = static_cast<int>(sequence.row + token),
                            .rows = static_cast<int>(rows),
                            .first_head = static_cast<int>(first % group),
                            .position = static_cast<int>(sequence.position + token),
                            .evicted_begin = static_cast<int>(sequence.gap_begin),
                            .evicted_end = static_cast<int>(sequence.gap_end),
                            .table = table});
    }
    if (call.rotation.empty()) continue;
    const std::size_t before = plan.positions.size();
    plan.positions.resize(before + static_cast<std::size_t>(sequence.tokens));
    std::iota(plan.positions.begin() + static_cast<std::ptrdiff_t>(before), plan.positions.end(),
              static_cast<std::int32_t>(sequence.position));
  }
}

// A key tile is one copy if it never crosses a page, and several copies otherwise. Pages hold a multiple of 16 keys, or
// the whole sequence.
int box_keys(const AttendCall& call, int block_kv) {
  const bool one_page = std::all_of(call.sequences.begin(), call.sequences.end(), [&](const CallSequence& sequence) {
    return sequence.position + sequence.tokens <= call.shape.page_size;
  });
  return one_page ? block_kv : static_cast<int>(std::gcd<std::int64_t>(call.shape.page_size, block_kv));
}

// Blocks that process several chunks fill their ring less often, but too few blocks leave multiprocessors idle. The
// bits do not depend on this choice.
int chunks_together(const AttendPlan& plan, std::int64_t kv_heads) {
  const std::int64_t resident = kMultiprocessors * plan.kernel.blocks_per_multiprocessor;
  const auto tiles = static_cast<std::int64_t>(plan.tiles.size());
  double best = std::numeric_limits<double>::infinity();
  int chosen = 1;
  for (int together = 1; together <= plan.chunks; ++together) {
    const std::int64_t blocks = tiles * kv_heads * divide_up(plan.chunks, together);
    const double time = static_cast<double>(divide_up(blocks, resident)) *
                        (together * (kChunkKeys / plan.kernel.block_kv) + kStartTiles);
    if (time < best) best = time, chosen = together;
  }
  return chosen;
}

void lay_out_workspace(const AttendCall& call, AttendPlan& plan) {
  const KvShape& s = call.shape;
  const auto tile_partials = [&](std::int64_t tiles) {
    const std::int64_t rows = tiles * s.kv_heads * plan.tile_rows;
    return plan.merges() ? partials_bytes(plan.chunks, rows, s.value_dim) : 0;
  };
  const auto tiles = static_cast<std::int64_t>(plan.tiles.size());
  const std::size_t one = std::max<std::size_t>(1, tile_partials(1));
  plan.tiles_together =
      static_cast<int>(std::clamp<std::int64_t>(static_cast<std::int64_t>(kPartialsBytes / one), 1, tiles));
  plan.tables_offset = align(plan.tiles.size() * sizeof(CacheTile));
  plan.positions_offset = plan.tables_offset + align(plan.tables.size() * sizeof(std::int32_t));
  plan.queries_offset = plan.positions_offset + align(plan.positions.size() * sizeof(std::int32_t));
  const std::size_t queries =
      call.rotation.empty() ? 0 : static_cast<std::size_t>(s.heads * s.tokens * s.head_dim) * size_of(call.q.dtype);
  plan.partials_offset = plan.queries_offset + align(queries);
  plan.bytes = plan.partials_offset + tile_partials(plan.tiles_together);
}

}  // namespace

AttendPlan plan_attend(const AttendCall& call) {
  AttendPlan plan;
  plan.kernel = call.q.dtype == DType::bf16 ? kernel_of<BFloat16>(call) : kernel_of<Float16>(call);
  cut_rows(call, plan);
  if (plan.tiles.empty()) return plan;
  plan.box_keys = box_keys(call, plan.kernel.block_kv);
  plan.chunks_together = chunks_together(plan, call.shape.kv_heads);
  lay_out_workspace(call, plan);
  return plan;
}

}  // namespace rootdk::cuda::hopper
