#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace rootdk::cuda::ptx {

inline constexpr std::uint64_t kEvictFirst = 0;

// What a tensor map says, kept in the memory of one: bytes, innermost dimension first.
struct ByteMap {
  const std::uint8_t* data;
  int size[4];
  std::int64_t stride[4];
  int rows, columns;  // of a box
};
static_assert(sizeof(ByteMap) <= sizeof(CUtensorMap));

inline void tma_prefetch_map(const CUtensorMap*) {}

// Rows of 128 bytes arrive under the 128-byte swizzle, rows of 64 under the 64-byte one.
inline void tma_load_4d(std::uint32_t destination, const CUtensorMap* encoded, std::uint32_t barrier, int c0, int c1,
                        int c2, int c3, std::uint64_t) {
  ByteMap map;
  std::memcpy(&map, encoded, sizeof map);
  for (int row = 0; row < map.rows; ++row) {
    for (int column = 0; column < map.columns; ++column) {
      const int place[4] = {c0 + column, c1 + row, c2, c3};
      bool inside = true;
      std::int64_t offset = 0;
      for (int i = 0; i < 4; ++i) {
        inside = inside && place[i] >= 0 && place[i] < map.size[i];
        offset += place[i] * map.stride[i];
      }
      const std::uint32_t address = destination + static_cast<std::uint32_t>(row * map.columns + column);
      const std::uint32_t rows_of_128 = address >> 7, swizzle = rows_of_128 & (map.columns == 128 ? 7u : 3u);
      *at(address ^ swizzle << 4) = inside ? map.data[offset] : std::uint8_t{0};
    }
  }
  complete_bytes(barrier, std::int64_t{map.rows} * map.columns);
}

}  // namespace rootdk::cuda::ptx
