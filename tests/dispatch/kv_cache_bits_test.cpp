// attention() on the decode kernels has, bit by bit, what attend() gives over a cache of the same type, and attend()
// over any type what it gives token by token: thousands of random schedules, with prompts cut anywhere, tokens one by
// one or several at once, pages of several sizes, another sequence in the batch and any number of threads, on every
// target.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "rootdk/rootdk.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

// The implementations of attention() on decode kernels that this processor has.
std::vector<std::string> targets() {
  const Tensor x(DType::f32, {1, 1, 1, 16});
  Tensor out(DType::f32, {1, 1, 1, 16});
  std::vector<std::string> names;
  for (const auto& candidate : explain(x, x, x, out).candidates) {
    if (candidate.name.starts_with("decode_") && candidate.refusal.empty()) names.push_back(candidate.name);
  }
  names.push_back("decode");
  return names;
}

struct Schedule {
  std::uint64_t seed = 0;
  DType dtype = DType::f32;  // of q, k, v and out
  DType cache = DType::f32;  // where it is another one, attend() with whole prompts says what is expected
  std::int64_t kv_heads = 1, group = 1, head_dim = 16, value_dim = 16;
  std::int64_t page_size = 16;  // 0: contiguous
  std::int64_t len = 1;         // of each of two sequences
  std::int64_t most = 1;        // tokens of one call
  int threads = 1;
  LogitParams logits = {};
  std::int64_t window = -1;

  std::int64_t heads() const { return kv_heads * group; }
};

std::string describe(const Schedule& s) {
  std::ostringstream text;
  text << "seed " << s.seed << ", " << name_of(s.dtype) << " over " << name_of(s.cache) << ", heads " << s.heads()
       << "/" << s.kv_heads << ", head_dim " << s.head_dim << ", value_dim " << s.value_dim << ", pages of "
       << s.page_size << ", len " << s.len << ", up to " << s.most << " tokens a call, threads " << s.threads
       << ", window " << s.window << ", softcap " << s.logits.softcap;
  return text.str();
}

Schedule random_schedule(std::uint64_t seed) {
  std::mt19937_64 random(seed * 6007 + 11);
  auto pick = [&](auto... choices) {
    const std::int64_t all[] = {choices...};
    return all[random() % std::size(all)];
  };
  static const DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  static const DType kCaches[] = {DType::bf16, DType::i8, DType::f8e4m3};
  Schedule s{.seed = seed, .dtype = kTypes[seed % 3]};
  s.cache = random() % 3 == 0 ? kCaches[random() % 3] : s.dtype;
  s.kv_heads = pick(1, 2, 3);
  s.group = pick(1, 2, 3, 4, 7, 8);
  s.head_dim = pick(4, 16, 20, 32, 64, 72, 96, 128);
  s.value_dim = pick(1, 8, 24, 64, 80, 128);
  s.page_size = pick(0, 16, 16, 32, 48, 256);
  s.len = seed % 50 == 7 ? 1000 + pick(20, 24, 25, 70, 1100) : pick(1, 7, 16, 31, 33, 65, 100, 130);
  s.most = s.len > 1000 ? pick(200, 700, 1100) : pick(1, 2, 5, 17, 60, 130);
  s.threads = static_cast<int>(pick(1, 2, 3));
  s.logits.scale = random() % 3 ? 0.0 : 0.3;
  if (random() % 4 == 0) s.logits.softcap = 5.0;
  if (random() % 4 == 0) s.window = pick(3, 20, 70);
  return s;
}

// Two sequences of random tokens: what attention() makes of them, and what attend() does, call by call.
class TwoSequences {
 public:
  TwoSequences(const Schedule& schedule, const std::string& target)
      : s_(schedule), random_(schedule.seed * 31 + 5), target_(target), expected_(DType::f32, {1}) {
    q_ = random_tensor(s_.dtype, {2, s_.heads(), s_.len, s_.head_dim}, s_.seed * 3);
    k_ = random_tensor(s_.dtype, {2, s_.kv_heads, s_.len, s_.head_dim}, s_.seed * 3 + 1);
    v_ = random_tensor(s_.dtype, {2, s_.kv_heads, s_.len, s_.value_dim}, s_.seed * 3 + 2);
    expected_ = Tensor(s_.dtype, {2, s_.heads(), s_.len, s_.value_dim});
    expected_lse_ = Tensor(DType::f32, {2, s_.heads(), s_.len});
    cache_ = make_cache();
    for (SequenceId& id : sequences_) id = cache_->open();
    if (s_.cache == s_.dtype) {
      attention(q_, k_, v_, expected_, {.logits = s_.logits, .causal = true, .window_left = s_.window},
                {.lse = expected_lse_}, {.target = target_, .cpu = {.executor = &shared_executor(s_.threads)}});
    } else {
      attend_whole();
    }
  }

  // What differs, or nothing.
  std::string check() {
    std::int64_t done[2] = {0, 0};
    while (done[0] < s_.len || done[1] < s_.len) {
      std::int64_t tokens[2];
      for (int i = 0; i < 2; ++i) {
        // One by one now and then, whatever the schedule.
        const std::int64_t most = random_() % 4 == 0 ? 1 : s_.most;
        tokens[i] = std::min<std::int64_t>(s_.len - done[i], static_cast<std::int64_t>(random_() % (most + 1)));
      }
      if (tokens[0] + tokens[1] == 0) continue;
      std::string wrong = one_call(done, tokens);
      if (!wrong.empty()) return wrong;
      for (int i = 0; i < 2; ++i) done[i] += tokens[i];
    }
    return "";
  }

 private:
  std::unique_ptr<KvCache> make_cache() const {
    KvCacheConfig config{.dtype = s_.cache, .kv_heads = s_.kv_heads, .head_dim = s_.head_dim};
    config.value_dim = s_.value_dim;
    if (s_.page_size > 0) {
      config.page_size = s_.page_size;
      config.pages = 2 * (s_.len / s_.page_size + 1);
    } else {
      config.layout = KvLayout::contiguous;
      config.max_sequences = 2;
      config.max_len = s_.len;
    }
    return std::make_unique<KvCache>(config);
  }

  std::string attend_target() const { return target_ == "decode" ? "" : target_.substr(std::string("decode_").size()); }

  // Each sequence as one prompt, alone in its call.
  void attend_whole() {
    const auto cache = make_cache();
    for (int i = 0; i < 2; ++i) {
      const KvStep step{.sequence = cache->open(), .tokens = s_.len};
      append(*cache, k_.view().slice(0, i, i + 1), v_.view().slice(0, i, i + 1), {&step, 1});
      attend(*cache, q_.view().slice(0, i, i + 1), expected_.view().slice(0, i, i + 1), {&step, 1},
             {.logits = s_.logits, .window_left = s_.window}, {.lse = expected_lse_.view().slice(0, i, i + 1)},
             {.target = attend_target(), .cpu = {.executor = &shared_executor(s_.threads)}});
    }
  }

  // The tokens of both sequences one after another: [1, heads, tokens, dim].
  Tensor gather(const Tensor& from, const std::int64_t (&done)[2], const std::int64_t (&tokens)[2]) const {
    const std::int64_t heads = from.view().size(1), dim = from.view().size(3);
    Tensor to(s_.dtype, {1, heads, tokens[0] + tokens[1], dim});
    const std::size_t row = static_cast<std::size_t>(dim) * size_of(s_.dtype);
    auto* out = static_cast<std::byte*>(to.view().data);
    const auto* in = static_cast<const std::byte*>(from.view().data);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (int i = 0; i < 2; ++i) {
        const std::int64_t first = (i * heads + h) * s_.len + done[i];
        std::copy_n(in + static_cast<std::size_t>(first) * row, static_cast<std::size_t>(tokens[i]) * row, out);
        out += static_cast<std::size_t>(tokens[i]) * row;
      }
    }
    return to;
  }

  std::string one_call(const std::int64_t (&done)[2], const std::int64_t (&tokens)[2]) {
    const std::vector<KvStep> steps = {{.sequence = sequences_[0], .tokens = tokens[0]},
                                       {.sequence = sequences_[1], .tokens = tokens[1]}};
    append(*cache_, gather(k_, done, tokens), gather(v_, done, tokens), steps);
    const std::int64_t all = tokens[0] + tokens[1];
    Tensor out(s_.dtype, {1, s_.heads(), all, s_.value_dim}), lse(DType::f32, {1, s_.heads(), all});
    attend(*cache_, gather(q_, done, tokens), out, steps, {.logits = s_.logits, .window_left = s_.window}, {.lse = lse},
           {.target = attend_target(), .cpu = {.executor = &shared_executor(1 + s_.threads % 3)}});
    const std::vector<double> got = doubles(out), got_lse = doubles(lse);
    const std::vector<double>&want = wanted(), &want_lse = wanted_lse();
    for (std::int64_t h = 0; h < s_.heads(); ++h) {
      for (std::int64_t t = 0; t < all; ++t) {
        const int i = t < tokens[0] ? 0 : 1;
        const std::int64_t row = (i * s_.heads() + h) * s_.len + done[i] + (i ? t - tokens[0] : t);
        const std::int64_t here = h * all + t;
        bool same = got_lse[static_cast<std::size_t>(here)] == want_lse[static_cast<std::size_t>(row)];
        for (std::int64_t d = 0; d < s_.value_dim; ++d) {
          same = same && got[static_cast<std::size_t>(here * s_.value_dim + d)] ==
                             want[static_cast<std::size_t>(row * s_.value_dim + d)];
        }
        if (!same) {
          return "sequence " + std::to_string(i) + ", head " + std::to_string(h) + ", token " +
                 std::to_string(done[i] + (i ? t - tokens[0] : t)) + " of a call of " + std::to_string(all);
        }
      }
    }
    return "";
  }

  const std::vector<double>& wanted() {
    if (wanted_.empty()) wanted_ = doubles(expected_);
    return wanted_;
  }
  const std::vector<double>& wanted_lse() {
    if (wanted_lse_.empty()) wanted_lse_ = doubles(expected_lse_);
    return wanted_lse_;
  }

  Schedule s_;
  std::mt19937_64 random_;
  std::string target_;
  Tensor q_{DType::f32, {1}}, k_{DType::f32, {1}}, v_{DType::f32, {1}}, expected_, expected_lse_{DType::f32, {1}};
  std::vector<double> wanted_, wanted_lse_;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequences_[2] = {SequenceId::none, SequenceId::none};
};

// An emulated processor gets fewer.
#ifndef ROOTDK_TEST_SCHEDULES
#define ROOTDK_TEST_SCHEDULES 1000
#endif

class KvCacheBits : public testing::TestWithParam<std::string> {};

TEST_P(KvCacheBits, AttentionHasThoseOfAnyScheduleOfAttend) {
  for (std::uint64_t seed = 0; seed < ROOTDK_TEST_SCHEDULES; ++seed) {
    const Schedule schedule = random_schedule(seed);
    ASSERT_EQ(TwoSequences(schedule, GetParam()).check(), "") << describe(schedule);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KvCacheBits, testing::ValuesIn(targets()),
                         [](const auto& info) { return info.param; });

// Gradients of such a call run under the same name, and nothing runs under it that does not ask for it.
TEST(KvCacheBitsOfAttention, AreAskedForByName) {
  const Tensor q = random_tensor(DType::f32, {1, 2, 40, 16}, 1), k = random_tensor(DType::f32, {1, 1, 40, 16}, 2);
  Tensor out(DType::f32, {1, 2, 40, 16}), lse(DType::f32, {1, 2, 40}), dq(DType::f32, {1, 2, 40, 16});
  EXPECT_NE(explain(q, k, k, out, {.causal = true}).chosen, "decode");
  EXPECT_EQ(explain(q, k, k, out, {.causal = true}, {}, {.target = "decode"}).chosen, "decode");
  attention(q, k, k, out, {.causal = true}, {.lse = lse}, {.target = "decode"});
  attention_backward({.q = q, .k = k, .v = k, .out = out, .lse = lse}, {.out = out}, {.q = dq}, {.causal = true},
                     {.target = "decode"});
  EXPECT_THROW(attention(q, k, k, out, {.causal = true, .dropout = 0.5}, {}, {.target = "decode"}), Error);
}

}  // namespace
}  // namespace rootdk::test
