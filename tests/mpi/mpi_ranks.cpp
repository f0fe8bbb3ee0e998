// Run by mpirun on 2, 3, 4 and 8 ranks: every rank compares its rows with a call on one rank, bit for bit.
//   mpi_ranks              the cases below
//   mpi_ranks --random COUNT SEED   random calls
//   mpi_ranks --long KEYS QUERIES [causal | ranks | one]   a long sequence, of which no rank holds all
//                          causal: not full as well; of that, the ranks alone or the one call alone
//   mpi_ranks --die R      rank R kills itself in the middle of a call; the others say how they end

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <thread>

#include "distributed/random_cases.h"
#include "mpi/long_sequence.h"
#include "rootdk/error.h"
#include "rootdk/mpi.h"

namespace rootdk::test {
namespace {

AttentionCase make_case(const std::string& name, std::int64_t heads, std::int64_t kv_heads, std::int64_t len,
                        DType dtype, const AttentionParams& scalars) {
  AttentionCase c;
  c.name = name;
  c.dtype = dtype;
  c.scalars = scalars;
  c.q = DataTensor(random_tensor(dtype, {1, heads, len, 32}, 1), false);
  c.k = DataTensor(random_tensor(dtype, {1, kv_heads, len, 32}, 2), false);
  c.v = DataTensor(random_tensor(dtype, {1, kv_heads, len, 32}, 3), false);
  c.grad_out = DataTensor(random_tensor(dtype, {1, heads, len, 32}, 4), false);
  return c;
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  all.push_back(make_case("full", 2, 2, 333, DType::f32, {}));
  all.push_back(make_case("causal", 4, 2, 500, DType::bf16, {.causal = true}));
  all.push_back(make_case("window, dropout, sinks", 4, 1, 400, DType::f32,
                          {.causal = true, .window_left = 90, .dropout = 0.1, .seed = 3}));
  all.back().sinks = random_tensor(DType::f32, {4}, 5);
  all.push_back(make_case("packed", 2, 1, 450, DType::f32, {.causal = true}));
  all.back().q_starts = i32_tensor({0, 7, 200, 201, 450});
  all.back().kv_starts = i32_tensor({0, 7, 200, 201, 450});
  return all;
}

int compare(Transport& transport) {
  const int ranks = transport.size();
  int failures = 0;
  for (const AttentionCase& c : cases()) {
    const std::int64_t len = c.q.view().size(2);
    DistributedParams d{.key_chunk = 64, .query_block = 48, .timeout_seconds = 120};
    d.queries = contiguous_shares(len, 1);
    const Results one = run_threads(1, c, d, true);
    for (const Scheme scheme : {Scheme::ring, Scheme::gather, Scheme::heads}) {
      d.scheme = scheme;
      d.queries = c.q_starts.defined() ? document_shares(c.q_starts, ranks, true) : zigzag_shares(len, ranks);
      const Results here = run_rank(transport, c, d, true);
      const Results expected = results_of_rank(one, c, d, transport.rank());
      const std::string difference = first_difference(expected, here);
      if (difference.empty()) continue;
      ++failures;
      std::printf("rank %d of %d, %s, %s: %s\n", transport.rank(), ranks, c.name.c_str(), name_of(scheme),
                  difference.c_str());
    }
  }
  return failures;
}

// Random calls: `count` of them from `seed` on.
int compare_random(Transport& transport, std::uint64_t seed, int count) {
  int failures = 0;
  for (int i = 0; i < count; ++i) {
    const RandomCall call = random_call(seed + static_cast<std::uint64_t>(i), transport.size());
    const Results one = run_threads(1, call.problem, call.one, true);
    const Results here = run_rank(transport, call.problem, call.many, true);
    const Results expected = results_of_rank(one, call.problem, call.many, transport.rank());
    const std::string difference = first_difference(expected, here);
    if (difference.empty()) continue;
    ++failures;
    std::printf("rank %d of %d, %s, %s: %s\n", transport.rank(), transport.size(), call.problem.name.c_str(),
                name_of(call.many.scheme), difference.c_str());
  }
  return failures;
}

// Ranks that disagree get an error each, and go on.
int disagree(Transport& transport) {
  const std::int64_t head_dim = transport.rank() == 1 ? 16 : 8;
  Tensor q(DType::f32, {1, 1, 10, head_dim}), out(DType::f32, {1, 1, 10, head_dim});
  try {
    distributed_attention(transport, q, q, q, out,
                          {.queries = contiguous_shares(10 * transport.size(), transport.size())});
  } catch (const Error& error) {
    if (std::strstr(error.what(), "head_dim is 8 on rank 0 but 16 on rank 1")) return 0;
    std::printf("rank %d: %s\n", transport.rank(), error.what());
  }
  return 1;
}

[[noreturn]] void die(Transport& transport, int victim, double timeout_seconds) {
  const AttentionCase c = make_case("long", 2, 2, 6000, DType::f32, {.causal = true});
  DistributedParams d{.queries = zigzag_shares(6000, transport.size()), .scheme = Scheme::ring};
  d.timeout_seconds = timeout_seconds;
  std::thread killer;
  if (transport.rank() == victim) {
    killer = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(std::random_device()() % 300));
      std::raise(SIGKILL);
    });
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    while (true) run_rank(transport, c, d, true);
  } catch (const std::exception& error) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("rank %d ends with \"%s\" after %.1f s\n", transport.rank(), error.what(), seconds.count());
    std::fflush(stdout);
  }
  std::_Exit(0);  // MPI_Finalize would wait for the dead
}

}  // namespace
}  // namespace rootdk::test

int main(int argc, char** argv) {
  using namespace rootdk::test;
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  int failures = 0;
  {
    const auto transport = rootdk::mpi_transport(MPI_COMM_WORLD);
    if (argc > 2 && std::strcmp(argv[1], "--die") == 0) {
      die(*transport, std::atoi(argv[2]), argc > 3 ? std::atof(argv[3]) : 5);
    }
    if (argc > 3 && std::strcmp(argv[1], "--random") == 0) {
      failures = compare_random(*transport, std::strtoull(argv[3], nullptr, 10), std::atoi(argv[2]));
    } else if (argc > 3 && std::strcmp(argv[1], "--long") == 0) {
      const std::string what = argc > 4 ? argv[4] : "";
      failures = compare_long_sequence(*transport, {.keys = std::atoll(argv[2]),
                                                    .queries = std::atoll(argv[3]),
                                                    .full = what.empty(),
                                                    .ranks = what != "one",
                                                    .one_call = what != "ranks"});
    } else {
      failures = compare(*transport) + disagree(*transport);
    }
    std::printf("rank %d of %d: %d failures\n", transport->rank(), transport->size(), failures);
  }
  MPI_Finalize();
  return failures ? 1 : 0;
}
