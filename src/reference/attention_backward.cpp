// The specification of the backward pass, in double. With p the weights, m the dropout factors (0 or 1 / kept share),
// H the entropy, P = sum p (1 without a sink), and g the gradients that flow in:
//
//     dP_j    = m_j g_out . v_j                  D = sum p_j dP_j = g_out . out
//     ds_j    = p_j (dP_j - D) + g_lse p_j - g_entropy p_j (s_j - lse + H + 1 - P)
//     ds_sink = -p_sink D + g_lse p_sink + g_entropy p_sink (P - H)
//
// lse, out and entropy are the saved ones, so that the gradient over a part of the keys (ring attention) comes out of
// the same call with the values of the whole. A row with lse -inf has no gradient.

#include <cmath>
#include <limits>
#include <vector>

#include "core/attention_call.h"
#include "reference/implementations.h"
#include "reference/logits.h"

namespace rootdk::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct BackwardInputs {
  explicit BackwardInputs(const BackwardCall& call)
      : logits(call.shape, call.params, call.logit_scale, call.saved.q, call.saved.k),
        v(call.saved.v),
        out(call.saved.out),
        grad_out(call.upstream.out),
        lse(call.saved.lse),
        entropy(call.saved.entropy),
        grad_lse(call.upstream.lse),
        grad_entropy(call.upstream.entropy) {}

  LogitInputs logits;
  Doubles<4> v, out, grad_out;
  Doubles<3> lse, entropy, grad_lse, grad_entropy;
};

struct BackwardOutputs {
  explicit BackwardOutputs(const BackwardCall& call)
      : q(call.gradients.q),
        k(call.gradients.k),
        v(call.gradients.v),
        bias(call.gradients.bias, {call.shape.batch, call.shape.heads, call.shape.q_len, call.shape.kv_len}),
        relative_table(call.gradients.relative_table, {call.shape.heads, call.gradients.relative_table.size(1)}),
        additive_v(call.gradients.additive_v),
        alibi_slopes(call.gradients.alibi_slopes),
        sinks(call.gradients.sinks),
        column_mass(call.gradients.column_mass) {}

  void round() const {
    for (const auto* tensor : {&q, &k, &v, &bias}) tensor->round();
    relative_table.round();
    additive_v.round();
    alibi_slopes.round();
    sinks.round();
    column_mass.round();
  }

  Rounded<4> q, k, v, bias;
  Rounded<2> relative_table, additive_v;
  Rounded<1> alibi_slopes, sinks;
  Rounded<3> column_mass;
};

class BackwardHead {
 public:
  BackwardHead(const BackwardCall& call, const BackwardInputs& in, const BackwardOutputs& to, std::int64_t sequence,
               std::int64_t head)
      : call_(call),
        in_(in),
        to_(to),
        logits_(in.logits, sequence, head),
        range_(logits_.range()),
        batch_(range_.batch_entry),
        head_(head),
        kv_head_(logits_.kv_head()) {}

  void run() const {
    for (std::int64_t i = 0; i < range_.q_len; ++i) {
      const Row row = saved_row(i);
      if (row.lse == kMinusInfinity) continue;
      if (to_.sinks) to_.sinks(head_) += sink_gradient(row);
      for (std::int64_t j = 0; j < range_.kv_len; ++j) {
        const double s = logits_.logit(i, j);
        if (s != kMinusInfinity) add_pair(i, j, s, row);
      }
    }
  }

 private:
  // What one query brings along.
  struct Row {
    double lse = 0, entropy = 0, grad_lse = 0, grad_entropy = 0;
    double dot = 0;     // D = g_out . out
    double p_sink = 0;  // weight of the sink
  };

  Row saved_row(std::int64_t i) const {
    const std::int64_t r = range_.q_begin + i;
    Row row{.lse = in_.lse(batch_, head_, r)};
    if (in_.grad_lse) row.grad_lse = in_.grad_lse(batch_, head_, r);
    if (in_.grad_entropy) {
      row.grad_entropy = in_.grad_entropy(batch_, head_, r);
      row.entropy = in_.entropy(batch_, head_, r);
    }
    for (std::int64_t d = 0; d < call_.shape.value_dim; ++d) {
      row.dot += in_.grad_out(batch_, head_, r, d) * in_.out(batch_, head_, r, d);
    }
    row.p_sink = std::exp(logits_.sink() - row.lse);
    return row;
  }

  double sink_gradient(const Row& row) const {
    if (logits_.sink() == kMinusInfinity) return 0;
    return row.p_sink * (row.grad_lse - row.dot + row.grad_entropy * (1 - row.p_sink - row.entropy));
  }

  // Everything that query i and key j add, s being their logit.
  void add_pair(std::int64_t i, std::int64_t j, double s, const Row& row) const {
    const std::int64_t r = range_.q_begin + i, c = range_.kv_begin + j;
    const double p = std::exp(s - row.lse);
    if (to_.column_mass) to_.column_mass(batch_, head_, c) += p;
    double dp = 0;
    if (const double m = dropout_factor(i, j); m != 0) {
      for (std::int64_t d = 0; d < call_.shape.value_dim; ++d) {
        const double g = in_.grad_out(batch_, head_, r, d);
        dp += m * g * in_.v(batch_, kv_head_, c, d);
        if (to_.v) to_.v(batch_, kv_head_, c, d) += p * m * g;
      }
    }
    double ds = p * (dp - row.dot + row.grad_lse);
    if (in_.grad_entropy) ds -= row.grad_entropy * p * (s - row.lse + row.entropy + row.p_sink);
    if (to_.bias) to_.bias(logits_.sequence(), head_, i, j) += ds;
    if (to_.relative_table) to_.relative_table(head_, logits_.relative_entry(i, j)) += ds;
    if (to_.alibi_slopes) {
      to_.alibi_slopes(head_) -= ds * std::abs(static_cast<double>(logits_.distance(i, j)));
    }
    add_score_gradient(i, j, ds * logits_.logit_slope(i, j));
  }

  double dropout_factor(std::int64_t i, std::int64_t j) const {
    if (call_.dropout.threshold == 0) return 1;
    auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
    const TileOrigin& origin = call_.shape.origin;
    const bool keeps = call_.dropout.keeps(word(origin.sequence + logits_.sequence()), word(origin.head + head_),
                                           word(origin.query + i), word(origin.key + j));
    return keeps ? call_.dropout.keep_scale : 0.0;
  }

  // g = d loss / d score(i, j), carried on to q, k and additive_v.
  void add_score_gradient(std::int64_t i, std::int64_t j, double g) const {
    const CosineLengths lengths = call_.params.score == Score::cosine ? cosine_lengths(i, j) : CosineLengths{};
    for (std::int64_t d = 0; d < call_.shape.head_dim; ++d) {
      const double q = logits_.q(i, d), k = logits_.k(j, d);
      double dq = 0, dk = 0;
      switch (call_.params.score) {
        case Score::dot:
          dq = g * k;
          dk = g * q;
          break;
        case Score::cosine:
          if (lengths.q == 0 || lengths.k == 0) return;
          dq = g * (k / lengths.k - lengths.cosine * q / lengths.q) / lengths.q;
          dk = g * (q / lengths.q - lengths.cosine * k / lengths.k) / lengths.k;
          break;
        case Score::additive: {
          const double t = std::tanh(q + k);
          dq = dk = g * logits_.additive_v(d) * (1 - t * t);
          if (to_.additive_v) to_.additive_v(head_, d) += g * t;
          break;
        }
      }
      if (to_.q) to_.q(batch_, head_, range_.q_begin + i, d) += dq;
      if (to_.k) to_.k(batch_, kv_head_, range_.kv_begin + j, d) += dk;
    }
  }

  struct CosineLengths {
    double q = 0, k = 0, cosine = 0;
  };

  CosineLengths cosine_lengths(std::int64_t i, std::int64_t j) const {
    return {.q = logits_.length_q(i), .k = logits_.length_k(j), .cosine = logits_.score(i, j)};
  }

  const BackwardCall& call_;
  const BackwardInputs& in_;
  const BackwardOutputs& to_;
  HeadLogits logits_;
  SequenceRange range_;
  std::int64_t batch_, head_, kv_head_;
};

// Whether a gradient sums over heads, so that one thread must add them in order.
bool heads_share_a_gradient(const BackwardCall& call) {
  const TensorView& bias = call.gradients.bias;
  const TensorView& table = call.gradients.relative_table;
  return (bias.defined() && bias.size(1) == 1) || (table.defined() && table.size(0) == 1);
}

// Every sum has one order, whatever the number of threads: a task owns a key head with all its queries and sequences.
void backward(const BackwardCall& call) {
  const BackwardInputs inputs(call);
  const BackwardOutputs outputs(call);
  const std::int64_t tasks = heads_share_a_gradient(call) ? 1 : call.shape.kv_heads;
  const std::int64_t heads_per_task = tasks ? call.shape.heads / tasks : 0;
  Executor& executor = executor_of(call.execution);
  executor.parallel_for(tasks, [&](std::int64_t task) {
    for (std::int64_t sequence = 0; sequence < call.shape.batch; ++sequence) {
      for (std::int64_t head = task * heads_per_task; head < (task + 1) * heads_per_task; ++head) {
        BackwardHead(call, inputs, outputs, sequence, head).run();
      }
    }
  });
  outputs.round();
}

std::string refuse_backward(const BackwardCall& call) { return refuse_device(call.saved.q.device); }

constexpr BackwardImplementation kBackward[] = {{.name = "reference", .answer = [](const BackwardCall& call) {
                                                   return accept_unless(refuse_backward(call), backward);
                                                 }}};

}  // namespace

std::span<const BackwardImplementation> backward_implementations() { return kBackward; }

}  // namespace rootdk::reference
