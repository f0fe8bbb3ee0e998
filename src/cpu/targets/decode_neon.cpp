// Decoding on the neon target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/decode_functions.h"
#include "cpu/kernel/decode_widened.h"

namespace rootdk::cpu {
namespace {

// Four bytes, extended by their signs.
inline int16x4_t load_four(const void* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))));
}

struct StoredInt8Neon : StoredInt8 {
  static Vec load(const int8_t* p) { return vcvtq_f32_s32(vmovl_s16(load_four(p))); }
};

// By way of f16, as on avx2.
struct StoredE4m3Neon : StoredE4m3 {
  static Vec load(const uint8_t* p) {
    const uint16x4_t moved = vreinterpret_u16_s16(vshl_n_s16(load_four(p), 7));
    const uint16x4_t halves = vand_u16(moved, vdup_n_u16(0xbf80));
    const uint16x4_t nan = vceq_u16(vorr_u16(halves, vdup_n_u16(0x8000)), vdup_n_u16(0xbf80));
    const uint16x4_t marked = vorr_u16(halves, vand_u16(nan, vdup_n_u16(0x7e00)));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(marked)), 256.0f);
  }
};

template <class Stored, class Values = WidenOnce>
using Product = WidenedProduct<WidenedLanes<Stored, Values>>;

}  // namespace

const DecodeTable& neon_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<Product<Stored<ElementKind::f32>, InOrder>, Product<Stored<ElementKind::bf16>>,
                      Product<Stored<ElementKind::f16>>, Product<StoredInt8Neon>, Product<StoredE4m3Neon>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
