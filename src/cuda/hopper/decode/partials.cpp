#include "cuda/hopper/decode/partials.h"

namespace rootdk::cuda::hopper {
namespace {

std::size_t sums_bytes(std::int64_t parts, std::int64_t rows) {
  return static_cast<std::size_t>(parts * rows) * sizeof(float4);
}

}  // namespace

std::size_t partials_bytes(std::int64_t parts, std::int64_t rows, std::int64_t value_dim) {
  return sums_bytes(parts, rows) + static_cast<std::size_t>(parts * rows * value_dim) * sizeof(float);
}

void set_partials(ForwardParams& params, void* memory, std::int64_t rows) {
  auto* bytes = static_cast<std::byte*>(memory);
  params.partial_sums = reinterpret_cast<float4*>(bytes);
  params.partial_out = reinterpret_cast<float*>(bytes + sums_bytes(params.splits, rows));
}

}  // namespace rootdk::cuda::hopper
