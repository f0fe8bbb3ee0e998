#include "cuda/random_case.h"

#include <algorithm>
#include <cstdlib>
#include <random>

namespace rootdk::test {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::uint64_t bits() { return random_(); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }
  std::int64_t up_to(std::int64_t n) { return 1 + below(n); }
  bool chance(int one_in) { return below(one_in) == 0; }

 private:
  std::mt19937_64 random_;
};

void draw_packed(CaseSpec& spec, const RandomSizes& largest, Draw& draw) {
  const auto length = [&](std::int64_t most) {
    return static_cast<std::int32_t>(draw.chance(5) ? 0 : draw.below(most));
  };
  spec.batch = 1;
  spec.q_starts = spec.kv_starts = {0};
  for (int sequence = 0; sequence < 5; ++sequence) {
    spec.q_starts.push_back(spec.q_starts.back() + length(largest.packed_q_len));
    spec.kv_starts.push_back(spec.kv_starts.back() + length(largest.packed_kv_len));
  }
  for (auto* starts : {&spec.q_starts, &spec.kv_starts}) starts->back() = std::max(starts->back(), 1);
  spec.q_len = spec.q_starts.back();
  spec.kv_len = spec.kv_starts.back();
}

// What packed sequences cannot have.
void draw_dense(CaseSpec& spec, Draw& draw) {
  if (draw.chance(4)) {
    for (int b = 0; b < spec.batch; ++b) {
      spec.kv_lengths.push_back(static_cast<std::int32_t>(draw.below(spec.kv_len + 1)));
    }
  }
  if (draw.chance(5)) spec.bias = {1, spec.heads, spec.q_len, spec.kv_len};
  if (draw.chance(6)) spec.mask = {spec.batch, 1, spec.q_len, spec.kv_len};
}

}  // namespace

CaseSpec random_spec(std::uint64_t seed, const RandomSizes& largest) {
  Draw draw(seed);
  CaseSpec spec{.name = "random_" + std::to_string(seed)};
  spec.batch = draw.up_to(largest.batch);
  spec.kv_heads = draw.up_to(largest.kv_heads);
  spec.heads = spec.kv_heads * draw.up_to(largest.group);
  spec.q_len = draw.chance(3) ? draw.up_to(20) : draw.up_to(largest.q_len);
  spec.kv_len = draw.up_to(largest.kv_len);
  spec.head_dim = 8 * draw.up_to(32);
  spec.value_dim = draw.chance(3) ? 8 * draw.up_to(32) : spec.head_dim;
  spec.scalars.causal = draw.chance(2);
  if (draw.chance(3)) spec.scalars.window_left = draw.below(300);
  if (draw.chance(4)) spec.scalars.window_right = draw.below(300);
  if (draw.chance(4)) spec.scalars.logits.softcap = 1 + static_cast<double>(draw.below(30));
  spec.sinks = draw.chance(3);
  spec.alibi = draw.chance(4);
  spec.grad_lse = draw.chance(3);
  spec.grad_entropy = draw.chance(5);
  spec.length_first = draw.chance(2);
  spec.deviation = draw.chance(4) ? 3 : 1;
  if (draw.chance(5)) spec.scalars.dropout = 0.3, spec.scalars.seed = draw.bits();
  if (draw.chance(5))
    spec.relative_heads = spec.heads, spec.relative_entries = 65, spec.scalars.logits.relative_zero = 32;
  if (draw.chance(3)) {
    draw_packed(spec, largest, draw);
  } else {
    draw_dense(spec, draw);
  }
  return spec;
}

std::uint64_t random_seed() {
  const char* fixed = std::getenv("ROOTDK_TEST_SEED");
  return fixed ? std::strtoull(fixed, nullptr, 10) : std::random_device{}();
}

}  // namespace rootdk::test
