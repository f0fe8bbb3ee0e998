/* Attention from C: forward, backward, and an error that names its values. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <rootdk/c_api.h>

enum { BATCH = 1, HEADS = 4, KV_HEADS = 2, LEN = 128, HEAD_DIM = 32 };

static void check(rootdk_status status) {
  if (status == ROOTDK_OK) return;
  fprintf(stderr, "%s\n", rootdk_last_error());
  exit(1);
}

/* [BATCH, heads, LEN, dim], all zero; dim 0: [BATCH, heads, LEN]. */
static rootdk_tensor make(int heads, int dim) {
  const int64_t shape[] = {BATCH, heads, LEN, dim};
  rootdk_tensor tensor;
  void* memory = calloc((size_t)(BATCH * heads * LEN) * (size_t)(dim ? dim : 1), sizeof(float));
  check(rootdk_tensor_init(&tensor, memory, ROOTDK_F32, dim ? 4 : 3, shape));
  return tensor;
}

static rootdk_tensor wave(int heads, double step) {
  rootdk_tensor tensor = make(heads, HEAD_DIM);
  float* values = tensor.data;
  for (int i = 0; i < BATCH * heads * LEN * HEAD_DIM; ++i) values[i] = (float)sin(step * i);
  return tensor;
}

int main(void) {
  rootdk_tensor q = wave(HEADS, 0.37), k = wave(KV_HEADS, 0.21), v = wave(KV_HEADS, 0.13), grad_out = wave(HEADS, 0.07);
  rootdk_tensor out = make(HEADS, HEAD_DIM), grad_q = make(HEADS, HEAD_DIM), lse = make(HEADS, 0),
                entropy = make(HEADS, 0);

  rootdk_attention_params params;
  rootdk_attention_params_init(&params);
  params.causal = 1;
  rootdk_attention_stats stats;
  rootdk_attention_stats_init(&stats);
  stats.lse = &lse;
  stats.entropy = &entropy;
  check(rootdk_attention(&q, &k, &v, &out, &params, &stats, NULL));
  printf("the last row of head 0 attends to about %.1f keys (e^entropy)\n", exp(((float*)entropy.data)[LEN - 1]));

  rootdk_attention_saved saved;
  rootdk_attention_saved_init(&saved);
  saved.q = &q, saved.k = &k, saved.v = &v, saved.out = &out, saved.lse = &lse;
  rootdk_attention_upstream upstream;
  rootdk_attention_upstream_init(&upstream);
  upstream.out = &grad_out;
  rootdk_attention_gradients gradients; /* those that are not given are not computed */
  rootdk_attention_gradients_init(&gradients);
  gradients.q = &grad_q;
  check(rootdk_attention_backward(&saved, &upstream, &gradients, &params, NULL));
  printf("a gradient of q: %.4f\n", ((float*)grad_q.data)[LEN * HEAD_DIM - 1]);

  params.temperature = 0;
  if (rootdk_attention(&q, &k, &v, &out, &params, NULL, NULL) != ROOTDK_OK) printf("%s\n", rootdk_last_error());

  rootdk_tensor* all[] = {&q, &k, &v, &grad_out, &out, &grad_q, &lse, &entropy};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]->data);
  return 0;
}
