/* A program that was built against version 0.1 of the header (version_0_1/), running on the library of today. Queries
 * of zeros weigh every key alike, so that each answer is known: the mean of the values, and ln of the number of keys.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rootdk/c_api.h"

#define KEYS 8
#define DIM 16

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "failed: %s (last error: %s)\n", what, rootdk_last_error());
  ++failures;
}

static int near(float a, double b) { return fabs(a - b) < 1e-5; }

/* Structs on the stack of an old caller: whatever lies behind them is not the library's to write. */
#define GUARDED(type)        \
  struct {                   \
    type value;              \
    unsigned char fence[64]; \
  }
#define FENCE(s) memset((s).fence, 0xa5, sizeof(s).fence)
static int fence_holds(const unsigned char* fence, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (fence[i] != 0xa5) return 0;
  }
  return 1;
}

int main(void) {
  float q[DIM] = {0}, k[KEYS * DIM], v[KEYS * DIM], out[DIM], lse[1];
  double mean[DIM] = {0};
  for (int j = 0; j < KEYS; ++j) {
    for (int d = 0; d < DIM; ++d) {
      k[j * DIM + d] = sinf((float)(j + d));
      v[j * DIM + d] = cosf((float)(3 * j + d));
      mean[d] += v[j * DIM + d] / KEYS;
    }
  }
  const int64_t q_shape[4] = {1, 1, 1, DIM}, kv_shape[4] = {1, 1, KEYS, DIM}, row_shape[3] = {1, 1, 1};
  rootdk_tensor tq, tk, tv, tout, tlse;
  rootdk_tensor_init(&tq, q, ROOTDK_F32, 4, q_shape);
  rootdk_tensor_init(&tk, k, ROOTDK_F32, 4, kv_shape);
  rootdk_tensor_init(&tv, v, ROOTDK_F32, 4, kv_shape);
  rootdk_tensor_init(&tout, out, ROOTDK_F32, 4, q_shape);
  rootdk_tensor_init(&tlse, lse, ROOTDK_F32, 3, row_shape);

  GUARDED(rootdk_attention_params) params;
  GUARDED(rootdk_attention_stats) stats;
  GUARDED(rootdk_execution) execution;
  FENCE(params);
  FENCE(stats);
  FENCE(execution);
  rootdk_attention_params_init(&params.value);
  rootdk_attention_stats_init(&stats.value);
  rootdk_execution_init(&execution.value);
  expect(params.value.struct_size == sizeof params.value, "params keep the size of their caller");
  params.value.causal = 1;
  stats.value.lse = &tlse;
  execution.value.threads = 1;
  expect(rootdk_attention(&tq, &tk, &tv, &tout, &params.value, &stats.value, &execution.value) == ROOTDK_OK,
         "attention");
  for (int d = 0; d < DIM; ++d) expect(near(out[d], mean[d]), "the mean of the values");
  expect(near(lse[0], log(KEYS)), "lse");
  size_t bytes = 1;
  expect(
      rootdk_attention_workspace(&tq, &tk, &tv, &tout, &params.value, &stats.value, &bytes) == ROOTDK_OK && bytes == 0,
      "workspace");

  GUARDED(rootdk_attention_saved) saved;
  GUARDED(rootdk_attention_upstream) upstream;
  GUARDED(rootdk_attention_gradients) gradients;
  FENCE(saved);
  FENCE(upstream);
  FENCE(gradients);
  rootdk_attention_saved_init(&saved.value);
  rootdk_attention_upstream_init(&upstream.value);
  rootdk_attention_gradients_init(&gradients.value);
  float ones[DIM], grad_v[KEYS * DIM];
  for (int d = 0; d < DIM; ++d) ones[d] = 1;
  rootdk_tensor tones, tgrad_v;
  rootdk_tensor_init(&tones, ones, ROOTDK_F32, 4, q_shape);
  rootdk_tensor_init(&tgrad_v, grad_v, ROOTDK_F32, 4, kv_shape);
  saved.value.q = &tq;
  saved.value.k = &tk;
  saved.value.v = &tv;
  saved.value.out = &tout;
  saved.value.lse = &tlse;
  upstream.value.out = &tones;
  gradients.value.v = &tgrad_v;
  expect(rootdk_attention_backward(&saved.value, &upstream.value, &gradients.value, &params.value, NULL) == ROOTDK_OK,
         "backward");
  for (int i = 0; i < KEYS * DIM; ++i) expect(near(grad_v[i], 1.0 / KEYS), "the gradient of v");

  GUARDED(rootdk_kv_cache_config) config;
  GUARDED(rootdk_attend_params) attend;
  GUARDED(rootdk_attend_stats) attend_stats;
  GUARDED(rootdk_rope_params) rope;
  FENCE(config);
  FENCE(attend);
  FENCE(attend_stats);
  FENCE(rope);
  rootdk_kv_cache_config_init(&config.value);
  rootdk_attend_params_init(&attend.value);
  rootdk_attend_stats_init(&attend_stats.value);
  rootdk_rope_params_init(&rope.value);
  config.value.dtype = ROOTDK_F32;
  config.value.kv_heads = 1;
  config.value.head_dim = DIM;
  config.value.pages = 1;
  attend.value.rope = &rope.value;
  attend_stats.value.lse = &tlse;
  rootdk_kv_cache* cache = NULL;
  rootdk_kv_step step = {-1, KEYS, -1};
  expect(rootdk_kv_cache_create(&config.value, &cache) == ROOTDK_OK, "create");
  expect(rootdk_kv_open(cache, &step.sequence) == ROOTDK_OK, "open");
  expect(rootdk_kv_append(cache, &tk, &tv, &step, 1, 0, &rope.value, NULL) == ROOTDK_OK, "append");
  step.tokens = 1;
  memset(out, 0, sizeof out);
  expect(rootdk_kv_attend(cache, &tq, &tout, &step, 1, &attend.value, &attend_stats.value, NULL) == ROOTDK_OK,
         "attend");
  for (int d = 0; d < DIM; ++d) expect(near(out[d], mean[d]), "the mean of the cached values");
  rootdk_kv_cache_destroy(cache);

  expect(rootdk_attention(&tq, NULL, &tv, &tout, NULL, NULL, NULL) == ROOTDK_INVALID_ARGUMENT,
         "a missing k is refused");
  expect(strstr(rootdk_last_error(), "k is not given") != NULL, "its message");

#define EXPECT_FENCE(s) expect(fence_holds((s).fence, sizeof(s).fence), "nothing was written behind " #s)
  EXPECT_FENCE(params);
  EXPECT_FENCE(stats);
  EXPECT_FENCE(execution);
  EXPECT_FENCE(saved);
  EXPECT_FENCE(upstream);
  EXPECT_FENCE(gradients);
  EXPECT_FENCE(config);
  EXPECT_FENCE(attend);
  EXPECT_FENCE(attend_stats);
  EXPECT_FENCE(rope);
  printf("%d failed\n", failures);
  return failures != 0;
}
