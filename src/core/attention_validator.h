#pragma once

// The checks that the calls of attention share: forward, backward and quantize_for_attention. Each throws rootdk::Error
// with the values.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "core/attention_call.h"
#include "core/check.h"
#include "core/logit_check.h"
#include "core/strided.h"
#include "core/view_check.h"

namespace rootdk {

// The checks of one call, forward or backward: they share the operation's name, the device and the element type.
class AttentionValidator {
 public:
  AttentionValidator(std::string_view operation, const ConstTensorView& q) : operation_(operation) {
    const NamedView tensor{operation_, "q", q};
    require_given(tensor);
    require_rank(tensor, 4);
    if (q.dtype != DType::f8e4m3) require_dtype(tensor, {DType::f32, DType::bf16, DType::f16, DType::f64});
    device_ = q.device;
    dtype_ = q.dtype;
    // Small tensors and statistics: f32, or f64 beside f64.
    small_ = dtype_ == DType::f64 ? DType::f64 : DType::f32;
  }

  AttentionShape shape(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const AttentionParams& params) const {
    data_tensor("q", q);
    data_tensor("k", k);
    data_tensor("v", v);
    AttentionShape s{.batch = q.size(0),
                     .heads = q.size(1),
                     .kv_heads = k.size(1),
                     .q_len = q.size(2),
                     .kv_len = k.size(2),
                     .head_dim = q.size(3),
                     .value_dim = v.size(3)};
    require(s.head_dim >= 1 && s.value_dim >= 1, operation_, ": head_dim ", s.head_dim, " and value_dim ", s.value_dim,
            " must be at least 1");
    require(k.size(3) == s.head_dim, operation_, ": head_dim of q is ", s.head_dim, " but of k ", k.size(3));
    require(k.size(0) == s.batch && v.size(0) == s.batch, operation_, ": batch of q is ", s.batch, " but of k ",
            k.size(0), " and of v ", v.size(0));
    require(v.size(1) == s.kv_heads, operation_, ": kv_heads of k is ", s.kv_heads, " but of v ", v.size(1));
    require(v.size(2) == s.kv_len, operation_, ": kv_len of k is ", s.kv_len, " but of v ", v.size(2));
    require(s.heads == 0 ? s.kv_heads == 0 : (s.kv_heads > 0 && s.heads % s.kv_heads == 0), operation_, ": heads ",
            s.heads, " is not a multiple of kv_heads ", s.kv_heads);
    // 32-bit row and key numbers are part of the dropout definition, and of every kernel.
    require(s.q_len < (std::int64_t{1} << 31) && s.kv_len < (std::int64_t{1} << 31), operation_, ": q_len ", s.q_len,
            " and kv_len ", s.kv_len, " must be below 2^31");
    if (params.q_starts.defined() || params.kv_starts.defined()) pack(s, params);
    return s;
  }

  void scalars(const AttentionParams& p) const {
    require(p.score == Score::dot || p.score == Score::cosine || p.score == Score::additive, operation_, ": score ",
            static_cast<int>(p.score), " is none of dot (0), cosine (1), additive (2)");
    require(p.window_left >= -1, operation_, ": window_left ", p.window_left, " must be at least 0, or -1 for none");
    require(p.window_right >= -1, operation_, ": window_right ", p.window_right, " must be at least 0, or -1 for none");
    require(p.dropout >= 0 && p.dropout < 1, operation_, ": dropout ", p.dropout, " is not in [0, 1)");
  }

  double logit_scale(const AttentionShape& s, const AttentionParams& p) const {
    return checked_logit_scale(operation_, p.logits, s.head_dim, dtype_);
  }

  void params(const AttentionShape& s, const AttentionParams& p) const {
    scalars(p);
    if (p.kv_lengths.defined()) lengths(s, p.kv_lengths);
    if (p.mask.defined()) input("mask", p.mask, {DType::boolean}, {s.batch, s.heads, s.q_len, s.kv_len});
    if (p.block_mask.defined()) block_mask(s, p);
    if (p.bias.defined()) {
      const DType sixteen_bits = dtype_ == DType::f8e4m3 ? p.bias.dtype : dtype_;
      if (dtype_ == DType::f8e4m3) require_dtype({operation_, "bias", p.bias}, {DType::f32, DType::bf16, DType::f16});
      input("bias", p.bias, {small_, sixteen_bits}, {s.batch, s.heads, s.q_len, s.kv_len});
    }
    check_logit_tensors({operation_, small_, device_, "q"}, p.logits, s.heads);
    if (p.score == Score::additive) {
      require(p.additive_v.defined(), operation_, ": the additive score needs additive_v [heads, head_dim]");
    }
    if (p.additive_v.defined()) {
      require(p.score == Score::additive, operation_, ": additive_v is given but the score is not additive");
      exact("additive_v", p.additive_v, small_, {s.heads, s.head_dim});
    }
  }

  // q, k, v and their gradients: the element type of q, rank 4, contiguous last dimension.
  void data_tensor(std::string_view name, const ConstTensorView& view) const {
    require_given({operation_, name, view});
    require_rank({operation_, name, view}, 4);
    require(view.dtype == dtype_, operation_, ": ", name, " is ", name_of(view.dtype), " but q is ", name_of(dtype_));
    rows({operation_, name, view});
  }

  void exact(std::string_view name, const ConstTensorView& view, DType dtype,
             std::initializer_list<std::int64_t> shape) const {
    const NamedView tensor{operation_, name, view};
    require_dtype(tensor, {dtype});
    require_shape(tensor, shape);
    require_device(tensor, device_, "q");
    require_addressable(tensor);
  }

  // An output that is optional: undefined is fine.
  void output(std::string_view name, const TensorView& view, DType dtype,
              std::initializer_list<std::int64_t> shape) const {
    if (!view.defined()) return;
    exact(name, view, dtype, shape);
    require_no_overlap({operation_, name, view});
  }

  // Beside q in e4m3 it has any floating type of at most 32 bits.
  void output_data(std::string_view name, const TensorView& view, std::initializer_list<std::int64_t> shape) const {
    const NamedView tensor{operation_, name, view};
    if (dtype_ == DType::f8e4m3) {
      require_given(tensor);
      require_dtype(tensor, {DType::f32, DType::bf16, DType::f16});
      require_rank(tensor, 4);
      rows(tensor);
    } else {
      data_tensor(name, view);
    }
    require_shape(tensor, shape);
    require_no_overlap(tensor);
  }

  DType small() const { return small_; }
  DType dtype() const { return dtype_; }
  bool on_cpu() const { return device_.kind == DeviceKind::cpu; }
  std::string_view operation() const { return operation_; }

 private:
  void rows(const NamedView& tensor) const {
    require_device(tensor, device_, "q");
    require_addressable(tensor);
    require_contiguous_last(tensor);
  }

  void input(std::string_view name, const ConstTensorView& view, std::initializer_list<DType> types,
             std::initializer_list<std::int64_t> shape) const {
    const NamedView tensor{operation_, name, view};
    require_dtype(tensor, types);
    require_broadcastable(tensor, shape);
    require_device(tensor, device_, "q");
    require_addressable(tensor);
  }

  void lengths(const AttentionShape& s, const ConstTensorView& view) const {
    exact("kv_lengths", view, DType::i32, {s.batch});
    if (!on_cpu()) return;
    const auto length = read<std::int32_t, 1>(view);
    for (std::int64_t b = 0; b < s.batch; ++b) {
      require(length(b) >= 0 && length(b) <= s.kv_len, operation_, ": kv_lengths[", b, "] is ", length(b),
              ", not in 0 to kv_len ", s.kv_len);
    }
  }

  void block_mask(const AttentionShape& s, const AttentionParams& p) const {
    require(p.block_q >= 1 && p.block_kv >= 1, operation_,
            ": block_mask needs block_q and block_kv of at least 1, got ", p.block_q, " and ", p.block_kv);
    input("block_mask", p.block_mask, {DType::boolean},
          {s.batch, s.heads, blocks_over(s.q_len, p.block_q), blocks_over(s.kv_len, p.block_kv)});
  }

  void pack(AttentionShape& s, const AttentionParams& p) const {
    require(p.q_starts.defined() && p.kv_starts.defined(), operation_,
            ": packed sequences need both q_starts and kv_starts");
    require(s.batch == 1, operation_, ": packed sequences need batch 1, got ", s.batch);
    require(!p.kv_lengths.defined() && !p.mask.defined() && !p.block_mask.defined() && !p.bias.defined(), operation_,
            ": packed sequences do not combine with kv_lengths, mask, block_mask or bias");
    const std::int64_t entries = p.q_starts.rank == 1 ? p.q_starts.size(0) : 0;
    if (entries < 1) fail(operation_, ": q_starts is ", describe(p.q_starts), ", expected i32 [sequences + 1]");
    exact("q_starts", p.q_starts, DType::i32, {entries});
    exact("kv_starts", p.kv_starts, DType::i32, {entries});
    require(p.max_q_len >= 0 && p.max_kv_len >= 0, operation_, ": max_q_len ", p.max_q_len, " and max_kv_len ",
            p.max_kv_len, " must not be negative");
    s.packed = true;
    s.batch = entries - 1;
    if (on_cpu()) {
      s.q_len = check_starts("q_starts", p.q_starts, s.q_len);
      s.kv_len = check_starts("kv_starts", p.kv_starts, s.kv_len);
    } else {
      if (p.max_q_len > 0) s.q_len = std::min(s.q_len, p.max_q_len);
      if (p.max_kv_len > 0) s.kv_len = std::min(s.kv_len, p.max_kv_len);
    }
  }

  // Returns the longest sequence.
  std::int64_t check_starts(std::string_view name, const ConstTensorView& view, std::int64_t total) const {
    const auto start = read<std::int32_t, 1>(view);
    const std::int64_t sequences = view.size(0) - 1;
    require(start(0) == 0, operation_, ": ", name, "[0] is ", start(0), ", expected 0");
    require(start(sequences) == total, operation_, ": ", name, "[", sequences, "] is ", start(sequences),
            ", expected the number of rows ", total);
    std::int64_t longest = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      require(start(s) <= start(s + 1), operation_, ": ", name, " decreases from ", start(s), " to ", start(s + 1),
              " at ", s + 1);
      longest = std::max<std::int64_t>(longest, start(s + 1) - start(s));
    }
    return longest;
  }

  std::string_view operation_;
  Device device_;
  DType dtype_ = DType::f32, small_ = DType::f32;
};

}  // namespace rootdk
