#pragma once

// Attention over a sequence that is cut over ranks: processes or machines that exchange messages.
//
//     const Shares shares = zigzag_shares(total, transport.size());
//     distributed_attention(transport, q, k, v, out, {.queries = shares}, {.causal = true});
//
// q, k, v and out are this rank's rows. Every rank makes the same call with its own tensors. Out, statistics and
// gradients have the same bits for any number of ranks, any shares and any scheme (docs/decisions/0019): a row's keys
// are cut at fixed positions and come in order. Out and the statistics of rows have those of attention() itself where
// key_chunk is a multiple of 1024 (docs/scale.md names the exceptions, and says how to choose).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rootdk/attention.h"
#include "rootdk/export.h"

namespace rootdk {

// Device memory that goes to a rank or comes from it.
struct DeviceMessage {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Messages between the ranks of a group. Adapters: rootdk/mpi.h, rootdk/nccl.h, thread_transports() below, and in
// Python any group of torch.distributed. Messages from one rank to another arrive in the order in which they were
// posted. One thread calls at a time. A failure throws Error of kind device; a group with a failure is of no further
// use.
class ROOTDK_API Transport {
 public:
  using Transfer = std::int64_t;  // 0: none

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Begin a transfer and return at once. The memory stays untouched by the caller until wait() has returned.
  virtual Transfer post_send(int to, const void* data, std::size_t bytes) = 0;
  virtual Transfer post_receive(int from, void* data, std::size_t bytes) = 0;
  // Returns when the transfer has ended; throws where it fails or takes longer than timeout_seconds.
  virtual void wait(Transfer transfer, double timeout_seconds) = 0;
  // For libraries that move data only while one of their functions runs: called often while a rank computes, as long as
  // it returns true.
  virtual bool progress() { return false; }

  // send holds size() messages one after another, message r for rank r; receive likewise, message r from rank r.
  virtual void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* receive,
                          std::span<const std::size_t> receive_bytes, double timeout_seconds);

  // Whether exchange_on_device() takes memory of this device. If not, tensors of a device go through pinned memory of
  // the host and the functions above.
  virtual bool takes_device_memory(Device device) const;
  // All messages at once, after what is queued on `stream` (cudaStream_t) so far. Returns when they have ended, or when
  // they are queued on the stream; throws where they fail or take longer than timeout_seconds.
  virtual void exchange_on_device(std::span<const DeviceMessage> send, std::span<const DeviceMessage> receive,
                                  void* stream, double timeout_seconds);
};

// The ranks of a group as threads of this process: for tests, and for trying things out. Each rank is used by one
// thread. A rank whose transport is destroyed while others wait for it counts as dead: they get an error.
ROOTDK_API std::vector<std::unique_ptr<Transport>> thread_transports(int ranks);

// Rows of a sequence, [begin, end).
struct RowRange {
  std::int64_t begin = 0, end = 0;

  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// Which rows of the whole each rank holds, in the order in which they lie in its tensors. Every row has one holder.
using Shares = std::vector<std::vector<RowRange>>;

// Equal runs of rows: rank r has [r total / ranks, (r + 1) total / ranks). For attention without causal.
ROOTDK_API Shares contiguous_shares(std::int64_t total, int ranks);
// Two runs a rank, the r-th and the r-th from the end of 2 ranks: the same work for each rank under causal.
ROOTDK_API Shares zigzag_shares(std::int64_t total, int ranks);
// Runs of `run` rows dealt out in turn, rank r has the r-th and every ranks-th after it. With runs of key_chunk rows
// every rank has the same work with each chunk under causal, and all links are busy in both directions: the best for a
// ring.
ROOTDK_API Shares striped_shares(std::int64_t total, int ranks, std::int64_t run = 1024);
// For packed sequences of any lengths: runs of rows of each, handed out so that ranks have the same work.
ROOTDK_API Shares document_shares(ConstTensorView starts, int ranks, bool causal);
// How many rows a rank has.
ROOTDK_API std::int64_t rows_of(const Shares& shares, int rank);

enum class Scheme : std::int32_t {
  automatic = 0,  // by the cost model; explain_distributed() shows it
  ring = 1,       // chunks of keys pass by, a few in memory at a time
  gather = 2,     // the same, with memory for all chunks that a rank needs: no rank waits for a slower one
  heads = 3,      // Ulysses: all rows of some heads, exchanged before and after
  both = 4,       // heads are exchanged among groups of head_ranks ranks, and chunks of keys pass from group to group
};
ROOTDK_API const char* name_of(Scheme scheme);

// What the cost model knows of the machines.
struct MachineRates {
  double flops = 5e10;            // multiplications and additions a second of a rank, in attention
  double link_bytes = 1e9;        // bytes a second that a rank sends while it receives as many
  double link_latency = 5e-5;     // seconds a message
  double memory_bytes = 1 << 30;  // that a rank may take beside its tensors
};

struct DistributedParams {
  Shares queries{};  // rows of q, out and row statistics
  Shares keys{};     // rows of k, v and column statistics; not given: those of the queries

  Scheme scheme = Scheme::automatic;
  // Where sums are cut. Results depend on these two in their last bits, and on nothing else here.
  std::int64_t key_chunk = 1024;  // a multiple of 8
  std::int64_t query_block = 256;

  int head_ranks = 0;            // of scheme both: a divisor of the ranks, whose groups follow one another; 0: by cost
  std::int64_t buffers = 3;      // chunks in memory at a time in a ring, at least 2
  double timeout_seconds = 300;  // of each wait for another rank
  MachineRates rates{};
};

// The operation of attention() on the whole sequence. AttentionParams describe the whole: kv_lengths, q_starts,
// kv_starts and block_mask count its rows. mask and bias have this rank's rows, or one for all, and all keys:
// [batch, heads, rows here, kv_len]. lse, max_logit, max_weight, entropy and sum_p2 are those of this rank's rows,
// column_mass that of its keys, weights [batch, heads, rows here or weight_rows, kv_len] with weight_rows counted here,
// pooled_map the map of the whole on every rank. Bad input on one rank is an error on every rank.
//
// Tensors on a CUDA device, one rank a device or several: keys and values are gathered, and the rows of a rank are
// calls of attention() over the keys that they see, on execution.cuda.stream and streams beside it; out and the
// statistics of rows have the bits of one call (docs/scale.md names the exceptions, and what is served). Memory comes
// from the device's pool (cudaMallocAsync); execution.cuda.workspace is not used. The host waits for the transfers, not
// for the calls. q_starts and kv_starts may lie in memory of the host.
ROOTDK_API void distributed_attention(Transport& transport, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                                      TensorView out, const DistributedParams& distributed,
                                      const AttentionParams& params = {}, const AttentionStats& stats = {},
                                      const Execution& execution = {});

// All tensors are this rank's rows. Gradients of q, k, v, column_mass and a bias with rows are those of this rank; of
// relative_table, alibi_slopes, sinks, additive_v and a bias with one row for all, those of the whole on every rank.
ROOTDK_API void distributed_attention_backward(Transport& transport, const AttentionSaved& saved,
                                               const AttentionUpstream& upstream, const AttentionGradients& gradients,
                                               const DistributedParams& distributed, const AttentionParams& params = {},
                                               const Execution& execution = {});

// Decoding over a cache that is cut over ranks: every rank has the same q [batch, heads, q_len, head_dim] and attends
// to keys of its own, for example by attend() or attention() with stats.lse. Combines the states of the ranks, in order
// of rank, into the same result on every rank. out and lse are read and overwritten.
ROOTDK_API void merge_over_ranks(Transport& transport, TensorView out, TensorView lse, double timeout_seconds = 300);

// The sizes of a distributed call, for plans on paper.
struct DistributedShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, head_dim = 64, value_dim = 64;
  std::int64_t q_len = 0, kv_len = 0;  // of the whole; packed sequences: their total
  std::int64_t element_bytes = 4;
  bool backward = false;
};

// One scheme as the cost model sees it, for the rank that takes longest.
struct SchemeCost {
  Scheme scheme = Scheme::ring;
  std::string refusal{};        // why it cannot serve the call; empty: it can
  double compute_seconds = 0;   // tiles of the rank with the most
  double waiting_seconds = 0;   // for ranks that have more to do with the same chunks
  double transfer_seconds = 0;  // at the rate of the link, were nothing computed
  double total_seconds = 0;     // what of the transfer is not hidden, included
  double efficiency = 0;        // time of the work spread evenly with no transfer, over total_seconds
  double sent_bytes = 0;        // by the rank that sends most
  double buffer_bytes = 0;      // beside the caller's tensors
  int head_ranks = 0;           // of scheme both
};

struct DistributedExplanation {
  Scheme chosen = Scheme::automatic;
  int head_ranks = 0;                 // where both is chosen
  std::vector<SchemeCost> schemes{};  // ring, gather, heads, both
  std::string error{};                // what the call would say of these arguments; empty: nothing
};

// Exchanges nothing: every rank gets the same answer. docs/scale.md has the model.
ROOTDK_API DistributedExplanation explain_distributed(const DistributedShape& shape,
                                                      const DistributedParams& distributed,
                                                      const AttentionParams& params = {});

}  // namespace rootdk
