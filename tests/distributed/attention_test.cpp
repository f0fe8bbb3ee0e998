// The same bits for any number of ranks, any shares and any scheme; and the values of attention().

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "distributed/random_cases.h"

namespace rootdk::test {
namespace {

struct Sizes {
  std::int64_t batch = 1, heads = 2, kv_heads = 2, q_len = 150, kv_len = 150, head_dim = 16, value_dim = 16;
  DType dtype = DType::f32;
};

AttentionCase make_case(const std::string& name, const Sizes& s, const AttentionParams& scalars = {}) {
  AttentionCase c;
  c.name = name;
  c.dtype = s.dtype;
  c.scalars = scalars;
  c.q = DataTensor(random_tensor(s.dtype, {s.batch, s.heads, s.q_len, s.head_dim}, 1), false);
  c.k = DataTensor(random_tensor(s.dtype, {s.batch, s.kv_heads, s.kv_len, s.head_dim}, 2), false);
  c.v = DataTensor(random_tensor(s.dtype, {s.batch, s.kv_heads, s.kv_len, s.value_dim}, 3), false);
  c.grad_out = DataTensor(random_tensor(s.dtype, {s.batch, s.heads, s.q_len, s.value_dim}, 4), false);
  return c;
}

AttentionCase with_everything(DType dtype) {
  AttentionCase c = make_case("GQA, window, softcap, ALiBi, sinks, dropout",
                              {.heads = 4, .kv_heads = 2, .q_len = 203, .kv_len = 203, .dtype = dtype},
                              {.causal = true, .window_left = 70, .dropout = 0.2, .seed = 5});
  c.scalars.logits.softcap = 8;
  c.alibi_slopes = random_tensor(c.small(), {4}, 7, 0.05);
  c.sinks = random_tensor(c.small(), {4}, 8);
  c.grad_lse = random_tensor(c.small(), {1, 4, 203}, 9);
  c.grad_entropy = random_tensor(c.small(), {1, 4, 203}, 10);
  c.pooled_rows = 5;
  c.pooled_columns = 9;
  return c;
}

AttentionCase packed(bool causal) {
  AttentionCase c = make_case("packed", {.heads = 3, .kv_heads = 1, .q_len = 260, .kv_len = 260}, {.causal = causal});
  c.q_starts = i32_tensor({0, 3, 3, 120, 131, 260});
  c.kv_starts = i32_tensor({0, 3, 3, 120, 131, 260});
  return c;
}

void add_masks(std::vector<AttentionCase>& all) {
  AttentionCase blocks = make_case("block mask", {.batch = 2, .q_len = 130, .kv_len = 170}, {.causal = true});
  blocks.block_mask = random_mask({2, 1, 7, 12}, 15, 0.5);
  blocks.scalars.block_q = 20;
  blocks.scalars.block_kv = 15;
  blocks.pooled_rows = 6;
  blocks.pooled_columns = 11;
  all.push_back(std::move(blocks));
  AttentionCase both = make_case("mask and block mask, bf16", {.q_len = 90, .kv_len = 150, .dtype = DType::bf16});
  both.mask = random_mask({1, 1, 90, 150}, 16, 0.7);
  both.block_mask = random_mask({1, 2, 3, 1}, 17, 0.7);
  both.scalars.block_q = 37;
  both.scalars.block_kv = 150;
  all.push_back(std::move(both));
}

void add_biases(std::vector<AttentionCase>& all) {
  AttentionCase rows =
      make_case("a bias with rows, for all entries and heads, dropout",
                {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 120, .kv_len = 110}, {.dropout = 0.3, .seed = 8});
  rows.bias = random_tensor(DType::f32, {1, 1, 120, 110}, 18);
  rows.pooled_rows = 120;
  rows.pooled_columns = 1;
  all.push_back(std::move(rows));
  AttentionCase keys =
      make_case("a bias for all rows, f16", {.batch = 2, .q_len = 120, .kv_len = 110, .dtype = DType::f16});
  keys.bias = random_tensor(DType::f16, {2, 1, 1, 110}, 19);
  all.push_back(std::move(keys));
  AttentionCase one =
      make_case("one bias, key lengths, f64", {.batch = 2, .q_len = 50, .kv_len = 60, .dtype = DType::f64});
  one.bias = random_tensor(DType::f64, {1, 2, 50, 1}, 20);
  one.kv_lengths = i32_tensor({60, 41});
  one.grad_lse = random_tensor(DType::f64, {2, 2, 50}, 21);  // without it the gradient of such a bias is zero
  one.pooled_rows = one.pooled_columns = 7;
  all.push_back(std::move(one));
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  all.push_back(make_case("full", {}));
  all.push_back(make_case("causal, batch 2", {.batch = 2}, {.causal = true}));
  all.push_back(make_case("bf16 causal", {.head_dim = 32, .value_dim = 24, .dtype = DType::bf16}, {.causal = true}));
  all.push_back(make_case("f64", {.q_len = 70, .kv_len = 70, .dtype = DType::f64}, {.causal = true}));
  all.push_back(make_case("cross", {.q_len = 61, .kv_len = 190}));
  all.push_back(make_case("cross causal, window both ways", {.q_len = 190, .kv_len = 170},
                          {.causal = false, .window_left = 20, .window_right = 33}));
  all.push_back(make_case("keys before all queries", {.q_len = 90, .kv_len = 40}, {.causal = true}));
  all.push_back(with_everything(DType::f32));
  all.push_back(with_everything(DType::f16));
  all.push_back(packed(true));
  all.push_back(packed(false));
  AttentionCase lengths = make_case("key lengths, relative table", {.batch = 3, .q_len = 100, .kv_len = 100});
  lengths.kv_lengths = i32_tensor({100, 0, 37});
  lengths.relative_table = random_tensor(DType::f32, {2, 41}, 11);
  lengths.scalars.logits.relative_zero = 20;
  all.push_back(std::move(lengths));
  AttentionCase cosine = make_case("cosine", {.q_len = 100, .kv_len = 100}, {.score = Score::cosine, .causal = true});
  cosine.scalars.logits.scale = 5.0;
  all.push_back(std::move(cosine));
  all.push_back(make_case("cosine, bf16", {.q_len = 90, .kv_len = 90, .dtype = DType::bf16}, {.score = Score::cosine}));
  AttentionCase additive = make_case("additive", {.q_len = 80, .kv_len = 80}, {.score = Score::additive});
  additive.additive_v = random_tensor(DType::f32, {2, 16}, 12);
  all.push_back(std::move(additive));
  AttentionCase masked = make_case("mask and bias", {.q_len = 100, .kv_len = 130});
  masked.mask = random_mask({1, 2, 100, 130}, 13, 0.6);
  masked.bias = random_tensor(DType::f32, {1, 1, 100, 130}, 14);
  all.push_back(std::move(masked));
  add_masks(all);
  add_biases(all);
  return all;
}

// More than two chunks of keys.
std::vector<AttentionCase> long_cases() {
  std::vector<AttentionCase> all;
  all.push_back(make_case("full", {.q_len = 130, .kv_len = 2600, .head_dim = 64, .value_dim = 64}));
  all.push_back(make_case("causal, bf16",
                          {.heads = 4, .q_len = 1500, .kv_len = 1500, .value_dim = 40, .dtype = DType::bf16},
                          {.causal = true}));
  all.push_back(make_case("f16, large head_dim",
                          {.q_len = 70, .kv_len = 2100, .head_dim = 256, .value_dim = 200, .dtype = DType::f16}));
  AttentionCase everything = make_case("GQA, window, softcap, ALiBi, sinks, dropout",
                                       {.heads = 4, .kv_heads = 2, .q_len = 1700, .kv_len = 1700},
                                       {.causal = true, .window_left = 1200, .dropout = 0.2, .seed = 5});
  everything.scalars.logits.softcap = 8;
  everything.alibi_slopes = random_tensor(DType::f32, {4}, 7, 0.05);
  everything.sinks = random_tensor(DType::f32, {4}, 8);
  all.push_back(std::move(everything));
  AttentionCase masked = make_case("mask, bias, key lengths", {.batch = 2, .q_len = 100, .kv_len = 2300});
  masked.mask = random_mask({1, 2, 100, 2300}, 13, 0.6);
  masked.bias = random_tensor(DType::f32, {1, 1, 100, 2300}, 14);
  masked.kv_lengths = i32_tensor({2300, 1100});
  all.push_back(std::move(masked));
  AttentionCase rows = make_case("packed, relative table", {.q_len = 1800, .kv_len = 1800}, {.causal = true});
  rows.q_starts = i32_tensor({0, 3, 1300, 1300, 1800});
  rows.kv_starts = i32_tensor({0, 3, 1300, 1300, 1800});
  rows.relative_table = random_tensor(DType::f32, {2, 41}, 11);
  rows.scalars.logits.relative_zero = 20;
  all.push_back(std::move(rows));
  all.push_back(make_case("cosine", {.q_len = 60, .kv_len = 2100}, {.score = Score::cosine}));
  return all;
}

DistributedParams cut(const AttentionCase& c, int ranks, const std::string& layout, Scheme scheme) {
  const std::int64_t q_len = c.q.view().size(2), kv_len = c.k.view().size(2);
  DistributedParams d{.scheme = scheme, .key_chunk = 32, .query_block = 48, .buffers = 2, .timeout_seconds = 60};
  if (layout == "documents") {
    d.queries = document_shares(c.q_starts, ranks, c.scalars.causal);
  } else if (layout == "striped") {
    d.queries = striped_shares(q_len, ranks, 32);
    d.keys = striped_shares(kv_len, ranks, 24);
  } else if (layout == "zigzag") {
    d.queries = zigzag_shares(q_len, ranks);
    d.keys = zigzag_shares(kv_len, ranks);
  } else {
    d.queries = contiguous_shares(q_len, ranks);
    d.keys = contiguous_shares(kv_len, ranks);
  }
  return d;
}

TEST(DistributedAttention, SameBitsForAnyRanksSharesAndScheme) {
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const Results one = run_threads(1, c, cut(c, 1, "contiguous", Scheme::automatic), true);
    Results without_weights;  // which heads do not give
    for (const auto& [name, tensor] : one) {
      if (name != "weights") without_weights[name] = clone(tensor);
    }
    for (const int ranks : {2, 3, 4, 8}) {
      for (const std::string layout : {"contiguous", "zigzag", "striped", "documents"}) {
        if (layout == "documents" && !c.q_starts.defined()) continue;
        for (const Scheme scheme : {Scheme::automatic, Scheme::ring, Scheme::gather, Scheme::heads, Scheme::both}) {
          if (exchanges_heads(scheme) && (c.mask.defined() || c.bias.defined())) continue;
          if (scheme == Scheme::both && ranks != 4 && ranks != 8) continue;
          if (scheme == Scheme::automatic && ranks != 3) continue;
          if (scheme == Scheme::gather && ranks == 8) continue;
          if (layout == "striped" && scheme != Scheme::ring) continue;
          const Results many = run_threads(ranks, c, cut(c, ranks, layout, scheme), true);
          EXPECT_EQ(first_difference(exchanges_heads(scheme) ? without_weights : one, many), "")
              << ranks << " ranks, " << layout << ", " << name_of(scheme);
        }
      }
    }
  }
}

TEST(DistributedAttention, RandomCalls) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const int ranks = static_cast<int>(2 + seed % 4);
    const RandomCall call = random_call(seed, ranks);
    Results one = run_threads(1, call.problem, call.one, true);
    if (exchanges_heads(call.many.scheme)) one.erase("weights");
    const Results many = run_threads(ranks, call.problem, call.many, true);
    EXPECT_EQ(first_difference(one, many), "") << "seed " << seed << ", " << ranks << " ranks";
  }
}

TEST(DistributedAttention, ValuesOfTheReference) {
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const AttentionCase exact = c.converted(DType::f64);
    const Target reference{.name = "reference"};
    const Results forward = run_forward(exact, reference);
    const Results backward = run_backward(exact, forward, reference);
    const Results here = run_threads(3, c, cut(c, 3, "zigzag", Scheme::ring), true);
    const double tolerance = c.dtype == DType::f64 ? 1e-12 : size_of(c.dtype) == 2 ? 2e-2 : 2e-5;
    for (const auto& [name, tensor] : here) {
      const Tensor& expected = forward.contains(name) ? forward.at(name) : backward.at(name);
      EXPECT_LT(difference(expected, convert(tensor, DType::f64)).relative(), tolerance) << name;
    }
  }
}

// Chunks of 1024 keys end where tiles of the kernels end: out and the statistics of the rows are those of attention().
TEST(DistributedAttention, BitsOfAttention) {
  for (const AttentionCase& c : long_cases()) {
    SCOPED_TRACE(c.name);
    const ConstTensorView q = c.q.view();
    Results expected;
    AttentionStats stats;
    for (const auto& [name, field] :
         {std::pair{"lse", &AttentionStats::lse}, std::pair{"max_logit", &AttentionStats::max_logit},
          std::pair{"max_weight", &AttentionStats::max_weight}, std::pair{"entropy", &AttentionStats::entropy},
          std::pair{"sum_p2", &AttentionStats::sum_p2}}) {
      stats.*field = expected[name] = Tensor(DType::f32, {q.size(0), q.size(1), q.size(2)});
    }
    expected["out"] = Tensor(c.dtype, {q.size(0), q.size(1), q.size(2), c.v.view().size(3)});
    attention(q, c.k.view(), c.v.view(), expected["out"], c.params(), stats);
    for (const int ranks : {1, 3, 4}) {
      for (const Scheme scheme : {Scheme::ring, Scheme::heads, Scheme::both}) {
        if (exchanges_heads(scheme) && (c.mask.defined() || c.bias.defined())) continue;
        if ((scheme == Scheme::both) != (ranks == 4)) continue;
        DistributedParams d = cut(c, ranks, "zigzag", scheme);
        d.key_chunk = 1024;
        d.query_block = 100;
        EXPECT_EQ(first_difference(expected, run_threads(ranks, c, d, false)), "") << ranks << name_of(scheme);
      }
    }
  }
}

// Each rank chooses among its own rows, in any order.
// Rows without keys are zeros, where rows of the heads alternate in memory, and nothing else is written.
TEST(DistributedAttention, RowsWithoutKeysOfHeadsSideBySide) {
  constexpr std::int64_t kHeads = 2, kRows = 512, kKeys = 256, kDim = 64, kGuard = 4096;
  const Tensor q = random_tensor(DType::f32, {1, kHeads, kRows, kDim}, 1);
  const Tensor k = random_tensor(DType::f32, {1, kHeads, kKeys, kDim}, 2);
  const Tensor v = random_tensor(DType::f32, {1, kHeads, kKeys, kDim}, 3);
  Tensor expected(DType::f32, {1, kHeads, kRows, kDim});
  const AttentionParams params{.causal = true};  // the first 256 rows see no key
  attention(q, k, v, expected, params);
  std::vector<float> memory(kHeads * kRows * kDim + kGuard, 7.0f);
  const TensorView side_by_side(memory.data(), {1, kRows, kHeads, kDim});
  const auto errors = errors_of_ranks(1, [&](Transport& transport) {
    const DistributedParams whole{.queries = {{{0, kRows}}}, .keys = {{{0, kKeys}}}};
    distributed_attention(transport, q, k, v, side_by_side.transposed(1, 2), whole, params);
  });
  EXPECT_EQ(errors.front(), "");
  EXPECT_EQ(difference(expected, side_by_side.transposed(1, 2)).largest, 0);
  EXPECT_TRUE(std::all_of(memory.end() - kGuard, memory.end(), [](float x) { return x == 7.0f; }));
}

TEST(DistributedAttention, WeightsOfChosenRows) {
  const AttentionCase c = make_case("weights", {}, {.causal = true});
  const DistributedParams d = cut(c, 2, "zigzag", Scheme::ring);
  std::vector<Results> all(2), chosen(2);
  for (const bool some : {false, true}) {
    const auto errors = errors_of_ranks(2, [&](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const auto& share = d.queries[rank];
      const Tensor q = rows_of_share(c.q.view(), 2, share), k = rows_of_share(c.k.view(), 2, share),
                   v = rows_of_share(c.v.view(), 2, share), rows = i32_tensor({30, 2, 30});
      Tensor out(DType::f32, {1, 2, q.size(2), 16}), weights(DType::f32, {1, 2, some ? 3 : q.size(2), 150});
      AttentionParams params = c.params();
      if (some) params.stats.weight_rows = rows;
      distributed_attention(transport, q, k, v, out, d, params, {.weights = weights});
      (some ? chosen : all)[rank]["weights"] = std::move(weights);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Results expected;
    const std::vector<RowRange> rows = {{30, 31}, {2, 3}, {30, 31}};
    expected["weights"] = rows_of_share(all[rank]["weights"], 2, rows);
    EXPECT_EQ(first_difference(expected, chosen[rank]), "");
  }
}

TEST(DistributedAttention, MoreRanksThanRows) {
  AttentionCase c = make_case("5 rows", {.q_len = 5, .kv_len = 5}, {.causal = true});
  Results one = run_threads(1, c, cut(c, 1, "contiguous", Scheme::ring), true);
  for (const Scheme scheme : {Scheme::ring, Scheme::gather, Scheme::heads, Scheme::both}) {
    if (exchanges_heads(scheme)) one.erase("weights");
    EXPECT_EQ(first_difference(one, run_threads(8, c, cut(c, 8, "zigzag", scheme), true)), "") << name_of(scheme);
  }
}

// More ranks than heads in a group, one key head for all, and any number of ranks in a group.
TEST(DistributedAttention, HeadsAndRingTogether) {
  const AttentionCase c = make_case("both", {.heads = 3, .kv_heads = 1, .q_len = 130, .kv_len = 130}, {.causal = true});
  Results one = run_threads(1, c, cut(c, 1, "contiguous", Scheme::ring), true);
  one.erase("weights");
  for (const int head_ranks : {1, 2, 3, 4, 6, 12}) {
    DistributedParams d = cut(c, 12, "striped", Scheme::both);
    d.head_ranks = head_ranks;
    EXPECT_EQ(first_difference(one, run_threads(12, c, d, true)), "") << head_ranks << " ranks exchange heads";
  }
}

TEST(MergeOverRanks, StatesOfACacheThatIsCut) {
  AttentionCase c = make_case("decode", {.batch = 2, .q_len = 3, .kv_len = 200});
  const Results whole = run_forward(c.converted(DType::f64), {.name = "reference"});
  std::vector<Results> results(4);
  const auto errors = errors_of_ranks(4, [&](Transport& transport) {
    const std::int64_t first = 50 * transport.rank();
    Tensor out(DType::f32, {2, 2, 3, 16}), lse(DType::f32, {2, 2, 3});
    attention(c.q.view(), c.k.view().slice(2, first, first + 50), c.v.view().slice(2, first, first + 50), out, {},
              {.lse = lse});
    merge_over_ranks(transport, out, lse, 60);
    Results& mine = results[static_cast<std::size_t>(transport.rank())];
    mine["out"] = std::move(out);
    mine["lse"] = std::move(lse);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const Results& mine : results) EXPECT_EQ(first_difference(results[0], mine), "");
  for (const char* name : {"out", "lse"}) {
    EXPECT_LT(difference(whole.at(name), convert(results[0].at(name), DType::f64)).relative(), 1e-5) << name;
  }
}

}  // namespace
}  // namespace rootdk::test
