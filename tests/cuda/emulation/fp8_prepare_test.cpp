// The preparation of attention in e4m3, thread by thread on the host: numbers, scales and means against the inputs, and
// the values that the gradient attends to. See README.md.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cuda/emulation/block.h"
#define __shared__ static
#include "cuda/hopper/fp8/prepare.cuh"
#include "cuda/hopper/fp8/values.cuh"
#undef __shared__

namespace rootdk::test {
namespace {

using namespace cuda::hopper;
using namespace cuda::hopper::preparation;

using Element = __nv_bfloat16;
constexpr float kScaleLog2 = 0.2f;

struct PrepareCase {
  int sequences = 2, heads = 2, kv_heads = 1, q_len = 70, kv_len = 150, head_dim = 40, value_dim = 56;
  int kernel_dim = 64, block_kv = 128;
  std::vector<std::int32_t> kv_lengths = {};                // of batch entries
  std::vector<std::int32_t> q_starts = {}, kv_starts = {};  // packed: one row of q_rows and kv_rows
  float k_offset = 0, v_offset = 0;

  bool packed() const { return !q_starts.empty(); }
  int batch() const { return packed() ? 1 : sequences; }
  int q_rows() const { return packed() ? 200 : q_len; }
  int kv_rows() const { return packed() ? 400 : kv_len; }
  int key_blocks() const {
    return packed() ? kv_rows() / block_kv + sequences + 1 : (kv_len + block_kv - 1) / block_kv;
  }
  int chunks() const { return packed() ? kv_rows() / kChunk + sequences + 1 : chunks_of_longest(); }
  int chunks_of_longest() const { return (kv_len + kChunk - 1) / kChunk; }
};

float number_of(std::uint8_t bits) {
  Float8E4M3 x;
  x.bits = bits;
  return static_cast<float>(x);
}

class Prepared8 {
 public:
  explicit Prepared8(const PrepareCase& c) : c_(c) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<Element>& to, int heads, int rows, int dim, float offset) {
      to.resize(static_cast<std::size_t>(c.batch() * heads * rows * dim));
      for (Element& x : to) x = Element(normal(random) + offset);
    };
    fill(q_, c.heads, c.q_rows(), c.head_dim, 0);
    fill(k_, c.kv_heads, c.kv_rows(), c.head_dim, c.k_offset);
    fill(v_, c.kv_heads, c.kv_rows(), c.value_dim, c.v_offset);
    const auto floats = [](std::vector<float>& to, int count) { to.assign(static_cast<std::size_t>(count), NAN); };
    const auto bytes = [](std::vector<std::uint8_t>& to, int count) {
      to.assign(static_cast<std::size_t>(count), 0x7f);  // NaN
    };
    bytes(q8_, c.batch() * c.heads * c.q_rows() * c.kernel_dim);
    bytes(k8_, c.batch() * c.kv_heads * c.kv_rows() * c.kernel_dim);
    bytes(v8_, c.batch() * c.kv_heads * c.kernel_dim * c.key_blocks() * c.block_kv);
    q_units_.assign(static_cast<std::size_t>(c.batch() * c.heads * c.q_rows()), make_float2(NAN, NAN));
    floats(lse_, c.batch() * c.heads * c.q_rows());
    floats(lse_without_mean_, c.batch() * c.heads * c.q_rows());
    floats(k_scale_, c.batch() * c.kv_heads * c.key_blocks());
    floats(v_multiplier_, c.sequences * c.kv_heads * c.kernel_dim);
    floats(mean_key_, c.sequences * c.kv_heads * c.kernel_dim);
    floats(v_columns_, c.sequences * c.kv_heads * 2 * c.kernel_dim);
    partials_.resize(static_cast<std::size_t>(c.batch() * c.kv_heads * c.chunks() * c.kernel_dim));
    for (std::size_t i = 0; i < lse_.size(); ++i) lse_[i] = 0.01f * static_cast<float>(i);
    p_ = params();
    to_ = {.q = q8_.data(),
           .k = k8_.data(),
           .v = v8_.data(),
           .q_units = q_units_.data(),
           .k_scale = k_scale_.data(),
           .v_columns = v_columns_.data(),
           .v_multiplier = v_multiplier_.data(),
           .mean_key = mean_key_.data(),
           .partials = partials_.data(),
           .head_dim = c.kernel_dim,
           .block_kv = c.block_kv,
           .key_blocks = c.key_blocks(),
           .chunks = c.chunks()};
  }

  void run() {
    const int q_blocks = (c_.q_len + kQueries - 1) / kQueries, key_tiles = (c_.kv_len + c_.block_kv - 1) / c_.block_kv;
    const auto u = [](int x) { return static_cast<unsigned>(x); };
    launch({u(c_.chunks_of_longest()), u(c_.kv_heads), u(c_.sequences)}, kThreads,
           [&] { reduce_kernel<Element>(p_, to_); });
    launch({u(c_.kv_heads), u(c_.sequences), 1}, c_.kernel_dim * parts_of(c_.kernel_dim),
           [&] { finish_kernel(p_, to_); });
    launch({u(q_blocks + 2 * key_tiles), u(c_.heads), u(c_.sequences)}, kThreads, [&] {
      switch (lanes_of(c_.kernel_dim)) {
        case 8: quantize_kernel<Element, 8>(p_, to_, q_blocks); break;
        case 16: quantize_kernel<Element, 16>(p_, to_, q_blocks); break;
        default: quantize_kernel<Element, 32>(p_, to_, q_blocks);
      }
    });
    values_q_.assign(q_.size(), Element(0.f));
    values_k_.assign(k_.size(), Element(0.f));
    values_v_.assign(v_.size(), Element(0.f));
    launch({u(q_blocks + key_tiles), u(c_.heads), u(c_.sequences)}, kThreads, [&] {
      values_kernel<Element>(p_, to_, q_blocks, values_q_.data(), values_k_.data(), values_v_.data(),
                             lse_without_mean_.data());
    });
  }

  // Every number is one of the two e4m3 neighbours of what it stands for, beside the largest of those that share a
  // scale.
  void check() const {
    for (int sequence = 0; sequence < c_.sequences; ++sequence) {
      const Rows rows = rows_of(p_, sequence);
      for (int head = 0; head < c_.kv_heads; ++head) {
        check_keys(sequence, head, rows);
        check_padding(sequence, head, rows);
      }
      for (int head = 0; head < c_.heads; ++head) check_queries(sequence, head, rows);
    }
  }

 private:
  static void launch(emulation::Index grid, int threads, const std::function<void()>& kernel) {
    gridDim = grid;
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
      for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
        for (unsigned x = 0; x < grid.x; ++x) emulation::run_block(threads, static_cast<int>(x), kernel);
      }
    }
  }

  ForwardParams params() {
    ForwardParams p;
    const auto tensor = [](auto& values, int heads, int rows, int dim) {
      const std::int64_t row = dim, plane = row * rows;
      return DeviceTensor{values.data(), plane * heads, plane, row, 1};
    };
    p.q = tensor(q_, c_.heads, c_.q_rows(), c_.head_dim);
    p.k = tensor(k_, c_.kv_heads, c_.kv_rows(), c_.head_dim);
    p.v = tensor(v_, c_.kv_heads, c_.kv_rows(), c_.value_dim);
    p.row_values[kLse] = tensor(lse_, c_.heads, c_.q_rows(), 1);
    p.sequences = c_.sequences;
    p.heads = c_.heads;
    p.group = c_.heads / c_.kv_heads;
    p.q_len = c_.q_len;
    p.kv_len = c_.kv_len;
    p.q_rows = c_.q_rows();
    p.kv_rows = c_.kv_rows();
    p.head_dim = c_.head_dim;
    p.value_dim = c_.value_dim;
    p.scale_log2 = kScaleLog2;
    if (!c_.kv_lengths.empty()) p.kv_lengths = {c_.kv_lengths.data(), 1};
    if (c_.packed()) {
      p.q_starts = {c_.q_starts.data(), 1};
      p.kv_starts = {c_.kv_starts.data(), 1};
    }
    return p;
  }

  static double allowed(double x, double scale) { return std::fabs(x) / 15 + scale * 0x1p-10; }

  std::size_t at(std::int64_t plane, int rows, int row, int dim, int column) const {
    return static_cast<std::size_t>((plane * rows + row) * dim + column);
  }

  void check_queries(int sequence, int head, const Rows& rows) const {
    const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * c_.heads + head;
    const std::int64_t columns = static_cast<std::int64_t>(sequence) * c_.kv_heads + head / p_.group;
    for (int i = rows.q_begin; i < rows.q_begin + rows.q_len; ++i) {
      const std::size_t row = at(plane, c_.q_rows(), i, 1, 0);
      const double scale = q_units_[row].x / kScaleLog2;
      double shift = 0;
      for (int d = 0; d < c_.head_dim; ++d) {
        const double x = static_cast<float>(q_[at(plane, c_.q_rows(), i, c_.head_dim, d)]);
        const double number = number_of(q8_[at(plane, c_.q_rows(), i, c_.kernel_dim, d)]) * scale;
        ASSERT_NEAR(number, x, allowed(x, scale)) << "q, sequence " << sequence << ", row " << i << ", column " << d;
        ASSERT_NEAR(static_cast<float>(values_q_[at(plane, c_.q_rows(), i, c_.head_dim, d)]), number,
                    std::fabs(number) / 200 + 1e-30);
        shift += x * mean_key_[at(columns, 1, 0, c_.kernel_dim, d)];
      }
      for (int d = c_.head_dim; d < c_.kernel_dim; ++d) {
        ASSERT_EQ(number_of(q8_[at(plane, c_.q_rows(), i, c_.kernel_dim, d)]), 0);
      }
      ASSERT_NEAR(q_units_[row].y, shift * kScaleLog2, 1e-4 * (1 + std::fabs(shift)));
      ASSERT_NEAR(lse_without_mean_[row], lse_[row] - shift * kScaleLog2 * std::log(2.0),
                  1e-4 * (1 + std::fabs(shift)));
    }
  }

  void check_keys(int sequence, int head, const Rows& rows) const {
    const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * c_.kv_heads + head;
    const std::int64_t columns = static_cast<std::int64_t>(sequence) * c_.kv_heads + head;
    const int first_block = c_.packed() ? rows.kv_begin / c_.block_kv + sequence : 0;
    for (int d = 0; d < std::max(c_.head_dim, c_.value_dim); ++d) {
      double sum = 0;
      for (int key = 0; key < rows.kv_len && d < c_.head_dim; ++key) {
        sum += static_cast<float>(k_[at(plane, c_.kv_rows(), rows.kv_begin + key, c_.head_dim, d)]);
      }
      const double mean_key = mean_key_[at(columns, 1, 0, c_.kernel_dim, d)];
      if (rows.kv_len > 0) {
        ASSERT_NEAR(mean_key, sum / rows.kv_len, 1e-5 * (1 + std::fabs(c_.k_offset)));
      }
      const double v_scale = v_columns_[at(columns, 2, 0, c_.kernel_dim, d)];
      const double mean_value = v_columns_[at(columns, 2, 1, c_.kernel_dim, d)];
      if (c_.v_offset == 0) {
        ASSERT_LT(std::fabs(mean_value), 1.0);
      } else if (rows.kv_len > 0 && d < c_.value_dim) {
        ASSERT_NEAR(mean_value, c_.v_offset, 0.5);
      }
      for (int key = 0; key < rows.kv_len; ++key) {
        const int block = first_block + key / c_.block_kv;
        if (d < c_.head_dim) {
          const double scale = k_scale_[at(plane, 1, 0, c_.key_blocks(), block)];
          const std::size_t element = at(plane, c_.kv_rows(), rows.kv_begin + key, c_.head_dim, d);
          const double x = static_cast<float>(k_[element]) - mean_key;
          const double number = number_of(k8_[at(plane, c_.kv_rows(), rows.kv_begin + key, c_.kernel_dim, d)]) * scale;
          ASSERT_NEAR(number, x, allowed(x, scale))
              << "k, sequence " << sequence << ", key " << key << ", column " << d;
          ASSERT_NEAR(static_cast<float>(values_k_[element]), number, std::fabs(number) / 200 + 1e-30);
        }
        if (d < c_.value_dim) {
          const std::size_t element = at(plane, c_.kv_rows(), rows.kv_begin + key, c_.value_dim, d);
          const double x = static_cast<float>(v_[element]) - mean_value;
          const double number = value_number(plane, d, block, key % c_.block_kv) * v_scale;
          ASSERT_NEAR(number, x, allowed(x, v_scale))
              << "v, sequence " << sequence << ", key " << key << ", column " << d;
          ASSERT_NEAR(static_cast<float>(values_v_[element]), number + mean_value,
                      std::fabs(number + mean_value) / 200 + 1e-6);
        }
      }
    }
  }

  // Keys past the end of a sequence, up to the end of its last tile, are zeros.
  void check_padding(int sequence, int head, const Rows& rows) const {
    const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * c_.kv_heads + head;
    const int first_block = c_.packed() ? rows.kv_begin / c_.block_kv + sequence : 0;
    const int end = std::max(1, (rows.kv_len + c_.block_kv - 1) / c_.block_kv) * c_.block_kv;
    for (int key = rows.kv_len; key < end; ++key) {
      for (int d = 0; d < c_.kernel_dim; ++d) {
        ASSERT_EQ(value_number(plane, d, first_block + key / c_.block_kv, key % c_.block_kv), 0)
            << "sequence " << sequence << ", key " << key << ", column " << d;
      }
    }
  }

  float value_number(std::int64_t plane, int column, int block, int key) const {
    const std::size_t row = at(plane, c_.kernel_dim, column, c_.key_blocks(), block);
    return number_of(
        v8_[row * static_cast<std::size_t>(c_.block_kv) + static_cast<std::size_t>(fp8_key_position(key))]);
  }

  PrepareCase c_;
  std::vector<Element> q_, k_, v_, values_q_, values_k_, values_v_;
  std::vector<std::uint8_t> q8_, k8_, v8_;
  std::vector<float2> q_units_;
  std::vector<float> lse_, lse_without_mean_, k_scale_, v_columns_, v_multiplier_, mean_key_;
  std::vector<float4> partials_;
  ForwardParams p_;
  Prepared to_;
};

void expect_prepared(const PrepareCase& c) {
  Prepared8 prepared(c);
  prepared.run();
  prepared.check();
}

TEST(Fp8Prepare, BatchEntriesOfSmallHeads) { expect_prepared({}); }
TEST(Fp8Prepare, Offsets) { expect_prepared({.k_offset = 5, .v_offset = 3}); }
TEST(Fp8Prepare, LengthsOfKeys) { expect_prepared({.kv_lengths = {0, 131}}); }
TEST(Fp8Prepare, PackedSequencesWithGaps) {
  expect_prepared({.sequences = 3, .q_starts = {0, 60, 60, 110}, .kv_starts = {10, 145, 260, 270}});
}
TEST(Fp8Prepare, EveryShapeOfTheKernels) {
  for (const auto& [dim, block] : {std::pair{96, 192}, {128, 192}, {192, 128}, {256, 96}, {256, 64}}) {
    SCOPED_TRACE(dim);
    expect_prepared({.sequences = 1,
                     .heads = 1,
                     .kv_heads = 1,
                     .q_len = 65,
                     .kv_len = 200,
                     .head_dim = dim,
                     .value_dim = dim,
                     .kernel_dim = dim,
                     .block_kv = block});
  }
}

}  // namespace
}  // namespace rootdk::test
