// The gradient of attention in e4m3 on Hopper, straight through the rounding: the 16-bit backward pass on the values of
// the e4m3 numbers that the forward pass used, with its output. The mean key is left out of keys and of lse alike: the
// forward pass multiplied it with q as it was, not with its numbers.

#include <cstddef>
#include <span>
#include <string>

#include "cuda/hopper/fp8/kernels.h"
#include "cuda/hopper/fp8/prepare.h"
#include "cuda/hopper/hopper.h"
#include "cuda/hopper/shared/head_dims.h"
#include "cuda/hopper/shared/make_params.h"
#include "cuda/hopper/shared/refusal.h"
#include "cuda/launch/device.h"
#include "cuda/launch/workspace.h"

namespace rootdk::cuda::hopper {
namespace {

// What the preparation needs of the forward call.
ForwardCall forward_of(const BackwardCall& call) {
  ForwardCall forward;
  forward.q = call.saved.q;
  forward.k = call.saved.k;
  forward.v = call.saved.v;
  forward.params = call.params;
  forward.execution = call.execution;
  forward.shape = call.shape;
  forward.logit_scale = call.logit_scale;
  return forward;
}

// Where the values of q, k and v are in the workspace, in front of what the 16-bit pass needs.
struct Layout {
  Fp8Workspace numbers;
  std::size_t q = 0, k = 0, v = 0, lse = 0, rest = 0;
};
Layout layout_of(const BackwardCall& call) {
  const int head_dim = padded_dim(kHeadDims, call.shape.head_dim, call.shape.value_dim);
  // Scales are those of the forward pass: others would round every key to another number.
  Layout at{.numbers = fp8_workspace(forward_of(call), head_dim, fp8_keys_of_scale(head_dim))};
  at.rest = at.numbers.bytes;
  const auto take = [&](const ConstTensorView& view) {
    const std::size_t begin = at.rest;
    at.rest += (static_cast<std::size_t>(view.elements()) * size_of(view.dtype) + 255) / 256 * 256;
    return begin;
  };
  at.q = take(call.saved.q);
  at.k = take(call.saved.k);
  at.v = take(call.saved.v);
  at.lse = take(call.saved.lse);
  return at;
}

ConstTensorView values_at(const Execution& execution, std::size_t offset, const ConstTensorView& like) {
  auto* const data = static_cast<std::byte*>(execution.cuda.workspace) + offset;
  return TensorView(data, like.dtype, std::span(like.shape).first(static_cast<std::size_t>(like.rank)), like.device);
}

// The 16-bit call on the values. Without a workspace, as the first answer has it, only shapes and types mean something.
BackwardCall plain_call(const BackwardCall& call, const Layout& at) {
  BackwardCall plain = call;
  plain.params.compute.reset();
  plain.params.fp8 = {};
  plain.saved.q = values_at(call.execution, at.q, call.saved.q);
  plain.saved.k = values_at(call.execution, at.k, call.saved.k);
  plain.saved.v = values_at(call.execution, at.v, call.saved.v);
  plain.saved.lse = values_at(call.execution, at.lse, call.saved.lse);
  if (call.execution.cuda.workspace) {
    plain.execution.cuda.workspace = static_cast<std::byte*>(call.execution.cuda.workspace) + at.rest;
    plain.execution.cuda.workspace_bytes = call.execution.cuda.workspace_bytes - at.rest;
  }
  return plain;
}

std::string refusal_of(const Fp8BackwardCall& call) {
  if (call.params.fp8.rotate) return "rotation is not supported";
  if (call.upstream.lse.defined()) return "the gradient of lse is not supported";
  if (call.saved.q.dtype != DType::bf16 && call.saved.q.dtype != DType::f16) {
    return text("the type is ", name_of(call.saved.q.dtype), ", needs bf16 or f16");
  }
  if (call.shape.head_dim % 8 != 0 || call.shape.value_dim % 8 != 0) {
    return text("head_dim ", call.shape.head_dim, " or value_dim ", call.shape.value_dim, " is not a multiple of 8");
  }
  if (padded_dim(kHeadDims, call.shape.head_dim, call.shape.value_dim) == 0) {
    return text("head_dim ", call.shape.head_dim, " or value_dim ", call.shape.value_dim, " is above ",
                kHeadDims.back());
  }
  if (!(call.logit_scale > 0)) return text("the scale ", call.logit_scale, " is not positive");
  if (call.saved.k.size(2) == 0 || call.shape.kv_len == 0) return "there are no keys";
  if (std::string reason = refuse_preparation(call.shape); !reason.empty()) return reason;
  return refuse_layout({{"q", call.saved.q}, {"k", call.saved.k}, {"v", call.saved.v}});
}

Answer<Fp8BackwardCall> answer(const Fp8BackwardCall& call) {
  if (std::string reason = refuse_device(call.saved.q.device); !reason.empty()) return {.refusal = reason};
  if (std::string reason = refusal_of(call); !reason.empty()) return {.refusal = reason};
  const Layout at = layout_of(call);
  const Answer<BackwardCall> plain = backward().answer(plain_call(call, at));
  if (!plain.refusal.empty()) return {.refusal = plain.refusal};
  const std::size_t bytes = at.rest + plain.workspace_bytes;
  return {.workspace_bytes = bytes, .run = [at, plain, bytes](const Fp8BackwardCall& ready) {
            require_workspace(ready.execution.cuda, bytes, "attention_backward");
            const DeviceGuard guard(ready.saved.q.device.index);
            const ForwardCall forward = forward_of(ready);
            const BackwardCall values = plain_call(ready, at);
            ForwardParams params = make_params(forward);
            params.row_values[kLse] = row_tensor(ready.saved.lse);
            if (ready.saved.q.elements() > 0) {
              prepare_fp8(forward, params, at.numbers);
              write_fp8_values(forward, params, at.numbers, values.saved);
            }
            plain.run(values);
          }};
}

}  // namespace

const Fp8BackwardImplementation& fp8_backward() {
  static const Fp8BackwardImplementation implementation{.name = "sm90", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::hopper
