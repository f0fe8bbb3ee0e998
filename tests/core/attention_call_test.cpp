#include "core/attention_call.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tensors.h"

namespace rootdk {
namespace {

TEST(Scale, Factors) {
  EXPECT_DOUBLE_EQ(Scale().factor(64), 0.125);
  EXPECT_DOUBLE_EQ(Scale::none().factor(64), 1);
  EXPECT_DOUBLE_EQ(Scale::inverse_head_dim().factor(64), 1.0 / 64);
  EXPECT_DOUBLE_EQ(Scale(0.3).factor(64), 0.3);
}

// Against the definition: the keys that pass every rule, one by one.
TEST(KeyRange, EqualsTheRulesKeyByKey) {
  for (std::int64_t q_len : {1, 4, 7}) {
    for (std::int64_t kv_len : {0, 1, 5, 9}) {
      for (std::int64_t visible : {kv_len, kv_len / 2}) {
        for (std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, INT64_MAX}) {
          for (std::int64_t right : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{3}, INT64_MAX}) {
            for (bool causal : {false, true}) {
              const AttentionParams params{.causal = causal, .window_left = left, .window_right = right};
              const SequenceRange sequence{.q_len = q_len, .kv_len = kv_len, .kv_visible = visible};
              for (std::int64_t i = 0; i < q_len; ++i) {
                const std::int64_t position = i + kv_len - q_len;
                const KeyRange range = key_range(sequence, window_of(params), i);
                for (std::int64_t j = 0; j < kv_len; ++j) {
                  const bool kept = j < visible && (!causal || j <= position) && (left < 0 || position - j <= left) &&
                                    (right < 0 || j - position <= right);
                  EXPECT_EQ(kept, j >= range.begin && j < range.end)
                      << "i " << i << " j " << j << " of " << q_len << " x " << kv_len << " window " << left << ", "
                      << right << " causal " << causal;
                }
                EXPECT_LE(range.begin, range.end);
              }
            }
          }
        }
      }
    }
  }
}

TEST(SequenceRange, PackedAndPadded) {
  const Tensor q_starts = test::i32_tensor({0, 3, 3, 8}), kv_starts = test::i32_tensor({0, 4, 9, 10});
  const SequenceRange packed =
      sequence_range({.batch = 3, .packed = true}, {.q_starts = q_starts, .kv_starts = kv_starts}, 2);
  EXPECT_EQ(packed.batch_entry, 0);
  EXPECT_EQ(packed.q_begin, 3);
  EXPECT_EQ(packed.q_len, 5);
  EXPECT_EQ(packed.kv_begin, 9);
  EXPECT_EQ(packed.kv_len, 1);
  EXPECT_EQ(packed.position(4), 0);
  const Tensor lengths = test::i32_tensor({7, 2});
  const SequenceRange padded = sequence_range({.batch = 2, .q_len = 3, .kv_len = 9}, {.kv_lengths = lengths}, 1);
  EXPECT_EQ(padded.batch_entry, 1);
  EXPECT_EQ(padded.kv_visible, 2);
  EXPECT_EQ(padded.position(0), 6);
}

}  // namespace
}  // namespace rootdk
