#pragma once

// Long sequences in a cache on the device, for any implementation of attend.

#include <initializer_list>
#include <random>
#include <string>
#include <utility>

#include "cuda/cuda_memory.h"
#include "rootdk/rootdk.h"
#include "support/device_memory.h"
#include "support/tensors.h"

namespace rootdk::test {

std::int64_t pick_one(std::mt19937_64& random, std::initializer_list<std::int64_t> choices);

// A layout and little room, so that schedules fill the cache.
void pick_room(KvCacheConfig& config, std::mt19937_64& random, bool contiguous);

// The same sequence in a cache on the host and in one on the device.
class Twins {
 public:
  static constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 128, kLen = 1100;  // three chunks of keys

  Twins(std::string target, DType q_dtype, DType cache_dtype, std::int64_t page_size)
      : target_(std::move(target)),
        q_dtype_(q_dtype),
        storage_(&cuda_memory()),
        host_(config(cache_dtype, page_size)),
        device_(placed(config(cache_dtype, page_size))),
        q_(random_tensor(q_dtype, {1, kHeads, kLen, kDim}, 3)) {
    const Tensor k = random_tensor(q_dtype, {1, kKvHeads, kLen, kDim}, 1);
    const Tensor v = random_tensor(q_dtype, {1, kKvHeads, kLen, kDim}, 2);
    host_one_ = host_.open();
    device_one_ = device_.open();
    append(host_, k, v, {{.sequence = host_one_, .tokens = kLen}});
    Placement call(&cuda_memory());
    append(device_, call.input(k), call.input(v), {{.sequence = device_one_, .tokens = kLen}});
    call.fetch();
  }

  KvCache& host() { return host_; }
  KvCache& device() { return device_; }
  SequenceId host_one() const { return host_one_; }
  SequenceId device_one() const { return device_one_; }

  // Rows of q of the given length from a position on, and those steps; on the device.
  Tensor attend_device(std::int64_t first, std::int64_t rows, std::span<const KvStep> steps,
                       const AttendParams& params = {}) {
    Placement call(&cuda_memory());
    Tensor out(q_dtype_, {1, kHeads, rows, kDim});
    poison(out);
    const ConstTensorView q = call.input(clone(q_.view().slice(2, first, first + rows)));
    const TensorView placed = call.output(out);
    Execution execution{.target = target_};
    call.add_workspace(execution, attend_workspace(device_, q, placed, steps, params, {}, execution));
    attend(device_, q, placed, steps, params, {}, execution);
    call.fetch();
    return out;
  }
  Tensor attend_reference(std::int64_t first, std::int64_t rows, std::span<const KvStep> steps,
                          const AttendParams& params = {}) {
    const Tensor q = convert(clone(q_.view().slice(2, first, first + rows)), DType::f64);
    Tensor out(DType::f64, {1, kHeads, rows, kDim});
    attend(host_, q, out, steps, params, {}, {.target = "reference"});
    return out;
  }

 private:
  static KvCacheConfig config(DType dtype, std::int64_t page_size) {
    return {.dtype = dtype,
            .kv_heads = kKvHeads,
            .head_dim = kDim,
            .page_size = page_size,
            .pages = 2 * (kLen / page_size + 2)};
  }
  KvCacheConfig placed(KvCacheConfig c) {
    const auto place = [&](DType dtype, const Shape& shape) {
      const Tensor empty(dtype, shape);
      const ConstTensorView view = storage_.input(empty);
      return TensorView(const_cast<void*>(view.data), dtype, std::span(shape), view.device);
    };
    c.device = cuda_memory().device();
    c.storage.k = place(c.dtype, {1, c.pages, kKvHeads, c.page_size, kDim});
    c.storage.v = place(c.dtype, {1, c.pages, kKvHeads, c.page_size, kDim});
    if (is_quantised(c.dtype)) {
      c.storage.k_scales = place(DType::f32, {1, c.pages, kKvHeads, c.page_size});
      c.storage.v_scales = place(DType::f32, {1, c.pages, kKvHeads, c.page_size});
    }
    return c;
  }

  std::string target_;
  DType q_dtype_;
  Placement storage_;
  KvCache host_, device_;
  Tensor q_;
  SequenceId host_one_ = SequenceId::none, device_one_ = SequenceId::none;
};

// Against the reference, in pages of every size, with a window and with evicted keys.
void expect_pages_of_every_size(const std::string& target, DType q_dtype, DType cache_dtype, double tolerance);

// A token's bits do not depend on what else is in the call, or on how the tokens of its sequence are spread over calls.
void expect_same_bits_in_any_call(const std::string& target, DType q_dtype, DType cache_dtype, double softcap = 0);

}  // namespace rootdk::test
