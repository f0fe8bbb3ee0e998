#include <cmath>

#include "core/check.h"
#include "reference/doubles.h"
#include "reference/operand_check.h"
#include "rootdk/positions.h"

namespace rootdk {
namespace {

using reference::Doubles;
using reference::Rounded;

// Calls body(b, h, i, j, t) for each query and key whose distance has an entry t in r.
template <class Body>
void for_each_entry(const ConstTensorView& bias, std::int64_t distances, std::int64_t zero, Body body) {
  const std::int64_t q_len = bias.size(2), kv_len = bias.size(3);
  for (std::int64_t b = 0; b < bias.size(0); ++b) {
    for (std::int64_t h = 0; h < bias.size(1); ++h) {
      for (std::int64_t i = 0; i < q_len; ++i) {
        for (std::int64_t j = 0; j < kv_len; ++j) {
          const std::int64_t t = i + (kv_len - q_len) - j + zero;
          if (t >= 0 && t < distances) body(b, h, i, j, t);
        }
      }
    }
  }
}

struct Operands {
  ConstTensorView q, v_bias, r, bias;
};

void check(std::string_view operation, std::string_view bias_name, const Operands& x, const TransformerXlParams& p) {
  reference::require_operand({operation, "q", x.q}, 4);
  const std::int64_t batch = x.q.size(0), heads = x.q.size(1), q_len = x.q.size(2), head_dim = x.q.size(3);
  reference::require_operand({operation, "v_bias", x.v_bias}, {heads, head_dim});
  reference::require_operand({operation, "r", x.r}, 3);
  reference::require_operand({operation, "r", x.r}, {heads, x.r.size(1), head_dim});
  reference::require_operand({operation, bias_name, x.bias}, 4);
  reference::require_operand({operation, bias_name, x.bias}, {batch, heads, q_len, x.bias.size(3)});
  require(std::isfinite(p.scale), operation, ": scale ", p.scale, " is not finite");
  require(p.zero >= 0 && p.zero < x.r.size(1), operation, ": zero ", p.zero, " is not an entry of r, which has ",
          x.r.size(1));
}

}  // namespace

void transformer_xl_bias(ConstTensorView q, ConstTensorView v_bias, ConstTensorView r, TensorView bias,
                         const TransformerXlParams& params) {
  constexpr std::string_view kName = "transformer_xl_bias";
  check(kName, "bias", {q, v_bias, r, bias}, params);
  require_no_overlap({kName, "bias", bias});
  const Doubles<4> query(q);
  const Doubles<2> offset(v_bias);
  const Doubles<3> encoding(r);
  const Rounded<4> result(bias);
  for_each_entry(bias, r.size(1), params.zero, [&](auto b, auto h, auto i, auto j, auto t) {
    double dot = 0;
    for (std::int64_t d = 0; d < q.size(3); ++d) dot += (query(b, h, i, d) + offset(h, d)) * encoding(h, t, d);
    result(b, h, i, j) = dot * params.scale;
  });
  result.round();
}

void transformer_xl_bias_backward(ConstTensorView q, ConstTensorView v_bias, ConstTensorView r,
                                  ConstTensorView grad_bias, TensorView grad_q, TensorView grad_v_bias,
                                  TensorView grad_r, const TransformerXlParams& params) {
  constexpr std::string_view kName = "transformer_xl_bias_backward";
  check(kName, "grad_bias", {q, v_bias, r, grad_bias}, params);
  const std::int64_t heads = q.size(1), head_dim = q.size(3);
  if (grad_q.defined()) reference::require_result({kName, "grad_q", grad_q}, {q.size(0), heads, q.size(2), head_dim});
  if (grad_v_bias.defined()) reference::require_result({kName, "grad_v_bias", grad_v_bias}, {heads, head_dim});
  if (grad_r.defined()) reference::require_result({kName, "grad_r", grad_r}, {heads, r.size(1), head_dim});
  const Doubles<4> query(q), gradient(grad_bias);
  const Doubles<2> offset(v_bias);
  const Doubles<3> encoding(r);
  const Rounded<4> dq(grad_q);
  const Rounded<2> dv(grad_v_bias);
  const Rounded<3> dr(grad_r);
  for_each_entry(grad_bias, r.size(1), params.zero, [&](auto b, auto h, auto i, auto j, auto t) {
    const double g = gradient(b, h, i, j) * params.scale;
    for (std::int64_t d = 0; d < head_dim; ++d) {
      if (dq) dq(b, h, i, d) += g * encoding(h, t, d);
      if (dv) dv(h, d) += g * encoding(h, t, d);
      if (dr) dr(h, t, d) += g * (query(b, h, i, d) + offset(h, d));
    }
  });
  dq.round();
  dv.round();
  dr.round();
}

}  // namespace rootdk
