#pragma once

// The tile shapes and shared memory of the kernel for few keys.

#include <array>
#include <cstdint>

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/shared/tile_config.h"

namespace rootdk::cuda::hopper {

// A block holds all keys of a head, at most `keys`, and `q_tiles` query tiles of 64 rows, which its warpgroups take in
// turn. So that something computes while something else loads, several blocks share a multiprocessor and end after a
// tile, or blocks have two stages and process tiles until there are no more.
struct ShortShape {
  int keys = 0;
  int warpgroups = 0;
  int q_tiles = 0;
  int stages = 0;
  int blocks = 0;           // on a multiprocessor, by registers and shared memory
  bool many_heads = false;  // faster for many heads of one tile each, and for them alone

  constexpr int least_rows() const { return 64 * warpgroups; }
  constexpr int most_rows() const { return 64 * q_tiles; }
};

// The shapes that are built, with more and more keys: the first that suits a call is taken.
template <int HeadDim>
inline constexpr std::array<ShortShape, 0> kShortShapes{};
template <>
inline constexpr std::array kShortShapes<64> = {
    ShortShape{.keys = 64, .warpgroups = 1, .q_tiles = 1, .stages = 1, .blocks = 6},
    ShortShape{.keys = 80, .warpgroups = 1, .q_tiles = 2, .stages = 1, .blocks = 5},
    ShortShape{.keys = 128, .warpgroups = 2, .q_tiles = 2, .stages = 2, .blocks = 2, .many_heads = true},
    ShortShape{.keys = 128, .warpgroups = 1, .q_tiles = 2, .stages = 1, .blocks = 4},
    ShortShape{.keys = 192, .warpgroups = 4, .q_tiles = 4, .stages = 2, .blocks = 1},
    ShortShape{.keys = 208, .warpgroups = 4, .q_tiles = 4, .stages = 2, .blocks = 1},
    ShortShape{.keys = 256, .warpgroups = 4, .q_tiles = 4, .stages = 2, .blocks = 1},
};
template <>
inline constexpr std::array kShortShapes<96> = {
    ShortShape{.keys = 64, .warpgroups = 1, .q_tiles = 1, .stages = 1, .blocks = 4},
    ShortShape{.keys = 80, .warpgroups = 1, .q_tiles = 2, .stages = 1, .blocks = 3},
};
template <>
inline constexpr std::array kShortShapes<128> = kShortShapes<96>;

template <class Element_, int HeadDim, ShortShape Shape>
struct ShortConfig {
  using Element = Element_;
  static constexpr ShortShape kShape = Shape;
  static constexpr bool kRanged = true, kRich = false, kSampled = false, kLogits = false, kFp8 = false;
  static constexpr Terms kTerms = Terms::none;

  static constexpr int kHeadDim = HeadDim;
  static constexpr int kKeys = Shape.keys;
  static constexpr int kBlockKv = 128;  // keys of a tile: those of the other forward kernels, and so their bits
  static constexpr int kKeyTiles = (kKeys + kBlockKv - 1) / kBlockKv;
  static constexpr int kWarpgroups = Shape.warpgroups;
  static constexpr int kQTiles = Shape.q_tiles;
  static constexpr int kStages = Shape.stages;
  static constexpr int kBlockQ = 64 * kQTiles;  // at most: ForwardParams::short_rows may be less
  static constexpr int kThreads = 128 * kWarpgroups;

  static constexpr int kPanelColumns = 64;
  static constexpr int kPanels = (HeadDim + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kQPanelBytes = 64 * 128, kKvPanelBytes = kKeys * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes;

  static_assert(kKeyTiles <= 2 && kKeys % 16 == 0 && kStages <= 2);
};

// One key tile of it: all have 128 keys except the last.
template <class C, int Tile>
struct ShortTile {
  using Element = typename C::Element;
  static constexpr Tuning kTuning{};
  static constexpr int kHeadDim = C::kHeadDim;
  static constexpr int kBlockKv = Tile + 1 < C::kKeyTiles ? C::kBlockKv : C::kKeys - Tile * C::kBlockKv;
  static constexpr int kQPanelBytes = C::kQPanelBytes, kKvPanelBytes = C::kKvPanelBytes;
};

template <class C>
struct ShortStage {
  alignas(1024) std::uint8_t q[C::kQTiles][C::kQBytes];
  alignas(1024) std::uint8_t k[C::kKvBytes];
  alignas(1024) std::uint8_t v[C::kKvBytes];
};

template <class C>
struct ShortStorage {
  ShortStage<C> stage[C::kStages];
  std::uint64_t qk_full[C::kStages], v_full[C::kStages];
  unsigned done[C::kStages];  // warps that no longer need the stage
};

template <class C>
inline constexpr int kShortSharedBytes = static_cast<int>(sizeof(ShortStorage<C>)) + kSharedAlignment;

}  // namespace rootdk::cuda::hopper
