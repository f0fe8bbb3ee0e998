#include "cuda/launch/tensor_map.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <sstream>

#include "cuda/launch/check.h"

namespace rootdk::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;  // of the copy engine: base address and all strides

std::int64_t element_bytes(const ConstTensorView& view) { return static_cast<std::int64_t>(size_of(view.dtype)); }

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Looked up through the runtime, so that nothing links to the driver library.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
          "looking for cuTensorMapEncodeTiled in the driver");
    require(found == cudaDriverEntryPointSuccess && entry, ErrorKind::device,
            "attention: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

}  // namespace

// Every call asks for all of its tensors: only a refusal is put into words.
std::string tensor_map_refusal(const char* name, const ConstTensorView& view) {
  if (reinterpret_cast<std::uintptr_t>(view.data) % kAlignment != 0) {
    std::ostringstream reason;
    reason << name << " starts at an address that is not a multiple of " << kAlignment << " bytes";
    return reason.str();
  }
  for (int dimension = 0; dimension < 3; ++dimension) {
    const std::int64_t bytes = view.stride(dimension) * element_bytes(view);
    if (view.size(dimension) <= 1 || (bytes > 0 && bytes % kAlignment == 0)) continue;
    std::ostringstream reason;
    reason << "stride " << view.stride(dimension) << " of " << name << " (dimension " << dimension
           << ") is not a positive multiple of " << kAlignment / element_bytes(view) << " elements";
    return reason.str();
  }
  return {};
}

CUtensorMap make_tensor_map(const ConstTensorView& view, int rows, int columns) {
  // Innermost first: (dim, len, heads, batch). A dimension of one element has any stride.
  cuuint64_t sizes[4], strides[3];
  for (int i = 0; i < 4; ++i) sizes[i] = static_cast<cuuint64_t>(view.size(3 - i));
  for (int i = 0; i < 3; ++i) {
    const int dimension = 2 - i;
    strides[i] =
        static_cast<cuuint64_t>(view.size(dimension) > 1 ? view.stride(dimension) * element_bytes(view) : kAlignment);
  }
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const bool bytes = size_of(view.dtype) == 1;
  const CUtensorMapDataType type = bytes                       ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : view.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const std::int64_t row_bytes = columns * element_bytes(view);
  const CUtensorMapSwizzle swizzle = row_bytes <= 32   ? CU_TENSOR_MAP_SWIZZLE_32B
                                     : row_bytes <= 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                       : CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMap map;
  const CUresult status = encode_tiled()(&map, type, 4, const_cast<void*>(view.data), sizes, strides, box, steps,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status == CUDA_SUCCESS) return map;
  // Out of the way of a call that succeeds: the description takes memory and microseconds.
  fail(ErrorKind::device, "attention: the driver refuses a tensor map of ", describe(view), " with boxes of ", rows,
       " x ", columns, ": CUresult ", static_cast<int>(status));
}

}  // namespace rootdk::cuda
