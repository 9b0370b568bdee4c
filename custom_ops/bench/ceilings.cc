// What this machine can do at most, for measurements: bytes read and operations done per second by `threads` threads.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "../base/export.h"
#include "../base/threads.h"
#include "../cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define ONNXQ_TARGET(flags) __attribute__((target(flags)))
#if defined(ONNXQ_COMPILES_AMX) && !defined(ONNXQ_EMULATE)
#include "../cpu/kernels/tiles.h"
#endif
#endif

namespace {

// Seconds from the moment all threads are running until the last is done; the best of `times`.
template <typename Body>
double seconds(int threads, int times, const Body& body) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30;
  for (int i = 0; i < times; ++i) {
    std::atomic<int> ready{0};
    Clock::time_point begin;
    onnxq::in_threads(threads, threads, [&](int64_t thread, int64_t) {
      ready++;
      while (ready < threads) {
      }
      if (thread == 0) {
        begin = Clock::now();
      }
      body(static_cast<int>(thread));
    });
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

#if defined(__x86_64__)

constexpr int64_t kRounds = 1000000, kSums = 12;  // enough sums to hide an instruction's latency

#define ONNXQ_ROUNDS(instruction)                                                                     \
  for (int64_t i = 0; i < kRounds; ++i) {                                                             \
    asm volatile(instruction "0\n" instruction "1\n" instruction "2\n" instruction "3\n" instruction \
                 "4\n" instruction "5\n" instruction "6\n" instruction "7\n" instruction "8\n"        \
                 instruction "9\n" instruction "10\n" instruction "11\n" ::                           \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",        \
                       "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");                                   \
  }

ONNXQ_TARGET("avx2,fma") void fma_256(int) { ONNXQ_ROUNDS("vfmadd231ps %%ymm14, %%ymm15, %%ymm") }
ONNXQ_TARGET("avx512f") void fma_512(int) { ONNXQ_ROUNDS("vfmadd231ps %%zmm14, %%zmm15, %%zmm") }
ONNXQ_TARGET("avx512f,avx512vnni") void vnni_512(int) { ONNXQ_ROUNDS("vpdpbusd %%zmm14, %%zmm15, %%zmm") }

ONNXQ_TARGET("avx2") uint32_t read_256(const char* p, int64_t size) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (; size >= 128; p += 128, size -= 128) {
    const __m256i* at = reinterpret_cast<const __m256i*>(p);
    a = _mm256_or_si256(a, _mm256_loadu_si256(at));
    b = _mm256_or_si256(b, _mm256_loadu_si256(at + 1));
    c = _mm256_or_si256(c, _mm256_loadu_si256(at + 2));
    d = _mm256_or_si256(d, _mm256_loadu_si256(at + 3));
    _mm_prefetch(p + 2048, _MM_HINT_T0);
    _mm_prefetch(p + 2048 + 64, _MM_HINT_T0);
  }
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d))));
}

#if defined(ONNXQ_COMPILES_AMX) && !defined(ONNXQ_EMULATE)
void amx_bf16(int) {
  using namespace onnxq;
  tiles_begin();
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  tile_zero<4>(), tile_zero<5>(), tile_zero<6>(), tile_zero<7>();
  for (int64_t i = 0; i < kRounds; ++i) {
    tile_multiply<0, 4, 6>(), tile_multiply<1, 4, 7>(), tile_multiply<2, 5, 6>(), tile_multiply<3, 5, 7>();
  }
  tiles_end();
}
#endif

#endif

}  // namespace

// Operations (a multiplication and an addition are two) per second: "fma" in float32 and "vnni" in 8 bits, at the widest
// vectors there are, "amx" in bfloat16. 0 where the machine cannot do that.
ONNXQ_EXPORT double onnxq_peak(const char* what, int32_t threads) {
#if defined(__x86_64__)
  const uint64_t has = onnxq::cpu_features();
  const double rounds = static_cast<double>(kRounds * threads);
  if (std::strcmp(what, "fma") == 0 && has & onnxq::kAvx512) {
    return rounds * kSums * 32 / seconds(threads, 5, fma_512);
  }
  if (std::strcmp(what, "fma") == 0 && has & onnxq::kAvx2) {
    return rounds * kSums * 16 / seconds(threads, 5, fma_256);
  }
  if (std::strcmp(what, "vnni") == 0 && has & onnxq::kAvx512Vnni) {
    return rounds * kSums * 128 / seconds(threads, 5, vnni_512);
  }
#if defined(ONNXQ_COMPILES_AMX) && !defined(ONNXQ_EMULATE)
  if (std::strcmp(what, "amx") == 0 && has & onnxq::kAmxBf16) {
    return rounds * 4 * (16 * 16 * 32 * 2) / seconds(threads, 3, amx_bf16);
  }
#endif
#endif
  (void)what, (void)threads;
  return 0;
}

// Seconds to read `bytes` once, each thread its part; 0 where nothing is measured.
ONNXQ_EXPORT double onnxq_read_seconds(const char* data, int64_t bytes, int32_t threads) {
#if defined(__x86_64__)
  if (onnxq::cpu_features() & onnxq::kAvx2) {
    std::atomic<uint32_t> sink{0};
    const int64_t part = bytes / threads;
    return seconds(threads, 1, [&](int thread) { sink |= read_256(data + thread * part, part); });
  }
#endif
  (void)data, (void)bytes, (void)threads;
  return 0;
}
