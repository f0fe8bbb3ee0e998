#pragma once

// Tables that make bf16 numbers of e4m3 numbers. Included once per target: internal linkage.

namespace rootdk::cpu {
namespace {

// bf16 numbers by the magnitude of an e4m3 number, low bytes and high bytes apart.
struct E4m3Bytes {
  alignas(64) unsigned char low[128], high[128];

  constexpr E4m3Bytes() : low(), high() {
    for (unsigned magnitude = 0; magnitude < 128; ++magnitude) {
      const unsigned bits = bf16_of(magnitude);
      low[magnitude] = static_cast<unsigned char>(bits & 0xffu);
      high[magnitude] = static_cast<unsigned char>(bits >> 8);
    }
  }

 private:
  static constexpr unsigned bf16_of(unsigned magnitude) {
    constexpr unsigned kBiases = 127 - 7, kNan = 0x7fc0;
    if (magnitude == 0x7f) return kNan;
    if (magnitude >= 8) return (magnitude << 4) + (kBiases << 7);
    if (magnitude == 0) return 0;
    // Subnormal: the highest bit of the mantissa becomes the one that a normal number does not store.
    const unsigned shift = magnitude >= 4 ? 1 : magnitude >= 2 ? 2 : 3;
    return ((kBiases + 1 - shift) << 7) | ((magnitude << shift & 7u) << 4);
  }
};
constexpr E4m3Bytes kE4m3Bytes;

}  // namespace
}  // namespace rootdk::cpu
