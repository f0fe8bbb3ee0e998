/* The C ABI over the whole public API: what Python and other languages load. Plain C99, no C++ types.
 *
 * Every function returns a rootdk_status; on failure rootdk_last_error() has the message of the calling thread. Structs
 * begin with their size, set by the matching *_init, and only ever grow at their end. So a caller may be older than the
 * library (the fields it does not know take their defaults) or newer (the fields that the library does not know must be
 * zero). A tensor that is not given is a null pointer. examples/plain_c.c is a whole program. */
#ifndef ROOTDK_C_API_H
#define ROOTDK_C_API_H

#include <stddef.h>
#include <stdint.h>

#include "rootdk/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rootdk_status {
  ROOTDK_OK = 0,
  ROOTDK_INVALID_ARGUMENT = 1,
  ROOTDK_OUT_OF_MEMORY = 2,
  ROOTDK_INTERNAL_ERROR = 3,
  ROOTDK_UNSUPPORTED = 4,  /* the call makes sense, but nothing that is built here serves it */
  ROOTDK_DEVICE_ERROR = 5, /* the device or its driver failed */
  ROOTDK_FILE_ERROR = 6    /* a file is missing, cannot be read or written, or does not hold what it should */
} rootdk_status;           /* rootdk::ErrorKind */

/* rootdk::DType, rootdk::DeviceKind, rootdk::Score, rootdk::Scale::Kind by number. */
typedef enum rootdk_dtype {
  ROOTDK_F32 = 0,
  ROOTDK_BF16 = 1,
  ROOTDK_F16 = 2,
  ROOTDK_F64 = 3,
  ROOTDK_I32 = 4,
  ROOTDK_I64 = 5,
  ROOTDK_BOOL = 6,
  ROOTDK_I8 = 7,
  ROOTDK_F8E4M3 = 8
} rootdk_dtype;
typedef enum rootdk_device_kind { ROOTDK_CPU = 0, ROOTDK_CUDA = 1 } rootdk_device_kind;
typedef enum rootdk_score { ROOTDK_DOT = 0, ROOTDK_COSINE = 1, ROOTDK_ADDITIVE = 2 } rootdk_score;
typedef enum rootdk_scale_kind {
  ROOTDK_SCALE_INVERSE_SQRT_HEAD_DIM = 0,
  ROOTDK_SCALE_NONE = 1,
  ROOTDK_SCALE_INVERSE_HEAD_DIM = 2,
  ROOTDK_SCALE_VALUE = 3
} rootdk_scale_kind;
/* The type that the products of attention run in. */
typedef enum rootdk_compute { ROOTDK_COMPUTE_AS_Q = 0, ROOTDK_COMPUTE_F8E4M3 = 1 } rootdk_compute;

#define ROOTDK_MAX_RANK 6

typedef struct rootdk_tensor {
  void* data;
  int32_t dtype;       /* rootdk_dtype */
  int32_t device_kind; /* rootdk_device_kind */
  int32_t device_index;
  int32_t rank;
  int64_t shape[ROOTDK_MAX_RANK];
  int64_t strides[ROOTDK_MAX_RANK]; /* in elements */
} rootdk_tensor;

/* A contiguous, row-major tensor on the CPU; device and strides may be changed afterwards. */
ROOTDK_API rootdk_status rootdk_tensor_init(rootdk_tensor* tensor, void* data, int32_t dtype, int32_t rank,
                                            const int64_t* shape);

/* rootdk::AttentionParams, field by field. */
typedef struct rootdk_attention_params {
  size_t struct_size;
  int32_t score;
  int32_t scale_kind;
  double scale; /* with ROOTDK_SCALE_VALUE */
  double temperature;
  double softcap;
  int32_t causal;
  int64_t window_left, window_right;
  const rootdk_tensor* kv_lengths;
  const rootdk_tensor* mask;
  const rootdk_tensor* block_mask;
  int64_t block_q, block_kv;
  const rootdk_tensor* q_starts;
  const rootdk_tensor* kv_starts;
  int64_t max_q_len, max_kv_len;
  const rootdk_tensor* bias;
  const rootdk_tensor* relative_table;
  int64_t relative_zero;
  const rootdk_tensor* alibi_slopes;
  const rootdk_tensor* sinks;
  const rootdk_tensor* additive_v;
  double dropout;
  uint64_t seed;
  int32_t compute; /* rootdk_compute */
  /* rootdk::Fp8Params; the tensors belong to q, k and v in ROOTDK_F8E4M3 */
  int32_t rotate;
  const rootdk_tensor *q_scales, *k_scales, *v_scales, *q_shift;
} rootdk_attention_params;

/* rootdk::AttentionStats, and the StatsRequest in weight_rows and stride */
typedef struct rootdk_attention_stats {
  size_t struct_size;
  const rootdk_tensor* lse;
  const rootdk_tensor* max_logit;
  const rootdk_tensor* max_weight;
  const rootdk_tensor* entropy;
  const rootdk_tensor* sum_p2;
  const rootdk_tensor* column_mass;
  const rootdk_tensor* pooled_map;
  const rootdk_tensor* weights;
  const rootdk_tensor* weight_rows;
  int64_t stride;
} rootdk_attention_stats;

/* A caller's own thread pool: run task(context, index) for every index in [0, count), then return. */
typedef void (*rootdk_task)(void* context, int64_t index);
typedef void (*rootdk_parallel_for)(void* user, int64_t count, rootdk_task task, void* context);

/* Device scratch memory of so many bytes, or null. It is used in the order of the stream, by one call. */
typedef void* (*rootdk_allocate)(void* user, size_t bytes);

/* rootdk::Execution */
typedef struct rootdk_execution {
  size_t struct_size;
  int32_t threads;                  /* 0: the default pool */
  rootdk_parallel_for parallel_for; /* null: the library's pool */
  void* parallel_user;
  int32_t parallel_threads; /* width of the caller's pool */
  const char* target;       /* null: the first implementation that accepts */
  size_t workspace_limit;
  void* stream;
  void* workspace;
  size_t workspace_bytes;
  rootdk_allocate allocate; /* null: workspace is what there is. Else see rootdk::CudaExecution */
  void* allocate_user;
} rootdk_execution;

/* rootdk::AttentionSaved, AttentionUpstream, AttentionGradients */
typedef struct rootdk_attention_saved {
  size_t struct_size;
  const rootdk_tensor *q, *k, *v, *out, *lse, *entropy;
} rootdk_attention_saved;
typedef struct rootdk_attention_upstream {
  size_t struct_size;
  const rootdk_tensor *out, *lse, *entropy;
} rootdk_attention_upstream;
typedef struct rootdk_attention_gradients {
  size_t struct_size;
  const rootdk_tensor *q, *k, *v, *bias, *relative_table, *alibi_slopes, *sinks, *additive_v, *column_mass;
} rootdk_attention_gradients;

ROOTDK_API const char* rootdk_version(void);
/* The message of the last failure on this thread; empty before the first. Valid until the next call on the thread. */
ROOTDK_API const char* rootdk_last_error(void);
/* For libraries that stand on this one (rootdk/models_c_api.h): what rootdk_last_error() gives on this thread. */
ROOTDK_API void rootdk_set_last_error(const char* message);

/* Fill a struct with its defaults. A null pointer is left alone. The macros at the end of this header pass the caller's
 * own size on, so that a newer library never writes past it. */
ROOTDK_API void rootdk_attention_params_init(rootdk_attention_params* params);
ROOTDK_API void rootdk_attention_stats_init(rootdk_attention_stats* stats);
ROOTDK_API void rootdk_execution_init(rootdk_execution* execution);
ROOTDK_API void rootdk_attention_saved_init(rootdk_attention_saved* saved);
ROOTDK_API void rootdk_attention_upstream_init(rootdk_attention_upstream* upstream);
ROOTDK_API void rootdk_attention_gradients_init(rootdk_attention_gradients* gradients);

/* params, stats and execution may be null: the defaults. */
ROOTDK_API rootdk_status rootdk_attention(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                                          const rootdk_tensor* out, const rootdk_attention_params* params,
                                          const rootdk_attention_stats* stats, const rootdk_execution* execution);
ROOTDK_API rootdk_status rootdk_attention_backward(const rootdk_attention_saved* saved,
                                                   const rootdk_attention_upstream* upstream,
                                                   const rootdk_attention_gradients* gradients,
                                                   const rootdk_attention_params* params,
                                                   const rootdk_execution* execution);
ROOTDK_API rootdk_status rootdk_attention_workspace(const rootdk_tensor* q, const rootdk_tensor* k,
                                                    const rootdk_tensor* v, const rootdk_tensor* out,
                                                    const rootdk_attention_params* params,
                                                    const rootdk_attention_stats* stats, size_t* bytes);
/* The same where an execution forces a target. */
ROOTDK_API rootdk_status rootdk_attention_workspace_on(const rootdk_tensor* q, const rootdk_tensor* k,
                                                       const rootdk_tensor* v, const rootdk_tensor* out,
                                                       const rootdk_attention_params* params,
                                                       const rootdk_attention_stats* stats,
                                                       const rootdk_execution* execution, size_t* bytes);
ROOTDK_API rootdk_status rootdk_attention_backward_workspace(const rootdk_attention_saved* saved,
                                                             const rootdk_attention_upstream* upstream,
                                                             const rootdk_attention_gradients* gradients,
                                                             const rootdk_attention_params* params, size_t* bytes);
ROOTDK_API rootdk_status rootdk_attention_backward_workspace_on(const rootdk_attention_saved* saved,
                                                                const rootdk_attention_upstream* upstream,
                                                                const rootdk_attention_gradients* gradients,
                                                                const rootdk_attention_params* params,
                                                                const rootdk_execution* execution, size_t* bytes);

/* rootdk::QuantizedViews; q_shift and key_mean may be null. */
typedef struct rootdk_quantized {
  size_t struct_size;
  const rootdk_tensor *q, *k, *v, *q_scales, *k_scales, *v_scales, *q_shift, *key_mean;
} rootdk_quantized;
/* rootdk::quantize_for_attention: e4m3 numbers with scales (rootdk/fp8.h), which rootdk_attention takes with the scales
 * in its params. params and execution may be null. */
ROOTDK_API rootdk_status rootdk_quantize_for_attention(const rootdk_tensor* q, const rootdk_tensor* k,
                                                       const rootdk_tensor* v, const rootdk_quantized* to,
                                                       const rootdk_attention_params* params,
                                                       const rootdk_execution* execution);
/* Device scratch memory that the call wants in rootdk_execution::workspace. */
ROOTDK_API rootdk_status rootdk_quantize_for_attention_workspace(const rootdk_tensor* q, const rootdk_tensor* k,
                                                                 const rootdk_tensor* v, const rootdk_quantized* to,
                                                                 const rootdk_attention_params* params,
                                                                 const rootdk_execution* execution, size_t* bytes);

/* Which implementation would run, as JSON: {"chosen": "...", "error": "...", "candidates": [{"name", "refusal"}]}.
 * Never fails for bad arguments. The text is valid until the next call on the thread. */
ROOTDK_API const char* rootdk_explain(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                                      const rootdk_tensor* out, const rootdk_attention_params* params,
                                      const rootdk_attention_stats* stats, const rootdk_execution* execution);
ROOTDK_API const char* rootdk_explain_backward(const rootdk_attention_saved* saved,
                                               const rootdk_attention_upstream* upstream,
                                               const rootdk_attention_gradients* gradients,
                                               const rootdk_attention_params* params,
                                               const rootdk_execution* execution);

/* rootdk::convert: source in the element type of out, which is contiguous and of the same shape, on the CPU. */
ROOTDK_API rootdk_status rootdk_tensor_convert(const rootdk_tensor* source, const rootdk_tensor* out);

/* merged_lse may be null. */
ROOTDK_API rootdk_status rootdk_merge_states(const rootdk_tensor* out, const rootdk_tensor* lse,
                                             const rootdk_tensor* merged_out, const rootdk_tensor* merged_lse);

/* 1 where the weight is kept, 0 where it is dropped. */
ROOTDK_API int32_t rootdk_dropout_keeps(double probability, uint64_t seed, uint32_t batch, uint32_t head, uint32_t i,
                                        uint32_t j);

/* Positional encodings: rootdk/positions.h, function by function. */
typedef struct rootdk_rope_params {
  size_t struct_size;
  int32_t layout; /* rootdk::RopeLayout */
  int64_t rotary_dim;
  double base;
  int32_t scaling; /* rootdk::RopeScaling */
  double factor;
  int64_t original_max_position;
  double beta_fast, beta_slow;
  int32_t truncate;
  double attention_factor;
  double low_freq_factor, high_freq_factor;
  int64_t offset;
} rootdk_rope_params;
ROOTDK_API void rootdk_rope_params_init(rootdk_rope_params* params);

/* positions may be null: params->offset, params->offset + 1, ... */
ROOTDK_API rootdk_status rootdk_rope(const rootdk_tensor* x, const rootdk_tensor* out, const rootdk_rope_params* params,
                                     const rootdk_tensor* positions);
ROOTDK_API rootdk_status rootdk_rope_backward(const rootdk_tensor* grad_out, const rootdk_tensor* grad_x,
                                              const rootdk_rope_params* params, const rootdk_tensor* positions);
/* attention_factor receives the factor on cos and sin; may be null. */
ROOTDK_API rootdk_status rootdk_rope_frequencies(const rootdk_tensor* out, int64_t head_dim,
                                                 const rootdk_rope_params* params, double* attention_factor);

/* layout: rootdk::SinusoidalLayout */
ROOTDK_API rootdk_status rootdk_sinusoidal_positions(const rootdk_tensor* out, int32_t layout, double base,
                                                     int64_t offset);
ROOTDK_API rootdk_status rootdk_add_learned_positions(const rootdk_tensor* x, const rootdk_tensor* table,
                                                      const rootdk_tensor* positions, int64_t offset);
ROOTDK_API rootdk_status rootdk_add_learned_positions_backward(const rootdk_tensor* grad_x,
                                                               const rootdk_tensor* grad_table,
                                                               const rootdk_tensor* positions, int64_t offset);
ROOTDK_API rootdk_status rootdk_t5_bucket(int64_t distance, int32_t bidirectional, int64_t buckets,
                                          int64_t max_distance, int64_t* bucket);
ROOTDK_API rootdk_status rootdk_t5_relative_table(const rootdk_tensor* weights, const rootdk_tensor* table,
                                                  int32_t bidirectional, int64_t buckets, int64_t max_distance);
ROOTDK_API rootdk_status rootdk_t5_relative_table_backward(const rootdk_tensor* grad_table,
                                                           const rootdk_tensor* grad_weights, int32_t bidirectional,
                                                           int64_t buckets, int64_t max_distance);
ROOTDK_API rootdk_status rootdk_alibi_slopes(const rootdk_tensor* out);
ROOTDK_API rootdk_status rootdk_transformer_xl_bias(const rootdk_tensor* q, const rootdk_tensor* v_bias,
                                                    const rootdk_tensor* r, const rootdk_tensor* bias, double scale,
                                                    int64_t zero);
/* grad_q, grad_v_bias and grad_r may be null. */
ROOTDK_API rootdk_status rootdk_transformer_xl_bias_backward(const rootdk_tensor* q, const rootdk_tensor* v_bias,
                                                             const rootdk_tensor* r, const rootdk_tensor* grad_bias,
                                                             const rootdk_tensor* grad_q,
                                                             const rootdk_tensor* grad_v_bias,
                                                             const rootdk_tensor* grad_r, double scale, int64_t zero);

/* KV cache: rootdk/kv_cache.h, function by function. A sequence is a number; -1 is none. */
typedef struct rootdk_kv_cache rootdk_kv_cache;

typedef enum rootdk_kv_layout { ROOTDK_KV_CONTIGUOUS = 0, ROOTDK_KV_PAGED = 1 } rootdk_kv_layout;

/* rootdk::KvCacheConfig; the storage tensors may all be null: the cache's own memory (CPU alone). */
typedef struct rootdk_kv_cache_config {
  size_t struct_size;
  int32_t layout; /* rootdk_kv_layout */
  int32_t dtype;  /* ROOTDK_F32, ROOTDK_BF16, ROOTDK_F16, ROOTDK_I8 or ROOTDK_F8E4M3 */
  int64_t layers, kv_heads, head_dim, value_dim;
  int64_t page_size, pages;
  int64_t max_sequences, max_len;
  int32_t device_kind, device_index;
  const rootdk_tensor *k, *v, *k_scales, *v_scales;
} rootdk_kv_cache_config;

/* rootdk::KvCacheUsage */
typedef struct rootdk_kv_usage {
  int64_t sequences, pages, free_pages, shared_pages, bytes;
} rootdk_kv_usage;

/* rootdk::KvStep */
typedef struct rootdk_kv_step {
  int64_t sequence, tokens, position; /* position -1: the end */
} rootdk_kv_step;

/* rootdk::AttendParams; rope may be null. */
typedef struct rootdk_attend_params {
  size_t struct_size;
  int64_t layer;
  int32_t scale_kind;
  double scale; /* with ROOTDK_SCALE_VALUE */
  double temperature, softcap;
  int64_t window_left, window_keeps_first;
  const rootdk_tensor* relative_table;
  int64_t relative_zero;
  const rootdk_tensor* alibi_slopes;
  const rootdk_tensor* sinks;
  const rootdk_rope_params* rope;
} rootdk_attend_params;

/* The row statistics of rootdk::AttentionStats; any may be null. */
typedef struct rootdk_attend_stats {
  size_t struct_size;
  const rootdk_tensor *lse, *max_logit, *max_weight, *entropy, *sum_p2;
} rootdk_attend_stats;

ROOTDK_API void rootdk_kv_cache_config_init(rootdk_kv_cache_config* config);
ROOTDK_API void rootdk_attend_params_init(rootdk_attend_params* params);
ROOTDK_API void rootdk_attend_stats_init(rootdk_attend_stats* stats);

/* The caller frees the cache with rootdk_kv_cache_destroy, which takes null too. */
ROOTDK_API rootdk_status rootdk_kv_cache_create(const rootdk_kv_cache_config* config, rootdk_kv_cache** cache);
ROOTDK_API void rootdk_kv_cache_destroy(rootdk_kv_cache* cache);
ROOTDK_API rootdk_status rootdk_kv_usage_of(const rootdk_kv_cache* cache, rootdk_kv_usage* usage);
ROOTDK_API rootdk_status rootdk_kv_open(rootdk_kv_cache* cache, int64_t* sequence);
/* length -1: all of the parent. */
ROOTDK_API rootdk_status rootdk_kv_fork(rootdk_kv_cache* cache, int64_t parent, int64_t length, int64_t* sequence);
ROOTDK_API rootdk_status rootdk_kv_close(rootdk_kv_cache* cache, int64_t sequence);
ROOTDK_API rootdk_status rootdk_kv_length(const rootdk_kv_cache* cache, int64_t sequence, int64_t layer,
                                          int64_t* length);
ROOTDK_API rootdk_status rootdk_kv_trim(rootdk_kv_cache* cache, int64_t sequence, int64_t length);
ROOTDK_API rootdk_status rootdk_kv_evict(rootdk_kv_cache* cache, int64_t sequence, int64_t keep_first,
                                         int64_t keep_last);
/* Pages in all, for a paged cache that owns its memory; fewer than it has change nothing. */
ROOTDK_API rootdk_status rootdk_kv_grow(rootdk_kv_cache* cache, int64_t pages);
/* The configuration with value_dim, page_size and pages resolved, without its storage. */
ROOTDK_API rootdk_status rootdk_kv_config_of(const rootdk_kv_cache* cache, rootdk_kv_cache_config* config);
/* KvCache::page_of and KvCache::page. Results that are null are left out; scales have rank 0 where there are none. */
ROOTDK_API rootdk_status rootdk_kv_page_of(const rootdk_kv_cache* cache, int64_t sequence, int64_t position,
                                           int64_t* page);
ROOTDK_API rootdk_status rootdk_kv_page(const rootdk_kv_cache* cache, int64_t page, int64_t layer, rootdk_tensor* k,
                                        rootdk_tensor* v, rootdk_tensor* k_scales, rootdk_tensor* v_scales,
                                        int64_t* references);
/* rope and execution may be null. */
ROOTDK_API rootdk_status rootdk_kv_append(rootdk_kv_cache* cache, const rootdk_tensor* k, const rootdk_tensor* v,
                                          const rootdk_kv_step* steps, size_t step_count, int64_t layer,
                                          const rootdk_rope_params* rope, const rootdk_execution* execution);
/* params, stats and execution may be null. */
ROOTDK_API rootdk_status rootdk_kv_attend(const rootdk_kv_cache* cache, const rootdk_tensor* q,
                                          const rootdk_tensor* out, const rootdk_kv_step* steps, size_t step_count,
                                          const rootdk_attend_params* params, const rootdk_attend_stats* stats,
                                          const rootdk_execution* execution);
/* Device scratch memory that the call wants in rootdk_execution::workspace. */
ROOTDK_API rootdk_status rootdk_kv_attend_workspace(const rootdk_kv_cache* cache, const rootdk_tensor* q,
                                                    const rootdk_tensor* out, const rootdk_kv_step* steps,
                                                    size_t step_count, const rootdk_attend_params* params,
                                                    const rootdk_attend_stats* stats, size_t* bytes);
ROOTDK_API rootdk_status rootdk_kv_attend_workspace_on(const rootdk_kv_cache* cache, const rootdk_tensor* q,
                                                       const rootdk_tensor* out, const rootdk_kv_step* steps,
                                                       size_t step_count, const rootdk_attend_params* params,
                                                       const rootdk_attend_stats* stats,
                                                       const rootdk_execution* execution, size_t* bytes);
/* As rootdk_explain. */
ROOTDK_API const char* rootdk_kv_explain_attend(const rootdk_kv_cache* cache, const rootdk_tensor* q,
                                                const rootdk_tensor* out, const rootdk_kv_step* steps,
                                                size_t step_count, const rootdk_attend_params* params,
                                                const rootdk_attend_stats* stats, const rootdk_execution* execution);

/* Fills a struct of the given kind with its defaults, as far as struct_size reaches. */
typedef enum rootdk_struct_kind {
  ROOTDK_STRUCT_ATTENTION_PARAMS = 0,
  ROOTDK_STRUCT_ATTENTION_STATS = 1,
  ROOTDK_STRUCT_EXECUTION = 2,
  ROOTDK_STRUCT_ATTENTION_SAVED = 3,
  ROOTDK_STRUCT_ATTENTION_UPSTREAM = 4,
  ROOTDK_STRUCT_ATTENTION_GRADIENTS = 5,
  ROOTDK_STRUCT_ROPE_PARAMS = 6,
  ROOTDK_STRUCT_KV_CACHE_CONFIG = 7,
  ROOTDK_STRUCT_ATTEND_PARAMS = 8,
  ROOTDK_STRUCT_ATTEND_STATS = 9,
  ROOTDK_STRUCT_QUANTIZED = 10
} rootdk_struct_kind;
ROOTDK_API rootdk_status rootdk_struct_init(void* value, int32_t kind, size_t struct_size);

#define rootdk_attention_params_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ATTENTION_PARAMS, sizeof *(p)))
#define rootdk_attention_stats_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ATTENTION_STATS, sizeof *(p)))
#define rootdk_execution_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_EXECUTION, sizeof *(p)))
#define rootdk_attention_saved_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ATTENTION_SAVED, sizeof *(p)))
#define rootdk_attention_upstream_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ATTENTION_UPSTREAM, sizeof *(p)))
#define rootdk_attention_gradients_init(p) \
  ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ATTENTION_GRADIENTS, sizeof *(p)))
#define rootdk_rope_params_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ROPE_PARAMS, sizeof *(p)))
#define rootdk_kv_cache_config_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_KV_CACHE_CONFIG, sizeof *(p)))
#define rootdk_attend_params_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ATTEND_PARAMS, sizeof *(p)))
#define rootdk_attend_stats_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_ATTEND_STATS, sizeof *(p)))
#define rootdk_quantized_init(p) ((void)rootdk_struct_init((p), ROOTDK_STRUCT_QUANTIZED, sizeof *(p)))

#ifdef __cplusplus
}
#endif

#endif
