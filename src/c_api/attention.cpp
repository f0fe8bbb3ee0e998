#include "rootdk/attention.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "core/check.h"
#include "rootdk/dropout.h"

using namespace rootdk::c_api;

namespace {

void append_quoted(std::string& json, const std::string& text) {
  json += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      json += escape;
    } else {
      json += c;
    }
  }
  json += '"';
}

std::string to_json(const rootdk::Explanation& explanation) {
  std::string json = "{\"chosen\": ";
  append_quoted(json, explanation.chosen);
  json += ", \"error\": ";
  append_quoted(json, explanation.error);
  json += ", \"candidates\": [";
  for (std::size_t i = 0; i < explanation.candidates.size(); ++i) {
    json += i ? ", {\"name\": " : "{\"name\": ";
    append_quoted(json, explanation.candidates[i].name);
    json += ", \"refusal\": ";
    append_quoted(json, explanation.candidates[i].refusal);
    json += '}';
  }
  return json + "]}";
}

// The text of an explanation lives until the next one on the thread. A call that cannot even be converted is explained
// by its message.
template <class Explain>
const char* explained(Explain&& explain) {
  thread_local std::string text;
  const rootdk_status status = guarded([&] {
    rootdk::Explanation explanation;
    if (guarded([&] { explanation = explain(); }) != ROOTDK_OK) explanation.error = rootdk_last_error();
    text = to_json(explanation);
  });
  if (status != ROOTDK_OK) return R"({"chosen": "", "error": "out of memory", "candidates": []})";
  return text.c_str();
}

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

void rootdk_attention_params_init(rootdk_attention_params* params) {
  const rootdk::AttentionParams defaults;
  clear(params);
  params->temperature = defaults.temperature;
  params->scale = 1.0;
  params->window_left = defaults.window_left;
  params->window_right = defaults.window_right;
}

void rootdk_attention_stats_init(rootdk_attention_stats* stats) {
  clear(stats);
  stats->stride = rootdk::AttentionStats{}.stride;
}

void rootdk_execution_init(rootdk_execution* execution) { clear(execution); }

void rootdk_attention_saved_init(rootdk_attention_saved* saved) { clear(saved); }
void rootdk_attention_upstream_init(rootdk_attention_upstream* upstream) { clear(upstream); }
void rootdk_attention_gradients_init(rootdk_attention_gradients* gradients) { clear(gradients); }

rootdk_status rootdk_attention(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                               const rootdk_tensor* out, const rootdk_attention_params* params,
                               const rootdk_attention_stats* stats, const rootdk_execution* execution) {
  return guarded([&] {
    const ConvertedExecution where(execution);
    rootdk::attention(view(q), view(k), view(v), view(out), convert(params), convert(stats), where);
  });
}

rootdk_status rootdk_attention_backward(const rootdk_attention_saved* saved, const rootdk_attention_upstream* upstream,
                                        const rootdk_attention_gradients* gradients,
                                        const rootdk_attention_params* params, const rootdk_execution* execution) {
  return guarded([&] {
    const ConvertedExecution where(execution);
    const BackwardArguments a{convert(saved), convert(upstream), convert(gradients), convert(params)};
    rootdk::attention_backward(a.saved, a.upstream, a.gradients, a.params, where);
  });
}

rootdk_status rootdk_attention_workspace(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                                         const rootdk_tensor* out, const rootdk_attention_params* params,
                                         const rootdk_attention_stats* stats, size_t* bytes) {
  return guarded([&] {
    rootdk::require(bytes != nullptr, "attention_workspace: bytes is null");
    *bytes = rootdk::attention_workspace(view(q), view(k), view(v), view(out), convert(params), convert(stats));
  });
}

rootdk_status rootdk_attention_backward_workspace(const rootdk_attention_saved* saved,
                                                  const rootdk_attention_upstream* upstream,
                                                  const rootdk_attention_gradients* gradients,
                                                  const rootdk_attention_params* params, size_t* bytes) {
  return guarded([&] {
    rootdk::require(bytes != nullptr, "attention_backward_workspace: bytes is null");
    const BackwardArguments a{convert(saved), convert(upstream), convert(gradients), convert(params)};
    *bytes = rootdk::attention_backward_workspace(a.saved, a.upstream, a.gradients, a.params);
  });
}

const char* rootdk_explain(const rootdk_tensor* q, const rootdk_tensor* k, const rootdk_tensor* v,
                           const rootdk_tensor* out, const rootdk_attention_params* params,
                           const rootdk_attention_stats* stats, const rootdk_execution* execution) {
  return explained([&] {
    const ConvertedExecution where(execution);
    return rootdk::explain(view(q), view(k), view(v), view(out), convert(params), convert(stats), where);
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

int32_t rootdk_dropout_keeps(double probability, uint64_t seed, uint32_t batch, uint32_t head, uint32_t i, uint32_t j) {
  return rootdk::DropoutRule::make(probability, seed).keeps(batch, head, i, j);
}
