#include "support/plain_attention.h"

#include <cmath>
#include <limits>

#include "core/attention_call.h"
#include "core/strided.h"
#include "reference/logits.h"

namespace rootdk::test {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float rounded(float x, DType dtype) {
  if (dtype == DType::bf16) return static_cast<float>(BFloat16(x));
  if (dtype == DType::f16) return static_cast<float>(Float16(x));
  return x;
}

// A tensor of f32 sums beside the sums of the absolute terms.
class Sums {
 public:
  Sums(const Shape& full, const Shape& stored) : value_(DType::f64, stored), size_(DType::f64, stored) {
    stride_.resize(full.size());
    std::int64_t step = 1;
    for (std::size_t d = full.size(); d-- > 0;) {
      stride_[d] = stored[d] == full[d] ? step : 0;
      step *= stored[d];
    }
  }
  explicit Sums(const Shape& shape) : Sums(shape, shape) {}

  template <class... Index>
  void add(float term, double size, Index... index) {
    std::size_t d = 0, at = 0;
    ((at += static_cast<std::size_t>(index * stride_[d++])), ...);
    double& sum = value_.values<double>()[at];
    sum = static_cast<float>(sum) + term;
    size_.values<double>()[at] += size;
  }
  void store(const std::string& name, DType dtype, PlainResults& results) const {
    double largest = 0;
    for (double x : size_.values<double>()) largest = std::isfinite(x) ? std::max(largest, x) : largest;
    results.size[name] = largest;
    results.values.emplace(name, convert(convert(value_, dtype), DType::f64));
  }

 private:
  Tensor value_, size_;
  std::vector<std::int64_t> stride_;
};

// The problem as the reference reads it.
struct Problem {
  explicit Problem(const AttentionCase& c)
      : out(DType::f64, {c.q.view().size(0), c.q.view().size(1), c.q.view().size(2), c.v.view().size(3)}),
        wide(c.converted(DType::f64)),
        call(make_forward_call(wide.q.view(), wide.k.view(), wide.v.view(), out, wide.params(), {}, {})),
        logits(call.shape, call.params, call.logit_scale, call.q, call.k),
        v(wide.v.view()) {}

  float dropout_factor(const reference::HeadLogits& head, std::int64_t i, std::int64_t j) const {
    auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
    if (call.dropout.threshold == 0) return 1;
    return call.dropout.keeps(word(head.sequence()), word(head.head()), word(i), word(j)) ? call.dropout.keep_scale : 0;
  }

  // Sum of the absolute terms of the logit.
  double logit_size(const reference::HeadLogits& head, std::int64_t i, std::int64_t j, double logit) const {
    double sum = 0;
    for (std::int64_t d = 0; d < call.shape.head_dim; ++d) {
      sum +=
          call.params.score == Score::additive ? std::abs(head.additive_v(d)) : std::abs(head.q(i, d) * head.k(j, d));
    }
    if (call.params.score == Score::cosine) sum = 1;
    return sum * std::abs(call.logit_scale) + std::abs(logit);
  }

  Tensor out;
  AttentionCase wide;
  ForwardCall call;
  reference::LogitInputs logits;
  reference::Doubles<4> v;
};

template <class Body>
void for_each_head(const Problem& p, Body body) {
  for (std::int64_t s = 0; s < p.call.shape.batch; ++s) {
    for (std::int64_t h = 0; h < p.call.shape.heads; ++h) body(reference::HeadLogits(p.logits, s, h));
  }
}

Shape shape_of(const ConstTensorView& view) { return {view.shape.begin(), view.shape.begin() + view.rank}; }

// Softmax weights in f32; empty where no key takes part.
std::vector<float> weights_of(const std::vector<float>& logits, float sink) {
  float top = sink, sum = 0;
  for (float s : logits) top = std::isnan(s) || s > top ? s : top;
  if (top == kMinusInfinity) return {};
  for (float s : logits) sum += s == kMinusInfinity ? 0 : std::exp(s - top);
  sum += std::exp(sink - top);
  std::vector<float> weights(logits.size());
  for (std::size_t j = 0; j < logits.size(); ++j) {
    weights[j] = logits[j] == kMinusInfinity ? 0 : std::exp(logits[j] - top) / sum;
  }
  return weights;
}

class PlainBackward {
 public:
  PlainBackward(const AttentionCase& problem, const Results& forward)
      : c_(problem),
        p_(problem),
        // What was saved has been rounded to its type.
        out_(convert(forward.at("out"), c_.dtype)),
        lse_(convert(forward.at("lse"), c_.small())),
        entropy_(convert(forward.at("entropy"), c_.small())),
        grad_out_(p_.wide.grad_out.view()),
        grad_lse_(std::as_const(p_.wide.grad_lse).view()),
        grad_entropy_(p_.wide.grad_entropy.view()),
        dq_(shape_of(p_.call.q)),
        dk_(shape_of(p_.call.k)),
        dv_(shape_of(p_.call.v)),
        bias_(like({p_.call.shape.batch, p_.call.shape.heads, p_.call.shape.q_len, p_.call.shape.kv_len}, c_.bias)),
        table_(like({p_.call.shape.heads, c_.relative_table.defined() ? c_.relative_table.size(1) : 0},
                    c_.relative_table)),
        slopes_(Shape{p_.call.shape.heads}),
        sinks_(Shape{p_.call.shape.heads}),
        additive_v_(Shape{p_.call.shape.heads, p_.call.shape.head_dim}),
        mass_(Shape{p_.call.q.size(0), p_.call.shape.heads, p_.call.k.size(2)}) {}

  PlainResults run() {
    for_each_head(p_, [&](const reference::HeadLogits& head) {
      for (std::int64_t i = 0; i < head.range().q_len; ++i) row(head, i);
    });
    dq_.store("grad_q", c_.dtype, results_);
    dk_.store("grad_k", c_.dtype, results_);
    dv_.store("grad_v", c_.dtype, results_);
    if (c_.bias.defined()) bias_.store("grad_bias", c_.bias.dtype(), results_);
    if (c_.relative_table.defined()) table_.store("grad_relative_table", c_.small(), results_);
    if (c_.alibi_slopes.defined()) slopes_.store("grad_alibi_slopes", c_.small(), results_);
    if (c_.sinks.defined()) sinks_.store("grad_sinks", c_.small(), results_);
    if (c_.additive_v.defined()) additive_v_.store("grad_additive_v", c_.small(), results_);
    mass_.store("backward_column_mass", c_.small(), results_);
    return std::move(results_);
  }

 private:
  static Sums like(const Shape& full, const Tensor& stored) {
    return stored.defined() ? Sums(full, shape_of(stored)) : Sums(Shape(full.size(), 0));
  }

  struct Row {
    float lse = 0, entropy = 0, grad_lse = 0, grad_entropy = 0, dot = 0, p_sink = 0;
    double size = 0;  // of what dP is taken away from: |dot| and |grad_lse|, term by term
  };

  Row saved(const reference::HeadLogits& head, std::int64_t i) const {
    const std::int64_t b = head.range().batch_entry, h = head.head(), r = head.range().q_begin + i;
    Row row{.lse = static_cast<float>(lse_(b, h, r))};
    if (grad_lse_) row.grad_lse = static_cast<float>(grad_lse_(b, h, r));
    if (grad_entropy_) {
      row.grad_entropy = static_cast<float>(grad_entropy_(b, h, r));
      row.entropy = static_cast<float>(entropy_(b, h, r));
    }
    row.size = std::abs(row.grad_lse);
    for (std::int64_t d = 0; d < p_.call.shape.value_dim; ++d) {
      const auto term = static_cast<float>(grad_out_(b, h, r, d) * out_(b, h, r, d));
      row.dot += term;
      row.size += std::abs(term);
    }
    row.p_sink = static_cast<float>(std::exp(head.sink() - row.lse));
    return row;
  }

  void row(const reference::HeadLogits& head, std::int64_t i) {
    const Row row = saved(head, i);
    if (row.lse == kMinusInfinity) return;
    if (c_.sinks.defined() && row.p_sink != 0) {
      const float g = row.grad_lse - row.dot + row.grad_entropy * (1 - row.p_sink - row.entropy);
      sinks_.add(row.p_sink * g, row.p_sink * (row.size + std::abs(row.grad_entropy) * (2 + row.entropy)), head.head());
    }
    for (std::int64_t j = 0; j < head.range().kv_len; ++j) {
      const auto s = static_cast<float>(head.logit(i, j));
      if (s != kMinusInfinity) pair(head, i, j, s, row);
    }
  }

  void pair(const reference::HeadLogits& head, std::int64_t i, std::int64_t j, float s, const Row& row) {
    const std::int64_t b = head.range().batch_entry, h = head.head(), kv = head.kv_head();
    const std::int64_t r = head.range().q_begin + i, c = head.range().kv_begin + j;
    const float p = std::exp(s - row.lse), m = p_.dropout_factor(head, i, j);
    mass_.add(rounded(p, c_.dtype), p, b, h, c);
    float dp = 0;
    double size = row.size;
    for (std::int64_t d = 0; m != 0 && d < p_.call.shape.value_dim; ++d) {
      const auto g = static_cast<float>(grad_out_(b, h, r, d));
      const float term = m * g * static_cast<float>(p_.v(b, kv, c, d));
      dp += term;
      size += std::abs(term);
      dv_.add(rounded(p * m, c_.dtype) * g, std::abs(p * m * g), b, kv, c, d);
    }
    float ds = p * (dp - row.dot + row.grad_lse);
    const float centred = s - row.lse + row.entropy + row.p_sink;
    ds -= row.grad_entropy * p * centred;
    size = p * (size + std::abs(row.grad_entropy) * (std::abs(s - row.lse) + row.entropy + row.p_sink));
    if (c_.bias.defined()) bias_.add(ds, size, head.sequence(), h, i, j);
    if (c_.relative_table.defined()) table_.add(ds, size, h, head.relative_entry(i, j));
    const auto distance = static_cast<float>(std::abs(head.distance(i, j)));
    if (c_.alibi_slopes.defined()) slopes_.add(-ds * distance, size * distance, h);
    const double slope = head.logit_slope(i, j);
    score(head, i, j, static_cast<float>(rounded(ds, c_.dtype) * slope), size * std::abs(slope));
  }

  void score(const reference::HeadLogits& head, std::int64_t i, std::int64_t j, float g, double size) {
    const std::int64_t b = head.range().batch_entry, h = head.head(), kv = head.kv_head();
    const std::int64_t r = head.range().q_begin + i, c = head.range().kv_begin + j;
    double qq = 0, kk = 0, dot = 0;
    for (std::int64_t d = 0; d < p_.call.shape.head_dim; ++d) {
      qq += head.q(i, d) * head.q(i, d);
      kk += head.k(j, d) * head.k(j, d);
      dot += head.q(i, d) * head.k(j, d);
    }
    const double qn = std::sqrt(qq), kn = std::sqrt(kk);
    for (std::int64_t d = 0; d < p_.call.shape.head_dim; ++d) {
      const double q = head.q(i, d), k = head.k(j, d);
      double to_q = k, to_k = q;
      if (p_.call.params.score == Score::cosine) {
        if (qq == 0 || kk == 0) return;
        to_q = (k / kn - dot / (qn * kn) * q / qn) / qn;
        to_k = (q / qn - dot / (qn * kn) * k / kn) / kn;
      } else if (p_.call.params.score == Score::additive) {
        const double t = std::tanh(q + k);
        to_q = to_k = head.additive_v(d) * (1 - t * t);
        additive_v_.add(static_cast<float>(g * t), size * std::abs(t), h, d);
      }
      dq_.add(static_cast<float>(g * to_q), size * std::abs(to_q), b, h, r, d);
      dk_.add(static_cast<float>(g * to_k), size * std::abs(to_k), b, kv, c, d);
    }
  }

  const AttentionCase& c_;
  Problem p_;
  reference::Doubles<4> out_;
  reference::Doubles<3> lse_, entropy_;
  reference::Doubles<4> grad_out_;
  reference::Doubles<3> grad_lse_, grad_entropy_;
  Sums dq_, dk_, dv_, bias_, table_, slopes_, sinks_, additive_v_, mass_;
  PlainResults results_;
};

}  // namespace

PlainResults plain_forward(const AttentionCase& problem) {
  const Problem p(problem);
  PlainResults results;
  Sums out(shape_of(p.out)), mass(Shape{p.call.q.size(0), p.call.shape.heads, p.call.k.size(2)});
  for_each_head(p, [&](const reference::HeadLogits& head) {
    const SequenceRange& sequence = head.range();
    std::vector<float> logits(static_cast<std::size_t>(sequence.kv_len));
    for (std::int64_t i = 0; i < sequence.q_len; ++i) {
      for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
        const double logit = head.logit(i, j);
        logits[static_cast<std::size_t>(j)] = static_cast<float>(logit);
        if (!std::isfinite(logit)) continue;
        const double size = p.logit_size(head, i, j, logit);
        if (std::isfinite(size)) results.logit_size = std::max(results.logit_size, size);
      }
      const std::vector<float> weights = weights_of(logits, static_cast<float>(head.sink()));
      for (std::int64_t j = 0; j < static_cast<std::int64_t>(weights.size()); ++j) {
        if (logits[static_cast<std::size_t>(j)] == kMinusInfinity) continue;
        const float weight = weights[static_cast<std::size_t>(j)], m = p.dropout_factor(head, i, j);
        mass.add(rounded(weight, problem.dtype), weight, sequence.batch_entry, head.head(), sequence.kv_begin + j);
        for (std::int64_t d = 0; m != 0 && d < p.call.shape.value_dim; ++d) {
          const auto v = static_cast<float>(p.v(sequence.batch_entry, head.kv_head(), sequence.kv_begin + j, d));
          out.add(rounded(weight * m, problem.dtype) * v, std::abs(weight * m * v), sequence.batch_entry, head.head(),
                  sequence.q_begin + i, d);
        }
      }
    }
  });
  out.store("out", problem.dtype, results);
  mass.store("column_mass", problem.small(), results);
  return results;
}

PlainResults plain_backward(const AttentionCase& problem, const Results& forward) {
  return PlainBackward(problem, forward).run();
}

}  // namespace rootdk::test
