#include "cuda/kv/upload.h"

#include <algorithm>

#include "cuda/launch/kernel.h"
#include "cuda/ptx/grid_dependency.cuh"

namespace rootdk::cuda::kv {
namespace {

constexpr int kThreads = 128;

template <int Capacity>
struct Words {
  int count = 0;
  std::int32_t values[Capacity];
};

// A launch copies all its parameters: few words use a small struct, many words a large one that stays below the limit
// of 32764 bytes.
constexpr int kFew = 240, kSome = 2000, kMany = 8000;

// One word a thread: a warp loads 32 different parameters one after another, so that many blocks are faster than one.
template <class W>
__global__ void __launch_bounds__(kThreads) store_words(const __grid_constant__ W words, std::int32_t* to) {
  ptx::allow_next_kernel();  // it waits for the end of this one before it uses the tables
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < words.count) to[i] = words.values[i];
  ptx::wait_for_previous_kernel();  // which may be another upload: the next kernel needs both
}

struct Target {
  cudaStream_t stream;
  int device;
  bool first;  // upload of the call: what came before may still use the memory
};

template <int Capacity>
void store(std::span<const std::int32_t> words, std::int32_t* to, const Target& target) {
  Words<Capacity> parameters;
  parameters.count = static_cast<int>(words.size());
  std::copy(words.begin(), words.end(), parameters.values);
  launch_kernel({.function = reinterpret_cast<const void*>(&store_words<Words<Capacity>>),
                 .name = "the upload of tables",
                 .grid = dim3((static_cast<unsigned>(words.size()) + kThreads - 1) / kThreads),
                 .block = dim3(kThreads),
                 .stream = target.stream,
                 .device = target.device,
                 .starts_early = !target.first},
                parameters, to);
}

}  // namespace

void upload_words(std::span<const std::int32_t> words, std::int32_t* to, cudaStream_t stream, int device) {
  Target target{.stream = stream, .device = device, .first = true};
  while (!words.empty()) {
    const std::size_t count = std::min<std::size_t>(words.size(), kMany);
    if (count <= kFew) {
      store<kFew>(words.first(count), to, target);
    } else if (count <= kSome) {
      store<kSome>(words.first(count), to, target);
    } else {
      store<kMany>(words.first(count), to, target);
    }
    words = words.subspan(count);
    to += count;
    target.first = false;
  }
}

}  // namespace rootdk::cuda::kv
