#include "core/linear_call.h"
#include "dispatch/choose.h"

namespace rootdk {
namespace dispatch {

template <>
std::vector<LinearImplementation> implementations<LinearCall>() {
  return joined<LinearCall>({cpu::linear_implementations(), reference::linear_implementations()});
}

}  // namespace dispatch

void multiply_weights(const LinearCall& call) { dispatch::choose("linear", call).run(call); }

bool has_bf16_products() { return cpu::has_bf16_products(dispatch::ask(LinearCall{}).chosen); }

}  // namespace rootdk
