#pragma once

// The table of one target, from its product (Gemm) and its packing. Included once per target: internal linkage.

#include "cpu/kernel/forward.h"
#include "cpu/kernel/weights.h"

namespace rootdk::cpu {
namespace {

// Forward is the forward pass of the target, where it differs from the common one.
template <class Gemm, class Packing, class Forward = ForwardKernel<Gemm>>
struct Kernels {
  static Geometry geometry(int head_dim, int value_dim) {
    return {.element_bytes = static_cast<int>(sizeof(typename Gemm::Element)),
            .panel = Gemm::kPanel,
            .rows = Gemm::kRows,
            .block_rows = Gemm::kBlockRows,
            .left_rows = Gemm::kLeftRows,
            .depth_multiple = Gemm::kDepthMultiple,
            .tile_keys = Forward::tile_keys(head_dim, value_dim),
            .fused = Simd::kFused};
  }
  static size_t forward_scratch_bytes(int head_dim, int value_dim) {
    return Forward::scratch_bytes(head_dim, value_dim);
  }
  static void forward_block(const ForwardBlock& block) {
    [[maybe_unused]] const typename Gemm::Thread thread;
    Forward(block).run();
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
