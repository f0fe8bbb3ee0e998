// One sequence over the ranks of MPI: mpirun -n 4 distributed_mpi

#include <mpi.h>

#include <cmath>
#include <cstdio>

#include "rootdk/mpi.h"
#include "rootdk/rootdk.h"

namespace {

constexpr std::int64_t kLength = 3000, kHeads = 4, kHeadDim = 32;

// Some rows of a tensor of the whole.
rootdk::Tensor rows(const std::vector<rootdk::RowRange>& share, double frequency) {
  std::int64_t count = 0;
  for (const rootdk::RowRange& range : share) count += range.end - range.begin;
  rootdk::Tensor tensor(rootdk::DType::f32, {1, kHeads, count, kHeadDim});
  std::size_t next = 0;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (const rootdk::RowRange& range : share) {
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        for (std::int64_t d = 0; d < kHeadDim; ++d) {
          tensor.values<float>()[next++] =
              static_cast<float>(std::sin(frequency * static_cast<double>((i + 1) * (d + 1) + h)));
        }
      }
    }
  }
  return tensor;
}

void run() {
  const auto transport = rootdk::mpi_transport(MPI_COMM_WORLD);
  const rootdk::Shares shares = rootdk::zigzag_shares(kLength, transport->size());
  const auto& mine = shares[static_cast<std::size_t>(transport->rank())];
  const rootdk::Tensor q = rows(mine, 0.1), k = rows(mine, 0.2), v = rows(mine, 0.3);
  rootdk::Tensor out(rootdk::DType::f32, q.shape()), lse(rootdk::DType::f32, {1, kHeads, q.size(2)});
  const rootdk::DistributedParams params{.queries = shares, .timeout_seconds = 60};
  rootdk::distributed_attention(*transport, q, k, v, out, params, {.causal = true}, {.lse = lse});
  // The first row of the whole is on rank 0; it sees one key, its own.
  if (transport->rank() == 0) {
    std::printf("%d ranks; out[0] = %.4f, v[0] = %.4f, lse[0] = %.4f\n", transport->size(), out.values<float>()[1],
                v.values<float>()[1], lse.values<float>()[0]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  int status = 0;
  try {
    run();
  } catch (const rootdk::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    status = 1;
  }
  MPI_Finalize();
  return status;
}
