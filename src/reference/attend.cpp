// The specification of attend: attention() in double where a query reads the keys of its sequence up to its own
// position, without those that were evicted or that the window hides.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kv_call.h"
#include "core/strided.h"
#include "reference/doubles.h"
#include "reference/implementations.h"

namespace rootdk::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double max_or_nan(double a, double b) { return std::isnan(a) || b < a ? a : b; }

// One head of k or v, element by element: number times scale where the cache is quantised.
class CachedHead {
 public:
  CachedHead(const ConstTensorView& pages, const ConstTensorView& scales, const KvShape& shape, std::int64_t kv_head)
      : pages_(pages), scales_(scales), page_size_(shape.page_size), kv_head_(kv_head) {}

  double operator()(const CallSequence& sequence, std::int64_t position, std::int64_t d) const {
    const std::int64_t page = sequence.pages[position / page_size_], token = position % page_size_;
    if (is_quantised(pages_.dtype)) {
      const double number = pages_.dtype == DType::i8
                                ? read<std::int8_t, 4>(pages_)(page, kv_head_, token, d)
                                : static_cast<float>(read<Float8E4M3, 4>(pages_)(page, kv_head_, token, d));
      return number * static_cast<double>(read<float, 3>(scales_)(page, kv_head_, token));
    }
    return with_floating_type(
        pages_.dtype, [&](auto type) { return to_double(read<decltype(type), 4>(pages_)(page, kv_head_, token, d)); });
  }

 private:
  ConstTensorView pages_, scales_;
  std::int64_t page_size_, kv_head_;
};

struct AttendInputs {
  explicit AttendInputs(const AttendCall& call)
      : q(call.q),
        relative_table(call.params.logits.relative_table.defined()
                           ? broadcast(call.params.logits.relative_table,
                                       {call.shape.heads, call.params.logits.relative_table.size(1)})
                           : ConstTensorView{}),
        alibi_slopes(call.params.logits.alibi_slopes),
        sinks(call.params.logits.sinks) {}

  Doubles<4> q;
  Doubles<2> relative_table;
  Doubles<1> alibi_slopes, sinks;
};

struct AttendOutputs {
  explicit AttendOutputs(const AttendCall& call)
      : out(call.out),
        lse(call.stats.lse),
        max_logit(call.stats.max_logit),
        max_weight(call.stats.max_weight),
        entropy(call.stats.entropy),
        sum_p2(call.stats.sum_p2) {}

  void round() const {
    out.round();
    for (const auto* row : {&lse, &max_logit, &max_weight, &entropy, &sum_p2}) row->round();
  }

  Rounded<4> out;
  Rounded<3> lse, max_logit, max_weight, entropy, sum_p2;
};

// Row i of a sequence, in one head.
class AttendRow {
 public:
  AttendRow(const AttendCall& call, const AttendInputs& from, const AttendOutputs& to, const CallSequence& sequence,
            std::int64_t head, std::int64_t i)
      : call_(call),
        from_(from),
        to_(to),
        sequence_(sequence),
        head_(head),
        row_(sequence.row + i),
        position_(sequence.position + i) {}

  void run() const {
    const std::vector<double> q = query();
    const CachedHead k(call_.k, call_.k_scales, call_.shape, head_ / call_.shape.group());
    const KeyGaps gaps = key_gaps(sequence_, call_.params, position_);
    std::vector<double> logits(static_cast<std::size_t>(position_ + 1), kMinusInfinity);
    for (std::int64_t j = 0; j <= position_; ++j) {
      if (gaps.keeps(j)) logits[static_cast<std::size_t>(j)] = logit(q, k, j);
    }
    softmax(logits);
  }

 private:
  // RoPE rounds to the type of q, as rope() would.
  std::vector<double> query() const {
    std::vector<double> q(static_cast<std::size_t>(call_.shape.head_dim));
    for (std::size_t d = 0; d < q.size(); ++d) q[d] = from_.q(0, head_, row_, d);
    if (call_.rotation.empty()) return q;
    std::vector<double> cosine(call_.rotation.frequency.size()), sine(cosine.size());
    call_.rotation.angles(position_, cosine, sine);
    call_.rotation.apply(q, cosine, sine);
    with_floating_type(call_.q.dtype, [&](auto type) {
      for (double& x : q) x = to_double(from_double<decltype(type)>(x));
    });
    return q;
  }

  double logit(const std::vector<double>& q, const CachedHead& k, std::int64_t j) const {
    const AttendParams& p = call_.params;
    double score = 0;
    for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k(sequence_, j, static_cast<std::int64_t>(d));
    double x = score * call_.logit_scale;
    if (p.logits.softcap > 0) x = p.logits.softcap * std::tanh(x / p.logits.softcap);
    const std::int64_t distance = position_ - j;
    if (from_.relative_table) {
      const std::int64_t entries = p.logits.relative_table.size(1);
      x += from_.relative_table(head_, std::clamp<std::int64_t>(distance + p.logits.relative_zero, 0, entries - 1));
    }
    if (from_.alibi_slopes) x -= from_.alibi_slopes(head_) * static_cast<double>(distance);
    return x;
  }

  void softmax(const std::vector<double>& logits) const {
    const double sink = from_.sinks ? from_.sinks(head_) : kMinusInfinity;
    double max_logit = kMinusInfinity;
    for (const double s : logits) max_logit = max_or_nan(max_logit, s);
    const double top = max_or_nan(max_logit, sink);
    double sum = 0;
    if (top != kMinusInfinity) {
      sum = std::exp(sink - top);
      for (const double s : logits) sum += std::exp(s - top);
    }
    const double lse = top == kMinusInfinity ? top : top + std::log(sum);
    const CachedHead v(call_.v, call_.v_scales, call_.shape, head_ / call_.shape.group());
    double max_weight = 0, entropy = 0, sum_p2 = 0;
    for (std::int64_t j = 0; j <= position_; ++j) {
      const double s = logits[static_cast<std::size_t>(j)];
      if (s == kMinusInfinity) continue;
      const double weight = std::exp(s - top) / sum;
      for (std::int64_t d = 0; d < call_.shape.value_dim; ++d)
        to_.out(0, head_, row_, d) += weight * v(sequence_, j, d);
      max_weight = max_or_nan(max_weight, weight);
      entropy -= weight * (s - lse);
      sum_p2 += weight * weight;
    }
    if (to_.lse) to_.lse(0, head_, row_) = lse;
    if (to_.max_logit) to_.max_logit(0, head_, row_) = max_logit;
    if (to_.max_weight) to_.max_weight(0, head_, row_) = max_weight;
    if (to_.entropy) to_.entropy(0, head_, row_) = entropy;
    if (to_.sum_p2) to_.sum_p2(0, head_, row_) = sum_p2;
  }

  const AttendCall& call_;
  const AttendInputs& from_;
  const AttendOutputs& to_;
  const CallSequence& sequence_;
  std::int64_t head_, row_, position_;
};

void attend(const AttendCall& call) {
  const AttendInputs inputs(call);
  const AttendOutputs outputs(call);
  Executor& executor = executor_of(call.execution);
  executor.parallel_for(call.shape.heads, [&](std::int64_t head) {
    for (const CallSequence& sequence : call.sequences) {
      for (std::int64_t i = 0; i < sequence.tokens; ++i) AttendRow(call, inputs, outputs, sequence, head, i).run();
    }
  });
  outputs.round();
}

std::string refuse_attend(const AttendCall& call) { return refuse_device(call.q.device); }

constexpr AttendImplementation kAttend[] = {
    {.name = "reference", .answer = [](const AttendCall& call) { return accept_unless(refuse_attend(call), attend); }}};

}  // namespace

std::span<const AttendImplementation> attend_implementations() { return kAttend; }

}  // namespace rootdk::reference
