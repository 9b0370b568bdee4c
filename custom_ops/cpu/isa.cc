#include "isa.h"

#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace onnxq {

#define ONNXQ_KERNEL(name) extern const Kernel kernel_##name;
#include "kernels.inc"  // written by CMake, best first
#undef ONNXQ_KERNEL

const Kernel* const kKernels[] = {
#define ONNXQ_KERNEL(name) &kernel_##name,
#include "kernels.inc"
#undef ONNXQ_KERNEL
    nullptr,
};

namespace {

#if defined(__x86_64__)

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  return __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) ? r : Registers{};
}

constexpr bool bit(uint32_t word, int n) { return (word >> n & 1) != 0; }

// The registers that the operating system saves: XCR0.
uint64_t saved_state() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives the tiles' 8 KB of state only to processes that ask for it.
bool tiles_granted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Intel's Software Developer's Manual, volume 1, chapter 13 (state) and volume 2, CPUID.
uint64_t detect() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
  if (!bit(one.c, 27)) {  // OSXSAVE
    return 0;
  }
  const uint64_t state = saved_state();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xE6, kTiles = 0x60000;
  const bool avx2 = (state & kYmm) == kYmm && bit(one.c, 28) && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5);
  const bool avx512 = avx2 && (state & kZmm) == kZmm && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) &&
                      bit(seven.b, 31);
  const bool amx = avx512 && (state & kTiles) == kTiles && bit(seven.d, 24) && tiles_granted();
  uint64_t found = 0;
  const auto add = [&found](bool has, CpuFeature feature) { found |= has ? feature : uint64_t{0}; };
  add(avx2, kAvx2);
  add(avx2 && bit(seven_one.a, 4), kAvxVnni);
  add(avx512, kAvx512);
  add(avx512 && bit(seven.c, 11), kAvx512Vnni);
  add(avx512 && bit(seven_one.a, 5), kAvx512Bf16);
  add(avx512 && bit(seven.c, 1), kAvx512Vbmi);
  add(amx && bit(seven.d, 25), kAmxInt8);
  add(amx && bit(seven.d, 22), kAmxBf16);
  return found;
}

#elif defined(__aarch64__) && defined(__linux__)

uint64_t detect() {
  constexpr unsigned long kMatrices = 1 << 13;  // HWCAP2_I8MM, which older headers have not
  const unsigned long has = getauxval(AT_HWCAP);
  if (!(has & HWCAP_ASIMD) || !(has & HWCAP_ASIMDDP)) {
    return 0;
  }
  return getauxval(AT_HWCAP2) & kMatrices ? kNeonDot | kNeonI8mm : uint64_t{kNeonDot};
}

#elif defined(__aarch64__) && defined(__APPLE__)

// Every Mac with such a processor has dot products, and from the second generation on matrices.
uint64_t detect() {
  int32_t has = 0;
  size_t size = sizeof has;
  const bool is_known = sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) == 0;
  return is_known && has ? kNeonDot | kNeonI8mm : uint64_t{kNeonDot};
}

#else

uint64_t detect() { return 0; }

#endif

bool runs_here(const Kernel& kernel) { return (kernel.needs & ~cpu_features()) == 0; }

const Kernel* const* find(const char* isa) {
  for (const Kernel* const* each = kKernels; *each; ++each) {
    if (std::strcmp((*each)->isa, isa) == 0) {
      return each;
    }
  }
  return nullptr;
}

}  // namespace

uint64_t cpu_features() {
  static const uint64_t found = detect();
  return found;
}

const char* forced_isa() {
  const char* isa = std::getenv("ONNXQ_FORCE_ISA");
  return isa && *isa ? isa : nullptr;
}

std::string why_not(const char* isa) {
  const Kernel* const* found = find(isa);
  if (found && runs_here(**found)) {
    return "";
  }
  std::string reason = "'" + std::string(isa) + (found ? "' does not run on this processor" : "' is not a kernel of this library");
  reason += "; it has:";
  for (const Kernel* const* each = kKernels; *each; ++each) {
    if (runs_here(**each)) {
      reason += " " + std::string((*each)->isa);
    }
  }
  return reason;
}

const Kernel* kernel_for(const char* isa, const Problem& p) {
  const Kernel* const* each = isa && *isa ? find(isa) : kKernels;
  if (!each || (isa && *isa && !runs_here(**each))) {
    return nullptr;
  }
  while (!runs_here(**each) || (*each)->workspace(p) < 0) {
    ++each;
  }
  return *each;
}

}  // namespace onnxq
