#pragma once

// The table of one target, from its product (Gemm) and its packing. Included once per target: internal linkage.

#include "cpu/kernel/forward.h"

namespace rootdk::cpu {
namespace {

template <class Gemm, class Packing>
struct Kernels {
  static Geometry geometry(int head_dim, int value_dim) {
    return {.element_bytes = static_cast<int>(sizeof(typename Gemm::Element)),
            .panel = Gemm::kPanel,
            .rows = Gemm::kRows,
            .depth_step = Gemm::kDepthStep,
            .tile_keys = ForwardKernel<Gemm>::tile_keys(head_dim, value_dim),
            .fused = Simd::kFused};
  }
  static size_t forward_scratch_bytes(int head_dim, int value_dim) {
    return ForwardScratch<Gemm>::bytes(ForwardKernel<Gemm>::tile_keys(head_dim, value_dim));
  }
  static void forward_block(const ForwardBlock& block) {
    [[maybe_unused]] const typename Gemm::Thread thread;
    ForwardKernel<Gemm>(block).run();
  }
  static void weights_block(const WeightsBlock& block) {
    [[maybe_unused]] const typename Gemm::Thread thread;
    WeightsKernel<Gemm>(block).run();
  }

  static int64_t peak(int64_t rounds, float* sum) {
    [[maybe_unused]] const typename Gemm::Thread thread;
    return Gemm::peak(rounds, sum);
  }

  static constexpr KernelTable table(const char* name) {
    return {.name = name,
            .geometry = geometry,
            .pack_rows = Packing::rows,
            .pack_keys = Packing::keys,
            .pack_values = Packing::values,
            .forward_scratch_bytes = forward_scratch_bytes,
            .forward_block = forward_block,
            .store_rows = store_block,
            .weights_block = weights_block,
            .peak = peak};
  }
};

}  // namespace
}  // namespace rootdk::cpu
