// The specification of the forward pass, in double: docs/operation.md in code.

#include <cmath>
#include <limits>
#include <vector>

#include "core/attention_call.h"
#include "reference/forward_rows.h"
#include "reference/implementations.h"
#include "reference/logits.h"
#include "rootdk/fp8.h"

namespace rootdk::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Everything that a forward call writes. Zero unless said otherwise below: a row that no key takes part in stays zero.
struct ForwardOutputs {
  explicit ForwardOutputs(const ForwardCall& call)
      : out(call.out),
        lse(call.stats.lse),
        max_logit(call.stats.max_logit),
        max_weight(call.stats.max_weight),
        entropy(call.stats.entropy),
        sum_p2(call.stats.sum_p2),
        column_mass(call.stats.column_mass),
        pooled_map(call.stats.pooled_map),
        weights(call.stats.weights) {}

  void round() const {
    out.round();
    for (const auto* row : {&lse, &max_logit, &max_weight, &entropy, &sum_p2, &column_mass}) row->round();
    pooled_map.round();
    weights.round();
  }

  Rounded<4> out;
  Rounded<3> lse, max_logit, max_weight, entropy, sum_p2;  // [batch, heads, q_len]
  Rounded<3> column_mass;                                  // [batch, heads, kv_len]
  Rounded<4> pooled_map, weights;
};

// The softmax of one row of logits, with the sink in the denominator.
struct Softmax {
  double max_logit = kMinusInfinity;  // over keys
  double lse = kMinusInfinity;        // over keys and the sink
  std::vector<double> weights;        // [kv_len], 0 where a key takes no part

  bool empty() const { return lse == kMinusInfinity; }
};

double max_or_nan(double a, double b) { return std::isnan(a) || b < a ? a : b; }

Softmax softmax(const std::vector<double>& logits, double sink) {
  Softmax result;
  result.weights.assign(logits.size(), 0.0);
  for (const double s : logits) result.max_logit = max_or_nan(result.max_logit, s);
  const double top = max_or_nan(result.max_logit, sink);
  if (top == kMinusInfinity) return result;
  double sum = std::exp(sink - top);
  for (const double s : logits) sum += std::exp(s - top);
  result.lse = top + std::log(sum);
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (logits[j] != kMinusInfinity) result.weights[j] = std::exp(logits[j] - top) / sum;
  }
  return result;
}

// What the rows are computed from.
struct ForwardInputs {
  ForwardInputs(const ForwardCall& call, const Fp8Rule* fp8)
      : logits(call.shape, call.params, call.logit_scale, call.q, call.k),
        v(call.v),
        rounds_weights(fp8 != nullptr),
        q_shift(fp8 ? fp8->q_shift : ConstTensorView{}) {}

  LogitInputs logits;
  Doubles<4> v;
  bool rounds_weights;  // to e4m3
  Doubles<3> q_shift;   // [batch, heads, q_len]
};

class ForwardHead {
 public:
  ForwardHead(const ForwardCall& call, const ForwardInputs& inputs, const ForwardOutputs& to, std::int64_t sequence,
              std::int64_t head)
      : call_(call),
        in_(inputs),
        logits_(inputs.logits, sequence, head),
        to_(to),
        range_(logits_.range()),
        batch_(range_.batch_entry),
        head_(head) {}

  void run() const {
    std::vector<double> row(static_cast<std::size_t>(range_.kv_len));
    for (std::int64_t i = 0; i < range_.q_len; ++i) {
      for (std::int64_t j = 0; j < range_.kv_len; ++j) row[static_cast<std::size_t>(j)] = logits_.logit(i, j);
      const Softmax p = softmax(row, logits_.sink());
      output(i, p, row);
      row_statistics(i, p, row);
      column_statistics(i, p);
    }
  }

 private:
  // out = dropout(weights) v, over the keys that take part: what a masked key's value holds never matters.
  void output(std::int64_t i, const Softmax& p, const std::vector<double>& row) const {
    for (std::int64_t j = 0; j < range_.kv_len; ++j) {
      if (row[static_cast<std::size_t>(j)] == kMinusInfinity || !keeps_weight(i, j)) continue;
      const double weight = used_weight(p, row, static_cast<std::size_t>(j)) * call_.dropout.keep_scale;
      for (std::int64_t d = 0; d < call_.shape.value_dim; ++d) {
        to_.out(batch_, head_, range_.q_begin + i, d) +=
            weight * in_.v(batch_, logits_.kv_head(), range_.kv_begin + j, d);
      }
    }
  }

  // The weight of key j, which e4m3 rounds beside the largest key and before the division by the sum.
  double used_weight(const Softmax& p, const std::vector<double>& row, std::size_t j) const {
    if (!in_.rounds_weights) return p.weights[j];
    const Float8E4M3 rounded(kFp8WeightFactor * std::exp(row[j] - p.max_logit));
    return static_cast<double>(static_cast<float>(rounded)) / kFp8WeightFactor * std::exp(p.max_logit - p.lse);
  }

  bool keeps_weight(std::int64_t i, std::int64_t j) const {
    auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
    const TileOrigin& origin = call_.shape.origin;
    return call_.dropout.threshold == 0 ||
           call_.dropout.keeps(word(origin.sequence + logits_.sequence()), word(origin.head + head_),
                               word(origin.query + i), word(origin.key + j));
  }

  void row_statistics(std::int64_t i, const Softmax& p, const std::vector<double>& row) const {
    double max_weight = 0, entropy = 0, sum_p2 = 0;
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (row[j] == kMinusInfinity) continue;
      max_weight = max_or_nan(max_weight, p.weights[j]);
      entropy -= p.weights[j] * (row[j] - p.lse);
      sum_p2 += p.weights[j] * p.weights[j];
    }
    const std::int64_t r = range_.q_begin + i;
    const double shift = in_.q_shift ? in_.q_shift(batch_, head_, r) * call_.logit_scale : 0.0;
    if (to_.lse) to_.lse(batch_, head_, r) = p.lse + shift;
    if (to_.max_logit) to_.max_logit(batch_, head_, r) = p.max_logit + shift;
    if (to_.max_weight) to_.max_weight(batch_, head_, r) = max_weight;
    if (to_.entropy) to_.entropy(batch_, head_, r) = entropy;
    if (to_.sum_p2) to_.sum_p2(batch_, head_, r) = sum_p2;
  }

  void column_statistics(std::int64_t i, const Softmax& p) const {
    for (std::int64_t j = 0; j < range_.kv_len; ++j) {
      const double weight = p.weights[static_cast<std::size_t>(j)];
      if (to_.column_mass) to_.column_mass(batch_, head_, range_.kv_begin + j) += weight;
      if (to_.pooled_map) pool(i, j, weight);
      if (to_.weights) copy_weight(range_.q_begin + i, range_.kv_begin + j, weight);
    }
  }

  // A cell of the pooled map: the mean over its queries of the weight summed over its keys.
  void pool(std::int64_t i, std::int64_t j, double weight) const {
    const std::int64_t rows = call_.stats.pooled_map.size(2), columns = call_.stats.pooled_map.size(3);
    auto cell_of = [](std::int64_t index, std::int64_t length, std::int64_t cells) {
      std::int64_t cell = 0;
      while (index >= (cell + 1) * length / cells) ++cell;
      return cell;
    };
    const std::int64_t r = cell_of(i, range_.q_len, rows), c = cell_of(j, range_.kv_len, columns);
    const std::int64_t queries = (r + 1) * range_.q_len / rows - r * range_.q_len / rows;
    to_.pooled_map(batch_, head_, r, c) += weight / static_cast<double>(queries);
  }

  void copy_weight(std::int64_t row, std::int64_t column, double weight) const {
    if (!call_.params.stats.weight_rows.defined()) {
      to_.weights(batch_, head_, row, column) = weight;
      return;
    }
    const auto chosen = read<std::int32_t, 1>(call_.params.stats.weight_rows);
    for (std::int64_t r = 0; r < call_.params.stats.weight_rows.size(0); ++r) {
      if (chosen(r) == row) to_.weights(batch_, head_, r, column) = weight;
    }
  }

  const ForwardCall& call_;
  const ForwardInputs& in_;
  HeadLogits logits_;
  const ForwardOutputs& to_;
  SequenceRange range_;
  std::int64_t batch_, head_;
};

// compute of a call that comes here, and not to attention_fp8.cpp, is about the weights alone.
void forward(const ForwardCall& call) {
  const Fp8Rule rule;
  forward_rows(call, call.params.compute == DType::f8e4m3 ? &rule : nullptr);
}

std::string refuse_forward(const ForwardCall& call) { return refuse_device(call.q.device); }

constexpr ForwardImplementation kForward[] = {{.name = "reference", .answer = [](const ForwardCall& call) {
                                                 return accept_unless(refuse_forward(call), forward);
                                               }}};

}  // namespace

void forward_rows(const ForwardCall& call, const Fp8Rule* fp8) {
  const ForwardInputs inputs(call, fp8);
  const ForwardOutputs outputs(call);
  Executor& executor = executor_of(call.execution);
  executor.parallel_for(call.shape.batch * call.shape.heads, [&](std::int64_t index) {
    ForwardHead(call, inputs, outputs, index / call.shape.heads, index % call.shape.heads).run();
  });
  outputs.round();
}

std::span<const ForwardImplementation> forward_implementations() { return kForward; }

}  // namespace rootdk::reference
