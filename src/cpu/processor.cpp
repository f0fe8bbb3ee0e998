#include "cpu/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace rootdk::cpu {
namespace {

#if defined(__x86_64__)
struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf result;
  __get_cpuid_count(leaf, subleaf, &result.a, &result.b, &result.c, &result.d);
  return result;
}

bool bit(unsigned word, int index) { return (word >> index & 1u) != 0; }

// Which register states the operating system saves.
unsigned long long saved_states() {
  if (!bit(cpuid(1, 0).c, 27)) return 0;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<unsigned long long>(high) << 32 | low;
}

// Linux hands out the 8 KiB of tile state only to processes that ask.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Processor look() {
  Processor found;
  const Leaf basic = cpuid(1, 0), extended = cpuid(7, 0), more = cpuid(7, 1);
  const unsigned long long states = saved_states();
  const bool ymm = (states & 0x6) == 0x6, zmm = (states & 0xe6) == 0xe6, tiles = (states & 0x60000) == 0x60000;
  found.avx2 = ymm && bit(extended.b, 5) && bit(basic.c, 12) && bit(basic.c, 29);
  found.avx512 =
      zmm && found.avx2 && bit(extended.b, 16) && bit(extended.b, 17) && bit(extended.b, 30) && bit(extended.b, 31);
  found.avx512bf16 = found.avx512 && bit(more.a, 5);
  constexpr unsigned kGenu = 0x756e6547;  // "Genu" of "GenuineIntel"
  found.slow_bf16 = cpuid(0, 0).b == kGenu;
  found.avx512vnni = found.avx512 && bit(extended.c, 11);
  found.avx512vbmi = found.avx512 && bit(extended.c, 1);
  found.amx = tiles && found.avx512bf16 && bit(extended.d, 24) && bit(extended.d, 22) && request_tiles();
  found.amx_bytes = found.amx && bit(extended.d, 25);
  return found;
}
#elif defined(__aarch64__)
#if defined(__linux__)
// HWCAP_ASIMDDP and HWCAP2_BF16, which older headers lack.
bool has_dot() { return (getauxval(AT_HWCAP) & 1ul << 20) != 0; }
bool has_bf16() { return (getauxval(AT_HWCAP2) & 1ul << 14) != 0; }
#elif defined(__APPLE__)
bool has(const char* feature) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dot() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_bf16() { return has("hw.optional.arm.FEAT_BF16"); }
#else
bool has_dot() { return false; }
bool has_bf16() { return false; }
#endif

Processor look() {
  Processor found;
  found.arm_dot = has_dot();
  found.arm_bf16 = found.arm_dot && has_bf16();
  return found;
}
#else
Processor look() { return {}; }
#endif

}  // namespace

const Processor& processor() {
  static const Processor found = look();
  return found;
}

std::string without(bool has, const char* feature) {
  return has ? std::string() : std::string("this processor has no ") + feature;
}

}  // namespace rootdk::cpu
