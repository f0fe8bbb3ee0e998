#include "distributed/random_cases.h"

#include <random>

namespace rootdk::test {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t from(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(last - first + 1));
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  bool one_in(std::int64_t n) { return from(1, n) == 1; }

 private:
  std::mt19937_64 random_;
};

struct Sizes {
  std::int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim;
};

void draw_logits(Draw& draw, const Sizes& s, AttentionCase& c) {
  AttentionParams& p = c.scalars;
  p.causal = draw.one_in(2);
  if (draw.one_in(3)) p.window_left = draw.from(0, 200);
  if (draw.one_in(5)) p.window_right = draw.from(0, 60);
  if (draw.one_in(4)) p.dropout = draw.of({0.1, 0.6});
  p.seed = static_cast<std::uint64_t>(draw.from(0, 1000));
  if (draw.one_in(5)) p.logits.softcap = 6;
  if (draw.one_in(3)) c.sinks = random_tensor(c.small(), {s.heads}, 21);
  if (draw.one_in(4)) c.alibi_slopes = random_tensor(c.small(), {s.heads}, 22, 0.05);
  if (draw.one_in(4)) {
    c.relative_table = random_tensor(c.small(), {draw.of<std::int64_t>({1, s.heads}), draw.from(1, 60)}, 23);
    p.logits.relative_zero = draw.from(0, c.relative_table.size(1) - 1);
  }
  if (draw.one_in(8)) {
    p.score = Score::cosine;
  } else if (draw.one_in(10)) {
    p.score = Score::additive;
    c.additive_v = random_tensor(c.small(), {s.heads, s.head_dim}, 24);
  }
  if (draw.one_in(3)) c.grad_lse = random_tensor(c.small(), {s.batch, s.heads, s.q_len}, 25);
  if (draw.one_in(4)) c.grad_entropy = random_tensor(c.small(), {s.batch, s.heads, s.q_len}, 26);
}

void draw_masks(Draw& draw, const Sizes& s, AttentionCase& c) {
  auto some = [&](std::int64_t size) { return draw.one_in(2) ? 1 : size; };
  if (draw.one_in(4)) c.mask = random_mask({some(s.batch), some(s.heads), s.q_len, s.kv_len}, 27, 0.7);
  if (draw.one_in(4)) {
    const std::int64_t rows = draw.one_in(3) ? 1 : s.q_len;
    c.bias = random_tensor(draw.one_in(2) ? c.small() : c.dtype, {some(s.batch), some(s.heads), rows, s.kv_len}, 28);
  }
  if (draw.one_in(4)) {
    c.scalars.block_q = draw.from(1, 90);
    c.scalars.block_kv = draw.from(1, 90);
    c.block_mask = random_mask({some(s.batch), some(s.heads), blocks_over(s.q_len, c.scalars.block_q),
                                blocks_over(s.kv_len, c.scalars.block_kv)},
                               29, 0.6);
  }
  if (draw.one_in(4)) {
    std::vector<std::int32_t> lengths;
    for (std::int64_t b = 0; b < s.batch; ++b) lengths.push_back(static_cast<std::int32_t>(draw.from(0, s.kv_len)));
    c.kv_lengths = i32_tensor(lengths);
  }
  if (draw.one_in(2)) {
    c.pooled_rows = draw.from(1, std::min<std::int64_t>(s.q_len, 9));
    c.pooled_columns = draw.from(1, std::min<std::int64_t>(s.kv_len, 9));
  }
}

// Ranges of any lengths, handed out to any rank.
Shares random_shares(Draw& draw, std::int64_t total, int ranks) {
  Shares shares(static_cast<std::size_t>(ranks));
  for (std::int64_t begin = 0; begin < total;) {
    const std::int64_t end = std::min(total, begin + draw.from(1, 1 + total / ranks));
    shares[static_cast<std::size_t>(draw.from(0, ranks - 1))].push_back({begin, end});
    begin = end;
  }
  return shares;
}

Shares draw_shares(Draw& draw, std::int64_t total, int ranks) {
  switch (draw.from(0, 3)) {
    case 0: return contiguous_shares(total, ranks);
    case 1: return zigzag_shares(total, ranks);
    case 2: return striped_shares(total, ranks, draw.from(1, 70));
    default: return random_shares(draw, total, ranks);
  }
}

}  // namespace

RandomCall random_call(std::uint64_t seed, int ranks) {
  Draw draw(seed);
  RandomCall call;
  AttentionCase& c = call.problem;
  c.name = "seed " + std::to_string(seed);
  c.dtype = draw.of({DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64});
  const bool packed = draw.one_in(4);
  Sizes s{.batch = packed ? 1 : draw.from(1, 2),
          .heads = 0,
          .kv_heads = draw.from(1, 2),
          .q_len = 0,
          .kv_len = 0,
          .head_dim = draw.from(1, 40),
          .value_dim = draw.from(1, 70)};
  s.heads = s.kv_heads * draw.from(1, 3);
  const std::int64_t longest = c.dtype == DType::f64 ? 70 : 260;
  s.q_len = draw.from(1, longest);
  s.kv_len = draw.one_in(2) || packed ? s.q_len : draw.from(1, longest);
  auto data = [&](std::int64_t heads, std::int64_t len, std::int64_t dim, unsigned number) {
    return DataTensor(random_tensor(c.dtype, {s.batch, heads, len, dim}, static_cast<unsigned>(seed) + number),
                      draw.one_in(3));
  };
  c.q = data(s.heads, s.q_len, s.head_dim, 1);
  c.k = data(s.kv_heads, s.kv_len, s.head_dim, 2);
  c.v = data(s.kv_heads, s.kv_len, s.value_dim, 3);
  c.grad_out = data(s.heads, s.q_len, s.value_dim, 4);
  draw_logits(draw, s, c);
  if (packed) {
    std::vector<std::int32_t> starts = {0};
    while (starts.back() < s.q_len) {
      starts.push_back(static_cast<std::int32_t>(std::min(s.q_len, starts.back() + draw.from(0, 120))));
    }
    c.q_starts = i32_tensor(starts);
    c.kv_starts = i32_tensor(starts);
  } else {
    draw_masks(draw, s, c);
  }
  DistributedParams d{.key_chunk = 8 * draw.from(1, 20), .query_block = draw.from(1, 90), .buffers = draw.from(2, 4)};
  d.timeout_seconds = 120;
  call.one = call.many = d;
  call.one.queries = contiguous_shares(s.q_len, 1);
  call.one.keys = contiguous_shares(s.kv_len, 1);
  call.many.queries = packed && draw.one_in(2) ? document_shares(c.q_starts, ranks, c.scalars.causal)
                                               : draw_shares(draw, s.q_len, ranks);
  call.many.keys = draw.one_in(2) && s.q_len == s.kv_len ? call.many.queries : draw_shares(draw, s.kv_len, ranks);
  const bool rows = c.mask.defined() || c.bias.defined();
  call.many.scheme = draw.of({Scheme::automatic, Scheme::ring, Scheme::gather, rows ? Scheme::ring : Scheme::heads,
                              rows ? Scheme::gather : Scheme::both});
  if (call.many.scheme == Scheme::both) {
    do {
      call.many.head_ranks = static_cast<int>(draw.from(1, ranks));
    } while (ranks % call.many.head_ranks != 0);
  }
  return call;
}

}  // namespace rootdk::test
