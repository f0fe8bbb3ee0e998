#include "lab/run.h"

#include <chrono>
#include <cmath>
#include <sstream>

#include "core/check.h"

namespace rootdk::lab {

Result measure(const Claim& claim, const Bench& bench) {
  Result result{.claim = claim, .finding = {}};
  const auto begin = std::chrono::steady_clock::now();
  try {
    result.finding = claim.measure(bench);
  } catch (const std::exception& error) {
    result.finding = {.quantity = "no measurement",
                      .expected = std::nan(""),
                      .note = std::string("The experiment failed: ") + error.what()};
    result.finding.measured = {std::nan(""), std::nan(""), std::nan("")};
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::string kernel_in_use() {
  const Tensor q(DType::f32, {1, 8, 1024, 64});
  Tensor out(DType::f32, {1, 8, 1024, 64});
  return explain(q, q, q, out).chosen;
}

const Claim& claim_by_id(int id) {
  std::ostringstream known;
  for (const Claim& claim : catalogue()) {
    if (claim.id == id) return claim;
    known << ' ' << claim.id;
  }
  fail("lab: there is no claim ", id, "; there are", known.str());
}

}  // namespace rootdk::lab
