#include "conformance/cases.h"

#include "conformance/special_values.h"
#include "rootdk/positions.h"

namespace rootdk::test {
namespace {

using Specs = std::vector<CaseSpec>;

// Sizes: every head_dim class, lengths that fit no tile, grouped heads, storage orders.
void add_sizes(Specs& all) {
  for (std::int64_t d : {1, 2, 3, 7, 8, 16, 24, 33, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 512}) {
    const std::int64_t len = d > 128 ? 37 : 67;
    all.push_back({.name = "head_dim_" + std::to_string(d), .q_len = len, .kv_len = len + 9, .head_dim = d});
    all.back().scalars.causal = d % 3 == 1;
  }
  const std::int64_t lengths[][2] = {{1, 1},   {1, 2},    {1, 65},   {2, 1},     {5, 3},     {17, 31},
                                     {64, 64}, {63, 129}, {129, 63}, {128, 256}, {130, 191}, {1, 517}};
  for (const auto& [q_len, kv_len] : lengths) {
    const std::string name = std::to_string(q_len) + "x" + std::to_string(kv_len);
    all.push_back({.name = "lengths_" + name, .q_len = q_len, .kv_len = kv_len, .head_dim = 64});
    all.push_back({.name = "causal_" + name, .q_len = q_len, .kv_len = kv_len, .head_dim = 64});
    all.back().scalars.causal = true;
  }
  all.push_back({.name = "gqa", .batch = 2, .heads = 6, .kv_heads = 2, .q_len = 45, .kv_len = 51});
  all.push_back({.name = "mqa", .batch = 2, .heads = 4, .kv_heads = 1, .q_len = 21, .kv_len = 40, .head_dim = 64});
  all.push_back(
      {.name = "gqa_decode", .batch = 3, .heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 133, .head_dim = 128});
  all.back().scalars.causal = true;
  all.push_back({.name = "long", .heads = 1, .q_len = 261, .kv_len = 519, .head_dim = 64});
  all.push_back({.name = "long_causal_mqa", .heads = 2, .kv_heads = 1, .q_len = 310, .kv_len = 310, .head_dim = 32});
  all.back().scalars.causal = true;
  all.push_back({.name = "value_dim_larger", .q_len = 40, .kv_len = 70, .head_dim = 64, .value_dim = 128});
  all.push_back({.name = "value_dim_smaller", .q_len = 40, .kv_len = 70, .head_dim = 192, .value_dim = 128});
  all.push_back({.name = "value_dim_odd", .q_len = 20, .kv_len = 30, .head_dim = 16, .value_dim = 5});
  all.push_back({.name = "length_first",
                 .batch = 2,
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 50,
                 .kv_len = 77,
                 .head_dim = 64,
                 .length_first = true});
  all.back().scalars.causal = true;
}

void add_masks(Specs& all) {
  const std::int64_t windows[][2] = {{0, 0}, {7, -1}, {-1, 5}, {16, 3}, {1000, 1000}, {40, 0}};
  for (const auto& [left, right] : windows) {
    all.push_back({.name = "window_" + std::to_string(left) + "_" + std::to_string(right), .q_len = 70, .kv_len = 90});
    all.back().scalars.window_left = left;
    all.back().scalars.window_right = right;
  }
  all.push_back({.name = "causal_window", .heads = 4, .kv_heads = 2, .q_len = 150, .kv_len = 150, .head_dim = 64});
  all.back().scalars.causal = true;
  all.back().scalars.window_left = 31;
  all.push_back({.name = "window_left_of_all_keys", .q_len = 40, .kv_len = 9});
  all.back().scalars.window_left = 3;
  all.push_back({.name = "kv_lengths", .batch = 4, .q_len = 20, .kv_len = 70, .kv_lengths = {70, 0, 1, 37}});
  all.push_back({.name = "kv_lengths_causal", .batch = 3, .q_len = 66, .kv_len = 70, .kv_lengths = {70, 3, 41}});
  all.back().scalars.causal = true;
  all.push_back({.name = "kv_lengths_padding_nan",
                 .batch = 1,
                 .q_len = 20,
                 .kv_len = 70,
                 .kv_lengths = {68},
                 .edit = plant_padding});
  all.push_back({.name = "mask_full", .batch = 2, .q_len = 35, .kv_len = 66, .mask = {2, 2, 35, 66}});
  all.push_back({.name = "mask_keys", .batch = 2, .q_len = 35, .kv_len = 66, .mask = {2, 1, 1, 66}});
  all.push_back({.name = "mask_rows", .q_len = 35, .kv_len = 66, .mask = {1, 1, 35, 1}});
  all.push_back(
      {.name = "mask_heads_causal", .heads = 4, .kv_heads = 2, .q_len = 65, .kv_len = 65, .mask = {1, 4, 65, 65}});
  all.back().scalars.causal = true;
  all.push_back({.name = "fully_masked_rows", .q_len = 40, .kv_len = 33, .mask = {1, 1, 40, 33}, .edit = drop_rows});
  all.push_back({.name = "everything_masked", .q_len = 9, .kv_len = 40, .mask = {1, 1, 1, 1}, .mask_keep = 0});
  all.push_back({.name = "masked_nan", .q_len = 33, .kv_len = 40, .mask = {1, 1, 33, 40}, .edit = plant_masked_nan});
  all.push_back(
      {.name = "masked_nan_cosine", .q_len = 33, .kv_len = 40, .mask = {1, 1, 33, 40}, .edit = plant_masked_nan});
  all.back().scalars.score = Score::cosine;
  all.push_back({.name = "block_mask",
                 .batch = 2,
                 .q_len = 100,
                 .kv_len = 140,
                 .head_dim = 64,
                 .block_mask = {2, 2, 4, 3},
                 .mask_keep = 0.5});
  all.back().scalars.block_q = 32;
  all.back().scalars.block_kv = 64;
  all.push_back({.name = "block_mask_broadcast_causal",
                 .q_len = 130,
                 .kv_len = 130,
                 .block_mask = {1, 1, 9, 7},
                 .mask_keep = 0.6});
  all.back().scalars.block_q = 16;
  all.back().scalars.block_kv = 20;
  all.back().scalars.causal = true;
}

void add_packed(Specs& all) {
  all.push_back({.name = "packed",
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 90,
                 .kv_len = 90,
                 .head_dim = 64,
                 .q_starts = {0, 33, 33, 34, 90},
                 .kv_starts = {0, 33, 33, 34, 90}});
  all.back().scalars.causal = true;
  all.push_back({.name = "packed_unequal",
                 .q_len = 40,
                 .kv_len = 120,
                 .q_starts = {0, 7, 30, 40, 40},
                 .kv_starts = {0, 65, 80, 80, 120},
                 .alibi = true,
                 .sinks = true});
  all.push_back({.name = "packed_window_dropout",
                 .q_len = 75,
                 .kv_len = 75,
                 .q_starts = {0, 50, 75},
                 .kv_starts = {0, 50, 75},
                 .relative_heads = 2,
                 .relative_entries = 21,
                 .length_first = true});
  all.back().scalars.window_left = 9;
  all.back().scalars.window_right = 4;
  all.back().scalars.dropout = 0.2;
  all.back().scalars.logits.relative_zero = 10;
}

void add_biases(Specs& all) {
  all.push_back({.name = "bias_full", .batch = 2, .q_len = 35, .kv_len = 66, .bias = {2, 2, 35, 66}});
  all.push_back(
      {.name = "bias_heads", .batch = 2, .heads = 4, .kv_heads = 2, .q_len = 35, .kv_len = 66, .bias = {1, 4, 35, 66}});
  all.push_back({.name = "bias_keys", .batch = 2, .q_len = 35, .kv_len = 66, .bias = {2, 1, 1, 66}});
  all.push_back({.name = "bias_rows", .q_len = 35, .kv_len = 66, .bias = {1, 1, 35, 1}});
  all.push_back(
      {.name = "bias_in_data_type", .q_len = 35, .kv_len = 66, .bias = {1, 2, 35, 66}, .bias_in_data_type = true});
  all.back().scalars.causal = true;
  all.push_back(
      {.name = "bias_minus_infinity", .q_len = 35, .kv_len = 66, .bias = {1, 2, 35, 66}, .edit = plant_minus_infinity});
  all.push_back(
      {.name = "relative_table", .batch = 2, .q_len = 50, .kv_len = 60, .relative_heads = 2, .relative_entries = 33});
  all.back().scalars.logits.relative_zero = 16;
  all.push_back({.name = "relative_table_shared_causal",
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 70,
                 .kv_len = 70,
                 .relative_heads = 1,
                 .relative_entries = 12});
  all.back().scalars.logits.relative_zero = 3;
  all.back().scalars.causal = true;
  all.push_back({.name = "alibi", .batch = 2, .heads = 3, .q_len = 40, .kv_len = 70, .alibi = true});
  all.push_back(
      {.name = "alibi_causal", .heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 100, .head_dim = 64, .alibi = true});
  all.back().scalars.causal = true;
  all.push_back({.name = "sinks", .heads = 4, .kv_heads = 2, .q_len = 40, .kv_len = 70, .head_dim = 64, .sinks = true});
  all.back().scalars.causal = true;
  all.push_back({.name = "sinks_fully_masked_rows",
                 .q_len = 20,
                 .kv_len = 33,
                 .mask = {1, 1, 20, 33},
                 .sinks = true,
                 .edit = drop_rows});
  all.push_back(
      {.name = "sink_minus_infinity", .q_len = 40, .kv_len = 9, .sinks = true, .edit = plant_minus_infinite_sink});
  all.back().scalars.causal = true;
}

void add_scores(Specs& all) {
  all.push_back({.name = "scale_number", .q_len = 33, .kv_len = 40});
  all.back().scalars.logits.scale = 0.37;
  all.back().scalars.logits.temperature = 1.7;
  all.push_back({.name = "scale_none", .q_len = 33, .kv_len = 40, .head_dim = 8});
  all.back().scalars.logits.scale = Scale::none();
  all.push_back({.name = "scale_zero", .q_len = 10, .kv_len = 40});
  all.back().scalars.logits.scale = 0.0;
  all.push_back({.name = "scale_negative_inverse_head_dim", .q_len = 10, .kv_len = 40});
  all.back().scalars.logits.scale = -1.0 / 32;
  all.push_back({.name = "softcap", .q_len = 66, .kv_len = 70, .head_dim = 64, .deviation = 2});
  all.back().scalars.logits.softcap = 5;
  all.back().scalars.causal = true;
  all.push_back({.name = "cosine", .q_len = 33, .kv_len = 40, .edit = plant_zero_vectors});
  all.back().scalars.score = Score::cosine;
  all.back().scalars.logits.scale = 10.0;
  all.push_back({.name = "cosine_short", .q_len = 33, .kv_len = 40, .edit = plant_short_vectors});
  all.back().scalars.score = Score::cosine;
  all.back().scalars.logits.scale = 5.0;
  all.push_back({.name = "cosine_gqa_softcap", .heads = 4, .kv_heads = 2, .q_len = 20, .kv_len = 50});
  all.back().scalars.score = Score::cosine;
  all.back().scalars.logits.scale = 8.0;
  all.back().scalars.logits.softcap = 3;
  all.push_back({.name = "additive", .q_len = 20, .kv_len = 37, .head_dim = 16});
  all.back().scalars.score = Score::additive;
  all.back().scalars.logits.scale = Scale::none();
  all.push_back({.name = "additive_masked_nan",
                 .q_len = 33,
                 .kv_len = 40,
                 .head_dim = 16,
                 .mask = {1, 1, 33, 40},
                 .edit = plant_masked_nan});
  all.back().scalars.score = Score::additive;

  all.push_back({.name = "additive_gqa_causal",
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 20,
                 .kv_len = 25,
                 .head_dim = 24,
                 .sinks = true});
  all.back().scalars.score = Score::additive;
  all.back().scalars.causal = true;
}

void add_dropout_and_gradients(Specs& all) {
  all.push_back({.name = "dropout", .batch = 2, .heads = 4, .kv_heads = 2, .q_len = 40, .kv_len = 77, .head_dim = 64});
  all.back().scalars.dropout = 0.1;
  all.back().scalars.seed = 0x123456789abcdefu;
  all.push_back({.name = "dropout_half_causal", .q_len = 66, .kv_len = 66});
  all.back().scalars.dropout = 0.5;
  all.back().scalars.seed = 7;
  all.back().scalars.causal = true;
  all.push_back({.name = "grad_lse", .q_len = 40, .kv_len = 50, .head_dim = 64, .grad_lse = true});
  all.push_back({.name = "grad_entropy", .q_len = 40, .kv_len = 50, .head_dim = 64, .grad_entropy = true});
  all.back().scalars.causal = true;
  all.push_back({.name = "grad_lse_entropy_sinks",
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 33,
                 .kv_len = 40,
                 .sinks = true,
                 .grad_lse = true,
                 .grad_entropy = true});
  all.push_back({.name = "pooled_map",
                 .q_len = 50,
                 .kv_len = 83,
                 .pooled_rows = 7,
                 .pooled_columns = 9,
                 .weight_rows = {0, 49, 13, 13}});
  all.back().scalars.causal = true;
  all.push_back({.name = "pooled_map_single_cell", .q_len = 50, .kv_len = 83, .pooled_rows = 1, .pooled_columns = 1});
}

void add_special_values(Specs& all) {
  all.push_back({.name = "outliers", .q_len = 66, .kv_len = 70, .head_dim = 64, .edit = plant_outliers});
  all.push_back({.name = "large_logits", .q_len = 40, .kv_len = 66, .head_dim = 64, .deviation = 8});
  all.push_back({.name = "huge_bias", .q_len = 40, .kv_len = 66, .bias = {1, 2, 1, 66}, .bias_deviation = 300});
  all.push_back({.name = "denormals", .q_len = 34, .kv_len = 40, .edit = plant_denormals});
  all.push_back({.name = "query_nan", .q_len = 34, .kv_len = 40, .edit = plant_query_nan});
  all.push_back({.name = "last_key_nan_causal", .q_len = 70, .kv_len = 70, .edit = plant_last_key_nan});
  all.back().scalars.causal = true;
  all.push_back({.name = "no_keys", .q_len = 9, .kv_len = 0});
  all.push_back({.name = "no_keys_sinks", .heads = 4, .kv_heads = 2, .q_len = 9, .kv_len = 0, .sinks = true});
  all.push_back({.name = "no_queries", .q_len = 0, .kv_len = 9});
  all.push_back({.name = "no_batch", .batch = 0, .q_len = 9, .kv_len = 9});
  all.push_back({.name = "no_heads", .heads = 0, .q_len = 9, .kv_len = 9});
}

void add_combinations(Specs& all) {
  all.push_back({.name = "gpt_oss_like",
                 .heads = 8,
                 .kv_heads = 2,
                 .q_len = 70,
                 .kv_len = 140,
                 .head_dim = 64,
                 .sinks = true,
                 .length_first = true});
  all.back().scalars.causal = true;
  all.back().scalars.window_left = 63;
  all.push_back({.name = "gemma_like", .heads = 4, .kv_heads = 2, .q_len = 50, .kv_len = 90, .head_dim = 256});
  all.back().scalars.causal = true;
  all.back().scalars.logits.softcap = 50;
  all.back().scalars.window_left = 31;
  all.push_back({.name = "everything",
                 .batch = 2,
                 .heads = 4,
                 .kv_heads = 2,
                 .q_len = 45,
                 .kv_len = 71,
                 .head_dim = 40,
                 .value_dim = 24,
                 .kv_lengths = {71, 50},
                 .mask = {2, 1, 45, 71},
                 .block_mask = {1, 4, 3, 3},
                 .bias = {1, 4, 1, 71},
                 .mask_keep = 0.8,
                 .relative_heads = 4,
                 .relative_entries = 40,
                 .alibi = true,
                 .sinks = true,
                 .grad_lse = true,
                 .grad_entropy = true,
                 .length_first = true,
                 .pooled_rows = 5,
                 .pooled_columns = 8,
                 .weight_rows = {3, 44}});
  AttentionParams& p = all.back().scalars;
  p.causal = true;
  p.window_left = 40;
  p.block_q = 16;
  p.block_kv = 32;
  p.logits.relative_zero = 20;
  p.logits.softcap = 20;
  p.logits.temperature = 0.8;
  p.dropout = 0.15;
  p.seed = 99;
}

// Seeds differ from case to case, and from tensor to tensor of a case.
class Seeds {
 public:
  explicit Seeds(const std::string& name) {
    for (const char c : name) state_ = state_ * 1099511628211u + static_cast<unsigned char>(c);
  }
  std::uint64_t next() { return state_ += 1000003; }

 private:
  std::uint64_t state_ = 14695981039346656037u;
};

Shape shape(const Sizes4& sizes) { return {sizes.begin(), sizes.end()}; }

// The tensors that enter the logits and the masks, in f64.
void add_parameters(const CaseSpec& spec, Seeds& seeds, AttentionCase& c) {
  const Sizes4 none{};
  if (!spec.kv_lengths.empty()) c.kv_lengths = i32_tensor(spec.kv_lengths);
  if (!spec.q_starts.empty()) c.q_starts = i32_tensor(spec.q_starts);
  if (!spec.kv_starts.empty()) c.kv_starts = i32_tensor(spec.kv_starts);
  if (!spec.weight_rows.empty()) c.weight_rows = i32_tensor(spec.weight_rows);
  if (spec.mask != none) c.mask = random_mask(shape(spec.mask), seeds.next(), spec.mask_keep);
  if (spec.block_mask != none) c.block_mask = random_mask(shape(spec.block_mask), seeds.next(), spec.mask_keep);
  if (spec.bias != none) c.bias = random_tensor(DType::f64, shape(spec.bias), seeds.next(), spec.bias_deviation);
  if (spec.relative_entries) {
    c.relative_table = random_tensor(DType::f64, {spec.relative_heads, spec.relative_entries}, seeds.next());
  }
  if (spec.alibi) {
    c.alibi_slopes = Tensor(DType::f64, {spec.heads});
    alibi_slopes(c.alibi_slopes);
  }
  if (spec.sinks) c.sinks = random_tensor(DType::f64, {spec.heads}, seeds.next());
  if (spec.scalars.score == Score::additive) {
    c.additive_v = random_tensor(DType::f64, {spec.heads, spec.head_dim}, seeds.next());
  }
}

}  // namespace

const std::vector<CaseSpec>& conformance_cases() {
  static const Specs cases = [] {
    Specs all;
    add_sizes(all);
    add_masks(all);
    add_packed(all);
    add_biases(all);
    add_scores(all);
    add_dropout_and_gradients(all);
    add_special_values(all);
    add_combinations(all);
    return all;
  }();
  return cases;
}

AttentionCase make_case(const CaseSpec& spec, DType dtype) {
  const std::int64_t kv_heads = spec.kv_heads || spec.heads == 0 ? spec.kv_heads : spec.heads;
  const std::int64_t value_dim = spec.value_dim ? spec.value_dim : spec.head_dim;
  Seeds seeds(spec.name);
  auto data = [&](std::int64_t heads, std::int64_t len, std::int64_t dim, double deviation) {
    return DataTensor(random_tensor(DType::f64, {spec.batch, heads, len, dim}, seeds.next(), deviation),
                      spec.length_first);
  };
  AttentionCase c;
  c.name = spec.name;
  c.dtype = DType::f64;
  c.length_first = spec.length_first;
  c.scalars = spec.scalars;
  c.pooled_rows = spec.pooled_rows;
  c.pooled_columns = spec.pooled_columns;
  c.q = data(spec.heads, spec.q_len, spec.head_dim, spec.deviation);
  c.k = data(kv_heads, spec.kv_len, spec.head_dim, spec.deviation);
  c.v = data(kv_heads, spec.kv_len, value_dim, spec.deviation);
  c.grad_out = data(spec.heads, spec.q_len, value_dim, 1);
  const Shape rows{spec.batch, spec.heads, spec.q_len};
  if (spec.grad_lse) c.grad_lse = random_tensor(DType::f64, rows, seeds.next());
  if (spec.grad_entropy) c.grad_entropy = random_tensor(DType::f64, rows, seeds.next());
  add_parameters(spec, seeds, c);
  if (spec.edit) spec.edit(c);
  AttentionCase typed = c.converted(dtype);
  if (c.bias.defined()) typed.bias = convert(c.bias, spec.bias_in_data_type ? dtype : typed.small());
  return typed;
}

}  // namespace rootdk::test
