#include "cuda/kv/upload.h"

#include <algorithm>

#include "cuda/launch/kernel.h"
#include "cuda/ptx/grid_dependency.cuh"

namespace rootdk::cuda::kv {
namespace {

constexpr int kThreads = 512;

template <int Capacity>
struct Words {
  int count = 0;
  std::int32_t values[Capacity];
};

// A launch copies all its parameters: few words use a small struct, many words a large one that stays below the limit
// of 32764 bytes.
constexpr int kFew = 240, kSome = 2000, kMany = 8000;

template <class W>
__global__ void __launch_bounds__(kThreads) store_words(const __grid_constant__ W words, std::int32_t* to) {
  ptx::allow_next_kernel();  // it waits for the end of this one before it uses the tables
  for (int i = static_cast<int>(threadIdx.x); i < words.count; i += kThreads) to[i] = words.values[i];
}

template <int Capacity>
void store(std::span<const std::int32_t> words, std::int32_t* to, cudaStream_t stream, int device) {
  Words<Capacity> parameters;
  parameters.count = static_cast<int>(words.size());
  std::copy(words.begin(), words.end(), parameters.values);
  launch_kernel({.function = reinterpret_cast<const void*>(&store_words<Words<Capacity>>),
                 .name = "the upload of tables",
                 .grid = dim3(1),
                 .block = dim3(kThreads),
                 .stream = stream,
                 .device = device},
                parameters, to);
}

}  // namespace

void upload_words(std::span<const std::int32_t> words, std::int32_t* to, cudaStream_t stream, int device) {
  while (!words.empty()) {
    const std::size_t count = std::min<std::size_t>(words.size(), kMany);
    if (count <= kFew) {
      store<kFew>(words.first(count), to, stream, device);
    } else if (count <= kSome) {
      store<kSome>(words.first(count), to, stream, device);
    } else {
      store<kMany>(words.first(count), to, stream, device);
    }
    words = words.subspan(count);
    to += count;
  }
}

}  // namespace rootdk::cuda::kv
