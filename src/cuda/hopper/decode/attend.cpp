// attend() on Hopper: the decode kernels over the pages of a cache. Page tables are uploaded with every call.

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>

#include "core/kv_call.h"
#include "cuda/hopper/decode/attend_plan.h"
#include "cuda/hopper/decode/kernels.h"
#include "cuda/hopper/decode/partials.h"
#include "cuda/hopper/hopper.h"
#include "cuda/hopper/shared/make_params.h"
#include "cuda/hopper/shared/refusal.h"
#include "cuda/kv/attention_shape.h"
#include "cuda/kv/rotate_queries.h"
#include "cuda/kv/upload.h"
#include "cuda/launch/device.h"
#include "cuda/launch/kernel.h"
#include "cuda/launch/tensor_map.h"
#include "cuda/launch/workspace.h"

namespace rootdk::cuda::hopper {
namespace {

std::string refuse_shape(const AttendCall& call) {
  std::ostringstream reason;
  const KvShape& s = call.shape;
  const bool bytes = is_quantised(call.k.dtype);
  const std::int64_t unit = bytes ? 16 : 8, largest = kCacheHeadDims.back();
  if (call.q.dtype != DType::bf16 && call.q.dtype != DType::f16) {
    reason << "q is " << name_of(call.q.dtype) << ", needs bf16 or f16";
  } else if (!bytes && call.k.dtype != call.q.dtype) {
    reason << "the cache is " << name_of(call.k.dtype) << ", needs i8, f8e4m3 or the type of q, "
           << name_of(call.q.dtype);
  } else if (s.head_dim > largest || s.value_dim > largest) {
    reason << "head_dim " << s.head_dim << " or value_dim " << s.value_dim << " is above " << largest;
  } else if (s.head_dim % unit != 0 || s.value_dim % unit != 0) {
    reason << "head_dim " << s.head_dim << " or value_dim " << s.value_dim << " is not a multiple of " << unit;
  } else if (!bytes && s.group() > kDecodeRows) {
    reason << s.group() << " query heads share a key head, more than " << kDecodeRows;
  }
  for (const CallSequence& sequence : call.sequences) {
    if (sequence.position + sequence.tokens >= kNoLimit)
      reason << "position " << sequence.position << " is not below " << kNoLimit;
  }
  return reason.str();
}

std::string refuse(const AttendCall& call) {
  if (std::string reason = refuse_device(call.q.device); !reason.empty()) return reason;
  if (std::string reason = refuse_shape(call); !reason.empty()) return reason;
  return refuse_layout({{"q", call.q}, {"k", call.k}, {"v", call.v}, {"out", call.out}});
}

// attend() as one attention() call, for make_params(): one causal sequence of queries.
ForwardCall as_forward(const AttendCall& call) {
  return {.q = call.q,
          .k = call.k,
          .v = call.v,
          .out = call.out,
          .params = {.logits = call.params.logits, .causal = true, .window_left = call.params.window_left},
          .stats = call.stats,
          .execution = call.execution,
          .shape = kv::attention_shape(call.shape),
          .logit_scale = call.logit_scale,
          .dropout = {}};
}

Stored stored_as(DType dtype) {
  return dtype == DType::i8 ? Stored::int8 : dtype == DType::f8e4m3 ? Stored::e4m3 : Stored::element;
}

std::byte* at(const AttendCall& call, std::size_t offset) {
  return static_cast<std::byte*>(call.execution.cuda.workspace) + offset;
}

void upload(const AttendCall& call, const AttendPlan& plan, cudaStream_t stream) {
  // The first part of the workspace, up to the rotated queries, as one array of words.
  std::vector<std::int32_t> words(plan.queries_offset / sizeof(std::int32_t));
  auto* bytes = reinterpret_cast<std::byte*>(words.data());
  std::memcpy(bytes, plan.tiles.data(), plan.tiles.size() * sizeof(CacheTile));
  const auto put = [&](const std::vector<std::int32_t>& from, std::size_t offset) {
    if (!from.empty()) std::memcpy(bytes + offset, from.data(), from.size() * sizeof(std::int32_t));
  };
  put(plan.tables, plan.tables_offset);
  put(plan.positions, plan.positions_offset);
  kv::upload_words(words, reinterpret_cast<std::int32_t*>(at(call, 0)), stream, call.q.device.index);
}

void launch_tiles(const AttendCall& call, const AttendPlan& plan, ForwardParams& params, const ForwardMaps& maps,
                  const CacheKeys& cache) {
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  const std::int64_t runs = (plan.chunks + plan.chunks_together - 1) / plan.chunks_together;
  const std::int64_t rows = params.query_tiles * call.shape.kv_heads * plan.tile_rows;
  if (plan.merges()) set_partials(params, at(call, plan.partials_offset), rows);
  launch_kernel({.function = plan.kernel.function,
                 .name = "the Hopper decode kernel over a cache",
                 .grid = dim3(static_cast<unsigned>(params.query_tiles * call.shape.kv_heads * runs)),
                 .block = dim3(static_cast<unsigned>(plan.kernel.threads)),
                 .shared_bytes = plan.kernel.shared_bytes,
                 .stream = stream,
                 .device = call.q.device.index,
                 .starts_early = true},
                maps, params, cache);
  if (!plan.merges()) return;
  launch_kernel({.function = plan.several_tokens ? plan.kernel.merge_and_repair : plan.kernel.merge,
                 .name = "the merge of decode",
                 .grid = dim3(static_cast<unsigned>(rows)),
                 .block = dim3(kDecodeMergeThreads),
                 .stream = stream,
                 .device = call.q.device.index,
                 .starts_early = true},
                params, cache);
}

void launch_plan(const AttendCall& call, const AttendPlan& plan) {
  if (plan.tiles.empty()) return;
  require_workspace(call.execution.cuda, plan.bytes, "attend");
  const DeviceGuard guard(call.q.device.index);
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  upload(call, plan, stream);

  ForwardParams params = make_params(as_forward(call));
  cap_alike(params);
  if (!call.rotation.empty()) {
    const auto* positions = reinterpret_cast<const std::int32_t*>(at(call, plan.positions_offset));
    kv::rotate_queries(call, positions, at(call, plan.queries_offset), stream);
    params.q = {.data = at(call, plan.queries_offset),
                .batch_stride = 0,
                .head_stride = call.shape.tokens * call.shape.head_dim,
                .row_stride = call.shape.head_dim,
                .column_stride = 1};
  }
  params.splits = plan.chunks;
  params.tile_rows = plan.tile_rows;
  const int columns = is_quantised(call.k.dtype) ? std::min(plan.kernel.head_dim, 128) : 64;
  const ForwardMaps maps{.q = {},
                         .k = make_tensor_map(call.k, plan.box_keys, columns),
                         .v = make_tensor_map(call.v, plan.box_keys, columns),
                         .out = {}};
  CacheKeys cache{.tables = reinterpret_cast<const std::int32_t*>(at(call, plan.tables_offset)),
                  .page_size = static_cast<int>(call.shape.page_size),
                  .box_keys = plan.box_keys,
                  .keeps_first = static_cast<int>(std::min<std::int64_t>(call.params.window_keeps_first, kNoLimit)),
                  .chunks_together = plan.chunks_together,
                  .k_scales = call.k_scales.defined() ? call.k_scales.as<float>() : nullptr,
                  .v_scales = call.v_scales.defined() ? call.v_scales.as<float>() : nullptr,
                  .stored = stored_as(call.k.dtype)};
  const auto tiles = static_cast<int>(plan.tiles.size());
  for (int first = 0; first < tiles; first += plan.tiles_together) {
    cache.tiles = reinterpret_cast<const CacheTile*>(at(call, 0)) + first;
    params.query_tiles = std::min(plan.tiles_together, tiles - first);
    launch_tiles(call, plan, params, maps, cache);
  }
}

Answer<AttendCall> answer(const AttendCall& call) {
  if (std::string reason = refuse(call); !reason.empty()) return {.refusal = reason};
  AttendPlan plan = plan_attend(call);
  const std::size_t bytes = plan.bytes;
  return {.workspace_bytes = bytes,
          .run = [plan = std::move(plan)](const AttendCall& accepted) { launch_plan(accepted, plan); }};
}

}  // namespace

const AttendImplementation& attend() {
  static const AttendImplementation implementation{.name = "sm90", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::hopper
