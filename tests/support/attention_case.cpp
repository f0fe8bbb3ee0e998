#include "support/attention_case.h"

#include <utility>
#include <vector>

#include "core/check.h"

namespace rootdk::test {
namespace {

Shape shape_of(const ConstTensorView& view) { return {view.shape.begin(), view.shape.begin() + view.rank}; }

Tensor convert_given(const Tensor& tensor, DType to) { return tensor.defined() ? convert(tensor, to) : Tensor(); }

// An output tensor of a call, poisoned, and its name among the results.
struct Slot {
  std::string name;
  DataTensor data;  // of rank 4 with the layout of q
  Tensor plain;
  TensorView view() { return data.defined() ? data.view() : plain.view(); }
};

// Hands out views of poisoned outputs and collects them as results.
class Collector {
 public:
  explicit Collector(Placement& placement) : placement_(placement) { slots_.reserve(16); }

  TensorView data(std::string name, const ConstTensorView& like, DType dtype, bool length_first) {
    slots_.push_back({std::move(name), DataTensor(Tensor(dtype, shape_of(like)), length_first), {}});
    poison(slots_.back().data.memory());
    return placement_.output(slots_.back().view());
  }
  TensorView plain(std::string name, const Shape& shape, DType dtype) {
    slots_.push_back({std::move(name), {}, Tensor(dtype, shape)});
    poison(slots_.back().plain);
    return placement_.output(slots_.back().view());
  }
  TensorView like(std::string name, const Tensor& parameter) {
    if (!parameter.defined()) return {};
    return plain(std::move(name), shape_of(parameter), parameter.dtype());
  }
  Results results() {
    Results all;
    for (Slot& slot : slots_) all.emplace(slot.name, convert(slot.view(), DType::f64));
    return all;
  }

 private:
  Placement& placement_;
  std::vector<Slot> slots_;
};

// The arguments of a forward call with the memory they lie in.
struct Forward {
  Forward(const AttentionCase& c, const Target& target, Statistics statistics)
      : placement(target.memory), outputs(placement) {
    q = placement.input(c.q.view());
    k = placement.input(c.k.view());
    v = placement.input(c.v.view());
    Shape out_shape = shape_of(c.q.view());
    out_shape[3] = c.v.view().size(3);
    out = outputs.data("out", Tensor(c.dtype, out_shape), c.dtype, c.length_first);
    params = placement.params(c.params());
    execution = {.target = target.name, .cpu = {.executor = target.executor}};
    if (statistics != Statistics::none) row_statistics(c);
    if (statistics == Statistics::all) column_statistics(c);
  }

  void row_statistics(const AttentionCase& c) {
    const Shape rows{q.size(0), q.size(1), q.size(2)};
    stats.lse = outputs.plain("lse", rows, c.small());
    stats.max_logit = outputs.plain("max_logit", rows, c.small());
    stats.max_weight = outputs.plain("max_weight", rows, c.small());
    stats.entropy = outputs.plain("entropy", rows, c.small());
    stats.sum_p2 = outputs.plain("sum_p2", rows, c.small());
  }

  void column_statistics(const AttentionCase& c) {
    stats.column_mass = outputs.plain("column_mass", {q.size(0), q.size(1), k.size(2)}, c.small());
    if (c.pooled_rows) {
      stats.pooled_map =
          outputs.plain("pooled_map", {q.size(0), q.size(1), c.pooled_rows, c.pooled_columns}, c.small());
    }
    const std::int64_t chosen = c.weight_rows.defined() ? c.weight_rows.size(0) : q.size(2);
    stats.weights = outputs.plain("weights", {q.size(0), q.size(1), chosen, k.size(2)}, c.small());
    if (c.weight_rows.defined()) params.stats.weight_rows = placement.input(c.weight_rows);
  }

  Placement placement;
  Collector outputs;
  ConstTensorView q, k, v;
  TensorView out;
  AttentionParams params;
  AttentionStats stats;
  Execution execution;
};

struct Backward {
  Backward(const AttentionCase& c, const Results& forward, const Target& target)
      : out(convert(forward.at("out"), c.dtype), c.length_first),
        lse(convert(forward.at("lse"), c.small())),
        entropy(convert(forward.at("entropy"), c.small())),
        placement(target.memory),
        outputs(placement) {
    saved = {.q = placement.input(c.q.view()),
             .k = placement.input(c.k.view()),
             .v = placement.input(c.v.view()),
             .out = placement.input(std::as_const(out).view()),
             .lse = placement.input(lse),
             .entropy = {}};
    upstream.out = placement.input(c.grad_out.view());
    if (c.grad_lse.defined()) upstream.lse = placement.input(c.grad_lse);
    if (c.grad_entropy.defined()) {
      upstream.entropy = placement.input(c.grad_entropy);
      saved.entropy = placement.input(entropy);
    }
    gradients.q = outputs.data("grad_q", c.q.view(), c.dtype, c.length_first);
    gradients.k = outputs.data("grad_k", c.k.view(), c.dtype, c.length_first);
    gradients.v = outputs.data("grad_v", c.v.view(), c.dtype, c.length_first);
    gradients.bias = outputs.like("grad_bias", c.bias);
    gradients.relative_table = outputs.like("grad_relative_table", c.relative_table);
    gradients.alibi_slopes = outputs.like("grad_alibi_slopes", c.alibi_slopes);
    gradients.sinks = outputs.like("grad_sinks", c.sinks);
    gradients.additive_v = outputs.like("grad_additive_v", c.additive_v);
    const ConstTensorView q = c.q.view();
    gradients.column_mass =
        outputs.plain("backward_column_mass", {q.size(0), q.size(1), c.k.view().size(2)}, c.small());
    params = placement.params(c.params());
    execution = {.target = target.name, .cpu = {.executor = target.executor}};
  }

  DataTensor out;
  Tensor lse, entropy;
  Placement placement;
  Collector outputs;
  AttentionSaved saved;
  AttentionUpstream upstream;
  AttentionGradients gradients;
  AttentionParams params;
  Execution execution;
};

// What the named implementation answered; a name that is not in the list is not built in.
std::string refusal_of(const Explanation& explanation, const std::string& target) {
  require(!explanation.candidates.empty(), explanation.error);
  if (target.empty()) return explanation.chosen.empty() ? explanation.error : "";
  for (const auto& candidate : explanation.candidates) {
    if (candidate.name == target) return candidate.refusal;
  }
  return "it is not built into this library";
}

}  // namespace

DataTensor::DataTensor(const ConstTensorView& values, bool length_first)
    : memory_(clone(length_first ? values.transposed(1, 2) : values)), length_first_(length_first) {}

AttentionParams AttentionCase::params() const {
  AttentionParams p = scalars;
  p.kv_lengths = kv_lengths;
  p.mask = mask;
  p.block_mask = block_mask;
  p.q_starts = q_starts;
  p.kv_starts = kv_starts;
  p.bias = bias;
  p.logits.relative_table = relative_table;
  p.logits.alibi_slopes = alibi_slopes;
  p.logits.sinks = sinks;
  p.additive_v = additive_v;
  return p;
}

AttentionCase AttentionCase::converted(DType to) const {
  AttentionCase c;
  c.name = name;
  c.dtype = to;
  c.length_first = length_first;
  c.scalars = scalars;
  c.pooled_rows = pooled_rows;
  c.pooled_columns = pooled_columns;
  for (auto field : {&AttentionCase::q, &AttentionCase::k, &AttentionCase::v, &AttentionCase::grad_out}) {
    c.*field = DataTensor(convert((this->*field).view(), to), length_first);
  }
  for (auto field : {&AttentionCase::grad_lse, &AttentionCase::grad_entropy, &AttentionCase::relative_table,
                     &AttentionCase::alibi_slopes, &AttentionCase::sinks, &AttentionCase::additive_v}) {
    c.*field = convert_given(this->*field, c.small());
  }
  c.bias = convert_given(bias, bias.defined() && bias.dtype() == dtype ? to : c.small());
  for (auto field : {&AttentionCase::kv_lengths, &AttentionCase::mask, &AttentionCase::block_mask,
                     &AttentionCase::q_starts, &AttentionCase::kv_starts, &AttentionCase::weight_rows}) {
    c.*field = clone(this->*field);
  }
  return c;
}

std::string forward_refusal(const AttentionCase& problem, const Target& target, Statistics statistics) {
  const Forward f(problem, target, statistics);
  return refusal_of(explain(f.q, f.k, f.v, f.out, f.params, f.stats, f.execution), target.name);
}

std::string backward_refusal(const AttentionCase& problem, const Results& forward, const Target& target) {
  const Backward b(problem, forward, target);
  return refusal_of(explain_backward(b.saved, b.upstream, b.gradients, b.params, b.execution), target.name);
}

Results run_forward(const AttentionCase& problem, const Target& target, Statistics statistics) {
  Forward f(problem, target, statistics);
  if (target.memory) {
    f.placement.add_workspace(f.execution, attention_workspace(f.q, f.k, f.v, f.out, f.params, f.stats, f.execution));
  }
  attention(f.q, f.k, f.v, f.out, f.params, f.stats, f.execution);
  f.placement.fetch();
  return f.outputs.results();
}

Results run_backward(const AttentionCase& problem, const Results& forward, const Target& target) {
  Backward b(problem, forward, target);
  if (target.memory) {
    const std::size_t bytes = attention_backward_workspace(b.saved, b.upstream, b.gradients, b.params, b.execution);
    b.placement.add_workspace(b.execution, bytes);
  }
  if (target.backward) {
    target.backward(make_backward_call(b.saved, b.upstream, b.gradients, b.params, b.execution));
  } else {
    attention_backward(b.saved, b.upstream, b.gradients, b.params, b.execution);
  }
  b.placement.fetch();
  return b.outputs.results();
}

}  // namespace rootdk::test
