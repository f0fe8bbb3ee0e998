#include "core/kv_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/logit_check.h"
#include "core/view_check.h"

namespace rootdk {
namespace {

Rotation make_rotation(const std::optional<RopeParams>& rope, std::int64_t head_dim) {
  if (!rope) return {};
  Rotation rotation{.layout = rope->layout, .offset = rope->offset};
  const std::int64_t rotary = rope->rotary_dim ? rope->rotary_dim : head_dim;
  rotation.frequency.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, rotary / 2)));
  rotation.magnitude = rope_frequencies(
      TensorView(rotation.frequency.data(), {static_cast<std::int64_t>(rotation.frequency.size())}), head_dim, *rope);
  return rotation;
}

KvShape shape_of(const KvCacheConfig& c, std::int64_t tokens, std::int64_t heads = 0) {
  return {.heads = heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .value_dim = c.value_dim,
          .page_size = c.page_size,
          .tokens = tokens};
}

// tokens rows of every head and layer, from one page to another. The view is [layers, pages, kv_heads, page_size(,
// dim)].
void copy_page(const TensorView& view, const PageCopy& copy) {
  if (!view.defined()) return;
  const std::size_t element = size_of(view.dtype);
  const std::size_t row = element * static_cast<std::size_t>(view.rank == 5 ? view.size(4) : 1);
  auto* base = view.as<std::byte>();
  for (std::int64_t layer = 0; layer < view.size(0); ++layer) {
    for (std::int64_t head = 0; head < view.size(2); ++head) {
      auto at = [&](std::int64_t page) {
        return base + static_cast<std::size_t>((layer * view.size(1) + page) * view.size(2) + head) *
                          static_cast<std::size_t>(view.size(3)) * row;
      };
      std::memcpy(at(copy.to), at(copy.from), static_cast<std::size_t>(copy.tokens) * row);
    }
  }
}

void check_rows(const NamedView& tensor, const KvCacheConfig& c) {
  require_given(tensor);
  require_rank(tensor, 4);
  require_dtype(tensor, {DType::f32, DType::bf16, DType::f16, DType::f64});
  require_device(tensor, c.device, "the cache");
  require_addressable(tensor);
  require_contiguous_last(tensor);
}

void check_row_count(std::string_view operation, std::span<const KvStep> steps, std::int64_t rows) {
  std::int64_t tokens = 0;
  for (const KvStep& step : steps) {
    require(step.tokens >= 0, operation, ": tokens ", step.tokens, " of sequence ", number(step.sequence),
            " is negative");
    require(step.tokens <= rows, operation, ": tokens ", step.tokens, " of sequence ", number(step.sequence),
            " is more than the ", rows, " rows given");
    tokens += step.tokens;
  }
  require(tokens == rows, operation, ": the steps have ", tokens, " tokens but the tensors ", rows, " rows");
}

void check_window(const AttendParams& p) {
  require(p.window_left >= -1, "attend: window_left ", p.window_left, " must be at least 0, or -1 for none");
  require(p.window_keeps_first >= 0, "attend: window_keeps_first ", p.window_keeps_first, " must not be negative");
}

void check_stats(const AttentionStats& stats, DType small, Device device, std::int64_t heads, std::int64_t tokens) {
  for (const auto& [name, view] :
       {std::pair{"stats.column_mass", stats.column_mass}, std::pair{"stats.pooled_map", stats.pooled_map},
        std::pair{"stats.weights", stats.weights}}) {
    if (!view.defined()) continue;
    fail(ErrorKind::unsupported, "attend: ", name,
         " is not available over a cache; lse, max_logit, max_weight, entropy and sum_p2 are");
  }
  for (const auto& [name, view] :
       {std::pair{"stats.lse", stats.lse}, std::pair{"stats.max_logit", stats.max_logit},
        std::pair{"stats.max_weight", stats.max_weight}, std::pair{"stats.entropy", stats.entropy},
        std::pair{"stats.sum_p2", stats.sum_p2}}) {
    if (!view.defined()) continue;
    const NamedView tensor{"attend", name, view};
    require_dtype(tensor, {small});
    require_shape(tensor, {1, heads, tokens});
    require_device(tensor, device, "the cache");
    require_addressable(tensor);
    require_no_overlap(tensor);
  }
}

CallSequence attend_sequence(const KvCacheState& cache, const KvStep& step, std::int64_t layer, std::int64_t row) {
  const KvSequence& sequence = cache.find("attend", step.sequence);
  const std::int64_t length = sequence.lengths[static_cast<std::size_t>(layer)];
  require(step.tokens <= length, "attend: tokens ", step.tokens, " of sequence ", number(step.sequence),
          " is more than its length ", length, " (append them first)");
  const std::int64_t position = step.position == -1 ? length - step.tokens : step.position;
  require(position >= 0 && position <= length - step.tokens, "attend: position ", position, " with tokens ",
          step.tokens, " of sequence ", number(step.sequence), " is not within its length ", length);
  require(step.tokens == 0 || position + step.tokens <= sequence.gap_begin || position >= sequence.gap_end,
          "attend: positions ", position, " to ", position + step.tokens - 1, " of sequence ", number(step.sequence),
          " reach into the evicted positions ", sequence.gap_begin, " to ", sequence.gap_end);
  return {.row = row,
          .tokens = step.tokens,
          .position = position,
          .pages = sequence.pages.data(),
          .gap_begin = sequence.gap_begin,
          .gap_end = sequence.gap_end};
}

// [layers, pages, ...] -> [pages, ...] of one layer.
ConstTensorView layer_of(const TensorView& view, std::int64_t layer) {
  if (!view.defined()) return {};
  ConstTensorView result = ConstTensorView(view).slice(0, layer, layer + 1);
  std::rotate(result.shape.begin(), result.shape.begin() + 1, result.shape.begin() + result.rank);
  std::rotate(result.strides.begin(), result.strides.begin() + 1, result.strides.begin() + result.rank);
  --result.rank;
  return result;
}

}  // namespace

void Rotation::angles(std::int64_t position, std::span<double> cosine, std::span<double> sine) const {
  for (std::size_t pair = 0; pair < frequency.size(); ++pair) {
    const double angle = static_cast<double>(position + offset) * frequency[pair];
    cosine[pair] = magnitude * std::cos(angle);
    sine[pair] = magnitude * std::sin(angle);
  }
}

void Rotation::apply(std::span<double> x, std::span<const double> cosine, std::span<const double> sine) const {
  const std::size_t pairs = frequency.size();
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    double& first = x[layout == RopeLayout::half_split ? pair : 2 * pair];
    double& second = x[layout == RopeLayout::half_split ? pair + pairs : 2 * pair + 1];
    const double turned = first * cosine[pair] - second * sine[pair];
    second = second * cosine[pair] + first * sine[pair];
    first = turned;
  }
}

KeyGaps key_gaps(const CallSequence& sequence, const AttendParams& params, std::int64_t position) {
  KeyGaps gaps{.evicted = {sequence.gap_begin, sequence.gap_end}};
  if (params.window_left >= 0 && params.window_left < position) {
    const std::int64_t begin = std::min(params.window_keeps_first, position - params.window_left);
    gaps.hidden = {begin, position - params.window_left};
  }
  return gaps;
}

void copy_pages(const AppendCall& call) {
  for (const PageCopy& copy : call.copies) {
    for (const TensorView& view : {call.storage.k, call.storage.v, call.storage.k_scales, call.storage.v_scales}) {
      copy_page(view, copy);
    }
  }
}

AppendCall make_append_call(KvCacheState& cache, ConstTensorView k, ConstTensorView v, std::span<const KvStep> steps,
                            const AppendParams& params, const Execution& execution) {
  const KvCacheConfig& c = cache.config;
  cache.require_layer("append", params.layer);
  check_rows({"append", "k", k}, c);
  check_rows({"append", "v", v}, c);
  require_shape({"append", "k", k}, {1, c.kv_heads, k.size(2), c.head_dim});
  require_shape({"append", "v", v}, {1, c.kv_heads, k.size(2), c.value_dim});
  check_row_count("append", steps, k.size(2));
  AppendCall call{.k = k,
                  .v = v,
                  .storage = cache.storage,
                  .layer = params.layer,
                  .rotation = make_rotation(params.rope, c.head_dim),
                  .execution = execution,
                  .shape = shape_of(c, k.size(2))};
  call.copies.reserve(cache.plan_append(steps, params.layer));
  std::int64_t row = 0;
  for (const KvStep& step : steps) {
    const KvSequence& sequence = cache.find("append", step.sequence);
    call.sequences.push_back(
        {.row = row, .tokens = step.tokens, .position = sequence.lengths[static_cast<std::size_t>(params.layer)]});
    row += step.tokens;
  }
  return call;
}

void commit_append_call(KvCacheState& cache, std::span<const KvStep> steps, AppendCall& call) {
  cache.commit_append(steps, call.layer, call.copies);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    call.sequences[s].pages = cache.find("append", steps[s].sequence).pages.data();
  }
}

AttendCall make_attend_call(const KvCacheState& cache, ConstTensorView q, TensorView out, std::span<const KvStep> steps,
                            const AttendParams& params, const AttentionStats& stats, const Execution& execution) {
  const KvCacheConfig& c = cache.config;
  cache.require_layer("attend", params.layer);
  check_rows({"attend", "q", q}, c);
  check_rows({"attend", "out", out}, c);
  const std::int64_t heads = q.size(1), tokens = q.size(2);
  require(heads >= 1 && heads % c.kv_heads == 0, "attend: heads ", heads, " is not a multiple of kv_heads ",
          c.kv_heads);
  require_shape({"attend", "q", q}, {1, heads, tokens, c.head_dim});
  require_shape({"attend", "out", out}, {1, heads, tokens, c.value_dim});
  require(out.dtype == q.dtype, "attend: out is ", name_of(out.dtype), " but q is ", name_of(q.dtype));
  require_no_overlap({"attend", "out", out});
  require_apart("attend", "out", out, "q", q);
  const DType small = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  const double logit_scale = checked_logit_scale("attend", params.logits, c.head_dim, q.dtype);
  check_window(params);
  check_logit_tensors({"attend", small, c.device, "the cache"}, params.logits, heads);
  check_stats(stats, small, c.device, heads, tokens);
  check_row_count("attend", steps, tokens);
  AttendCall call{.q = q,
                  .out = out,
                  .k = layer_of(cache.storage.k, params.layer),
                  .v = layer_of(cache.storage.v, params.layer),
                  .k_scales = layer_of(cache.storage.k_scales, params.layer),
                  .v_scales = layer_of(cache.storage.v_scales, params.layer),
                  .params = params,
                  .stats = stats,
                  .rotation = make_rotation(params.rope, c.head_dim),
                  .execution = execution,
                  .shape = shape_of(c, tokens, heads),
                  .logit_scale = logit_scale};
  std::int64_t row = 0;
  for (const KvStep& step : steps) {
    call.sequences.push_back(attend_sequence(cache, step, params.layer, row));
    row += step.tokens;
  }
  return call;
}

}  // namespace rootdk
