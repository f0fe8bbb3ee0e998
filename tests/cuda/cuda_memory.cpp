#include "cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include "core/check.h"

namespace rootdk::test {
namespace {

void check(cudaError_t status, const char* doing) {
  require(status == cudaSuccess, doing, ": ", cudaGetErrorString(status));
}

}  // namespace

void* CudaMemory::allocate(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes ? bytes : 1), "cudaMalloc");
  return memory;
}

void CudaMemory::release(void* memory) { check(cudaFree(memory), "cudaFree"); }

void CudaMemory::upload(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "upload");
}

void CudaMemory::download(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "download");
}

void CudaMemory::synchronize() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

CudaMemory& cuda_memory() {
  static CudaMemory memory;
  return memory;
}

std::string cuda_absence() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(status);
  return devices == 0 ? "no CUDA device" : "";
}

}  // namespace rootdk::test
