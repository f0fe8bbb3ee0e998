// Decoding over a paged cache: two prompts, then token after token for both in one call, and a fork that shares the
// pages of its parent. The numbers are random; a model would compute q, k and v.

#include <cmath>
#include <cstdio>
#include <random>

#include <rootdk/rootdk.h>

using namespace rootdk;

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kHeadDim = 64;

int main() try {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  const auto random = [&](std::int64_t heads, std::int64_t tokens) {
    Tensor result(DType::f32, {1, heads, tokens, kHeadDim});
    for (float& x : result.values<float>()) x = normal(generator);
    return result;
  };

  // Keys and values are kept in bf16, in pages of 16 tokens; queries may be of any type.
  KvCache cache({.dtype = DType::bf16, .kv_heads = kKvHeads, .head_dim = kHeadDim, .page_size = 16, .pages = 32});
  const SequenceId a = cache.open(), b = cache.open();
  const AppendParams keys{.rope = RopeParams{}};     // keys are rotated on their way in,
  const AttendParams queries{.rope = RopeParams{}};  // queries when they attend

  // Prompts of 40 and 7 tokens. Rows of a call follow one another: the first 40 are a's.
  append(cache, random(kKvHeads, 47), random(kKvHeads, 47),
         {{.sequence = a, .tokens = 40}, {.sequence = b, .tokens = 7}}, keys);

  // A second continuation of a: its three pages are shared until one of the two writes into the last.
  const SequenceId fork = cache.fork(a);
  const auto print = [&](const char* when) {
    const KvCacheUsage usage = cache.usage();
    std::printf("%s: %lld of %lld pages in use, %lld shared\n", when,
                static_cast<long long>(usage.pages - usage.free_pages), static_cast<long long>(usage.pages),
                static_cast<long long>(usage.shared_pages));
  };
  print("after the fork");

  const KvStep steps[] = {{.sequence = a}, {.sequence = fork}, {.sequence = b}};  // a token each
  for (int token = 0; token < 3; ++token) {
    append(cache, random(kKvHeads, 3), random(kKvHeads, 3), steps, keys);
    Tensor out(DType::f32, {1, kHeads, 3, kHeadDim}), entropy(DType::f32, {1, kHeads, 3});
    attend(cache, random(kHeads, 3), out, steps, queries, {.entropy = entropy});
    std::printf("token %d: head 0 attends to about %.1f keys in a, %.1f in its fork, %.1f in b\n", token,
                std::exp(entropy.values<float>()[0]), std::exp(entropy.values<float>()[1]),
                std::exp(entropy.values<float>()[2]));
  }
  print("after three tokens");

  cache.trim(fork, 40);  // takes the fork's tokens back
  cache.close(b);
  print("after trim and close");
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
