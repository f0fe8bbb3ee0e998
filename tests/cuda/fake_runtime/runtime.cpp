#include "fake_runtime/runtime.h"

#include <cuda.h>

#include <cstring>

namespace rootdk::test {
namespace {

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void* address, const cuuint64_t*,
                      const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                      CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  fake_runtime().tensor_maps.push_back(address);
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

}  // namespace

void FakeRuntime::reset() {
  attributes = limits = memsets = entry_points = devices_made_current = 0;
  tensor_maps.clear();
  launches.clear();
}

FakeRuntime& fake_runtime() {
  static FakeRuntime runtime;
  return runtime;
}

}  // namespace rootdk::test

using rootdk::test::fake_runtime;

namespace {

cudaError_t launch(const rootdk::test::FakeLaunch& launch, void** arguments) {
  fake_runtime().launches.push_back(launch);
  if (fake_runtime().at_launch) fake_runtime().at_launch(arguments);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  ++fake_runtime().attributes;
  *value = attribute == cudaDevAttrComputeCapabilityMajor         ? 9
           : attribute == cudaDevAttrMultiProcessorCount          ? 132
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 * 1024
                                                                  : 0;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  ++fake_runtime().limits;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) {
  ++fake_runtime().devices_made_current;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  ++fake_runtime().entry_points;
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *entry = known ? reinterpret_cast<void*>(&rootdk::test::encode_tiled) : nullptr;
  if (found) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake runtime"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch({function, config->gridDim, config->blockDim, config->dynamicSmemBytes}, arguments);
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t) {
  return launch({function, grid, block, shared}, arguments);
}

cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) {
  ++fake_runtime().memsets;
  return cudaSuccess;
}

// Ranks linked beside the calls under test need these; no test runs them.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cudaErrorUnknown; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaErrorUnknown; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaErrorUnknown; }
cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaErrorUnknown; }
cudaError_t cudaFreeHost(void*) { return cudaErrorUnknown; }
cudaError_t cudaHostAlloc(void**, std::size_t, unsigned) { return cudaErrorUnknown; }
cudaError_t cudaMallocAsync(void**, std::size_t, cudaStream_t) { return cudaErrorUnknown; }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) { return cudaErrorUnknown; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return cudaErrorUnknown; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaErrorUnknown; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaErrorUnknown; }

// What nvcc's code calls when a program starts, and behind <<<>>>.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaErrorUnknown; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorUnknown; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) { return cudaErrorUnknown; }
}
