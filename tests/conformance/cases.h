#pragma once

// The table of named cases behind the conformance grid.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "support/attention_case.h"

namespace rootdk::test {

using Sizes4 = std::array<std::int64_t, 4>;

// A recipe: sizes, the scalars of the call, and which tensors come along. All zero: not given.
struct CaseSpec {
  std::string name;
  std::int64_t batch = 1, heads = 2, kv_heads = 0;  // kv_heads 0: as many as heads
  std::int64_t q_len = 33, kv_len = 33;
  std::int64_t head_dim = 32, value_dim = 0;  // value_dim 0: head_dim
  AttentionParams scalars = {};

  std::vector<std::int32_t> kv_lengths = {}, q_starts = {}, kv_starts = {};
  Sizes4 mask = {}, block_mask = {}, bias = {};  // shapes, broadcast where 1
  double mask_keep = 0.7;
  bool bias_in_data_type = false;  // else f32
  double bias_deviation = 1.0;
  std::int64_t relative_heads = 0, relative_entries = 0;
  bool alibi = false, sinks = false;
  bool grad_lse = false, grad_entropy = false;
  bool length_first = false;
  double deviation = 1.0;  // of q, k, v
  std::int64_t pooled_rows = 0, pooled_columns = 0;
  std::vector<std::int32_t> weight_rows = {};
  void (*edit)(AttentionCase& f64_case) = nullptr;  // plants special values; applied before rounding to the type
};

const std::vector<CaseSpec>& conformance_cases();

// The case in an element type: random values from the name as seed, rounded to the type.
AttentionCase make_case(const CaseSpec& spec, DType dtype);

}  // namespace rootdk::test
