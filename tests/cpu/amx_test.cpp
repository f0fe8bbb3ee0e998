// The amx kernels on tiles in software against those of avx512bf16: the same operation on the same bf16 operands.

#include <gtest/gtest.h>

#include "conformance/cases.h"
#include "cpu/amx_emulated.h"
#include "cpu/forward.h"
#include "cpu/processor.h"

namespace rootdk::test {
namespace {

struct Outputs {
  Tensor out, lse, entropy, column_mass;

  explicit Outputs(const AttentionCase& problem) {
    const ConstTensorView q = problem.q.view(), k = problem.k.view(), v = problem.v.view();
    out = Tensor(DType::bf16, {q.size(0), q.size(1), q.size(2), v.size(3)});
    lse = Tensor(DType::f32, {q.size(0), q.size(1), q.size(2)});
    entropy = Tensor(DType::f32, {q.size(0), q.size(1), q.size(2)});
    column_mass = Tensor(DType::f32, {q.size(0), q.size(1), k.size(2)});
  }

  void run(const AttentionCase& problem, const cpu::KernelTable& kernels) {
    const ForwardCall call =
        make_forward_call(problem.q.view(), problem.k.view(), problem.v.view(), out, problem.params(),
                          {.lse = lse, .entropy = entropy, .column_mass = column_mass}, {});
    cpu::run_forward(call, kernels);
  }
};

void expect_close(const Tensor& actual, const Tensor& wanted, double tolerance, const std::string& what) {
  const Difference d = difference(convert(wanted, DType::f64), convert(actual, DType::f64));
  EXPECT_LE(d.largest, tolerance * std::max(1.0, d.magnitude)) << what << " at element " << d.where;
}

TEST(Amx, EmulatedTilesGiveWhatAvx512Bf16Gives) {
  if (!cpu::processor().avx512bf16) GTEST_SKIP() << "this processor has no avx512_bf16";
  int cases = 0;
  for (const CaseSpec& spec : conformance_cases()) {
    if (spec.scalars.score != Score::dot) continue;
    const AttentionCase problem = make_case(spec, DType::bf16);
    Outputs emulated(problem), native(problem);
    emulated.run(problem, cpu::emulated_amx_kernels());
    native.run(problem, cpu::avx512bf16_kernels());
    expect_close(emulated.out, native.out, 0x1p-7, spec.name + ", out");
    expect_close(emulated.lse, native.lse, 1e-5, spec.name + ", lse");
    expect_close(emulated.entropy, native.entropy, 1e-3, spec.name + ", entropy");
    expect_close(emulated.column_mass, native.column_mass, 1e-3, spec.name + ", column_mass");
    ++cases;
  }
  EXPECT_GT(cases, 50);
}

}  // namespace
}  // namespace rootdk::test
