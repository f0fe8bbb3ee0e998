#include "layers/cached_attention.h"

#include <algorithm>
#include <vector>

#include "core/check.h"

namespace rootdk {
namespace {

// The rows of consecutive steps [begin, end) of a call.
struct RowRange {
  std::int64_t begin = 0, end = 0;
};

AttendParams attend_params(const AttentionParams& params, std::int64_t layer) {
  return {.layer = layer, .logits = params.logits, .window_left = params.window_left};
}

void check_rows(const Context& context, const DotProductInput& input, std::span<const KvStep> steps) {
  require(!context.tape, "attention: keys of a cache have no gradient");
  require(input.batch == 1 && !input.padding && !input.bias,
          "attention: the rows of a cache are packed, without padding and bias; the batch is ", input.batch);
  std::int64_t rows = 0;
  for (const KvStep& step : steps) rows += step.tokens;
  require(rows == input.q->rows(), "attention: ", input.q->rows(), " rows for steps of ", rows, " tokens");
}

// Views of the operands of one call, [1, heads, rows, dim].
class CachedCall {
 public:
  CachedCall(Context& context, const DotProductInput& input, const AttentionParams& params, const CachedRows& rows)
      : context_(context),
        rows_(rows),
        params_(bind_tensors(input, params)),
        out_(make_value({input.q->rows(), input.heads * (input.v->width() / input.kv_heads)})),
        q_(heads_of(std::as_const(input.q->value()), 1, input.heads)),
        k_(heads_of(std::as_const(input.k->value()), 1, input.kv_heads)),
        v_(heads_of(std::as_const(input.v->value()), 1, input.kv_heads)),
        out_view_(heads_of(out_->value(), 1, input.heads)) {}

  Value run() {
    std::vector<bool> prompt;
    for (const KvStep& step : rows_.steps) {
      prompt.push_back(step.tokens > 1 && rows_.cache->length(step.sequence, rows_.layer) == 0);
    }
    append(*rows_.cache, k_, v_, rows_.steps, {.layer = rows_.layer}, {.cpu = {.executor = context_.executor}});
    std::int64_t row = 0;
    for (std::size_t first = 0, last = 0; first < prompt.size(); first = last) {
      RowRange range{row, row};
      do {  // attend() takes all the steps up to the next prompt
        range.end += rows_.steps[last++].tokens;
      } while (!prompt[first] && last < prompt.size() && !prompt[last]);
      const double start = context_.times ? layer_clock(*context_.times) : 0.0;
      if (prompt[first]) {
        run_prompt(range);
      } else {
        run_steps(range, rows_.steps.subspan(first, last - first));
      }
      add_times(start, first, last, prompt[first]);
      row = range.end;
    }
    return out_;
  }

 private:
  template <class View>
  static View part(const View& view, RowRange range) {
    return view.slice(2, range.begin, range.end);
  }

  void run_prompt(RowRange range) {
    attention(part(q_, range), part(k_, range), part(v_, range), part(out_view_, range), params_, {},
              {.cpu = {.executor = context_.executor}});
  }

  void run_steps(RowRange range, std::span<const KvStep> steps) {
    auto attend_to = [&](const ConstTensorView& q, const TensorView& out) {
      attend(*rows_.cache, q, out, steps, attend_params(params_, rows_.layer), {},
             {.cpu = {.executor = context_.executor}});
    };
    const TensorView out = part(out_view_, range);
    const DType stored = rows_.cache->config().dtype;
    const bool rounds = rows_.rounds_queries && (stored == DType::bf16 || stored == DType::f8e4m3);
    if (!rounds) return attend_to(part(q_, range), out);
    Tensor narrow(DType::bf16, {1, out.size(1), out.size(2), out.size(3)});
    attend_to(convert(part(q_, range), DType::bf16), narrow);
    const BFloat16* from = narrow.view().as<BFloat16>();
    for (std::int64_t head = 0; head < out.size(1); ++head) {
      for (std::int64_t row = 0; row < out.size(2); ++row, from += out.size(3)) {
        std::transform(from, from + out.size(3), out.as<float>() + head * out.stride(1) + row * out.stride(2),
                       [](BFloat16 x) { return static_cast<float>(x); });
      }
    }
  }

  void add_times(double start, std::size_t first, std::size_t last, bool causal) {
    if (!context_.times) return;
    for (std::size_t i = first; i < last; ++i, start = layer_clock(*context_.times)) {
      const KvStep& step = rows_.steps[i];
      add_attention_times(context_, start, q_.slice(2, 0, step.tokens), rows_.cache->length(step.sequence, rows_.layer),
                          causal);
    }
  }

  Context& context_;
  const CachedRows& rows_;
  AttentionParams params_;
  Value out_;
  ConstTensorView q_, k_, v_;
  TensorView out_view_;
};

}  // namespace

Value cached_attention(Context& context, const DotProductInput& input, const AttentionParams& params,
                       const CachedRows& rows) {
  check_rows(context, input, rows.steps);
  require(params.causal && params.score == Score::dot,
          "attention: a cache serves causal attention with the dot product alone");
  return CachedCall(context, input, params, rows).run();
}

Value fixed_attention(Context& context, const DotProductInput& input, const AttentionParams& params,
                      std::span<const FixedKeys> keys, std::span<const KvStep> steps) {
  check_rows(context, input, steps);
  require(keys.size() == steps.size(), "attention: fixed keys for ", keys.size(), " of ", steps.size(), " steps");
  const ConstTensorView q = heads_of(std::as_const(input.q->value()), 1, input.heads);
  Value out = make_value({input.q->rows(), input.heads * (keys.front().v->width() / input.kv_heads)});
  const TensorView out_view = heads_of(out->value(), 1, input.heads);
  const AttentionParams bound = bind_tensors(input, params);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t end = row + steps[i].tokens;
    const double start = context.times ? layer_clock(*context.times) : 0.0;
    attention(q.slice(2, row, end), heads_of(std::as_const(keys[i].k->value()), 1, input.kv_heads),
              heads_of(std::as_const(keys[i].v->value()), 1, input.kv_heads), out_view.slice(2, row, end), bound, {},
              {.cpu = {.executor = context.executor}});
    add_attention_times(context, start, q.slice(2, row, end), keys[i].k->rows(), false);
    row = end;
  }
  return out;
}

}  // namespace rootdk
