// The specification of attention in e4m3: rootdk/fp8.h in code. The numbers are those of quantize.cpp; their products
// and sums are in double. The largest logit of the whole row serves as m.

#include "core/fp8_values.h"
#include "reference/forward_rows.h"
#include "reference/implementations.h"

namespace rootdk::reference {
namespace {

void attend_to_numbers(const ForwardCall& call, const QuantizedViews& numbers) {
  const Fp8Values values = values_of(numbers, call.shape, call.params, DType::f64, executor_of(call.execution));
  ForwardCall rows = call;
  rows.q = values.q;
  rows.k = values.k;
  rows.v = values.v;
  const Fp8Rule rule{.q_shift = numbers.q_shift};
  forward_rows(rows, &rule);
}

void forward_fp8(const Fp8ForwardCall& call) {
  if (call.quantised()) return attend_to_numbers(call, numbers_of(call));
  QuantizedTensors numbers = quantized_like(call.q, call.k, call.v, call.params);
  const QuantizeCall quantize = {.q = call.q,
                                 .k = call.k,
                                 .v = call.v,
                                 .to = numbers.views(),
                                 .params = call.params,
                                 .execution = call.execution,
                                 .shape = call.shape};
  quantize_implementations().front().answer(quantize).run(quantize);
  attend_to_numbers(call, numbers.views());
}

constexpr Fp8ForwardImplementation kForwardFp8[] = {{.name = "reference", .answer = [](const Fp8ForwardCall& call) {
                                                       return accept_unless(refuse_device(call.q.device), forward_fp8);
                                                     }}};

}  // namespace

std::span<const Fp8ForwardImplementation> fp8_forward_implementations() { return kForwardFp8; }

}  // namespace rootdk::reference
