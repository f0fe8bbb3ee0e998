#include "distributed/backward_rows.h"

#include <cstring>

#include "core/check.h"

namespace rootdk::distributed {
namespace {

// [batch, heads, rows] as [batch, heads, rows, 1] and back.
ConstTensorView with_width(ConstTensorView view) {
  view.shape[3] = view.strides[3] = 1;
  view.rank = 4;
  return view;
}
ConstTensorView without_width(ConstTensorView view) {
  view.rank = 3;
  return view;
}

ConstTensorView rows_of_head(const ConstTensorView& view, std::int64_t b, std::int64_t h, std::int64_t first,
                             std::int64_t rows) {
  return head_of(view, b, h).slice(2, first, first + rows);
}

}  // namespace

QueryTensors::QueryTensors(const AttentionSaved& saved, const AttentionUpstream& upstream)
    : all_{saved.q, saved.out, upstream.out, with_width(saved.lse)},
      entropy_(saved.entropy.defined() && upstream.entropy.defined()),
      grad_lse_(upstream.lse.defined()),
      grad_entropy_(upstream.entropy.defined()) {
  if (entropy_) all_.push_back(with_width(saved.entropy));
  if (grad_lse_) all_.push_back(with_width(upstream.lse));
  if (grad_entropy_) all_.push_back(with_width(upstream.entropy));
}

void QueryTensors::add(const Call& call, const RowsGiven& given) {
  if (given.mask) {
    mask_ = all_.size();
    all_.push_back(contiguous(call.params.mask));
  }
  if (given.bias) {
    bias_ = all_.size();
    all_.push_back(contiguous(call.params.bias));
  }
}

// Rows travel as they lie in memory.
ConstTensorView QueryTensors::contiguous(const ConstTensorView& view) {
  if (view.stride(3) == 1 || view.size(3) <= 1) return view;
  Tensor& copy = copies_.emplace_back(view.dtype, std::span(view.shape).first(4));
  const std::size_t element = size_of(view.dtype);
  const auto* from = view.as<std::byte>();
  auto* to = copy.view().as<std::byte>();
  for (std::int64_t b = 0; b < view.size(0); ++b)
    for (std::int64_t h = 0; h < view.size(1); ++h)
      for (std::int64_t i = 0; i < view.size(2); ++i)
        for (std::int64_t j = 0; j < view.size(3); ++j, to += element) {
          const std::int64_t at = b * view.stride(0) + h * view.stride(1) + i * view.stride(2) + j * view.stride(3);
          std::memcpy(to, from + at * static_cast<std::int64_t>(element), element);
        }
  return copy;
}

void QueryTensors::set(const std::vector<ConstTensorView>& tensors, std::int64_t b, std::int64_t h, std::int64_t first,
                       std::int64_t rows, AttentionSaved& saved, AttentionUpstream& upstream) const {
  auto view = [&](std::size_t i) { return rows_of_head(tensors[i], b, h, first, rows); };
  saved.q = view(0);
  saved.out = view(1);
  upstream.out = view(2);
  saved.lse = without_width(view(3));
  std::size_t next = 4;
  if (entropy_) saved.entropy = without_width(view(next++));
  if (grad_lse_) upstream.lse = without_width(view(next++));
  if (grad_entropy_) upstream.entropy = without_width(view(next++));
}

RowTensors QueryTensors::row_tensors(const std::vector<ConstTensorView>& tensors) const {
  RowTensors rows;
  if (mask_) rows.mask = tensors[mask_];
  if (bias_) rows.bias = tensors[bias_];
  return rows;
}

namespace {

struct RowCounts {
  std::int64_t rows = 0, mask = -1, bias = -1;  // -1: not given
};

// Every rank has a row for each of its queries, or every rank has one.
bool row_for_each(const char* name, const std::vector<RowCounts>& ranks, std::int64_t RowCounts::*count) {
  bool each = true, one = true;
  for (const RowCounts& rank : ranks) {
    each = each && rank.*count == rank.rows;
    one = one && rank.*count == 1;
  }
  if (each || one || ranks[0].*count < 0) return each && ranks[0].*count >= 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    require(ranks[r].*count == ranks[r].rows, "distributed_attention: ", name, " has ", ranks[r].*count,
            " rows on rank ", r, ", which has ", ranks[r].rows,
            " queries: every rank has a row for each of its queries, or every rank has one");
  }
  return true;
}

}  // namespace

RowsGiven agree_on_rows(Transport& transport, const Call& call, std::int64_t rows) {
  const ConstTensorView &mask = call.params.mask, &bias = call.params.bias;
  if (!mask.defined() && !bias.defined()) return {};
  const RowCounts own{
      .rows = rows, .mask = mask.defined() ? mask.size(2) : -1, .bias = bias.defined() ? bias.size(2) : -1};
  const auto ranks = static_cast<std::size_t>(transport.size());
  const std::vector<RowCounts> sent(ranks, own);
  std::vector<RowCounts> all(ranks);
  const std::vector<std::size_t> bytes(ranks, sizeof(RowCounts));
  transport.all_to_all(sent.data(), bytes, all.data(), bytes, call.distributed.timeout_seconds);
  return {.mask = row_for_each("mask", all, &RowCounts::mask), .bias = row_for_each("bias", all, &RowCounts::bias)};
}

}  // namespace rootdk::distributed
