/* The C ABI over models: checkpoints, tokenizers, generation, and what the heads of a model do on a text. It lives in a
 * library of its own, librootdk_models, because it needs more than the standard library; errors are told by
 * rootdk_last_error() of librootdk, and structs begin with their size, as in rootdk/c_api.h.
 *
 * Text is UTF-8. A text or list that a function hands out is valid until the next call of this header on the thread. A
 * model may be used by several threads at once; a generation by one at a time. */
#ifndef ROOTDK_MODELS_C_API_H
#define ROOTDK_MODELS_C_API_H

#include "rootdk/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Asked a few times a second, on the thread that called, while a model computes. Not 0: the call ends with an error
 * that says that it was interrupted; so does every later call on the same generation. Null, as at first: never asked.
 */
typedef int32_t (*rootdk_interrupt_check)(void);
ROOTDK_API void rootdk_on_interrupt(rootdk_interrupt_check check);

typedef struct rootdk_model rootdk_model;

/* A folder in the transformers layout, or "builtin": the small model that comes with the project. */
ROOTDK_API rootdk_status rootdk_model_load(const char* folder, rootdk_model** model);

typedef enum rootdk_weights {
  ROOTDK_WEIGHTS_STORED = 0, /* as the checkpoint has them, mapped */
  ROOTDK_WEIGHTS_INT8 = 1,
  ROOTDK_WEIGHTS_INT4 = 2
} rootdk_weights;

typedef struct rootdk_load_params {
  size_t struct_size;
  int32_t weights;     /* rootdk_weights: what the matrices become as they are loaded */
  int32_t activations; /* what bf16 matrices multiply: ROOTDK_F32, or ROOTDK_BF16, faster for many tokens at once */
  int32_t threads;     /* 0: the default pool */
} rootdk_load_params;
ROOTDK_API void rootdk_load_params_init(rootdk_load_params* params);
ROOTDK_API void rootdk_load_params_init_sized(rootdk_load_params* params, size_t struct_size);
/* params may be null: the defaults, as rootdk_model_load has them. */
ROOTDK_API rootdk_status rootdk_model_load_with(const char* folder, const rootdk_load_params* params,
                                                rootdk_model** model);

/* Takes null too. What was made from the model is destroyed before it. */
ROOTDK_API void rootdk_model_destroy(rootdk_model* model);

typedef struct rootdk_model_info {
  size_t struct_size;
  const char* architecture; /* valid as long as the model */
  int64_t parameters;
  int64_t d_model, layers, heads, kv_heads;
  int64_t vocab_size;
  int64_t output_width; /* of rootdk_model_forward: the vocabulary, or d_model where gives_logits is 0 */
  int64_t max_position; /* 0: no limit */
  int32_t gives_logits;
  int32_t has_encoder;
  int32_t has_tokenizer;
} rootdk_model_info;
ROOTDK_API void rootdk_model_info_init(rootdk_model_info* info);
ROOTDK_API void rootdk_model_info_init_sized(rootdk_model_info* info, size_t struct_size);
ROOTDK_API rootdk_status rootdk_model_describe(const rootdk_model* model, rootdk_model_info* info);

/* special: with what the tokenizer puts around a text (<s>, [CLS], ...). */
ROOTDK_API rootdk_status rootdk_model_encode(const rootdk_model* model, const char* text, size_t text_bytes,
                                             int32_t special, const int32_t** ids, size_t* count);
/* with_special: special tokens stay in the text. */
ROOTDK_API rootdk_status rootdk_model_decode(const rootdk_model* model, const int32_t* ids, size_t count,
                                             int32_t with_special, const char** text, size_t* text_bytes);

/* One pass. ids [batch, len] and what may be null: mask (1 for tokens, 0 for padding), token_types, both of the same
 * shape, and decoder_ids [batch, decoder_len], which an encoder-decoder model needs; i32, i64 or booleans. out is f32
 * [batch, len or decoder_len, output_width], its rows contiguous. threads 0: the default pool. */
ROOTDK_API rootdk_status rootdk_model_forward(const rootdk_model* model, const rootdk_tensor* ids,
                                              const rootdk_tensor* mask, const rootdk_tensor* token_types,
                                              const rootdk_tensor* decoder_ids, const rootdk_tensor* out,
                                              int32_t threads);

/* Generation, token by token. */
typedef struct rootdk_generation rootdk_generation;

typedef struct rootdk_generate_params {
  size_t struct_size;
  int64_t max_new;
  int32_t greedy; /* the likeliest token; else drawn, as the next four say */
  double temperature;
  int64_t top_k; /* 0: all */
  double top_p;  /* 1: all */
  uint64_t seed;
  int32_t stop_at_end;       /* 0: end tokens are tokens like others */
  int32_t cache;             /* 0: computes the whole sequence anew for each token */
  int32_t threads;           /* 0: the default pool */
  double min_p;              /* tokens at least this fraction as likely as the likeliest; 0: all */
  double repetition_penalty; /* above 1: tokens that are in the text become less likely */
  const rootdk_model* draft; /* a small model that proposes tokens, or null; it outlives the generation */
  int64_t draft_tokens;      /* that it proposes at once */
  const char* const* stop;   /* the text ends before the first of these strings; needs a tokenizer */
  size_t stop_count;
  int32_t cache_type; /* rootdk_dtype of the keys and values that are kept; -1: that of the checkpoint */
} rootdk_generate_params;
ROOTDK_API void rootdk_generate_params_init(rootdk_generate_params* params);
ROOTDK_API void rootdk_generate_params_init_sized(rootdk_generate_params* params, size_t struct_size);

/* params may be null: the defaults. An empty prompt becomes the model's first token, where its config names one. */
ROOTDK_API rootdk_status rootdk_generation_begin(const rootdk_model* model, const int32_t* ids, size_t count,
                                                 const rootdk_generate_params* params, rootdk_generation** generation);
/* id receives the next token, or -1 at the end. text, which may be null, receives what the token adds to the text:
 * often a word, nothing where a character is not yet complete, and nothing without a tokenizer. With stop strings, text
 * that could begin one is held back, and what is left of it comes with the -1. */
ROOTDK_API rootdk_status rootdk_generation_next(rootdk_generation* generation, int32_t* id, const char** text,
                                                size_t* text_bytes);
ROOTDK_API void rootdk_generation_destroy(rootdk_generation* generation);

/* Many generations at once: requests join while others are under way. What a request gives does not depend on the
 * others. */
typedef struct rootdk_batch rootdk_batch;
typedef struct rootdk_batch_token {
  size_t request;
  int32_t id;
  int32_t last; /* 1: the request has ended */
} rootdk_batch_token;
/* max_sequences: under way at the same time, at least 1; cache_type as in rootdk_generate_params. */
ROOTDK_API rootdk_status rootdk_batch_create(const rootdk_model* model, int64_t max_sequences, int32_t cache_type,
                                             int32_t threads, rootdk_batch** batch);
/* request receives the number of the request, from 0 on. Of params, the fields about the cache, the draft, stop strings
 * and threads are not looked at. */
ROOTDK_API rootdk_status rootdk_batch_add(rootdk_batch* batch, const int32_t* ids, size_t count,
                                          const rootdk_generate_params* params, size_t* request);
/* One token for each request under way; count 0: all have ended. */
ROOTDK_API rootdk_status rootdk_batch_step(rootdk_batch* batch, const rootdk_batch_token** tokens, size_t* count);
/* Takes a request out before its end. */
ROOTDK_API rootdk_status rootdk_batch_cancel(rootdk_batch* batch, size_t request);
ROOTDK_API void rootdk_batch_destroy(rootdk_batch* batch);

/* Beam search: the likeliest continuations, the best first. */
typedef struct rootdk_beams rootdk_beams;
typedef struct rootdk_beam_params {
  size_t struct_size;
  int64_t beams;
  int64_t max_new;
  double length_penalty; /* a continuation counts with its log probability over length^penalty */
  int32_t stop_at_end;
  int32_t cache_type; /* as in rootdk_generate_params */
  int32_t threads;    /* 0: the default pool */
} rootdk_beam_params;
ROOTDK_API void rootdk_beam_params_init(rootdk_beam_params* params);
ROOTDK_API void rootdk_beam_params_init_sized(rootdk_beam_params* params, size_t struct_size);
/* count receives how many there are, at most params->beams. params may be null: the defaults. */
ROOTDK_API rootdk_status rootdk_beam_search(const rootdk_model* model, const int32_t* ids, size_t id_count,
                                            const rootdk_beam_params* params, rootdk_beams** beams, size_t* count);
/* The new tokens of one, valid as long as the beams; log_probability and score may be null. */
ROOTDK_API rootdk_status rootdk_beams_get(const rootdk_beams* beams, size_t index, const int32_t** ids, size_t* count,
                                          double* log_probability, double* score);
ROOTDK_API void rootdk_beams_destroy(rootdk_beams* beams);

/* Texts as vectors: the hidden states of an encoder, pooled. */
typedef enum rootdk_pooling {
  ROOTDK_POOLING_STORED = -1, /* what 1_Pooling/config.json of the folder says; else the mean */
  ROOTDK_POOLING_MEAN = 0,
  ROOTDK_POOLING_FIRST_TOKEN = 1
} rootdk_pooling;
/* out: f32 [count, d_model], contiguous. text_bytes: the size of each text. normalise: to length 1. truncated, which
 * may be null, receives how many texts are longer than the model's positions and lost their end. */
ROOTDK_API rootdk_status rootdk_model_embed(const rootdk_model* model, const char* const* texts,
                                            const size_t* text_bytes, size_t count, int32_t pooling, int32_t normalise,
                                            const rootdk_tensor* out, int64_t* truncated, int32_t threads);

/* What every head does on a text. */
typedef struct rootdk_inspection rootdk_inspection;

typedef struct rootdk_inspect_params {
  size_t struct_size;
  const int64_t* layers; /* only these; null: all */
  size_t layer_count;
  const int64_t* heads; /* only these; null: all */
  size_t head_count;
  int64_t map_side; /* cells of a map each way; shorter texts show every weight */
  int32_t threads;  /* 0: the default pool */
} rootdk_inspect_params;
ROOTDK_API void rootdk_inspect_params_init(rootdk_inspect_params* params);
ROOTDK_API void rootdk_inspect_params_init_sized(rootdk_inspect_params* params, size_t struct_size);

/* params may be null: the defaults. */
ROOTDK_API rootdk_status rootdk_model_inspect(const rootdk_model* model, const int32_t* ids, size_t count,
                                              const rootdk_inspect_params* params, rootdk_inspection** inspection);
/* {"model", "architecture", "tokens", "rules", "heads": [{"stack", "layer", "head", "label", "entropy", ...}], ...}:
 * what `rootdk inspect --json` prints. */
ROOTDK_API rootdk_status rootdk_inspection_json(const rootdk_inspection* inspection, const char** json,
                                                size_t* json_bytes);
/* The weights of a head, pooled where the text is long, [rows, columns]: the head at this place of the JSON's list. The
 * values are valid as long as the inspection. */
ROOTDK_API rootdk_status rootdk_inspection_map(const rootdk_inspection* inspection, size_t head, const float** values,
                                               int64_t* rows, int64_t* columns);
/* One self-contained HTML page. */
ROOTDK_API rootdk_status rootdk_inspection_page(const rootdk_inspection* inspection, const char** html,
                                                size_t* html_bytes);
ROOTDK_API void rootdk_inspection_destroy(rootdk_inspection* inspection);

/* As in rootdk/c_api.h: the caller's own size is passed on, so that a newer library never writes past it. */
#define rootdk_model_info_init(p) rootdk_model_info_init_sized((p), sizeof *(p))
#define rootdk_generate_params_init(p) rootdk_generate_params_init_sized((p), sizeof *(p))
#define rootdk_load_params_init(p) rootdk_load_params_init_sized((p), sizeof *(p))
#define rootdk_beam_params_init(p) rootdk_beam_params_init_sized((p), sizeof *(p))
#define rootdk_inspect_params_init(p) rootdk_inspect_params_init_sized((p), sizeof *(p))

#ifdef __cplusplus
}
#endif

#endif /* ROOTDK_MODELS_C_API_H */
