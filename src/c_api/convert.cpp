#include "c_api/convert.h"

#include <algorithm>
#include <optional>

#include "c_api/defaults.h"
#include "c_api/struct_version.h"

namespace rootdk::c_api {
Scale convert_scale(int32_t kind, double value) {
  // A number that would be ignored is a mistake: the init functions leave 1.
  require(kind == ROOTDK_SCALE_VALUE || value == 1, "c_api: scale ", value, " is given with scale_kind ", kind,
          "; it needs ROOTDK_SCALE_VALUE (", static_cast<int>(ROOTDK_SCALE_VALUE), ")");
  switch (kind) {
    case ROOTDK_SCALE_INVERSE_SQRT_HEAD_DIM: return Scale::inverse_sqrt_head_dim();
    case ROOTDK_SCALE_NONE: return Scale::none();
    case ROOTDK_SCALE_INVERSE_HEAD_DIM: return Scale::inverse_head_dim();
    case ROOTDK_SCALE_VALUE: return Scale(value);
    default: fail("c_api: scale_kind ", kind, " is not in 0 to 3");
  }
}

namespace {

std::optional<DType> convert_compute(int32_t compute) {
  if (compute == ROOTDK_COMPUTE_AS_Q) return {};
  require(compute == ROOTDK_COMPUTE_F8E4M3, "c_api: compute ", compute, " is neither as q (0) nor f8e4m3 (1)");
  return DType::f8e4m3;
}

}  // namespace

TensorView view(const rootdk_tensor* tensor) {
  TensorView result;
  if (!tensor) return result;
  require(tensor->rank >= 0 && tensor->rank <= kMaxRank, "c_api: tensor rank ", tensor->rank, " is not in 0 to ",
          kMaxRank);
  require(tensor->dtype >= ROOTDK_F32 && tensor->dtype <= ROOTDK_F8E4M3, "c_api: tensor dtype ", tensor->dtype,
          " is not in 0 to ", static_cast<int>(ROOTDK_F8E4M3));
  require(tensor->device_kind == ROOTDK_CPU || tensor->device_kind == ROOTDK_CUDA, "c_api: tensor device_kind ",
          tensor->device_kind, " is neither cpu (0) nor cuda (1)");
  result.data = tensor->data;
  result.dtype = static_cast<DType>(tensor->dtype);
  result.device = {static_cast<DeviceKind>(tensor->device_kind), tensor->device_index};
  result.rank = tensor->rank;
  std::copy_n(tensor->shape, tensor->rank, result.shape.begin());
  std::copy_n(tensor->strides, tensor->rank, result.strides.begin());
  return result;
}

rootdk_tensor c_tensor(const ConstTensorView& view) {
  rootdk_tensor result{};
  result.data = const_cast<void*>(view.data);
  result.dtype = static_cast<int32_t>(view.dtype);
  result.device_kind = static_cast<int32_t>(view.device.kind);
  result.device_index = view.device.index;
  result.rank = view.rank;
  std::copy_n(view.shape.begin(), view.rank, result.shape);
  std::copy_n(view.strides.begin(), view.rank, result.strides);
  return result;
}

AttentionParams convert(const rootdk_attention_params* params, const rootdk_attention_stats* stats) {
  AttentionParams result;
  if (params) {
    const auto p = read_struct(params, defaults<rootdk_attention_params>(), "rootdk_attention_params");
    result = {.score = static_cast<Score>(p.score),
              .logits = {.scale = convert_scale(p.scale_kind, p.scale),
                         .temperature = p.temperature,
                         .softcap = p.softcap,
                         .relative_table = view(p.relative_table),
                         .relative_zero = p.relative_zero,
                         .alibi_slopes = view(p.alibi_slopes),
                         .sinks = view(p.sinks)},
              .causal = p.causal != 0,
              .window_left = p.window_left,
              .window_right = p.window_right,
              .kv_lengths = view(p.kv_lengths),
              .mask = view(p.mask),
              .block_mask = view(p.block_mask),
              .block_q = p.block_q,
              .block_kv = p.block_kv,
              .q_starts = view(p.q_starts),
              .kv_starts = view(p.kv_starts),
              .max_q_len = p.max_q_len,
              .max_kv_len = p.max_kv_len,
              .bias = view(p.bias),
              .additive_v = view(p.additive_v),
              .dropout = p.dropout,
              .seed = p.seed,
              .compute = convert_compute(p.compute),
              .fp8 = {.rotate = p.rotate != 0,
                      .q_scales = view(p.q_scales),
                      .k_scales = view(p.k_scales),
                      .v_scales = view(p.v_scales),
                      .q_shift = view(p.q_shift)}};
  }
  if (stats) {
    const auto s = read_struct(stats, defaults<rootdk_attention_stats>(), "rootdk_attention_stats");
    result.stats = {.weight_rows = view(s.weight_rows), .stride = s.stride};
  }
  return result;
}

AttentionStats convert(const rootdk_attention_stats* stats) {
  if (!stats) return {};
  const auto s = read_struct(stats, defaults<rootdk_attention_stats>(), "rootdk_attention_stats");
  return {.lse = view(s.lse),
          .max_logit = view(s.max_logit),
          .max_weight = view(s.max_weight),
          .entropy = view(s.entropy),
          .sum_p2 = view(s.sum_p2),
          .column_mass = view(s.column_mass),
          .pooled_map = view(s.pooled_map),
          .weights = view(s.weights)};
}

AttentionSaved convert(const rootdk_attention_saved* saved) {
  require(saved != nullptr, "c_api: saved is null");
  const auto s = read_struct(saved, defaults<rootdk_attention_saved>(), "rootdk_attention_saved");
  return {.q = view(s.q),
          .k = view(s.k),
          .v = view(s.v),
          .out = view(s.out),
          .lse = view(s.lse),
          .entropy = view(s.entropy)};
}

QuantizedViews convert(const rootdk_quantized* to) {
  require(to != nullptr, "c_api: to is null");
  const auto t = read_struct(to, defaults<rootdk_quantized>(), "rootdk_quantized");
  return {.q = view(t.q),
          .k = view(t.k),
          .v = view(t.v),
          .q_scales = view(t.q_scales),
          .k_scales = view(t.k_scales),
          .v_scales = view(t.v_scales),
          .q_shift = view(t.q_shift),
          .key_mean = view(t.key_mean)};
}

AttentionUpstream convert(const rootdk_attention_upstream* upstream) {
  require(upstream != nullptr, "c_api: upstream is null");
  const auto u = read_struct(upstream, defaults<rootdk_attention_upstream>(), "rootdk_attention_upstream");
  return {.out = view(u.out), .lse = view(u.lse), .entropy = view(u.entropy)};
}

AttentionGradients convert(const rootdk_attention_gradients* gradients) {
  require(gradients != nullptr, "c_api: gradients is null");
  const auto g = read_struct(gradients, defaults<rootdk_attention_gradients>(), "rootdk_attention_gradients");
  return {.q = view(g.q),
          .k = view(g.k),
          .v = view(g.v),
          .bias = view(g.bias),
          .relative_table = view(g.relative_table),
          .alibi_slopes = view(g.alibi_slopes),
          .sinks = view(g.sinks),
          .additive_v = view(g.additive_v),
          .column_mass = view(g.column_mass)};
}

RopeParams convert(const rootdk_rope_params* params) {
  if (!params) return {};
  const auto p = read_struct(params, defaults<rootdk_rope_params>(), "rootdk_rope_params");
  return {.layout = static_cast<RopeLayout>(p.layout),
          .rotary_dim = p.rotary_dim,
          .base = p.base,
          .scaling = static_cast<RopeScaling>(p.scaling),
          .factor = p.factor,
          .original_max_position = p.original_max_position,
          .beta_fast = p.beta_fast,
          .beta_slow = p.beta_slow,
          .truncate = p.truncate != 0,
          .attention_factor = p.attention_factor,
          .low_freq_factor = p.low_freq_factor,
          .high_freq_factor = p.high_freq_factor,
          .offset = p.offset};
}

ConvertedExecution::ConvertedExecution(const rootdk_execution* execution)
    : given_(execution ? read_struct(execution, defaults<rootdk_execution>(), "rootdk_execution")
                       : defaults<rootdk_execution>()),
      caller_(given_) {
  require(given_.threads >= 0, "c_api: threads ", given_.threads, " is negative");
  execution_ = {.target = given_.target ? given_.target : "",
                .cpu = {.executor = nullptr, .workspace_limit = given_.workspace_limit},
                .cuda = {.stream = given_.stream,
                         .workspace = given_.workspace,
                         .workspace_bytes = given_.workspace_bytes,
                         .allocate = given_.allocate,
                         .allocate_user = given_.allocate_user}};
  if (given_.parallel_for) {
    execution_.cpu.executor = &caller_;
  } else if (given_.threads > 0) {
    execution_.cpu.executor = &shared_executor(given_.threads);
  }
}

}  // namespace rootdk::c_api
