// One sequence over GPUs, each of which belongs to a rank of MPI: mpirun -n 4 distributed_nccl
// Rows go from device to device by NCCL; MPI carries everything else.

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "rootdk/mpi.h"
#include "rootdk/nccl.h"
#include "rootdk/rootdk.h"

namespace {

constexpr std::int64_t kLength = 32768, kHeads = 16, kKeyHeads = 4, kHeadDim = 128;

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

// [1, heads, rows, head_dim] on the device, with numbers of this rank.
rootdk::TensorView random_rows(std::int64_t heads, std::int64_t rows, rootdk::Device device) {
  std::vector<rootdk::BFloat16> numbers(static_cast<std::size_t>(heads * rows * kHeadDim));
  for (rootdk::BFloat16& x : numbers) x = rootdk::BFloat16(static_cast<float>(std::rand() % 200 - 100) / 50.0f);
  void* memory = nullptr;
  check(cudaMalloc(&memory, numbers.size() * sizeof numbers[0]));
  check(cudaMemcpy(memory, numbers.data(), numbers.size() * sizeof numbers[0], cudaMemcpyHostToDevice));
  const std::int64_t shape[] = {1, heads, rows, kHeadDim};
  return {memory, rootdk::DType::bf16, shape, device};
}

void run() {
  const auto host = rootdk::mpi_transport(MPI_COMM_WORLD);
  int devices = 0;
  check(cudaGetDeviceCount(&devices));
  const rootdk::Device device{rootdk::DeviceKind::cuda, host->rank() % devices};
  check(cudaSetDevice(device.index));
  // Ranks that share a device, which NCCL refuses, send their rows over MPI, through memory of the host.
  std::unique_ptr<rootdk::Transport> nccl;
  if (host->size() <= devices && rootdk::nccl_absence().empty()) nccl = rootdk::nccl_transport(*host, device.index);
  rootdk::Transport& transport = nccl ? *nccl : *host;

  const rootdk::Shares shares = rootdk::zigzag_shares(kLength, transport.size());
  const std::int64_t rows = rootdk::rows_of(shares, transport.rank());
  const rootdk::TensorView q = random_rows(kHeads, rows, device), k = random_rows(kKeyHeads, rows, device),
                           v = random_rows(kKeyHeads, rows, device), out = random_rows(kHeads, rows, device);
  const rootdk::DistributedParams params{.queries = shares, .timeout_seconds = 60};
  rootdk::distributed_attention(transport, q, k, v, out, params, {.causal = true});
  check(cudaDeviceSynchronize());
  if (transport.rank() == 0) {
    std::printf("%d ranks, %d devices, %s: %lld rows on each\n", transport.size(), devices, nccl ? "NCCL" : "MPI alone",
                static_cast<long long>(rows));
  }
  for (const rootdk::TensorView& x : {q, k, v, out}) cudaFree(x.data);
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
