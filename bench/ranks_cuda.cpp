// Eight emulated ranks of distributed_attention() on one GPU, one after another, against one call: what the ranks of a
// group compute in all. Rows of the other ranks are random numbers that lie on the device, so that nothing waits.
//
//   g++ -std=c++20 -O2 bench/ranks_cuda.cpp -Iinclude -I/usr/local/cuda/include -Lbuild/src -lrootdk
//   -L/usr/local/cuda/lib64 -lcudart
//   ./a.out [TOKENS [RANKS [host|kernels]]]
//
// host: with the host's time. kernels: without the copies that stand for messages, which no rank computes with.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>
#include <thread>

#include "rootdk/rootdk.h"

namespace {

using namespace rootdk;

constexpr std::int64_t kHeads = 16, kKeyHeads = 4, kHeadDim = 128;
constexpr Device kDevice{DeviceKind::cuda, 0};
constexpr int kRounds = 5;
constexpr std::chrono::microseconds kSleep(3000);

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

struct Memory {
  void* data = nullptr;
  explicit Memory(std::size_t bytes) { check(cudaMalloc(&data, bytes + 1)); }
  ~Memory() { cudaFree(data); }
};

// Normal numbers in bf16, repeated.
void fill_random(void* to, std::size_t bytes) {
  static const std::vector<BFloat16> numbers = [] {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<BFloat16> all(1 << 20);
    for (BFloat16& x : all) x = BFloat16(normal(generator));
    return all;
  }();
  const std::size_t most = numbers.size() * sizeof numbers[0];
  for (std::size_t at = 0; at < bytes; at += most) {
    check(cudaMemcpy(static_cast<char*>(to) + at, numbers.data(), std::min(most, bytes - at), cudaMemcpyDefault));
  }
}

bool with_host = false, with_messages = true;
// Without messages they are copied once, while everything warms up: the device's pool then gives out memory with
// numbers.
bool copies_messages = true;

// A rank whose messages are answered by itself.
class LonelyRank final : public Transport {
 public:
  LonelyRank(int rank, int size, const Memory& numbers) : rank_(rank), size_(size), numbers_(numbers) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Transfer post_send(int, const void*, std::size_t) override { return 1; }
  Transfer post_receive(int, void*, std::size_t) override { return 1; }
  void wait(Transfer, double) override {}
  void all_to_all(const void* send, std::span<const std::size_t> bytes, void* receive, std::span<const std::size_t>,
                  double) override {
    std::size_t all = 0;
    for (const std::size_t count : bytes) all += count;
    std::memcpy(receive, send, all);
  }
  bool takes_device_memory(Device) const override { return true; }
  void exchange_on_device(std::span<const DeviceMessage>, std::span<const DeviceMessage> receive, void* stream,
                          double) override {
    if (!copies_messages) return;
    for (const DeviceMessage& message : receive) {
      check(cudaMemcpyAsync(message.data, numbers_.data, message.bytes, cudaMemcpyDefault,
                            static_cast<cudaStream_t>(stream)));
    }
  }

 private:
  int rank_, size_;
  const Memory& numbers_;
};

// Time on the device, which first sleeps until the host has queued the work, or that of both.
double seconds_of(const std::function<void()>& body) {
  if (!with_host) {
    check(cudaLaunchHostFunc(
        nullptr, [](void*) { std::this_thread::sleep_for(kSleep); }, nullptr));
  }
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  check(cudaEventRecord(begin, nullptr));
  body();
  check(cudaEventRecord(end, nullptr));
  check(cudaEventSynchronize(end));
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds / 1e3;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The tensors of all rows; a rank takes as many rows of them as it has, which ones does not matter here.
struct Problem {
  std::int64_t rows;
  Memory q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v;

  static std::size_t bytes(std::int64_t heads, std::int64_t rows) {
    return static_cast<std::size_t>(heads * rows * kHeadDim) * 2;
  }
  explicit Problem(std::int64_t n)
      : rows(n),
        q(bytes(kHeads, n)),
        k(bytes(kKeyHeads, n)),
        v(bytes(kKeyHeads, n)),
        out(bytes(kHeads, n)),
        lse(static_cast<std::size_t>(kHeads * n) * 4),
        grad_out(bytes(kHeads, n)),
        grad_q(bytes(kHeads, n)),
        grad_k(bytes(kKeyHeads, n)),
        grad_v(bytes(kKeyHeads, n)) {
    for (const Memory* x : {&q, &grad_out}) fill_random(x->data, bytes(kHeads, n));
    for (const Memory* x : {&k, &v}) fill_random(x->data, bytes(kKeyHeads, n));
  }
  static TensorView view(const Memory& memory, std::int64_t heads, std::int64_t rows) {
    const std::int64_t shape[] = {1, heads, rows, kHeadDim};
    return TensorView(memory.data, DType::bf16, shape, kDevice);
  }
  AttentionSaved saved(std::int64_t n) const {
    const std::int64_t shape[] = {1, kHeads, n};
    return {.q = view(q, kHeads, n),
            .k = view(k, kKeyHeads, n),
            .v = view(v, kKeyHeads, n),
            .out = view(out, kHeads, n),
            .lse = TensorView(lse.data, DType::f32, shape, kDevice)};
  }
  AttentionUpstream upstream(std::int64_t n) const { return {.out = view(grad_out, kHeads, n)}; }
  AttentionGradients gradients(std::int64_t n) const {
    return {.q = view(grad_q, kHeads, n), .k = view(grad_k, kKeyHeads, n), .v = view(grad_v, kKeyHeads, n)};
  }
  AttentionStats stats(std::int64_t n) const {
    const std::int64_t shape[] = {1, kHeads, n};
    return {.lse = TensorView(lse.data, DType::f32, shape, kDevice)};
  }
};

struct Times {
  std::vector<double> forward{}, backward{};
};

void run_one(const Problem& p, const AttentionParams& params, Times& times) {
  Execution execution;
  const AttentionSaved saved = p.saved(p.rows);
  const TensorView out = p.view(p.out, kHeads, p.rows);
  const AttentionStats stats = p.stats(p.rows);
  const Memory workspace(
      std::max(attention_workspace(saved.q, saved.k, saved.v, out, params, stats, execution),
               attention_backward_workspace(saved, p.upstream(p.rows), p.gradients(p.rows), params, execution)));
  execution.cuda.workspace = workspace.data;
  execution.cuda.workspace_bytes = ~std::size_t{0};
  times.forward.push_back(seconds_of([&] { attention(saved.q, saved.k, saved.v, out, params, stats, execution); }));
  times.backward.push_back(
      seconds_of([&] { attention_backward(saved, p.upstream(p.rows), p.gradients(p.rows), params, execution); }));
}

void run_ranks(const Problem& p, const Shares& shares, const AttentionParams& params, const Memory& numbers,
               Times& times) {
  const DistributedParams distributed{.queries = shares};
  double forward = 0, backward = 0;
  for (int r = 0; r < static_cast<int>(shares.size()); ++r) {
    LonelyRank transport(r, static_cast<int>(shares.size()), numbers);
    const std::int64_t n = rows_of(shares, r);
    const AttentionSaved saved = p.saved(n);
    forward += seconds_of([&] {
      distributed_attention(transport, saved.q, saved.k, saved.v, p.view(p.out, kHeads, n), distributed, params,
                            p.stats(n));
    });
    backward += seconds_of(
        [&] { distributed_attention_backward(transport, saved, p.upstream(n), p.gradients(n), distributed, params); });
  }
  times.forward.push_back(forward);
  times.backward.push_back(backward);
}

void compare(const char* name, const Problem& p, const Shares& shares, const AttentionParams& of_one,
             const AttentionParams& of_ranks, const Memory& numbers) {
  Times one, ranks;
  for (int round = 0; round <= kRounds; ++round) {
    copies_messages = with_messages || round == 0;
    run_one(p, of_one, one);
    run_ranks(p, shares, of_ranks, numbers, ranks);
    if (round == 0) one = ranks = {};  // the first warms up
  }
  std::printf("%-20s forward %.2f / %.2f ms: %.3f   backward %.2f / %.2f ms: %.3f\n", name, 1e3 * median(ranks.forward),
              1e3 * median(one.forward), median(ranks.forward) / median(one.forward), 1e3 * median(ranks.backward),
              1e3 * median(one.backward), median(ranks.backward) / median(one.backward));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 65536;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 8;
  const std::string_view mode = argc > 3 ? argv[3] : "";
  with_host = mode == "host";
  with_messages = mode != "kernels";
  // Without a threshold the pool gives its memory back whenever the host waits.
  cudaMemPool_t pool;
  check(cudaDeviceGetDefaultMemPool(&pool, 0));
  std::uint64_t threshold = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  const Problem problem(tokens);
  const std::size_t bytes = 2 * sizeof(float) * static_cast<std::size_t>(kKeyHeads * tokens * kHeadDim);
  const Memory numbers(bytes);
  fill_random(numbers.data, bytes);

  compare("full, contiguous", problem, contiguous_shares(tokens, ranks), {}, {}, numbers);
  compare("causal, zigzag", problem, zigzag_shares(tokens, ranks), {.causal = true}, {.causal = true}, numbers);
  compare("causal, contiguous", problem, contiguous_shares(tokens, ranks), {.causal = true}, {.causal = true}, numbers);

  // The documents of bench/ranks_cuda.py.
  constexpr std::int32_t kLengths[] = {700, 9000, 128, 2500, 17000, 64};
  std::vector<std::int32_t> starts = {0};
  while (starts.back() < tokens) {
    const std::int64_t next = starts.back() + kLengths[starts.size() % std::size(kLengths)];
    starts.push_back(static_cast<std::int32_t>(std::min(tokens, next)));
  }
  const auto count = static_cast<std::int64_t>(starts.size());
  const Memory on_device(starts.size() * sizeof starts[0]);
  check(cudaMemcpy(on_device.data, starts.data(), starts.size() * sizeof starts[0], cudaMemcpyDefault));
  const TensorView host(starts.data(), {count});
  const std::int64_t shape[] = {count};
  const TensorView device(on_device.data, DType::i32, shape, kDevice);
  AttentionParams of_one{.causal = true}, of_ranks{.causal = true};
  of_one.q_starts = of_one.kv_starts = device;
  of_ranks.q_starts = of_ranks.kv_starts = host;
  for (std::size_t i = 1; i < starts.size(); ++i) {
    of_one.max_q_len = of_one.max_kv_len = std::max<std::int64_t>(of_one.max_q_len, starts[i] - starts[i - 1]);
  }
  compare("packed, documents", problem, document_shares(host, ranks, true), of_one, of_ranks, numbers);
}
