#include "tools/bench/cuda_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/check.h"
#include "cuda/hopper/shared/product_peak.h"
#include "cuda/launch/device.h"
#include "tools/memory.h"

namespace rootdk::tools {
namespace {

constexpr int kDevice = 0;
constexpr int kRunsASample = 5;
constexpr std::size_t kCopyBytes = std::size_t{1} << 30;  // far larger than the cache

void check(cudaError_t status, const char* doing) {
  require(status == cudaSuccess, "bench: ", doing, ": ", cudaGetErrorString(status));
}

// Seconds on the device between two points of the stream.
class DeviceTimer {
 public:
  DeviceTimer() {
    check(cudaEventCreate(&start_), "creating an event");
    check(cudaEventCreate(&stop_), "creating an event");
  }
  ~DeviceTimer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  double seconds(const std::function<void()>& body) {
    check(cudaEventRecord(start_), "timing");
    body();
    check(cudaEventRecord(stop_), "timing");
    check(cudaEventSynchronize(stop_), "running the case");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_), "timing");
    return 1e-3 * milliseconds;
  }

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

// Normal values, drawn once and repeated: what repeats is far longer than a tile.
TensorView normal_values(Memory& memory, DType dtype, std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  constexpr std::int64_t kDrawn = 1 << 20;
  const TensorView view = memory.allocate(dtype, std::span(shape.begin(), shape.size()));
  Tensor drawn(DType::f32, {std::min(kDrawn, view.elements())});
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  for (float& x : drawn.values<float>()) x = normal(generator);
  const Tensor block = convert(drawn, dtype);
  const std::size_t bytes = static_cast<std::size_t>(view.elements()) * size_of(dtype);
  for (std::size_t at = 0; at < bytes; at += block.bytes()) {
    check(cudaMemcpy(static_cast<std::byte*>(view.data) + at, block.view().data, std::min(block.bytes(), bytes - at),
                     cudaMemcpyHostToDevice),
          "copying values to the device");
  }
  return view;
}

// The tensors of a case on the device, and the call that is timed.
class DeviceProblem {
 public:
  explicit DeviceProblem(const BenchCase& c) : bench_(c), memory_(make_memory(DeviceKind::cuda)) {
    q_ = normal_values(*memory_, c.dtype, {c.batch, c.heads, c.len, c.head_dim}, 1);
    k_ = normal_values(*memory_, c.dtype, {c.batch, c.kv_heads, c.kv_len, c.head_dim}, 2);
    v_ = normal_values(*memory_, c.dtype, {c.batch, c.kv_heads, c.kv_len, c.value_dim}, 3);
    out_ = memory_->allocate(c.dtype, shape_of(q_, c.value_dim));
    const std::vector<std::int64_t> rows{c.batch, c.heads, c.len};
    if (c.stats || c.backward) stats_.lse = memory_->allocate(DType::f32, rows);
    if (c.stats) {
      for (TensorView* row : {&stats_.max_logit, &stats_.max_weight, &stats_.entropy, &stats_.sum_p2}) {
        *row = memory_->allocate(DType::f32, rows);
      }
    }
    reserve(attention_workspace(q_, k_, v_, out_, params(), stats_));
    if (c.backward) prepare_backward();
  }

  void run() { bench_.backward ? backward() : forward(); }
  std::size_t workspace_bytes() const { return execution_.cuda.workspace_bytes; }

  std::string implementation() const {
    const Explanation answer = bench_.backward ? explain_backward(saved(), upstream(), gradients_, params(), execution_)
                                               : explain(q_, k_, v_, out_, params(), stats_, execution_);
    require(!answer.chosen.empty(), "bench: ", answer.error);
    return answer.chosen;
  }

 private:
  static std::vector<std::int64_t> shape_of(const TensorView& view, std::int64_t last) {
    return {view.size(0), view.size(1), view.size(2), last};
  }
  void prepare_backward() {
    grad_out_ = normal_values(*memory_, bench_.dtype, {bench_.batch, bench_.heads, bench_.len, bench_.value_dim}, 4);
    gradients_.q = memory_->allocate(bench_.dtype, shape_of(q_, bench_.head_dim));
    gradients_.k = memory_->allocate(bench_.dtype, shape_of(k_, bench_.head_dim));
    gradients_.v = memory_->allocate(bench_.dtype, shape_of(v_, bench_.value_dim));
    forward();  // backward reads what it leaves
    reserve(attention_backward_workspace(saved(), upstream(), gradients_, params()));
  }
  void reserve(std::size_t bytes) {
    execution_.target = bench_.target;
    if (bytes <= execution_.cuda.workspace_bytes) return;
    execution_.cuda.workspace = memory_->scratch(bytes);
    execution_.cuda.workspace_bytes = bytes;
  }
  void forward() { attention(q_, k_, v_, out_, params(), stats_, execution_); }
  void backward() { attention_backward(saved(), upstream(), gradients_, params(), execution_); }

  AttentionParams params() const { return {.causal = bench_.causal}; }
  AttentionSaved saved() const { return {.q = q_, .k = k_, .v = v_, .out = out_, .lse = stats_.lse, .entropy = {}}; }
  AttentionUpstream upstream() const { return {.out = grad_out_, .lse = {}, .entropy = {}}; }

  BenchCase bench_;
  std::unique_ptr<Memory> memory_;
  TensorView q_, k_, v_, out_, grad_out_;
  AttentionStats stats_;
  AttentionGradients gradients_;
  Execution execution_;
};

// A cache on the device, full of sequences, and a token of each.
class CacheProblem {
 public:
  explicit CacheProblem(const BenchCase& c)
      : bench_(c), memory_(make_memory(DeviceKind::cuda)), cache_(placed_config(c, *memory_)) {
    const DType dtype = is_quantised(c.dtype) ? DType::bf16 : c.dtype;
    q_ = normal_values(*memory_, dtype, {1, c.heads, c.batch * c.len, c.head_dim}, 1);
    out_ = memory_->allocate(dtype, std::vector{std::int64_t{1}, c.heads, c.batch * c.len, c.value_dim});
    fill(normal_values(*memory_, dtype, {1, c.kv_heads, c.kv_len, c.head_dim}, 2),
         normal_values(*memory_, dtype, {1, c.kv_heads, c.kv_len, c.value_dim}, 3));
    execution_.target = c.target;
    execution_.cuda.workspace_bytes = attend_workspace(cache_, q_, out_, steps_, {}, {}, execution_);
    execution_.cuda.workspace = memory_->scratch(execution_.cuda.workspace_bytes);
  }

  void run() { attend(cache_, q_, out_, steps_, {}, {}, execution_); }
  std::size_t workspace_bytes() const { return execution_.cuda.workspace_bytes; }

  std::string implementation() const {
    const Explanation answer = explain_attend(cache_, q_, out_, steps_, {}, {}, execution_);
    require(!answer.chosen.empty(), "bench: ", answer.error);
    return answer.chosen;
  }

 private:
  static KvCacheConfig placed_config(const BenchCase& c, Memory& memory) {
    KvCacheConfig config{.dtype = c.dtype, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .value_dim = c.value_dim};
    std::int64_t pages = c.batch, page_size = c.kv_len;
    if (c.page == 0) {
      config.layout = KvLayout::contiguous;
      config.max_sequences = pages;
      config.max_len = page_size;
    } else {
      config.pages = pages = c.batch * ((c.kv_len + c.page - 1) / c.page);
      config.page_size = page_size = c.page;
    }
    const auto allocate = [&](DType dtype, std::vector<std::int64_t> shape) { return memory.allocate(dtype, shape); };
    config.storage.k = allocate(c.dtype, {1, pages, c.kv_heads, page_size, c.head_dim});
    config.storage.v = allocate(c.dtype, {1, pages, c.kv_heads, page_size, c.value_dim});
    if (is_quantised(c.dtype)) {
      config.storage.k_scales = allocate(DType::f32, {1, pages, c.kv_heads, page_size});
      config.storage.v_scales = allocate(DType::f32, {1, pages, c.kv_heads, page_size});
    }
    config.device = config.storage.k.device;
    return config;
  }

  // Sequences take their pages in turn, so that those of one lie apart.
  void fill(const ConstTensorView& k, const ConstTensorView& v) {
    for (std::int64_t b = 0; b < bench_.batch; ++b) steps_.push_back({.sequence = cache_.open(), .tokens = bench_.len});
    const std::int64_t piece = bench_.page ? bench_.page : bench_.kv_len;
    for (std::int64_t first = 0; first < bench_.kv_len; first += piece) {
      const std::int64_t last = std::min(first + piece, bench_.kv_len);
      for (const KvStep& step : steps_) {
        const KvStep part{.sequence = step.sequence, .tokens = last - first};
        append(cache_, k.slice(2, first, last), v.slice(2, first, last), {&part, 1});
      }
    }
  }

  BenchCase bench_;
  std::unique_ptr<Memory> memory_;
  KvCache cache_;
  TensorView q_, out_;
  std::vector<KvStep> steps_;
  Execution execution_;
};

// The device's rates of products and of copies (bytes read and written).
class DevicePeaks {
 public:
  explicit DevicePeaks(bool copies) : memory_(make_memory(DeviceKind::cuda)) {
    if (cuda::device_traits(kDevice).capability == 90) {
      products_ = memory_->scratch(cuda::hopper::product_peak_workspace(kDevice));
    }
    if (copies) {
      from_ = memory_->scratch(kCopyBytes);
      to_ = memory_->scratch(kCopyBytes);
      check(cudaMemset(from_, 0x5a, kCopyBytes), "clearing memory");
    }
  }
  void measure(DeviceTimer& timer) {
    constexpr int kRounds = 20000;
    if (products_) {
      double flops = 0;
      const double seconds =
          timer.seconds([&] { flops = cuda::hopper::launch_product_peak(kDevice, products_, kRounds, nullptr); });
      flops_ = std::max(flops_, flops / seconds);
    }
    if (from_) {
      const double seconds =
          timer.seconds([&] { check(cudaMemcpyAsync(to_, from_, kCopyBytes, cudaMemcpyDeviceToDevice), "copying"); });
      bytes_ = std::max(bytes_, 2.0 * static_cast<double>(kCopyBytes) / seconds);
    }
  }
  double flops_per_second() const { return flops_; }
  double bytes_per_second() const { return bytes_; }

 private:
  std::unique_ptr<Memory> memory_;
  void *products_ = nullptr, *from_ = nullptr, *to_ = nullptr;
  double flops_ = 0, bytes_ = 0;
};

template <class Problem>
BenchResult measure(const BenchCase& bench) {
  Problem problem(bench);
  DevicePeaks peaks(bench.decode);
  DeviceTimer timer;
  BenchResult result;
  result.implementation = problem.implementation();
  result.peak_bytes = problem.workspace_bytes();
  for (int warm_up = 0; warm_up < 3; ++warm_up) problem.run();
  std::vector<double> samples;
  for (int i = 0; i < bench.repeat; ++i) {
    peaks.measure(timer);
    samples.push_back(timer.seconds([&] {
      for (int run = 0; run < kRunsASample; ++run) problem.run();
    }) / kRunsASample);
  }
  std::sort(samples.begin(), samples.end());
  result.best_seconds = samples.front();
  result.median_seconds = samples[samples.size() / 2];
  result.gflops = 1e-9 * bench.flops() / result.median_seconds;
  result.peak_gflops = 1e-9 * peaks.flops_per_second();
  if (bench.decode) {
    result.bytes_per_second = bench.kv_bytes() / result.median_seconds;
    result.peak_bytes_per_second = peaks.bytes_per_second();
  }
  return result;
}

}  // namespace

BenchResult run_cuda_bench(const BenchCase& given) {
  const BenchCase bench = given.resolved();
  const bool cache = bench.page > 0 || is_quantised(bench.dtype);
  require(!cache || bench.decode, "bench: a cache of ", name_of(bench.dtype), " with pages of ", bench.page,
          " tokens belongs to decode");
  return cache ? measure<CacheProblem>(bench) : measure<DeviceProblem>(bench);
}

}  // namespace rootdk::tools
