// Calls that come again (src/c_api/plans.h): they ask nothing of the runtime but launches and tensor maps, take no
// memory, and hand the kernels what a call that is made for the first time hands them.

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/emulation/block.h"
// The language comes first.
#include "cuda/hopper/backward/params.h"
#include "cuda/hopper/shared/params.h"
#include "cuda/portable/arguments.h"
#include "fake_runtime/runtime.h"
#include "rootdk/c_api.h"

namespace rootdk::test {
namespace {

using cuda::hopper::BackwardParams;
using cuda::hopper::ForwardParams;

// What decides a call, but its addresses.
struct Config {
  std::int64_t batch = 1, heads = 2, kv_heads = 2, q_len = 64, kv_len = 64, dim = 64;
  bool f16 = false, causal = false, lse = true, lengths = false, mask = false, bias = false, sinks = false;
  bool turned = false;  // [batch, len, heads, dim] in memory
  double scale = 0, softcap = 0;
  std::int64_t window = -1;
};

// A call of the C functions, with made-up addresses on the device.
class FakeCall {
 public:
  FakeCall(const Config& config, std::uintptr_t first_address) : next_(first_address) {
    const Config& c = config;
    q = data(c, c.heads, c.q_len);
    k = data(c, c.kv_heads, c.kv_len);
    v = data(c, c.kv_heads, c.kv_len);
    out = data(c, c.heads, c.q_len);
    grad_out = data(c, c.heads, c.q_len);
    grad_q = data(c, c.heads, c.q_len);
    grad_k = data(c, c.kv_heads, c.kv_len);
    grad_v = data(c, c.kv_heads, c.kv_len);
    lse = tensor(ROOTDK_F32, {c.batch, c.heads, c.q_len});
    lengths = tensor(ROOTDK_I32, {c.batch});
    mask = tensor(ROOTDK_BOOL, {1, 1, c.q_len, c.kv_len});
    bias = tensor(ROOTDK_F32, {1, c.heads, c.q_len, c.kv_len});
    sinks = tensor(ROOTDK_F32, {c.heads});
    rootdk_struct_init(&params, ROOTDK_STRUCT_ATTENTION_PARAMS, sizeof params);
    params.causal = c.causal;
    params.softcap = c.softcap;
    params.window_left = c.window;
    if (c.scale > 0) {
      params.scale_kind = ROOTDK_SCALE_VALUE;
      params.scale = c.scale;
    }
    if (c.lengths) params.kv_lengths = &lengths;
    if (c.mask) params.mask = &mask;
    if (c.bias) params.bias = &bias;
    if (c.sinks) params.sinks = &sinks;
    rootdk_struct_init(&execution, ROOTDK_STRUCT_EXECUTION, sizeof execution);
    execution.allocate = [](void* self, std::size_t bytes) -> void* {
      static_cast<FakeCall*>(self)->asked = bytes;
      return reinterpret_cast<void*>(std::uintptr_t{0x7000'0000'0000});
    };
    execution.allocate_user = this;
    stats.struct_size = sizeof stats;
    stats.stride = 1;
    if (c.lse) stats.lse = &lse;
  }
  FakeCall(const FakeCall&) = delete;
  FakeCall& operator=(const FakeCall&) = delete;

  rootdk_status forward() { return rootdk_attention(&q, &k, &v, &out, &params, &stats, &execution); }
  rootdk_status backward() {
    rootdk_attention_saved saved{};
    saved.struct_size = sizeof saved;
    saved.q = &q, saved.k = &k, saved.v = &v, saved.out = &out, saved.lse = &lse;
    rootdk_attention_upstream upstream{};
    upstream.struct_size = sizeof upstream;
    upstream.out = &grad_out;
    rootdk_attention_gradients gradients{};
    gradients.struct_size = sizeof gradients;
    gradients.q = &grad_q, gradients.k = &grad_k, gradients.v = &grad_v;
    return rootdk_attention_backward(&saved, &upstream, &gradients, &params, &execution);
  }

  rootdk_tensor q, k, v, out, grad_out, grad_q, grad_k, grad_v, lse, lengths, mask, bias, sinks;
  rootdk_attention_params params;
  rootdk_attention_stats stats = {};
  rootdk_execution execution;
  std::size_t asked = 0;

 private:
  rootdk_tensor tensor(rootdk_dtype type, std::initializer_list<std::int64_t> shape) {
    rootdk_tensor made;
    rootdk_tensor_init(&made, reinterpret_cast<void*>(next_), type, static_cast<int>(shape.size()), shape.begin());
    made.device_kind = ROOTDK_CUDA;
    next_ += 1 << 20;
    return made;
  }
  rootdk_tensor data(const Config& c, std::int64_t heads, std::int64_t rows) {
    rootdk_tensor made = tensor(c.f16 ? ROOTDK_F16 : ROOTDK_BF16, {c.batch, heads, rows, c.dim});
    if (c.turned) {
      made.strides[1] = c.dim;
      made.strides[2] = heads * c.dim;
    }
    return made;
  }

  std::uintptr_t next_;
};

// What the kernels of one call were given, as far as it can be told apart.
struct Seen {
  std::vector<std::uint64_t> words;
  bool operator==(const Seen&) const = default;

  void add(const void* pointer) { words.push_back(reinterpret_cast<std::uintptr_t>(pointer)); }
  void add(const cuda::hopper::DeviceTensor& tensor) {
    add(tensor.data);
    for (const std::int64_t stride :
         {tensor.batch_stride, tensor.head_stride, tensor.row_stride, tensor.column_stride}) {
      words.push_back(static_cast<std::uint64_t>(stride));
    }
  }
  void add(float number) { words.push_back(std::bit_cast<std::uint32_t>(number)); }
  void add(int number) { words.push_back(static_cast<std::uint32_t>(number)); }

  void add(const ForwardParams& p) {
    for (const auto* tensor : {&p.out, &p.q, &p.k, &p.v, &p.row_values[0], &p.terms.mask, &p.terms.bias}) add(*tensor);
    add(p.kv_lengths.data);
    add(p.sinks.data);
    add(p.scale_log2);
    for (const int number : {p.left, p.right, p.q_len, p.kv_len, p.heads, p.group, p.sequences, p.tiles}) add(number);
  }
  void add(const BackwardParams& p) {
    for (const auto* tensor : {&p.q, &p.k, &p.v, &p.out, &p.grad_out, &p.grad_q, &p.grad_k, &p.grad_v}) add(*tensor);
    add(p.lse.data);
    add(p.delta);
    add(p.rule.mask.data);
    add(p.rule.bias.data);
    add(p.rule.kv_lengths.data);
    add(p.rule.sinks.data);
    add(p.scale_log2);
    for (const int number : {p.left, p.right, p.items, p.queries.tiles, p.keys.tiles}) add(number);
  }
};

// Runs a call, and tells what it did to the runtime.
template <class Params, class Run>
Seen watch(std::size_t argument, Run run) {
  FakeRuntime& runtime = fake_runtime();
  runtime.reset();
  Seen seen;
  runtime.at_launch = [&](void** arguments) {
    if (runtime.launches.size() == 1) seen.add(*static_cast<const Params*>(arguments[argument]));
  };
  EXPECT_EQ(run(), ROOTDK_OK) << rootdk_last_error();
  runtime.at_launch = nullptr;
  for (const FakeLaunch& launch : runtime.launches) {
    seen.add(launch.function);
    for (const unsigned number : {launch.grid.x, launch.grid.y, launch.grid.z, launch.block.x}) {
      seen.words.push_back(number);
    }
    seen.words.push_back(launch.shared_bytes);
  }
  for (const void* address : runtime.tensor_maps) seen.add(address);
  return seen;
}

// The forward kernel has its maps first.
Seen watch_forward(FakeCall& call) {
  return watch<ForwardParams>(1, [&] { return call.forward(); });
}
Seen watch_backward(FakeCall& call) {
  return watch<BackwardParams>(0, [&] { return call.backward(); });
}

// The same on the ordinary way: a call that names its target is never remembered.
template <class Watch>
Seen ordinary(FakeCall& call, Watch watch) {
  call.execution.target = "sm90";
  Seen seen = watch(call);
  call.execution.target = nullptr;
  return seen;
}

constexpr std::uintptr_t kSomewhere = 0x1000'0000'0000, kElsewhere = 0x2000'0000'0000;

TEST(Plans, ACallThatComesAgainAsksForLaunchesAlone) {
  fake_runtime().reset();
  for (int i = 0; i < 3; ++i) {
    FakeCall call({}, kSomewhere);
    ASSERT_EQ(call.forward(), ROOTDK_OK) << rootdk_last_error();
    ASSERT_EQ(call.backward(), ROOTDK_OK) << rootdk_last_error();
  }
  FakeRuntime& runtime = fake_runtime();
  FakeCall again({}, kElsewhere);
  for (const bool forward : {true, false}) {
    runtime.reset();
    runtime.launches.reserve(8);
    runtime.tensor_maps.reserve(8);
    allocations_of_thread() = 0;
    ASSERT_EQ(forward ? again.forward() : again.backward(), ROOTDK_OK);
    EXPECT_EQ(allocations_of_thread(), 0) << forward;
    EXPECT_EQ(runtime.launches.size(), forward ? 1u : 3u);
    EXPECT_EQ(runtime.tensor_maps.size(), 4u);
    EXPECT_EQ(runtime.attributes + runtime.limits + runtime.memsets + runtime.entry_points, 0) << forward;
    EXPECT_EQ(runtime.devices_made_current, 0) << forward;
  }
  EXPECT_GT(again.asked, 0u);  // of the backward pass
}

std::vector<Config> configs() {
  const Config plain;
  std::vector<Config> all(17, plain);
  all[1].q_len = 128;
  all[2].kv_len = 192;
  all[3].f16 = true;
  all[4].window = 16;
  all[5].scale = 0.25;
  all[6].lse = false;
  all[7].lengths = true;
  all[8].mask = true;
  all[9].bias = true;
  all[10].sinks = true;
  all[11].turned = true;
  all[12].softcap = 20;
  all[13].kv_heads = 1;
  all[14].batch = 3;
  all[15].dim = 128;
  all[16].causal = true;
  return all;
}

// In a random order, so that a plan that is found by too little would be used for another call.
TEST(Plans, KernelsGetWhatAnOrdinaryCallGivesThem) {
  const std::vector<Config> all = configs();
  std::mt19937 random(3);
  for (int i = 0; i < 600; ++i) {
    const Config& config = all[random() % all.size()];
    FakeCall call(config, kSomewhere + (random() % 64 << 28));
    if (random() % 2) call.params.seed = random();
    EXPECT_EQ(watch_forward(call), ordinary(call, watch_forward)) << i;
    if (!config.lse) continue;
    EXPECT_EQ(watch_backward(call), ordinary(call, watch_backward)) << i;
  }
}

// Causal masking and kv_lengths count tiles where there are more than multiprocessors, and more than few keys. A kernel
// clears the counter first: the second launch has the parameters.
TEST(Plans, CausalCallsAndLengthsToo) {
  for (const bool lengths : {false, true}) {
    for (const std::int64_t heads : {2, 132, 133}) {
      const Config config{.heads = heads, .kv_heads = heads, .kv_len = 320, .causal = !lengths, .lengths = lengths};
      for (int i = 0; i < 6; ++i) {
        FakeCall call(config, kSomewhere + (std::uintptr_t(i) << 28));
        const std::size_t launches = heads > 132 ? 2 : 1;
        ForwardParams params;
        fake_runtime().reset();
        fake_runtime().at_launch = [&](void** arguments) {
          if (fake_runtime().launches.size() == launches) params = *static_cast<const ForwardParams*>(arguments[1]);
        };
        ASSERT_EQ(call.forward(), ROOTDK_OK) << rootdk_last_error();
        fake_runtime().at_launch = nullptr;
        ASSERT_EQ(fake_runtime().launches.size(), launches);
        EXPECT_EQ(call.asked > 0, launches == 2);
        EXPECT_EQ(params.tile_counter != nullptr, launches == 2);
        EXPECT_EQ(fake_runtime().launches.back().grid.x, heads > 132 ? 132u : static_cast<unsigned>(heads));
        EXPECT_EQ(params.q.data, call.q.data);
        EXPECT_EQ(params.row_values[cuda::hopper::kLse].data, call.lse.data);
        EXPECT_EQ(params.kv_lengths.data, lengths ? call.lengths.data : nullptr);
        EXPECT_EQ(params.right == 0, config.causal);
      }
    }
  }
}

TEST(Plans, ErrorsAreThoseOfAnOrdinaryCall) {
  for (int i = 0; i < 3; ++i) {
    FakeCall call({}, kSomewhere);
    ASSERT_EQ(call.forward(), ROOTDK_OK);
    ASSERT_EQ(call.backward(), ROOTDK_OK);
  }
  const auto fails = [](auto change, rootdk_status status, const char* words, bool forward = true) {
    FakeCall call({}, kSomewhere);
    change(call);
    EXPECT_EQ(forward ? call.forward() : call.backward(), status) << words;
    EXPECT_NE(std::string(rootdk_last_error()).find(words), std::string::npos) << rootdk_last_error();
  };
  fails([](FakeCall& call) { call.out.data = call.v.data; }, ROOTDK_INVALID_ARGUMENT, "begin at the same address");
  fails([](FakeCall& call) { call.grad_k.data = call.out.data; }, ROOTDK_INVALID_ARGUMENT, "begin at the same address",
        false);
  fails([](FakeCall& call) { call.k.data = nullptr; }, ROOTDK_INVALID_ARGUMENT, "data pointer is null");
  fails([](FakeCall& call) { call.k.device_kind = ROOTDK_CPU; }, ROOTDK_INVALID_ARGUMENT, "lies on");
  fails([](FakeCall& call) { call.k.rank = 99; }, ROOTDK_INVALID_ARGUMENT, "rank 99");
  fails([](FakeCall& call) { call.v.dtype = ROOTDK_F16; }, ROOTDK_INVALID_ARGUMENT, "f16");
  fails([](FakeCall& call) { call.params.struct_size = 3; }, ROOTDK_INVALID_ARGUMENT, "struct_size 3");
  fails([](FakeCall& call) { call.execution.threads = -1; }, ROOTDK_INVALID_ARGUMENT, "threads -1");
  fails([](FakeCall& call) { call.execution.target = "nothing"; }, ROOTDK_INVALID_ARGUMENT, "no target nothing");
  fails([](FakeCall& call) { call.execution.allocate = nullptr; }, ROOTDK_INVALID_ARGUMENT, "device workspace", false);
  fails([](FakeCall& call) { call.execution.allocate = [](void*, std::size_t) -> void* { return nullptr; }; },
        ROOTDK_OUT_OF_MEMORY, "the caller's allocator has no", false);
}

// The copy engine wants multiples of 16 bytes: another implementation takes the call.
TEST(Plans, AnAddressThatIsNotAlignedIsAnotherCall) {
  for (int i = 0; i < 6; ++i) {
    FakeCall call({}, kSomewhere);
    call.q.data = static_cast<char*>(call.q.data) + (i % 2 ? 8 : 0);
    fake_runtime().reset();
    ASSERT_EQ(call.forward(), ROOTDK_OK) << rootdk_last_error();
    EXPECT_EQ(fake_runtime().tensor_maps.empty(), i % 2 == 1) << i;
  }
}

// The portable kernels take what the Hopper ones refuse. They, too, get the addresses of the call that runs.
TEST(Plans, PortableKernelsGetTheAddressesOfTheCall) {
  for (int i = 0; i < 6; ++i) {
    FakeCall call({}, kSomewhere + (std::uintptr_t(i) << 28));
    call.q.data = static_cast<char*>(call.q.data) + 8;
    cuda::portable::ForwardArguments given;
    fake_runtime().reset();
    fake_runtime().at_launch = [&](void** arguments) {
      given = *static_cast<const cuda::portable::ForwardArguments*>(arguments[0]);
    };
    ASSERT_EQ(call.forward(), ROOTDK_OK) << rootdk_last_error();
    fake_runtime().at_launch = nullptr;
    EXPECT_EQ(given.q.data, call.q.data) << i;
    EXPECT_EQ(given.k.data, call.k.data) << i;
    EXPECT_EQ(given.v.data, call.v.data) << i;
    EXPECT_EQ(given.out.data, call.out.data) << i;
    EXPECT_EQ(given.lse.data, call.lse.data) << i;
  }
}

TEST(Plans, ACallInsideTheAllocatorHarmsNothing) {
  for (int i = 0; i < 4; ++i) {
    FakeCall call({.causal = true}, kSomewhere);
    ASSERT_EQ(call.backward(), ROOTDK_OK) << rootdk_last_error();
  }
  FakeCall outer({.causal = true}, kElsewhere);
  outer.execution.allocate = [](void*, std::size_t) -> void* {
    FakeCall inner({.causal = true}, kSomewhere);
    EXPECT_EQ(inner.backward(), ROOTDK_OK) << rootdk_last_error();
    fake_runtime().reset();
    return reinterpret_cast<void*>(std::uintptr_t{0x7000'0000'0000});
  };
  BackwardParams params;
  fake_runtime().reset();
  fake_runtime().at_launch = [&](void** arguments) {
    if (fake_runtime().launches.size() == 1) params = *static_cast<const BackwardParams*>(arguments[0]);
  };
  ASSERT_EQ(outer.backward(), ROOTDK_OK) << rootdk_last_error();
  fake_runtime().at_launch = nullptr;
  EXPECT_EQ(params.q.data, outer.q.data);
  EXPECT_EQ(params.grad_v.data, outer.grad_v.data);
}

TEST(Plans, EveryThreadHasItsOwn) {
  // One after another: the fake runtime has no lock.
  for (int i = 0; i < 4; ++i) {
    std::thread([i] {
      for (int n = 0; n < 3; ++n) {
        FakeCall call({}, kSomewhere + (std::uintptr_t(i) << 28));
        EXPECT_EQ(watch_forward(call), ordinary(call, watch_forward));
      }
    }).join();
  }
}

}  // namespace
}  // namespace rootdk::test
