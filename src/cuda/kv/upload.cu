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

// Which of the uploads of a call.
struct Place {
  bool first, last;
};

// One word a thread: a warp loads 32 different parameters one after another, so that many blocks are faster than one.
// The kernel before the first upload may still use the memory. A further upload starts only after that kernel has
// ended, so that it can store while the upload before it does. Every upload ends after the one before it: the kernel
// that uses the tables waits for the last.
template <class W>
__global__ void __launch_bounds__(kThreads)
    store_words(const __grid_constant__ W words, std::int32_t* to, Place place) {
  if (place.last) ptx::allow_next_kernel();
  if (place.first) ptx::wait_for_previous_kernel();
  ptx::allow_next_kernel();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < words.count) to[i] = words.values[i];
  ptx::wait_for_previous_kernel();
}

struct Target {
  cudaStream_t stream;
  int device;
};

template <int Capacity>
void store(std::span<const std::int32_t> words, std::int32_t* to, const Target& target, Place place) {
  Words<Capacity> parameters;
  parameters.count = static_cast<int>(words.size());
  std::copy(words.begin(), words.end(), parameters.values);
  launch_kernel({.function = reinterpret_cast<const void*>(&store_words<Words<Capacity>>),
                 .name = "the upload of tables",
                 .grid = dim3((static_cast<unsigned>(words.size()) + kThreads - 1) / kThreads),
                 .block = dim3(kThreads),
                 .stream = target.stream,
                 .device = target.device,
                 .starts_early = true},
                parameters, to, place);
}

}  // namespace

void upload_words(std::span<const std::int32_t> words, std::int32_t* to, cudaStream_t stream, int device) {
  const Target target{.stream = stream, .device = device};
  for (bool first = true; !words.empty(); first = false) {
    const std::size_t count = std::min<std::size_t>(words.size(), kMany);
    const Place place{.first = first, .last = count == words.size()};
    if (count <= kFew) {
      store<kFew>(words.first(count), to, target, place);
    } else if (count <= kSome) {
      store<kSome>(words.first(count), to, target, place);
    } else {
      store<kMany>(words.first(count), to, target, place);
    }
    words = words.subspan(count);
    to += count;
  }
}

}  // namespace rootdk::cuda::kv
