#pragma once

// Products with integer weights: IntegerBlock in linear_table.h says what they promise. Included once per target:
// internal linkage.
//
// A vector of weights holds 4 columns of kWidth rows, and a tile multiplies it with the same 4 columns of each of its
// rows of x. A lane of an accumulator is one output, so that no sum goes over lanes. Dots, which the target's file
// defines, has the instructions:
//
//   Int, Weights                     kWidth sums; a vector of weights, ready to be multiplied
//   kByteZero, kHalfZero             what Weights are larger by than the integers, for i8 and i4
//   kPairs                           whether x is read as pairs or as bytes
//   bytes(p), halves(p, low, high)   Weights from i8; from i4, two vectors; unpacked(p) from bytes of halves
//   unpack(p, low, high)             the bytes of i4, one integer a byte
//   quad(block, q)                   4 columns of x in every lane
//   dot_bytes, dot_halves(sums, w, x)

#include "cpu/kernel/load.h"
#include "cpu/kernel/row_tiles.h"
#include "cpu/linear_table.h"

namespace rootdk::cpu {
namespace {

constexpr int kBlockColumns = 32, kGroupRows = 16, kQuads = 8, kQuadBytes = 64;

// The nearest integer to |x| < 2^22 in the lowest bits: what a float loses when 1.5 * 2^23 is added.
constexpr float kRounder = 12582912.0f;

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Plain loops, which the compiler turns into the target's vectors.
inline void round_block(const float* x, int8_t* bytes, float& scale, int32_t& sum) {
  uint32_t largest_bits = 0;  // of magnitudes, which are ordered as integers, NaN last
  for (int i = 0; i < kBlockColumns; ++i) {
    const uint32_t bits = bits_of(x[i]) & 0x7fffffffu;
    largest_bits = bits > largest_bits ? bits : largest_bits;
  }
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof largest);
  const bool finite = largest_bits < 0x7f800000u, counts = finite && largest >= 0x1p-100f;
  const float factor = counts ? 127.0f / largest : 0.0f;
  scale = counts ? largest / 127.0f : finite ? 0.0f : __builtin_nanf("");
  int32_t total = 0;
  for (int i = 0; i < kBlockColumns; ++i) {
    const float number = counts ? x[i] * factor : 0.0f;
    const int32_t integer = static_cast<int32_t>(bits_of(number + kRounder)) - static_cast<int32_t>(bits_of(kRounder));
    bytes[i] = static_cast<int8_t>(integer);
    total += integer;
  }
  sum = total;
}

// Sums of huge numbers must not overflow before the scales of the weights make them smaller: the scales of such a row
// are divided by kHugeFactor, and its outputs are multiplied by it at the very end.
constexpr float kHuge = 0x1p60f, kHugeFactor = 0x1p64f;

inline void tame_scales(float* scales, int64_t blocks, float& factor) {
  bool huge = false;
  for (int64_t b = 0; b < blocks; ++b) huge = huge || scales[b] > kHuge;
  factor = huge ? kHugeFactor : 1.0f;
  for (int64_t b = 0; huge && b < blocks; ++b) scales[b] *= 1 / kHugeFactor;
}

template <class Dots>
void round_row(const float* x, int64_t columns, WeightKind kind, const IntegerRows& to) {
  const int32_t zero = kind == WeightKind::i8 ? Dots::kByteZero : Dots::kHalfZero;
  for (int64_t b = 0; b * kBlockColumns < columns; ++b) {
    const int64_t k = b * kBlockColumns;
    int8_t* bytes = to.bytes + k;
    int32_t sum;
    if (k + kBlockColumns <= columns) {
      round_block(x + k, bytes, to.scales[b], sum);
    } else {
      float padded[kBlockColumns] = {};
      for (int64_t i = k; i < columns; ++i) padded[i - k] = x[i];
      round_block(padded, bytes, to.scales[b], sum);
    }
    to.starts[b] = -zero * sum;
    if constexpr (Dots::kPairs) {
      int16_t* pairs = to.pairs + k;
      for (int i = 0; i < kBlockColumns; i += 4) {
        pairs[i] = bytes[i];
        pairs[i + 1] = bytes[i + 2];
        pairs[i + 2] = bytes[i + 1];
        pairs[i + 3] = bytes[i + 3];
      }
    }
  }
  tame_scales(to.scales, (columns + kBlockColumns - 1) / kBlockColumns, *to.factors);
}

// Where the block lies that is kAhead bytes behind block b, in weights of kBytes a block; behind the last of `blocks`
// come those of `coming`.
template <int kBytes>
inline const char* block_ahead(const char* w, int64_t b, int64_t blocks, const char* coming) {
  constexpr int64_t kAhead = 4096 / kBytes;
  return b + kAhead < blocks ? w + (b + kAhead) * kBytes : coming + (b + kAhead - blocks) * kBytes;
}

// Where a tile finds the weights of output `out` and the next ones, block by block.
template <class Dots>
class ByteWeights {
 public:
  using Weights = typename Dots::Weights;
  static constexpr bool kUnpacks = false;  // loading them is cheap enough
  ByteWeights() = default;
  ByteWeights(const IntegerBlock& block, int out)
      : w_(static_cast<const char*>(block.w) + out / kGroupRows * block.blocks * (kQuads * kQuadBytes) +
           out % kGroupRows * 4) {}
  // Quads q and q + 4.
  void load(int64_t b, int q, Weights& low, Weights& high) const {
    const char* p = w_ + (b * kQuads + q) * kQuadBytes;
    low = Dots::bytes(p);
    high = Dots::bytes(p + kQuads / 2 * kQuadBytes);
  }
  // Asks for what comes kAhead bytes behind block b: of these weights, or of those that follow them.
  void fetch(int64_t b, int64_t blocks, const ByteWeights& coming) const {
    const char* p = block_ahead<kQuads * kQuadBytes>(w_, b, blocks, coming.w_);
    for (int i = 0; i < kQuads; ++i) __builtin_prefetch(p + i * kQuadBytes, 0, 2);
  }
  static typename Dots::Int dot(typename Dots::Int sums, Weights w, typename Dots::Quad x) {
    return Dots::dot_bytes(sums, w, x);
  }
  static Vec scaled(Vec sums, int64_t) { return sums; }

 private:
  const char* w_ = nullptr;
};

// Scales of the blocks of i4, kWidth outputs at a time.
class BlockScales {
 public:
  BlockScales() = default;
  BlockScales(const IntegerBlock& block, int out)
      : scales_(block.block_scales + out / kGroupRows * block.blocks * kGroupRows + out % kGroupRows) {}
  Vec at(int64_t b) const { return Simd::load_bf16(scales_ + b * kGroupRows); }

 private:
  const uint16_t* scales_ = nullptr;
};

template <class Dots>
class HalfByteWeights {
 public:
  using Weights = typename Dots::Weights;
  static constexpr bool kUnpacks = true;
  HalfByteWeights() = default;
  HalfByteWeights(const IntegerBlock& block, int out)
      : w_(static_cast<const char*>(block.w) + out / kGroupRows * block.blocks * (kQuads / 2 * kQuadBytes) +
           out % kGroupRows * 4),
        scales_(block, out) {}
  void load(int64_t b, int q, Weights& low, Weights& high) const { Dots::halves(address(b, q), low, high); }
  void unpack(int64_t b, int q, char* low, char* high) const { Dots::unpack(address(b, q), low, high); }
  const char* address(int64_t b, int q) const { return w_ + (b * (kQuads / 2) + q) * kQuadBytes; }
  void fetch(int64_t b, int64_t blocks, const HalfByteWeights& coming) const {
    const char* p = block_ahead<kQuads / 2 * kQuadBytes>(w_, b, blocks, coming.w_);
    for (int i = 0; i < kQuads / 2; ++i) __builtin_prefetch(p + i * kQuadBytes, 0, 2);
  }
  static typename Dots::Int dot(typename Dots::Int sums, Weights w, typename Dots::Quad x) {
    return Dots::dot_halves(sums, w, x);
  }
  Vec scaled(Vec sums, int64_t b) const { return Simd::mul(sums, scales_.at(b)); }

 private:
  const char* w_ = nullptr;
  BlockScales scales_;
};

// Weights of a packed source that unpack_vector() has written: [block, 8 quads, kWidth * 4 bytes].
template <class Dots, class Packed>
class UnpackedWeights {
 public:
  using Weights = typename Dots::Weights;
  static constexpr int kVectorBytes = kWidth * 4;
  UnpackedWeights(const Packed& packed, const char* unpacked) : packed_(packed), w_(unpacked) {}
  void load(int64_t b, int q, Weights& low, Weights& high) const {
    const char* p = w_ + (b * kQuads + q) * kVectorBytes;
    low = Dots::unpacked(p);
    high = Dots::unpacked(p + kQuads / 2 * kVectorBytes);
  }
  void fetch(int64_t, int64_t, const UnpackedWeights&) const {}
  static typename Dots::Int dot(typename Dots::Int sums, Weights w, typename Dots::Quad x) {
    return Packed::dot(sums, w, x);
  }
  Vec scaled(Vec sums, int64_t b) const { return packed_.scaled(sums, b); }

 private:
  Packed packed_;
  const char* w_;
};

template <class Packed>
inline void unpack_vector(const Packed& packed, int64_t blocks, char* to) {
  constexpr int kVectorBytes = kWidth * 4;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int q = 0; q < kQuads / 2; ++q) {
      char* low = to + (b * kQuads + q) * kVectorBytes;
      packed.unpack(b, q, low, low + kQuads / 2 * kVectorBytes);
    }
  }
}

inline void finish_integers(const IntegerBlock& block, int row, int out, Vec total) {
  const int count = smaller(kWidth, block.outs - out);
  float* y = block.y + row * block.y_stride + out;
  const Vec factor = Simd::set1(block.x.factors[row]);
  if (count == kWidth) {
    if (block.kind == WeightKind::i8) total = Simd::mul(total, Simd::load(block.row_scales + out));
    total = Simd::mul(total, factor);
    if (block.bias) total = Simd::add(total, Simd::load(block.bias + out));
    Simd::store(y, total);
    return;
  }
  if (block.kind == WeightKind::i8) total = Simd::mul(total, Simd::load_first(block.row_scales + out, count));
  total = Simd::mul(total, factor);
  if (block.bias) total = Simd::add(total, Simd::load_first(block.bias + out, count));
  Simd::store_first(y, total, count);
}

constexpr int kFetchedLines = 4;  // a block of columns

// kRows rows of x from `row` against kVectors vectors of outputs from `out`. A tile of few accumulators has two for
// each sum: one would wait for itself. A tile that has all the rows asks for its own weights ahead of time, others ask
// for those of the next outputs.
template <class Dots, class Source, int kRows, int kVectors>
inline void integer_tile(const IntegerBlock& block, const Source (&source)[kVectors], const Source (&coming)[kVectors],
                         int row, int out, Ahead* next) {
  constexpr int kChains = kRows * kVectors <= 4 ? 2 : 1;
  const int64_t blocks = block.blocks;
  const IntegerRows& x = block.x;
  Vec total[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) total[r][v] = Simd::zero();
  }
  for (int64_t b = 0; b < blocks; ++b) {
    typename Dots::Int sums[kChains][kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      const typename Dots::Int start = Dots::set1(x.starts[(row + r) * blocks + b]);
      for (int v = 0; v < kVectors; ++v) {
        sums[kChains - 1][r][v] = Dots::set1(0);
        sums[0][r][v] = start;
      }
    }
    if (next) {
      for (int i = 0; i < kFetchedLines; ++i) next->fetch();
    } else {
      for (int v = 0; v < kVectors; ++v) source[v].fetch(b, blocks, coming[v]);
    }
    for (int q = 0; q < kQuads / 2; ++q) {
      typename Dots::Weights low[kVectors], high[kVectors];
      for (int v = 0; v < kVectors; ++v) source[v].load(b, q, low[v], high[v]);
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = ((row + r) * blocks + b) * kBlockColumns;
        const typename Dots::Quad x_low = Dots::quad(x, at + q * 4), x_high = Dots::quad(x, at + (q + kQuads / 2) * 4);
        for (int v = 0; v < kVectors; ++v) {
          sums[0][r][v] = Source::dot(sums[0][r][v], low[v], x_low);
          sums[kChains - 1][r][v] = Source::dot(sums[kChains - 1][r][v], high[v], x_high);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const Vec scale = Simd::set1(x.scales[(row + r) * blocks + b]);
      for (int v = 0; v < kVectors; ++v) {
        typename Dots::Int sum = sums[0][r][v];
        if constexpr (kChains == 2) sum = Dots::add(sum, sums[1][r][v]);
        total[r][v] = Simd::fma(source[v].scaled(Dots::to_float(sum), b), scale, total[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      if (out + v * kWidth < block.outs) finish_integers(block, row + r, out + v * kWidth, total[r][v]);
    }
  }
}

// All rows of x against kVectors vectors of outputs.
template <class Dots, class Source, int kVectors>
inline void integer_rows(const IntegerBlock& block, const Source (&source)[kVectors], const Source (&coming)[kVectors],
                         int out, Ahead next) {
  Ahead* const ahead = block.rows > Dots::kTileRows ? &next : nullptr;
  for_row_tiles<Dots::kTileRows>(block.rows, [&]<int kRows>(int row) {
    integer_tile<Dots, Source, kRows>(block, source, coming, row, out, ahead);
  });
}

constexpr int kIntegerVectors = 2;
constexpr int kUnpackRows = 12;  // from how many rows on the halves of i4 are unpacked once

// What the outputs behind `out` and those beside it will need.
inline Ahead next_weights(const IntegerBlock& block, int out) {
  const int64_t group_bytes = block.blocks * kQuads * kQuadBytes / (block.kind == WeightKind::i8 ? 1 : 2);
  const int next = out + kIntegerVectors * kWidth;
  const char* w = static_cast<const char*>(block.w);
  constexpr int kGroups = (kIntegerVectors * kWidth + kGroupRows - 1) / kGroupRows;
  if (next >= block.outs && block.next_w) return {block.next_w, kGroups * group_bytes};
  if (next >= block.outs || next % kGroupRows != 0) return {w, 0};
  const int groups = (smaller(kIntegerVectors * kWidth, block.outs - next) + kGroupRows - 1) / kGroupRows;
  return {w + next / kGroupRows * group_bytes, groups * group_bytes};
}

template <class Dots, class Packed>
inline void integer_outputs(const IntegerBlock& block, int out) {
  const int second = out + kWidth < block.outs ? out + kWidth : out;  // computed twice where there is no second
  const Packed packed[] = {{block, out}, {block, second}};
  const Ahead next = next_weights(block, out);
  if constexpr (Packed::kUnpacks) {
    if (block.rows >= kUnpackRows) {
      auto* unpacked = static_cast<char*>(block.scratch);
      char* other = unpacked + block.blocks * kBlockColumns * kWidth;
      unpack_vector(packed[0], block.blocks, unpacked);
      unpack_vector(packed[1], block.blocks, other);
      const UnpackedWeights<Dots, Packed> source[] = {{packed[0], unpacked}, {packed[1], other}};
      return integer_rows<Dots>(block, source, source, out, next);
    }
  }
  const int follows = out + kIntegerVectors * kWidth;
  IntegerBlock after = block;
  if (follows >= block.outs && block.next_w) after.w = block.next_w;
  const int first = follows < block.outs ? follows : 0;
  const Packed coming[] = {{after, first}, {after, first + kWidth}};
  integer_rows<Dots>(block, packed, coming, out, next);
}

template <class Dots>
void integer_block(const IntegerBlock& block) {
  // The last vector may lie behind the outputs, never behind the group: two vectors are at most one group, or two.
  for (int out = 0; out < block.outs; out += kIntegerVectors * kWidth) {
    if (block.kind == WeightKind::i8) {
      integer_outputs<Dots, ByteWeights<Dots>>(block, out);
    } else {
      integer_outputs<Dots, HalfByteWeights<Dots>>(block, out);
    }
  }
}

inline size_t unpacked_bytes(int64_t blocks) {
  return static_cast<size_t>(blocks) * kBlockColumns * kWidth * kIntegerVectors;
}

template <class Dots>
constexpr void add_integer_functions(LinearTable& table) {
  table.round_row = round_row<Dots>;
  table.wants_pairs = Dots::kPairs;
  table.integers = integer_block<Dots>;
  table.unpacked_bytes = unpacked_bytes;
}

}  // namespace
}  // namespace rootdk::cpu
