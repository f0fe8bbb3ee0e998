// Run by mpirun on a machine with a GPU: processes that share it compare their rows with one call, bit for bit, and
// their gradients to rounding. Exits with 77 where there is no GPU.

#include <cstdio>

#include "cuda/cuda_memory.h"
#include "distributed/device_ranks.h"
#include "rootdk/error.h"
#include "rootdk/mpi.h"

namespace rootdk::test {
namespace {

int compare(Transport& transport, const AttentionCase& problem) {
  const DeviceRanks where{.memory = &cuda_memory()};
  DistributedParams distributed{.timeout_seconds = 120};
  const Results one = run_one_call(where, problem);
  int failures = 0;
  for (const Shares& shares : device_shares(problem, transport.size())) {
    distributed.queries = shares;
    distributed.keys = {};
    const std::int64_t keys = problem.k.view().size(2);
    if (keys != problem.q.view().size(2)) distributed.keys = contiguous_shares(keys, transport.size());
    const Results here = run_device_rank(transport, where, problem, distributed);
    const Results expected = results_of_rank(one, problem, distributed, transport.rank());
    const std::string difference = device_difference(where, problem, expected, here, 1e-2);
    if (difference.empty()) continue;
    ++failures;
    std::printf("rank %d of %d, %s: %s\n", transport.rank(), transport.size(), problem.name.c_str(),
                difference.c_str());
  }
  return failures;
}

}  // namespace
}  // namespace rootdk::test

int main(int argc, char** argv) {
  using namespace rootdk::test;
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  const std::string absence = cuda_absence();
  int failures = 0;
  if (absence.empty()) {
    const auto transport = rootdk::mpi_transport(MPI_COMM_WORLD);
    int count = 0;
    for (const AttentionCase& problem : device_cases({.dtype = rootdk::DType::bf16, .len = 3000, .head_dim = 128})) {
      failures += compare(*transport, problem);
      ++count;
    }
    std::printf("rank %d of %d: %d cases, %d failures\n", transport->rank(), transport->size(), count, failures);
  } else {
    std::printf("skipped: %s\n", absence.c_str());
  }
  MPI_Finalize();
  return !absence.empty() ? 77 : failures ? 1 : 0;
}
