#include "rootdk/attention.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "c_api/convert.h"
#include "c_api/explained.h"
#include "c_api/plans.h"
#include "c_api/status.h"
#include "core/check.h"
#include "rootdk/dropout.h"

using namespace rootdk::c_api;

namespace {

// The arguments of a backward call, converted in this order, so that the first bad one is the one that is named.
struct BackwardArguments {
  rootdk::AttentionSaved saved;
  rootdk::AttentionUpstream upstream;
  rootdk::AttentionGradients gradients;
  rootdk::AttentionParams params;
};

}  // namespace

rootdk_status rootdk_tensor_init(rootdk_tensor* tensor, void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  return guarded([&] {
    rootdk_tensor described{};
    described.data = data;
    described.dtype = dtype;
    described.rank = rank;
    const rootdk::DType type = view(&described).dtype;  // checks rank and type
    const std::span sizes(&result(shape, "shape"), static_cast<std::size_t>(rank));
    const rootdk::TensorView contiguous(data, type, sizes);
    std::copy_n(contiguous.shape.begin(), rank, described.shape);
    std::copy_n(contiguous.strides.begin(), rank, described.strides);
    result(tensor, "tensor") = described;
  });
}

rootdk_status rootdk_attention(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                               const rootdk_tensor* out, const rootdk_attention_params* params,
                               const rootdk_attention_stats* stats, const rootdk_execution* execution) {
  return guarded([&] {
    if (run_plan({q, k, v, out}, params, stats, execution)) return;
    const ConvertedExecution where(execution);
    rootdk::attention(view(q), view(k), view(v), view(out), convert(params, stats), convert(stats), where);
  });
}

rootdk_status rootdk_attention_backward(const rootdk_attention_saved* saved, const rootdk_attention_upstream* upstream,
                                        const rootdk_attention_gradients* gradients,
                                        const rootdk_attention_params* params, const rootdk_execution* execution) {
  return guarded([&] {
    if (run_plan({saved, upstream, gradients}, params, execution)) return;
    const ConvertedExecution where(execution);
    const BackwardArguments a{convert(saved), convert(upstream), convert(gradients), convert(params)};
    rootdk::attention_backward(a.saved, a.upstream, a.gradients, a.params, where);
  });
}

rootdk_status rootdk_attention_workspace_on(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                                            const rootdk_tensor* out, const rootdk_attention_params* params,
                                            const rootdk_attention_stats* stats, const rootdk_execution* execution,
                                            size_t* bytes) {
  return guarded([&] {
    size_t& wanted = result(bytes, "bytes");
    const ConvertedExecution where(execution);
    wanted = rootdk::attention_workspace(view(q), view(k), view(v), view(out), convert(params, stats), convert(stats),
                                         where);
  });
}

rootdk_status rootdk_attention_workspace(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                                         const rootdk_tensor* out, const rootdk_attention_params* params,
                                         const rootdk_attention_stats* stats, size_t* bytes) {
  return rootdk_attention_workspace_on(q, k, v, out, params, stats, nullptr, bytes);
}

rootdk_status rootdk_attention_backward_workspace_on(const rootdk_attention_saved* saved,
                                                     const rootdk_attention_upstream* upstream,
                                                     const rootdk_attention_gradients* gradients,
                                                     const rootdk_attention_params* params,
                                                     const rootdk_execution* execution, size_t* bytes) {
  return guarded([&] {
    size_t& wanted = result(bytes, "bytes");
    const ConvertedExecution where(execution);
    const BackwardArguments a{convert(saved), convert(upstream), convert(gradients), convert(params)};
    wanted = rootdk::attention_backward_workspace(a.saved, a.upstream, a.gradients, a.params, where);
  });
}

rootdk_status rootdk_attention_backward_workspace(const rootdk_attention_saved* saved,
                                                  const rootdk_attention_upstream* upstream,
                                                  const rootdk_attention_gradients* gradients,
                                                  const rootdk_attention_params* params, size_t* bytes) {
  return rootdk_attention_backward_workspace_on(saved, upstream, gradients, params, nullptr, bytes);
}

rootdk_status rootdk_quantize_for_attention(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                                            const rootdk_quantized* to, const rootdk_attention_params* params,
                                            const rootdk_execution* execution) {
  return guarded([&] {
    const ConvertedExecution where(execution);
    rootdk::quantize_for_attention(view(q), view(k), view(v), convert(to), convert(params), where);
  });
}

rootdk_status rootdk_quantize_for_attention_workspace(const rootdk_tensor* q, const rootdk_tensor* k,
                                                      const rootdk_tensor* v, const rootdk_quantized* to,
                                                      const rootdk_attention_params* params,
                                                      const rootdk_execution* execution, size_t* bytes) {
  return guarded([&] {
    size_t& wanted = result(bytes, "bytes");
    const ConvertedExecution where(execution);
    wanted = rootdk::quantize_for_attention_workspace(view(q), view(k), view(v), convert(to), convert(params), where);
  });
}

const char* rootdk_explain(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                           const rootdk_tensor* out, const rootdk_attention_params* params,
                           const rootdk_attention_stats* stats, const rootdk_execution* execution) {
  return explained([&] {
    const ConvertedExecution where(execution);
    return rootdk::explain(view(q), view(k), view(v), view(out), convert(params, stats), convert(stats), where);
  });
}

const char* rootdk_explain_backward(const rootdk_attention_saved* saved, const rootdk_attention_upstream* upstream,
                                    const rootdk_attention_gradients* gradients, const rootdk_attention_params* params,
                                    const rootdk_execution* execution) {
  return explained([&] {
    const ConvertedExecution where(execution);
    const BackwardArguments a{convert(saved), convert(upstream), convert(gradients), convert(params)};
    return rootdk::explain_backward(a.saved, a.upstream, a.gradients, a.params, where);
  });
}

rootdk_status rootdk_merge_states(const rootdk_tensor* out, const rootdk_tensor* lse, const rootdk_tensor* merged_out,
                                  const rootdk_tensor* merged_lse) {
  return guarded([&] { rootdk::merge_states(view(out), view(lse), view(merged_out), view(merged_lse)); });
}

rootdk_status rootdk_tensor_convert(const rootdk_tensor* source, const rootdk_tensor* out) {
  return guarded([&] {
    const rootdk::TensorView from = view(source), to = view(out);
    rootdk::require(to.defined(), "tensor_convert: out is not given");
    const rootdk::Tensor converted = rootdk::convert(from, to.dtype);
    const bool same_shape =
        from.rank == to.rank && std::equal(from.shape.begin(), from.shape.begin() + from.rank, to.shape.begin());
    rootdk::require(same_shape && rootdk::TensorView(to.data, to.dtype, converted.shape()).strides == to.strides,
                    "tensor_convert: out is ", rootdk::describe(to), ", expected a contiguous tensor of the shape of ",
                    rootdk::describe(from));
    if (converted.bytes() > 0) std::memcpy(to.data, converted.view().data, converted.bytes());
  });
}

int32_t rootdk_dropout_keeps(double probability, uint64_t seed, uint32_t batch, uint32_t head, uint32_t i, uint32_t j) {
  return rootdk::DropoutRule::make(probability, seed).keeps(batch, head, i, j);
}
