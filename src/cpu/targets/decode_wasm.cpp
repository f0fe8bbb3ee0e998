// Decoding on the wasm target: see src/cpu/README.md.
#include "cpu/simd/wasm.h"
// The vector comes first.
#include "cpu/kernel/decode_functions.h"
#include "cpu/kernel/decode_widened.h"

namespace rootdk::cpu {
namespace {

template <class Stored, class Values = WidenOnce>
using Product = WidenedProduct<WidenedLanes<Stored, Values>>;

}  // namespace

const DecodeTable& wasm_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<Product<Stored<ElementKind::f32>, InOrder>, Product<Stored<ElementKind::bf16>>,
                      Product<Stored<ElementKind::f16>>, Product<StoredInt8>, Product<StoredE4m3>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
