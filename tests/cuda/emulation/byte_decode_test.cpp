// Decode over 8-bit caches, thread by thread on the host, against a computation in double. See README.md.

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "cuda/emulation/block.h"
// Shared variables of a kernel are one for all fibers; the dynamic memory is an array of its own.
#define __shared__ static
#include "cuda/hopper/decode/merge.cuh"
#undef __shared__
#define __shared__
#include "cuda/hopper/decode/byte_kernel.cuh"

namespace rootdk::test {
namespace {

using namespace cuda::hopper;

struct DecodeCase {
  int kv_heads = 1, group = 4, tokens = 1, keys = 600, page_size = 64, head_dim = 128, value_dim = 128;
  int window_left = kNoLimit;
  bool alibi = false;
  float scale_spread = 0.3f;  // of the logarithm of the values' scales
  int chunks_together = 1;
  int evicted_begin = 0, evicted_end = 0;

  int heads() const { return kv_heads * group; }
  int first_position() const { return keys - tokens; }
  bool sees(int position, int key) const {
    return key <= position && (key < kKeepsFirst || key >= position - window_left) &&
           (key < evicted_begin || key >= evicted_end);
  }
  static constexpr int kKeepsFirst = 2;
};

// Rows of keys or values in pages. What no token wrote is full of ones: NaN as a scale and in e4m3.
struct Pages {
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales;
  int dim = 0;

  double element(bool integers, std::size_t row, int d) const {
    Float8E4M3 x;
    x.bits = bytes[row * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)];
    return scales[row] * (integers ? static_cast<double>(static_cast<std::int8_t>(x.bits)) : static_cast<float>(x));
  }
};

struct Answer {
  std::vector<float> out;  // [heads, tokens, value_dim]
  std::vector<float> lse;  // [heads, tokens]
};

template <class C>
class Emulated {
 public:
  using Element = typename C::Element;
  static constexpr bool kIntegers = C::kStored == ByteType::int8;

  explicit Emulated(const DecodeCase& c) : case_(c), random_(static_cast<unsigned>(c.keys)) {
    const int used = (c.keys + c.page_size - 1) / c.page_size;
    pages_ = used + 2;
    table_.resize(static_cast<std::size_t>(pages_));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random_);
    k_ = fill(c.head_dim, 0.3f);
    v_ = fill(c.value_dim, c.scale_spread);
    q_.resize(static_cast<std::size_t>(c.heads() * c.tokens * c.head_dim));
    for (Element& x : q_) x = Element(normal());
    for (int head = 0; head < c.heads(); ++head) slopes_.push_back(0.01f * static_cast<float>(head + 1));
  }

  Answer run() {
    const DecodeCase& c = case_;
    const auto rows = static_cast<std::size_t>(c.heads() * c.tokens);
    std::vector<Element> out(rows * static_cast<std::size_t>(c.value_dim));
    Answer answer;
    answer.lse.resize(rows);
    const std::vector<CacheTile> tiles = cut();
    ForwardParams p = params(tiles, out, answer.lse);
    const auto part_rows = static_cast<std::size_t>(p.query_tiles * c.kv_heads * p.tile_rows * p.splits);
    std::vector<float> partial_out(part_rows * static_cast<std::size_t>(c.value_dim), NAN);
    std::vector<float4> partial_sums(part_rows);
    const bool merges = p.splits > 1 || c.tokens > 1;
    p.partial_out = merges ? partial_out.data() : nullptr;
    p.partial_sums = merges ? partial_sums.data() : nullptr;
    CacheKeys pages{.tiles = tiles.data(),
                    .tables = table_.data(),
                    .page_size = c.page_size,
                    .box_keys = std::gcd(c.page_size, C::kBlockKv),
                    .keeps_first = DecodeCase::kKeepsFirst,
                    .chunks_together = c.chunks_together,
                    .k_scales = k_.scales.data(),
                    .v_scales = v_.scales.data(),
                    .stored = kIntegers ? Stored::int8 : Stored::e4m3};
    const ForwardMaps maps{.q = {}, .k = map(k_, pages.box_keys), .v = map(v_, pages.box_keys), .out = {}};
    const int runs = (p.splits + c.chunks_together - 1) / c.chunks_together;
    for (int block = 0; block < p.query_tiles * c.kv_heads * runs; ++block) {
      std::memset(dynamic_shared, 0xff, sizeof dynamic_shared);
      emulation::run_block(C::kThreads, block, [&] { byte_decode_kernel<C>(maps, p, pages); });
    }
    for (int block = 0; merges && block < p.query_tiles * c.kv_heads * p.tile_rows; ++block) {
      emulation::run_block(kDecodeMergeThreads, block, [&] {
        if (c.tokens > 1) {
          merge_and_repair_kernel<Element>(p, pages);
        } else {
          merge_kernel<Element>(p, pages);
        }
      });
    }
    for (const Element x : out) answer.out.push_back(static_cast<float>(x));
    return answer;
  }

  Answer expected() const {
    const DecodeCase& c = case_;
    Answer answer;
    for (int head = 0; head < c.heads(); ++head) {
      for (int token = 0; token < c.tokens; ++token) add_expected(head, token, answer);
    }
    return answer;
  }

 private:
  float normal() { return std::normal_distribution<float>()(random_); }

  std::size_t row_of(int key, int kv_head) const {
    const int page = table_[static_cast<std::size_t>(key / case_.page_size)];
    return static_cast<std::size_t>((page * case_.kv_heads + kv_head) * case_.page_size + key % case_.page_size);
  }

  Pages fill(int dim, float spread) {
    const auto rows = static_cast<std::size_t>(pages_ * case_.kv_heads * case_.page_size);
    Pages pages{.bytes = std::vector<std::uint8_t>(rows * static_cast<std::size_t>(dim), 0xff),
                .scales = std::vector<float>(rows, NAN),
                .dim = dim};
    for (int key = 0; key < case_.keys; ++key) {
      for (int head = 0; head < case_.kv_heads; ++head) {
        const std::size_t row = row_of(key, head);
        pages.scales[row] = std::exp(spread * normal()) * (kIntegers ? 0.01f : 0.003f);
        for (int d = 0; d < dim; ++d) {
          pages.bytes[row * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)] =
              kIntegers ? static_cast<std::uint8_t>(static_cast<int>(std::clamp(40 * normal(), -127.f, 127.f)))
                        : Float8E4M3(80 * normal()).bits;
        }
      }
    }
    return pages;
  }

  // As the plan of a call does.
  std::vector<CacheTile> cut() const {
    const DecodeCase& c = case_;
    const int most = c.group <= C::kRows ? C::kRows / c.group * c.group : C::kRows;
    std::vector<CacheTile> tiles;
    for (int first = 0; first < c.tokens * c.group; first += most) {
      tiles.push_back({.row = first / c.group,
                       .rows = std::min(most, c.tokens * c.group - first),
                       .first_head = first % c.group,
                       .position = c.first_position() + first / c.group,
                       .evicted_begin = c.evicted_begin,
                       .evicted_end = c.evicted_end});
    }
    return tiles;
  }

  ForwardParams params(const std::vector<CacheTile>& tiles, std::vector<Element>& out, std::vector<float>& lse) {
    const DecodeCase& c = case_;
    ForwardParams p;
    p.q = {q_.data(), 0, c.tokens * c.head_dim, c.head_dim, 1};
    p.out = {out.data(), 0, c.tokens * c.value_dim, c.value_dim, 1};
    p.row_values[kLse] = {lse.data(), 0, c.tokens, 1, 0};
    p.heads = c.heads();
    p.group = c.group;
    p.head_dim = c.head_dim;
    p.value_dim = c.value_dim;
    p.left = c.window_left;
    p.scale_log2 = static_cast<float>(scale()) * kLog2e;
    if (c.alibi) p.terms.alibi_slopes = {slopes_.data(), 1};
    p.splits = (c.keys + kChunkKeys - 1) / kChunkKeys;
    p.query_tiles = static_cast<int>(tiles.size());
    for (const CacheTile& tile : tiles) p.tile_rows = std::max(p.tile_rows, tile.rows);
    return p;
  }

  CUtensorMap map(const Pages& pages, int rows) const {
    const std::int64_t dim = pages.dim, page = dim * case_.page_size;
    const cuda::ptx::ByteMap map{.data = pages.bytes.data(),
                                 .size = {pages.dim, case_.page_size, case_.kv_heads, pages_},
                                 .stride = {1, dim, page, page * case_.kv_heads},
                                 .rows = rows,
                                 .columns = C::kPanelColumns};
    CUtensorMap encoded{};
    std::memcpy(&encoded, &map, sizeof map);
    return encoded;
  }

  double scale() const { return 1 / std::sqrt(case_.head_dim); }

  void add_expected(int head, int token, Answer& answer) const {
    const DecodeCase& c = case_;
    const int position = c.first_position() + token, kv_head = head / c.group;
    std::vector<double> logits(static_cast<std::size_t>(position + 1), -INFINITY);
    for (int key = 0; key <= position; ++key) {
      if (!c.sees(position, key)) continue;
      double score = 0;
      for (int d = 0; d < c.head_dim; ++d) {
        const Element q = q_[static_cast<std::size_t>((head * c.tokens + token) * c.head_dim + d)];
        score += static_cast<float>(q) * k_.element(kIntegers, row_of(key, kv_head), d);
      }
      const double bias = c.alibi ? slopes_[static_cast<std::size_t>(head)] * (position - key) : 0;
      logits[static_cast<std::size_t>(key)] = score * scale() - bias;
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    std::vector<double> out(static_cast<std::size_t>(c.value_dim));
    for (int key = 0; key <= position; ++key) {
      const double weight = std::exp(logits[static_cast<std::size_t>(key)] - top);
      if (weight == 0) continue;
      sum += weight;
      for (int d = 0; d < c.value_dim; ++d) {
        out[static_cast<std::size_t>(d)] += weight * v_.element(kIntegers, row_of(key, kv_head), d);
      }
    }
    for (const double x : out) answer.out.push_back(static_cast<float>(x / sum));
    answer.lse.push_back(static_cast<float>(top + std::log(sum)));
  }

  DecodeCase case_;
  std::mt19937 random_;
  int pages_ = 0;
  std::vector<std::int32_t> table_;
  Pages k_, v_;
  std::vector<Element> q_;
  std::vector<float> slopes_;
};

double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = actual[i] - expected[i];
    difference += d * d;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / size);
}

// Tiles of eight rows are right, and tiles of more have the same bits.
template <class Element, ByteType Stored, int HeadDim>
void check(const DecodeCase& c) {
  Emulated<ByteDecodeConfig<Element, Stored, HeadDim, 1>> few(c);
  const Answer expected = few.expected(), answer = few.run();
  ASSERT_EQ(answer.out.size(), expected.out.size());
  constexpr double kTolerance = std::is_same_v<Element, __half> ? 6e-4 : 3e-3;
  EXPECT_LE(relative_error(answer.out, expected.out), kTolerance);
  EXPECT_LE(relative_error(answer.lse, expected.lse), 1e-5);
  if constexpr (HeadDim < 256) {
    const Answer many = Emulated<ByteDecodeConfig<Element, Stored, HeadDim, 2>>(c).run();
    EXPECT_EQ(many.out, answer.out);
    EXPECT_EQ(many.lse, answer.lse);
  }
}

constexpr ByteType kInt8 = ByteType::int8, kE4m3 = ByteType::e4m3;

TEST(EmulatedByteDecode, OneToken) { check<__half, kInt8, 128>({.keys = 700}); }
TEST(EmulatedByteDecode, SomeTokensInSmallPages) {
  check<__nv_bfloat16, kE4m3, 128>({.kv_heads = 2, .tokens = 3, .page_size = 16});
}
TEST(EmulatedByteDecode, WindowAlibiAndUnevenSizes) {
  check<__nv_bfloat16, kInt8, 128>({.group = 5,
                                    .tokens = 4,
                                    .keys = 300,
                                    .page_size = 48,
                                    .head_dim = 80,
                                    .value_dim = 112,
                                    .window_left = 100,
                                    .alibi = true});
}
TEST(EmulatedByteDecode, SmallHeads) {
  check<__half, kE4m3, 64>(
      {.kv_heads = 2, .group = 3, .tokens = 5, .keys = 560, .page_size = 32, .head_dim = 64, .value_dim = 48});
}
TEST(EmulatedByteDecode, MoreHeadsThanATileHasRows) {
  check<__half, kInt8, 64>({.group = 20, .tokens = 2, .keys = 150, .page_size = 16, .head_dim = 32, .value_dim = 64});
}
TEST(EmulatedByteDecode, WideHeads) {
  check<__half, kInt8, 256>(
      {.group = 2, .tokens = 3, .keys = 540, .page_size = 128, .head_dim = 256, .value_dim = 256});
  check<__half, kE4m3, 256>({.group = 12, .keys = 200, .head_dim = 208, .value_dim = 144, .alibi = true});
}
// A block walks several chunks, one of which nobody sees; f16 weights meet scales of any magnitude.
TEST(EmulatedByteDecode, SeveralChunksABlock) {
  check<__nv_bfloat16, kInt8, 128>(
      {.keys = 1700, .scale_spread = 6, .chunks_together = 4, .evicted_begin = 480, .evicted_end = 1100});
}

}  // namespace
}  // namespace rootdk::test
