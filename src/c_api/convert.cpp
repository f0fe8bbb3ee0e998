#include "c_api/convert.h"

#include <algorithm>

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

AttentionParams convert(const rootdk_attention_params* params) {
  if (!params) return {};
  require_size(params, "rootdk_attention_params");
  return {.score = static_cast<Score>(params->score),
          .scale = convert_scale(params->scale_kind, params->scale),
          .temperature = params->temperature,
          .softcap = params->softcap,
          .causal = params->causal != 0,
          .window_left = params->window_left,
          .window_right = params->window_right,
          .kv_lengths = view(params->kv_lengths),
          .mask = view(params->mask),
          .block_mask = view(params->block_mask),
          .block_q = params->block_q,
          .block_kv = params->block_kv,
          .q_starts = view(params->q_starts),
          .kv_starts = view(params->kv_starts),
          .max_q_len = params->max_q_len,
          .max_kv_len = params->max_kv_len,
          .bias = view(params->bias),
          .relative_table = view(params->relative_table),
          .relative_zero = params->relative_zero,
          .alibi_slopes = view(params->alibi_slopes),
          .sinks = view(params->sinks),
          .additive_v = view(params->additive_v),
          .dropout = params->dropout,
          .seed = params->seed};
}

AttentionStats convert(const rootdk_attention_stats* stats) {
  if (!stats) return {};
  require_size(stats, "rootdk_attention_stats");
  return {.lse = view(stats->lse),
          .max_logit = view(stats->max_logit),
          .max_weight = view(stats->max_weight),
          .entropy = view(stats->entropy),
          .sum_p2 = view(stats->sum_p2),
          .column_mass = view(stats->column_mass),
          .pooled_map = view(stats->pooled_map),
          .weights = view(stats->weights),
          .weight_rows = view(stats->weight_rows),
          .stride = stats->stride};
}

AttentionSaved convert(const rootdk_attention_saved* saved) {
  require(saved != nullptr, "c_api: saved is null");
  require_size(saved, "rootdk_attention_saved");
  return {.q = view(saved->q),
          .k = view(saved->k),
          .v = view(saved->v),
          .out = view(saved->out),
          .lse = view(saved->lse),
          .entropy = view(saved->entropy)};
}

AttentionUpstream convert(const rootdk_attention_upstream* upstream) {
  require(upstream != nullptr, "c_api: upstream is null");
  require_size(upstream, "rootdk_attention_upstream");
  return {.out = view(upstream->out), .lse = view(upstream->lse), .entropy = view(upstream->entropy)};
}

AttentionGradients convert(const rootdk_attention_gradients* gradients) {
  require(gradients != nullptr, "c_api: gradients is null");
  require_size(gradients, "rootdk_attention_gradients");
  return {.q = view(gradients->q),
          .k = view(gradients->k),
          .v = view(gradients->v),
          .bias = view(gradients->bias),
          .relative_table = view(gradients->relative_table),
          .alibi_slopes = view(gradients->alibi_slopes),
          .sinks = view(gradients->sinks),
          .additive_v = view(gradients->additive_v),
          .column_mass = view(gradients->column_mass)};
}

RopeParams convert(const rootdk_rope_params* params) {
  if (!params) return {};
  require_size(params, "rootdk_rope_params");
  return {.layout = static_cast<RopeLayout>(params->layout),
          .rotary_dim = params->rotary_dim,
          .base = params->base,
          .scaling = static_cast<RopeScaling>(params->scaling),
          .factor = params->factor,
          .original_max_position = params->original_max_position,
          .beta_fast = params->beta_fast,
          .beta_slow = params->beta_slow,
          .truncate = params->truncate != 0,
          .attention_factor = params->attention_factor,
          .low_freq_factor = params->low_freq_factor,
          .high_freq_factor = params->high_freq_factor,
          .offset = params->offset};
}

ConvertedExecution::ConvertedExecution(const rootdk_execution* execution) : caller_(execution) {
  if (!execution) return;
  require_size(execution, "rootdk_execution");
  require(execution->threads >= 0, "c_api: threads ", execution->threads, " is negative");
  execution_ = {.target = execution->target ? execution->target : "",
                .workspace_limit = execution->workspace_limit,
                .stream = execution->stream,
                .workspace = execution->workspace,
                .workspace_bytes = execution->workspace_bytes};
  if (execution->parallel_for) {
    execution_.executor = &caller_;
  } else if (execution->threads > 0) {
    execution_.executor = &shared_executor(execution->threads);
  }
}

}  // namespace rootdk::c_api
