#include "core/fp8_call.h"

namespace rootdk {
namespace {

std::int64_t packed_sequences(const AttentionShape& shape) { return shape.packed ? shape.batch : 0; }

void check_scales(const AttentionValidator& check, const AttentionShape& s, const ConstTensorView& q,
                  const ConstTensorView& k, const Fp8Params& fp8) {
  const auto scales = [&](std::string_view name, const ConstTensorView& view,
                          std::initializer_list<std::int64_t> shape) {
    require(view.defined(), check.operation(), ": q is f8e4m3, but ", name,
            " is not given (quantize_for_attention makes it)");
    check.exact(name, view, DType::f32, shape);
  };
  const std::int64_t sequences = packed_sequences(s);
  scales("fp8.q_scales", fp8.q_scales, {q.size(0), s.heads, fp8_blocks(q.size(2), sequences)});
  scales("fp8.k_scales", fp8.k_scales, {k.size(0), s.kv_heads, fp8_blocks(k.size(2), sequences)});
  scales("fp8.v_scales", fp8.v_scales, {s.batch, s.kv_heads, s.value_dim});
  if (fp8.q_shift.defined()) check.exact("fp8.q_shift", fp8.q_shift, DType::f32, {q.size(0), s.heads, q.size(2)});
}

constexpr std::string_view kQuantizeOperation = "quantize_for_attention";

AttentionShape check_operands(const AttentionValidator& check, const ConstTensorView& q, const ConstTensorView& k,
                              const ConstTensorView& v, const AttentionParams& asked) {
  require(q.dtype != DType::f8e4m3, check.operation(), ": q is f8e4m3 already");
  const AttentionShape s = check.shape(q, k, v, asked);
  check_compute(check, s, q, k, asked);
  check.params(s, asked);
  return s;
}

}  // namespace

void check_compute(const AttentionValidator& check, const AttentionShape& shape, const ConstTensorView& q,
                   const ConstTensorView& k, const AttentionParams& params) {
  const Fp8Params& fp8 = params.fp8;
  if (params.compute) {
    require(*params.compute == DType::f8e4m3 || *params.compute == q.dtype, check.operation(), ": compute ",
            name_of(*params.compute), " is neither f8e4m3 nor the type of q, ", name_of(q.dtype));
    require(*params.compute != DType::f8e4m3 || q.dtype != DType::f64, check.operation(),
            ": compute f8e4m3 needs q in f32, bf16 or f16, and it is f64");
  }
  if (q.dtype == DType::f8e4m3) {
    require(!fp8.rotate, check.operation(), ": fp8.rotate is for quantize_for_attention, and q is f8e4m3 already");
    check_scales(check, shape, q, k, fp8);
  } else {
    require(!fp8.q_scales.defined() && !fp8.k_scales.defined() && !fp8.v_scales.defined() && !fp8.q_shift.defined(),
            check.operation(), ": scales in fp8 belong to q, k and v in f8e4m3, and q is ", name_of(q.dtype));
    require(!fp8.rotate || params.compute == DType::f8e4m3, check.operation(), ": fp8.rotate needs compute f8e4m3");
  }
  require(!is_fp8(q, params) || params.score == Score::dot, ErrorKind::unsupported, check.operation(),
          ": f8e4m3 computes the dot product, and the score is ",
          params.score == Score::cosine ? "cosine" : "additive");
}

QuantizeCall make_quantize_call(ConstTensorView q, ConstTensorView k, ConstTensorView v, const QuantizedViews& to,
                                const AttentionParams& params, const Execution& execution) {
  const AttentionValidator check(kQuantizeOperation, q);
  AttentionParams asked = params;
  asked.compute = DType::f8e4m3;
  const AttentionShape s = check_operands(check, q, k, v, asked);
  constexpr std::string_view kOperation = kQuantizeOperation;
  const auto output = [&](std::string_view name, const TensorView& view, DType dtype,
                          std::initializer_list<std::int64_t> shape) {
    require_given({kOperation, name, view});
    check.output(name, view, dtype, shape);
  };
  const auto rows = [&](std::string_view name, const TensorView& view, const ConstTensorView& original) {
    output(name, view, DType::f8e4m3, {original.size(0), original.size(1), original.size(2), original.size(3)});
    require_contiguous_last({kOperation, name, view});
  };
  rows("to.q", to.q, q);
  rows("to.k", to.k, k);
  rows("to.v", to.v, v);
  const std::int64_t sequences = packed_sequences(s);
  output("to.q_scales", to.q_scales, DType::f32, {q.size(0), s.heads, fp8_blocks(q.size(2), sequences)});
  output("to.k_scales", to.k_scales, DType::f32, {k.size(0), s.kv_heads, fp8_blocks(k.size(2), sequences)});
  output("to.v_scales", to.v_scales, DType::f32, {s.batch, s.kv_heads, s.value_dim});
  check.output("to.q_shift", to.q_shift, DType::f32, {q.size(0), s.heads, q.size(2)});
  check.output("to.key_mean", to.key_mean, DType::f32, {s.batch, s.kv_heads, s.head_dim});
  return {.q = q, .k = k, .v = v, .to = to, .params = asked, .execution = execution, .shape = s};
}

QuantizedTensors memory_for_quantized(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                      const AttentionParams& params) {
  const AttentionValidator check(kQuantizeOperation, q);
  require(q.device.kind == DeviceKind::cpu, kQuantizeOperation,
          ": q lies on a CUDA device, where the caller gives the memory (QuantizedViews)");
  AttentionParams asked = params;
  asked.compute = DType::f8e4m3;
  check_operands(check, q, k, v, asked);
  return quantized_like(q, k, v, params);
}

QuantizedTensors quantized_like(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                                const AttentionParams& params) {
  const std::int64_t sequences = params.q_starts.defined() ? params.q_starts.size(0) - 1 : 0;
  const std::int64_t batch = params.q_starts.defined() ? sequences : q.size(0);
  const auto rows = [](const ConstTensorView& like) {
    return Tensor(DType::f8e4m3, std::span(like.shape.data(), static_cast<std::size_t>(like.rank)));
  };
  return {.q = rows(q),
          .k = rows(k),
          .v = rows(v),
          .q_scales = Tensor(DType::f32, {q.size(0), q.size(1), fp8_blocks(q.size(2), sequences)}),
          .k_scales = Tensor(DType::f32, {k.size(0), k.size(1), fp8_blocks(k.size(2), sequences)}),
          .v_scales = Tensor(DType::f32, {batch, k.size(1), v.size(3)}),
          .q_shift = Tensor(DType::f32, {q.size(0), q.size(1), q.size(2)}),
          .key_mean = Tensor(DType::f32, {batch, k.size(1), k.size(3)})};
}

QuantizedViews QuantizedTensors::views() & {
  return {.q = q,
          .k = k,
          .v = v,
          .q_scales = q_scales,
          .k_scales = k_scales,
          .v_scales = v_scales,
          .q_shift = q_shift,
          .key_mean = key_mean};
}

Fp8Params QuantizedTensors::scales() const& {
  return {
      .q_scales = q_scales.view(), .k_scales = k_scales.view(), .v_scales = v_scales.view(), .q_shift = q_shift.view()};
}

}  // namespace rootdk
