/* The C ABI over rootdk/distributed.h: attention over ranks, with the caller's own transport. The rules are those of
 * rootdk/c_api.h. */
#ifndef ROOTDK_DISTRIBUTED_C_API_H
#define ROOTDK_DISTRIBUTED_C_API_H

#include "rootdk/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* rootdk::DeviceMessage */
typedef struct rootdk_device_message {
  int32_t peer;
  void* data;
  size_t bytes;
} rootdk_device_message;

/* rootdk::Transport as functions. They may be called from a thread of the library, one at a time. */
typedef struct rootdk_transport {
  size_t struct_size;
  int32_t rank, size;
  void* user;
  /* Begin a transfer and return its number, above 0; 0 after a failure. */
  int64_t (*post_send)(void* user, int32_t to, const void* data, size_t bytes);
  int64_t (*post_receive)(void* user, int32_t from, void* data, size_t bytes);
  /* 0 when the transfer has ended; anything else where it failed or took longer. */
  int32_t (*wait)(void* user, int64_t transfer, double timeout_seconds);
  void (*progress)(void* user);            /* may be null */
  const char* (*last_failure)(void* user); /* why a function failed; may be null */
  /* May be null: tensors of a CUDA device then go through pinned memory of the host and the functions above. All
   * messages at once, after what is queued on `stream` (cudaStream_t) so far. 0 when they have ended, or are queued on
   * the stream; anything else where they failed. */
  int32_t (*exchange_on_device)(void* user, const rootdk_device_message* send, size_t sends,
                                const rootdk_device_message* receive, size_t receives, void* stream,
                                double timeout_seconds);
} rootdk_transport;

typedef struct rootdk_row_range {
  int64_t begin, end;
} rootdk_row_range;

/* rootdk::Scheme */
typedef enum rootdk_scheme {
  ROOTDK_SCHEME_AUTOMATIC = 0,
  ROOTDK_SCHEME_RING = 1,
  ROOTDK_SCHEME_GATHER = 2,
  ROOTDK_SCHEME_HEADS = 3,
  ROOTDK_SCHEME_BOTH = 4
} rootdk_scheme;

/* rootdk::DistributedParams. The ranges of all ranks follow one another; counts [ranks] says how many each has. */
typedef struct rootdk_distributed_params {
  size_t struct_size;
  const int64_t* query_counts;
  const rootdk_row_range* query_ranges;
  const int64_t* key_counts; /* null: the keys are held as the queries are */
  const rootdk_row_range* key_ranges;
  int32_t scheme; /* rootdk_scheme */
  int64_t key_chunk, query_block, buffers;
  double timeout_seconds;
  double flops, link_bytes, link_latency, memory_bytes; /* rootdk::MachineRates */
  int64_t head_ranks;                                   /* of scheme both; 0: by cost */
} rootdk_distributed_params;

/* Fill a struct with its defaults; struct_size is the caller's sizeof. */
ROOTDK_API rootdk_status rootdk_transport_init(rootdk_transport* transport, size_t struct_size);
ROOTDK_API rootdk_status rootdk_distributed_params_init(rootdk_distributed_params* params, size_t struct_size);

/* rootdk::contiguous_shares, zigzag_shares, document_shares, striped_shares (runs of 1024): `layout` 0 to 3. starts is
 * for documents alone, which take total from it. counts has room for `ranks` numbers, ranges for `room` ranges; *needed
 * gets how many there are, and ranges are written where they fit. */
ROOTDK_API rootdk_status rootdk_shares(int32_t layout, int64_t total, const rootdk_tensor* starts, int32_t causal,
                                       int32_t ranks, int64_t* counts, rootdk_row_range* ranges, size_t room,
                                       size_t* needed);

ROOTDK_API rootdk_status rootdk_distributed_attention(
    const rootdk_transport* transport, const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
    const rootdk_tensor* out, const rootdk_distributed_params* distributed, const rootdk_attention_params* params,
    const rootdk_attention_stats* stats, const rootdk_execution* execution);
ROOTDK_API rootdk_status rootdk_distributed_attention_backward(
    const rootdk_transport* transport, const rootdk_attention_saved* saved, const rootdk_attention_upstream* upstream,
    const rootdk_attention_gradients* gradients, const rootdk_distributed_params* distributed,
    const rootdk_attention_params* params, const rootdk_execution* execution);
ROOTDK_API rootdk_status rootdk_merge_over_ranks(const rootdk_transport* transport, const rootdk_tensor* out,
                                                 const rootdk_tensor* lse, double timeout_seconds);

#ifdef __cplusplus
}
#endif

#endif
