#include "cuda/hopper/backward/direct.cuh"

#include <array>
#include <cstdint>

#include "cuda/hopper/shared/head_dims.h"
#include "cuda/launch/kernel.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr std::int64_t kMostRows = 4, kMostSplits = 8, kMultiprocessors = 132;
constexpr std::array<int, 3> kDirectHeadDims = {64, 128, 256};

bool has_plain_logits(const BackwardCall& call) {
  const AttentionParams& p = call.params;
  return !p.mask.defined() && !p.block_mask.defined() && !p.bias.defined() && !p.logits.relative_table.defined() &&
         !p.logits.alibi_slopes.defined() && !(p.logits.softcap > 0) && call.dropout.threshold == 0;
}

// Blocks of a key head: as many as run at the same time, with at least one round of loads for each. The bits must not
// depend on what else is in the batch: only the heads of one batch entry count.
template <class C>
DirectBackward describe(const AttentionShape& s) {
  std::int64_t splits = 1;
  while (splits < kMostSplits && 2 * splits * s.kv_heads <= kMultiprocessors && s.kv_len > splits * C::kBlockKeys) {
    splits *= 2;
  }
  return {.function = reinterpret_cast<const void*>(&direct_backward_kernel<C>),
          .threads = C::kThreads,
          .splits = static_cast<int>(splits),
          .part_keys = static_cast<int>((s.kv_len + splits - 1) / splits)};
}

template <class Element, int HeadDim>
DirectBackward with_rows(const AttentionShape& s) {
  switch (s.q_len * s.group()) {
    case 1: return describe<DirectBackwardConfig<Element, HeadDim, 1>>(s);
    case 2: return describe<DirectBackwardConfig<Element, HeadDim, 2>>(s);
    default: return describe<DirectBackwardConfig<Element, HeadDim, kMostRows>>(s);
  }
}

template <class Element>
DirectBackward with_head_dim(const AttentionShape& s) {
  switch (padded_dim(kDirectHeadDims, s.head_dim, s.value_dim)) {
    case 64: return with_rows<Element, 64>(s);
    case 128: return with_rows<Element, 128>(s);
    default: return with_rows<Element, 256>(s);
  }
}

}  // namespace

DirectBackward choose_direct_backward(const BackwardCall& call) {
  const AttentionShape& s = call.shape;
  if (s.packed || s.q_len * s.group() > kMostRows || !has_plain_logits(call) || call.upstream.entropy.defined()) {
    return {};
  }
  return call.saved.q.dtype == DType::bf16 ? with_head_dim<__nv_bfloat16>(s) : with_head_dim<__half>(s);
}

void launch_direct_backward(const BackwardCall& call, const DirectBackward& choice, const BackwardParams& params) {
  const std::int64_t planes = call.shape.batch * call.shape.kv_heads;
  launch_kernel({.function = choice.function,
                 .name = "the Hopper backward kernel of few rows",
                 .grid = dim3(static_cast<unsigned>(planes * choice.splits)),
                 .block = dim3(static_cast<unsigned>(choice.threads)),
                 .stream = static_cast<cudaStream_t>(call.execution.cuda.stream),
                 .device = call.saved.q.device.index,
                 .cluster = choice.splits,
                 .starts_early = true},
                params, DirectSplit{.splits = choice.splits, .part_keys = choice.part_keys});
}

}  // namespace rootdk::cuda::hopper
