// rootdk bench distributed: attention over ranks, under mpirun or with ranks as threads. The numbers in q, k and v
// belong to rows of the whole, so that `out_hash` is the same for any number of ranks.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/check.h"
#include "lab/peak_memory.h"
#include "tools/arguments.h"
#include "tools/bench/bench.h"
#include "tools/mpi_world.h"
#include "tools/options.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

struct DistributedBench {
  std::int64_t len = 8192, heads = 1, kv_heads = 0, head_dim = 64, window = -1;
  std::int64_t key_chunk = 1024, query_block = 256;
  int ranks = 2, threads = 1, repeat = 3;
  bool causal = false, backward = false, json = false;
  std::string shares = "zigzag";
  Scheme scheme = Scheme::automatic;
  std::string dtype = "f32";
};

// What a rank tells the others.
struct RankResult {
  double seconds = 0, peak_bytes = 0, link_bytes_per_second = 0;
  std::uint64_t out_hash = 0;
};

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Calls body(row in the tensor, row of the whole).
template <class Body>
void each_row(const std::vector<RowRange>& share, Body body) {
  std::int64_t local = 0;
  for (const RowRange& range : share) {
    for (std::int64_t row = range.begin; row < range.end; ++row) body(local++, row);
  }
}

Tensor rows(DType dtype, std::int64_t heads, std::int64_t head_dim, const std::vector<RowRange>& share,
            std::uint64_t which) {
  std::int64_t count = 0;
  for (const RowRange& range : share) count += range.end - range.begin;
  Tensor tensor(dtype, {1, heads, count, head_dim});
  const std::size_t bytes = size_of(dtype);
  each_row(share, [&](std::int64_t local, std::int64_t row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::byte* to = tensor.view().as<std::byte>() + static_cast<std::size_t>((h * count + local) * head_dim) * bytes;
      for (std::int64_t d = 0; d < head_dim; ++d, to += bytes) {
        const auto number = static_cast<std::uint64_t>((row * heads + h) * head_dim + d);
        const auto x = static_cast<float>(static_cast<double>(mix(number * 4 + which) >> 11) * 0x1p-51 - 2.0);
        if (dtype == DType::f32) std::memcpy(to, &x, bytes);
        if (dtype == DType::bf16) new (to) BFloat16(x);
        if (dtype == DType::f16) new (to) Float16(x);
      }
    }
  });
  return tensor;
}

// The same for any cut of the rows.
std::uint64_t hash_rows(const Tensor& tensor, const std::vector<RowRange>& share) {
  const std::size_t width = static_cast<std::size_t>(tensor.size(3)) * size_of(tensor.dtype());
  std::uint64_t sum = 0;
  each_row(share, [&](std::int64_t local, std::int64_t row) {
    for (std::int64_t h = 0; h < tensor.size(1); ++h) {
      const auto* byte =
          tensor.view().as<unsigned char>() + static_cast<std::size_t>(h * tensor.size(2) + local) * width;
      std::uint64_t value = mix(static_cast<std::uint64_t>(row * tensor.size(1) + h));
      for (std::size_t i = 0; i < width; ++i) value = (value ^ byte[i]) * 1099511628211u;
      sum += mix(value);
    }
  });
  return sum;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void barrier(Transport& transport) {
  const std::vector<std::size_t> bytes(static_cast<std::size_t>(transport.size()), 1);
  std::vector<char> send(bytes.size()), receive(bytes.size());
  transport.all_to_all(send.data(), bytes, receive.data(), bytes, 3600);
}

// Bytes a second that a rank sends to the next while it receives as many.
double link_rate(Transport& transport, std::size_t bytes) {
  if (transport.size() == 1) return 0;
  constexpr int kMessages = 8;
  const int next = (transport.rank() + 1) % transport.size();
  const int last = (transport.rank() + transport.size() - 1) % transport.size();
  std::vector<std::byte> send(bytes), receive(bytes);
  barrier(transport);
  const double start = now();
  for (int i = 0; i < kMessages; ++i) {
    const Transport::Transfer in = transport.post_receive(last, receive.data(), bytes);
    const Transport::Transfer out = transport.post_send(next, send.data(), bytes);
    transport.wait(in, 3600);
    transport.wait(out, 3600);
  }
  return kMessages * static_cast<double>(bytes) / (now() - start);
}

DistributedParams params_of(const DistributedBench& b, int ranks) {
  DistributedParams params{.scheme = b.scheme, .key_chunk = b.key_chunk, .query_block = b.query_block};
  params.timeout_seconds = 3600;
  params.queries = b.shares == "zigzag"    ? zigzag_shares(b.len, ranks)
                   : b.shares == "striped" ? striped_shares(b.len, ranks, b.key_chunk)
                                           : contiguous_shares(b.len, ranks);
  return params;
}

AttentionParams attention_of(const DistributedBench& b) {
  AttentionParams params;
  params.causal = b.causal;
  params.window_left = b.window;
  return params;
}

double pairs(const DistributedBench& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < b.len; ++i) {
    const std::int64_t last = b.causal ? i : b.len - 1,
                       first = b.window < 0 ? 0 : std::max<std::int64_t>(0, i - b.window);
    sum += static_cast<double>(last - first + 1);
  }
  return sum;
}

RankResult run_rank(Transport& transport, const DistributedBench& b) {
  const DType dtype = parse_dtype(b.dtype).value_or(DType::f32);
  const DistributedParams params = params_of(b, transport.size());
  const auto& share = params.queries[static_cast<std::size_t>(transport.rank())];
  const Tensor q = rows(dtype, b.heads, b.head_dim, share, 0), k = rows(dtype, b.kv_heads, b.head_dim, share, 1),
               v = rows(dtype, b.kv_heads, b.head_dim, share, 2);
  Tensor out(dtype, q.shape()), lse(DType::f32, {1, b.heads, q.size(2)});
  Tensor grad_q, grad_k, grad_v;
  if (b.backward) {
    grad_q = Tensor(dtype, q.shape());
    grad_k = Tensor(dtype, k.shape());
    grad_v = Tensor(dtype, v.shape());
  }
  Execution execution;
  execution.cpu.executor = &shared_executor(b.threads);
  const std::size_t chunk = static_cast<std::size_t>(2 * b.kv_heads * b.key_chunk * b.head_dim) * size_of(dtype);
  RankResult result{.seconds = 1e300, .link_bytes_per_second = link_rate(transport, chunk)};
  for (int i = 0; i < b.repeat; ++i) {
    barrier(transport);
    const double start = now();
    distributed_attention(transport, q, k, v, out, params, attention_of(b), {.lse = lse}, execution);
    if (b.backward) {
      AttentionSaved saved{.q = q, .k = k, .v = v, .out = out, .lse = lse};
      AttentionUpstream upstream;
      upstream.out = out;
      AttentionGradients gradients;
      gradients.q = grad_q;
      gradients.k = grad_k;
      gradients.v = grad_v;
      distributed_attention_backward(transport, saved, upstream, gradients, params, attention_of(b), execution);
    }
    barrier(transport);
    result.seconds = std::min(result.seconds, now() - start);
  }
  result.out_hash = hash_rows(out, share);
  if (b.backward) result.out_hash += hash_rows(grad_q, share) + hash_rows(grad_k, share) + hash_rows(grad_v, share);
  result.peak_bytes = static_cast<double>(lab::peak_memory());
  return result;
}

// Every rank has the results of all.
std::vector<RankResult> share_results(Transport& transport, const RankResult& own) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const std::vector<RankResult> sent(ranks, own);
  std::vector<RankResult> all(ranks);
  const std::vector<std::size_t> bytes(ranks, sizeof(RankResult));
  transport.all_to_all(sent.data(), bytes, all.data(), bytes, 3600);
  return all;
}

void report(const DistributedBench& b, const std::vector<RankResult>& all, const char* transport) {
  double seconds = 0, most_bytes = 0, link = 0;
  std::uint64_t hash = 0;
  for (const RankResult& one : all) {
    seconds = std::max(seconds, one.seconds);
    most_bytes = std::max(most_bytes, one.peak_bytes);
    link = std::max(link, one.link_bytes_per_second);
    hash += one.out_hash;
  }
  const auto ranks = static_cast<int>(all.size());
  const double work = pairs(b) * 4.0 * static_cast<double>(b.heads * b.head_dim) * (b.backward ? 4.5 : 1.0);
  const DistributedParams params = params_of(b, ranks);
  const DistributedExplanation explained = explain_distributed({.heads = b.heads,
                                                                .kv_heads = b.kv_heads,
                                                                .head_dim = b.head_dim,
                                                                .value_dim = b.head_dim,
                                                                .q_len = b.len,
                                                                .kv_len = b.len},
                                                               params, attention_of(b));
  const nlohmann::ordered_json json = {
      {"operation", b.backward ? "distributed forward and backward" : "distributed forward"},
      {"transport", transport},
      {"ranks", ranks},
      {"scheme", name_of(explained.chosen)},
      {"shares", b.shares},
      {"dtype", b.dtype},
      {"heads", b.heads},
      {"kv_heads", b.kv_heads},
      {"len", b.len},
      {"head_dim", b.head_dim},
      {"causal", b.causal},
      {"window", b.window},
      {"key_chunk", b.key_chunk},
      {"threads", b.threads},
      {"repeat", b.repeat},
      {"seconds", seconds},
      {"gflops", 1e-9 * work / seconds},
      {"link_bytes_per_second", link},
      {"sent_bytes", explained.schemes.empty() ? 0.0 : explained.schemes[0].sent_bytes},
      {"peak_resident_bytes", most_bytes},
      {"out_hash", format("%016llx", static_cast<unsigned long long>(hash))}};
  if (b.json) {
    std::puts(json.dump().c_str());
    return;
  }
  std::printf("%s over %d ranks (%s), %s shares, scheme %s, len %lld\n",
              b.backward ? "forward and backward" : "forward", ranks, transport, b.shares.c_str(),
              name_of(explained.chosen), static_cast<long long>(b.len));
  Table table(1);
  table.add({"time", format("%.3f s", seconds)});
  table.add({"rate", format("%.1f GFLOP/s of all ranks", 1e-9 * work / seconds)});
  table.add({"link", format("%.2f GB/s", 1e-9 * link)});
  table.add({"memory", format("%.1f MiB resident at most on a rank", most_bytes / 0x1p20)});
  table.add({"bits", format("%016llx", static_cast<unsigned long long>(hash))});
  std::fputs(table.text().c_str(), stdout);
}

void run_threads(const DistributedBench& b) {
  auto transports = thread_transports(b.ranks);
  std::vector<RankResult> all(transports.size());
  std::vector<std::exception_ptr> errors(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        all[r] = run_rank(*transports[r], b);
      } catch (...) {
        errors[r] = std::current_exception();
      }
      transports[r].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  report(b, all, "threads");
}

void run(DistributedBench b) {
  if (b.kv_heads == 0) b.kv_heads = b.heads;
  require(b.heads % b.kv_heads == 0, "bench distributed: heads ", b.heads, " is not a multiple of kv_heads ",
          b.kv_heads);
  const WorldPointer world = mpi_world();
  if (!world) return run_threads(b);
  const std::vector<RankResult> all = share_results(*world, run_rank(*world, b));
  if (world->rank() == 0) report(b, all, "MPI");
}

}  // namespace

void add_distributed_bench(Command& bench) {
  Command* verb = bench.add_subcommand("distributed", "Attention over ranks: under mpirun, or with ranks as threads");
  auto options = std::make_shared<DistributedBench>();
  DistributedBench& b = *options;
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    verb->add_option(name, value, help)->between(1, std::int64_t{1} << 31)->type_name("N")->show_default();
  };
  size("--len", b.len, "Queries and keys of the whole sequence");
  size("--heads", b.heads, "Query heads");
  verb->add_option("--kv-heads", b.kv_heads, "Key heads (default: as many as query heads)")
      ->between(1, 1 << 20)
      ->type_name("N");
  size("--head-dim", b.head_dim, "Size of a query, a key and a value");
  size("--key-chunk", b.key_chunk, "Keys of a chunk");
  size("--query-block", b.query_block, "Queries of a block");
  verb->add_option("--window", b.window, "Keys that a query sees to its left (default: all)")
      ->between(0, std::int64_t{1} << 31)
      ->type_name("N");
  verb->add_option("--ranks", b.ranks, "Ranks as threads, where mpirun has not started the program (default: 2)")
      ->between(1, 1024)
      ->type_name("N");
  verb->add_option("--dtype", b.dtype, "Element type (default: f32)")->one_of({"f32", "bf16", "f16"});
  verb->add_option("--shares", b.shares, "Which rows a rank has (default: zigzag)")
      ->one_of({"contiguous", "zigzag", "striped"});
  verb->add_choice<Scheme>("--scheme", b.scheme,
                           {{"automatic", Scheme::automatic},
                            {"ring", Scheme::ring},
                            {"gather", Scheme::gather},
                            {"heads", Scheme::heads},
                            {"both", Scheme::both}},
                           "How keys reach the queries (default: automatic)");
  verb->add_flag("--causal", b.causal, "Keys up to the query's position");
  verb->add_flag("--backward", b.backward, "The gradients, too");
  add_threads_option(*verb, b.threads, "Threads of a rank (default: 1)");
  verb->add_option("--repeat", b.repeat, "Runs, of which the best counts (default: 3)")
      ->between(1, 100000)
      ->type_name("N");
  verb->add_flag("--json", b.json, "Print one JSON object");
  verb->callback([options] { run(*options); });
}

}  // namespace rootdk::tools
