// attend() over the pages of a cache: plan and launches.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <vector>

#include "cuda/common/make_rule.h"
#include "cuda/common/rotation.h"
#include "cuda/kv/attention_shape.h"
#include "cuda/kv/rotate_queries.h"
#include "cuda/kv/upload.h"
#include "cuda/launch/device.h"
#include "cuda/launch/workspace.h"
#include "cuda/portable/attend_kernel.h"
#include "cuda/portable/element.h"
#include "cuda/portable/host.h"
#include "cuda/portable/launch.h"
#include "cuda/portable/portable.h"

namespace rootdk::cuda::portable {
namespace {

constexpr std::int64_t kPartialsBytes = std::int64_t{64} << 20;  // of one launch, unless a single tile needs more
constexpr std::int64_t kLargestPosition = std::int64_t{1} << 28;

using AttendKernel = void (*)(AttendArguments);

template <class Cached>
AttendKernel kernel_of(std::int64_t value_dim) {
  if (value_dim <= kAttendThreads) return attend_kernel<Cached, 1>;
  if (value_dim <= 2 * kAttendThreads) return attend_kernel<Cached, 2>;
  return attend_kernel<Cached, kAttendLargestDim / kAttendThreads>;
}

AttendKernel kernel_for(const AttendCall& call) {
  if (call.k.dtype == DType::i8) return kernel_of<std::int8_t>(call.shape.value_dim);
  if (call.k.dtype == DType::f8e4m3) return kernel_of<Float8E4M3>(call.shape.value_dim);
  AttendKernel kernel = nullptr;
  with_element_type(call.k.dtype,
                    [&](auto type) { kernel = kernel_of<typename decltype(type)::Type>(call.shape.value_dim); });
  return kernel;
}

// What is uploaded from the host: tiles, then the page tables of all sequences, then, for RoPE, the position of every
// token.
struct AttendTables {
  std::vector<AttendTile> tiles;
  std::vector<std::int32_t> pages, positions;
  std::int64_t chunks = 0;  // of the longest sequence

  explicit AttendTables(const AttendCall& call) {
    const std::int64_t group = call.shape.group();
    for (const CallSequence& sequence : call.sequences) {
      if (sequence.tokens == 0) continue;
      const std::int64_t keys = sequence.position + sequence.tokens;
      const AttendTile whole{.tokens = static_cast<std::int32_t>(sequence.tokens),
                             .tensor_row = static_cast<std::int32_t>(sequence.row),
                             .position = static_cast<std::int32_t>(sequence.position),
                             .gap_begin = static_cast<std::int32_t>(sequence.gap_begin),
                             .gap_end = static_cast<std::int32_t>(sequence.gap_end),
                             .table = static_cast<std::int32_t>(pages.size())};
      pages.insert(pages.end(), sequence.pages,
                   sequence.pages + (keys + call.shape.page_size - 1) / call.shape.page_size);
      chunks = std::max(chunks, (keys + kAttendChunkKeys - 1) / kAttendChunkKeys);
      for (std::int64_t first = 0; first < sequence.tokens * group; first += kAttendRows) {
        AttendTile tile = whole;
        tile.first = static_cast<std::int32_t>(first);
        tile.rows = static_cast<std::int32_t>(std::min<std::int64_t>(kAttendRows, sequence.tokens * group - first));
        tiles.push_back(tile);
      }
      if (call.rotation.empty()) continue;
      const std::size_t before = positions.size();
      positions.resize(before + static_cast<std::size_t>(sequence.tokens));
      std::iota(positions.begin() + static_cast<std::ptrdiff_t>(before), positions.end(), whole.position);
    }
  }

  std::vector<std::int32_t> words() const {
    constexpr std::size_t kTileWords = sizeof(AttendTile) / sizeof(std::int32_t);
    std::vector<std::int32_t> all(tiles.size() * kTileWords);
    if (!tiles.empty()) std::memcpy(all.data(), tiles.data(), tiles.size() * sizeof(AttendTile));
    all.insert(all.end(), pages.begin(), pages.end());
    all.insert(all.end(), positions.begin(), positions.end());
    return all;
  }
};

CachedTensor cached_tensor(const ConstTensorView& rows, const ConstTensorView& scales) {
  CachedTensor cached;
  cached.data = rows.data;
  cached.scales = scales.defined() ? scales.as<float>() : nullptr;
  cached.dim = static_cast<int>(rows.size(3));
  cached.vectors = reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 &&
                   static_cast<std::size_t>(cached.dim) * size_of(rows.dtype) % 16 == 0;
  return cached;
}

// A window that covers every position is no window.
int limited(std::int64_t keys, int otherwise) { return keys < kLargestPosition ? static_cast<int>(keys) : otherwise; }

std::int64_t blocks_of(const AttendArguments& args) {
  return std::int64_t{args.tile_count} * args.rule.kv_heads * args.chunks;
}

// Everything that a call will launch, and the scratch memory it takes.
struct AttendPlan {
  AttendKernel kernel = nullptr;
  AttendTables tables;
  AttendArguments args;
  std::int32_t* words = nullptr;            // of the tables, in scratch memory
  const std::int32_t* positions = nullptr;  // within them
  void* rotated = nullptr;                  // queries; null: they are not rotated
  std::size_t workspace_bytes = 0;

  AttendPlan(const AttendCall& call, void* memory) : kernel(kernel_for(call)), tables(call) {
    const KvShape& s = call.shape;
    args.rule = make_rule(kv::attention_shape(s), call.params.logits, call.logit_scale,
                          {.causal = true, .left = call.params.window_left});
    args.q = any_view<4>(call.q);
    args.out = any_view<4>(call.out);
    args.k = cached_tensor(call.k, call.k_scales);
    args.v = cached_tensor(call.v, call.v_scales);
    args.lse = device_view<float, 3>(call.stats.lse);
    args.max_logit = device_view<float, 3>(call.stats.max_logit);
    args.max_weight = device_view<float, 3>(call.stats.max_weight);
    args.entropy = device_view<float, 3>(call.stats.entropy);
    args.sum_p2 = device_view<float, 3>(call.stats.sum_p2);
    args.page_size = static_cast<int>(s.page_size);
    args.window_left = limited(call.params.window_left, -1);
    args.keeps_first = limited(call.params.window_keeps_first, static_cast<int>(kLargestPosition));
    args.chunks = static_cast<int>(tables.chunks);
    lay_out(call, memory);
  }

  int shared_bytes() const { return args.shared_floats() * static_cast<int>(sizeof(float)); }

 private:
  void lay_out(const AttendCall& call, void* memory) {
    const KvShape& s = call.shape;
    Workspace workspace(memory);
    const auto tile_count = static_cast<std::int64_t>(tables.tiles.size());
    const std::size_t tile_words = tables.tiles.size() * sizeof(AttendTile) / sizeof(std::int32_t);
    words = static_cast<std::int32_t*>(
        workspace.take((tile_words + tables.pages.size() + tables.positions.size()) * sizeof(std::int32_t)));
    if (words) {
      args.tiles = reinterpret_cast<const AttendTile*>(words);
      args.tables = words + tile_words;
      positions = args.tables + tables.pages.size();
    }
    if (!call.rotation.empty()) {
      rotated = workspace.take(static_cast<std::size_t>(s.heads * s.tokens * s.head_dim) * size_of(call.q.dtype));
      args.q.data = rotated;
      args.q.strides[1] = s.tokens * s.head_dim;
      args.q.strides[2] = s.head_dim;
      args.q.strides[3] = 1;
    }
    const std::int64_t tile_rows = tables.chunks * s.kv_heads * kAttendRows;
    const std::int64_t tile_bytes = tile_rows * (s.value_dim + 4) * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t together = std::clamp<std::int64_t>(kPartialsBytes / std::max<std::int64_t>(1, tile_bytes), 1,
                                                           std::max<std::int64_t>(1, tile_count));
    args.tile_count = static_cast<int>(std::min(together, tile_count));
    args.part_sums =
        static_cast<float4*>(workspace.take(static_cast<std::size_t>(together * tile_rows) * sizeof(float4)));
    args.part_out = workspace.floats(together * tile_rows * s.value_dim);
    workspace_bytes = workspace.bytes();
  }
};

std::string refuse(const AttendCall& call) {
  const KvShape& s = call.shape;
  std::ostringstream reason;
  if (std::string refused = refuse_device(call.q); !refused.empty()) return refused;
  if (s.head_dim > kAttendLargestDim || s.value_dim > kAttendLargestDim) {
    reason << "head_dim " << s.head_dim << " or value_dim " << s.value_dim << " is over " << kAttendLargestDim;
  } else if (call.rotation.frequency.size() > kMaxRotatedPairs) {
    reason << "RoPE rotates " << 2 * call.rotation.frequency.size() << " dimensions, more than "
           << 2 * kMaxRotatedPairs;
  }
  for (const CallSequence& sequence : call.sequences) {
    if (sequence.position + sequence.tokens >= kLargestPosition) {
      reason << "position " << sequence.position << " is not below " << kLargestPosition;
    }
  }
  return reason.str();
}

std::string refuse_plan(const AttendCall& call, const AttendPlan& plan) {
  const std::int64_t blocks = blocks_of(plan.args), merged = blocks / std::max(1, plan.args.chunks) * kAttendRows;
  if (std::string refused = refuse_blocks(std::max(blocks, merged)); !refused.empty()) return refused;
  return refuse_shared_bytes(call.q.device, plan.shared_bytes());
}

void launch_plan(const AttendCall& call, const AttendPlan& plan) {
  if (plan.tables.tiles.empty()) return;
  require_workspace(call.execution.cuda, plan.workspace_bytes, "attend");
  const DeviceGuard guard(call.q.device.index);
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  kv::upload_words(plan.tables.words(), plan.words, stream, call.q.device.index);
  if (plan.rotated) kv::rotate_queries(call, plan.positions, plan.rotated, stream);

  AttendArguments args = plan.args;
  const auto tiles = static_cast<int>(plan.tables.tiles.size()), together = plan.args.tile_count;
  for (int first = 0; first < tiles; first += together) {
    args.tiles = plan.args.tiles + first;
    args.tile_count = std::min(together, tiles - first);
    launch(
        plan.kernel, "attend over pages",
        {.blocks = blocks_of(args), .threads = kAttendThreads, .shared_bytes = plan.shared_bytes(), .stream = stream},
        args);
    launch(merge_attend_kernel, "the merge of attend",
           {.blocks = std::int64_t{args.tile_count} * args.rule.kv_heads * kAttendRows,
            .threads = kAttendThreads,
            .stream = stream},
           args);
  }
}

Answer<AttendCall> answer(const AttendCall& call) {
  if (std::string reason = refuse(call); !reason.empty()) return {.refusal = reason};
  void* const memory = call.execution.cuda.workspace;
  AttendPlan plan(call, memory);
  if (std::string reason = refuse_plan(call, plan); !reason.empty()) return {.refusal = reason};
  return {.workspace_bytes = plan.workspace_bytes, .run = [plan = std::move(plan), memory](const AttendCall& accepted) {
            // A plan points into the workspace, which the caller's allocator gives after it was made.
            void* const given = accepted.execution.cuda.workspace;
            launch_plan(accepted, given == memory ? plan : AttendPlan(accepted, given));
          }};
}

}  // namespace

const AttendImplementation& attend() {
  static const AttendImplementation implementation{.name = "sm80", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::portable
