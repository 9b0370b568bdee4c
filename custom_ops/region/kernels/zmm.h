// Registers of 512 bits: sums by VNNI, and from sums to codes.

#ifndef ONNXQ_REGION_ZMM_H_
#define ONNXQ_REGION_ZMM_H_

#include <immintrin.h>
#include <math.h>

#include "../../cpu/kernel.h"
#include "dot.h"
#include "simple.h"
#include "store_zmm.h"

namespace onnxq {
namespace {

// From 16 sums to 16 codes.
struct ToCodes {
  __m512 high;
  __m512i low, zero;

  explicit ToCodes(const Codes& codes)
      : high(_mm512_set1_ps(static_cast<float>(codes.high - codes.zero))),
        low(_mm512_set1_epi32(codes.low - codes.zero)),
        zero(_mm512_set1_epi32(codes.zero)) {}

  // What is too small for int32 is converted to the smallest one, so only the upper bound is one of floats. With it
  // first, it is also what no number becomes… as the second operand: the lower one, as in simple.h.
  __m128i operator()(__m512 value) const { return _mm512_cvtepi32_epi8(_mm512_add_epi32(steps(value), zero)); }

  // Without the zero point.
  __m512i steps(__m512 value) const { return _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_min_ps(value, high)), low); }
};

// From four registers of products of sums and scales to 64 codes: those of `a` and `b` by turns of four, then those of `c`
// and `d`, in each quarter of the register.
struct ToPackedCodes {
  __m512i zero, low, high;
  __m512 most;

  explicit ToPackedCodes(const Codes& codes)
      : zero(_mm512_set1_epi16(static_cast<int16_t>(codes.zero))),
        low(_mm512_set1_epi8(static_cast<int8_t>(codes.low))),
        high(_mm512_set1_epi8(static_cast<int8_t>(codes.high))),
        most(_mm512_set1_ps(1e9f)) {}  // beyond, conversion would turn the sign

  // Is small: not beyond, as of scales below 1/2.
  template <bool is_small = false>
  __m512i steps(__m512i sums, __m512 scale) const {
    const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale);
    return _mm512_cvtps_epi32(is_small ? value : _mm512_min_ps(value, most));
  }
  __m512i operator()(__m512i a, __m512i b, __m512i c, __m512i d) const {
    const __m512i front = _mm512_adds_epi16(_mm512_packs_epi32(a, b), zero);
    const __m512i back = _mm512_adds_epi16(_mm512_packs_epi32(c, d), zero);
    return _mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(front, back), low), high);
  }
  // Those of `a`, then of `b`, `c` and `d`.
  __m512i in_order(__m512i a, __m512i b, __m512i c, __m512i d) const {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, (*this)(a, b, c, d));
  }
};

inline __mmask16 first_lanes(int64_t lanes) {
  return static_cast<__mmask16>(lanes >= 16 ? 0xFFFF : (1u << (lanes < 0 ? 0 : lanes)) - 1);
}

// What the blocks of a convolution share while their pixels are stored.
struct Finish {
  using At = int64_t;  // bytes (or floats) from the first output of an image on
  static constexpr bool kPairs = true, kTakesRegisters = true;

  const Conv* conv;
  ToCodes codes;
  ToPackedCodes packed;
  __m512 scale0, scale1;
  __mmask16 mask0, mask1;
  int64_t channel, outputs;

  explicit Finish(const Conv& c) : conv(&c), codes(c.codes), packed(c.codes) {}

  // Inlined, or compilers keep all of it in memory.
  [[gnu::always_inline]] void begin(int64_t block) {
    outputs = outputs_of(*conv, block);
    channel = channel_of(*conv, block);
    scale0 = _mm512_loadu_ps(conv->scale + block * kBlock);
    scale1 = _mm512_loadu_ps(conv->scale + block * kBlock + 16);
    mask0 = first_lanes(outputs);
    mask1 = first_lanes(outputs - 16);
  }

  // The same for 16 outputs of a block, which then are those of sums[…][1].
  [[gnu::always_inline]] void begin_half(int64_t block, int64_t half) {
    begin(block);
    outputs -= 16 * half;
    outputs = outputs < 16 ? outputs : 16;
    channel += 16 * half;
    scale0 = half ? scale1 : scale0;
    mask0 = half ? mask1 : mask0;
  }

  At place(int64_t y, int64_t x) const {
    return conv->floats ? (y * conv->y.W + x) * conv->y.C : y * conv->y.row + x * conv->pixel;
  }

  void store(int64_t n, int64_t at, __m512i sums0, __m512i sums1) const {
    const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(sums0), scale0), b = _mm512_mul_ps(_mm512_cvtepi32_ps(sums1), scale1);
    if (conv->floats) {
      float* const to = conv->floats + n * conv->y.H * conv->y.W * conv->y.C + at + channel;
      _mm512_mask_storeu_ps(to, mask0, a);
      _mm512_mask_storeu_ps(to + 16, mask1, b);
      return;
    }
    uint8_t* const to = conv->y.data + n * conv->y.image + at + channel;
    store_some(to, mask0, codes(a));
    store_some(to + 16, mask1, codes(b));
  }

  void store(int64_t n, int64_t at, const int32_t* sums) const {
    store(n, at, _mm512_loadu_si512(sums), _mm512_loadu_si512(sums + 16));
  }
  // Two pixels at once.
  void store(int64_t n, int64_t at, const int32_t* sums, int64_t also, const int32_t* more) const {
    if (conv->floats) {
      store(n, at, sums);
      return store(n, also, more);
    }
    uint8_t* const to = conv->y.data + n * conv->y.image + channel;
    store_pair<false>(to + at, _mm512_loadu_si512(sums), _mm512_loadu_si512(sums + 16), to + also, _mm512_loadu_si512(more),
               _mm512_loadu_si512(more + 16));
  }

  // Codes of pixels one behind the other.
  template <int pixels>
  [[gnu::always_inline]] void store_all(int64_t n, int64_t at, const __m512i (&sums)[pixels][2]) const {
    const __m512 half = _mm512_set1_ps(0.5f);
    const __mmask16 large = _mm512_cmp_ps_mask(_mm512_max_ps(_mm512_abs_ps(scale0), _mm512_abs_ps(scale1)), half, _CMP_NLT_US);
    if (large) {
      store_codes_of<false>(n, at, sums);
    } else {
      store_codes_of<true>(n, at, sums);
    }
  }
  // The same of 16 outputs or fewer.
  template <int pixels>
  [[gnu::always_inline]] void store_all(int64_t n, int64_t at, const __m512i (&sums)[pixels][1]) const {
    uint8_t* const to = conv->y.data + n * conv->y.image + at + channel;
    if (outputs < 16) {
      unrolled<pixels>([&](auto i) ONNXQ_INLINE { store_half(to + i * conv->pixel, sums[i][0]); });
      return;
    }
    unrolled<pixels / 4>([&](auto i) ONNXQ_INLINE {
      const auto steps = [&](int pixel) ONNXQ_INLINE { return packed.steps(sums[4 * i + pixel][0], scale0); };
      store_four(to + 4 * i * conv->pixel, conv->pixel, packed.in_order(steps(0), steps(1), steps(2), steps(3)));
    });
    unrolled<pixels % 4>([&](auto i) ONNXQ_INLINE {
      store_half(to + (pixels / 4 * 4 + i) * conv->pixel, sums[pixels / 4 * 4 + i][0]);
    });
  }

  // 16 codes each of four pixels.
  static void store_four(uint8_t* to, int64_t step, __m512i all) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(all));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + step), _mm512_extracti32x4_epi32(all, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * step), _mm512_extracti32x4_epi32(all, 2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * step), _mm512_extracti32x4_epi32(all, 3));
  }

 private:
  void store_half(uint8_t* to, __m512i sums) const {
    store_some(to, mask0, codes(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale0)));
  }
  template <bool is_small, int pixels>
  [[gnu::always_inline]] void store_codes_of(int64_t n, int64_t at, const __m512i (&sums)[pixels][2]) const {
    uint8_t* const to = conv->y.data + n * conv->y.image + at + channel;
    unrolled<pixels / 2>([&](auto i) ONNXQ_INLINE {
      uint8_t* const pair = to + 2 * i * conv->pixel;
      store_pair<is_small>(pair, sums[2 * i][0], sums[2 * i][1], pair + conv->pixel, sums[2 * i + 1][0], sums[2 * i + 1][1]);
    });
    if constexpr (pixels % 2) {
      const __m512i first = packed.steps<is_small>(sums[pixels - 1][0], scale0);
      const __m512i second = packed.steps<is_small>(sums[pixels - 1][1], scale1);
      store_codes(to + (pixels - 1) * conv->pixel, _mm512_castsi512_si256(packed.in_order(first, second, first, second)));
    }
  }

  template <bool is_small>
  [[gnu::always_inline]] void store_pair(uint8_t* to, __m512i a, __m512i b, uint8_t* also, __m512i c, __m512i d) const {
    const __m512i both = packed.in_order(packed.steps<is_small>(a, scale0), packed.steps<is_small>(b, scale1),
                                         packed.steps<is_small>(c, scale0), packed.steps<is_small>(d, scale1));
    store_codes(to, _mm512_castsi512_si256(both));
    store_codes(also, _mm512_extracti64x4_epi64(both, 1));
  }
  void store_codes(uint8_t* to, __m256i all) const {
    if (outputs == kBlock) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), all);
    } else if (outputs == 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(all));
    } else {
      _mm256_mask_storeu_epi8(to, mask0 | static_cast<__mmask32>(mask1) << 16, all);
    }
  }
};

// Codes as numbers.
struct Operand {
  __m512i zero;
  __m512 scale;

  Operand(int32_t zero, float scale) : zero(_mm512_set1_epi32(zero)), scale(_mm512_set1_ps(scale)) {}

  __m512 number(__m512i codes) const { return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(codes, zero)), scale); }
  __m512 number(__m128i codes) const { return number(_mm512_cvtepu8_epi32(codes)); }
  __m512 load(const uint8_t* from, __mmask16 mask) const { return number(_mm_maskz_loadu_epi8(mask, from)); }
  __m512 all(uint8_t code) const { return number(_mm_set1_epi8(static_cast<char>(code))); }
};

// What a convolution whose codes are one operand does in the place of storing them.
struct FinishJoined {
  struct At {
    int64_t to, with;  // bytes from the first output of an image on, and from that of the other operand
  };
  static constexpr bool kPairs = false, kTakesRegisters = true;

  Finish own;
  Operand right;
  ToCodes codes;
  ToPackedCodes packed;
  __m512 left_scale, scale;
  bool multiplies, divides;
  bool is_small;  // what is converted to int32, whatever the codes are
  const uint8_t* with;
  int64_t with_image, with_row;

  explicit FinishJoined(const Conv& c)
      : own(c),
        right(c.join->b_zero, c.join->b_scale),
        codes(c.join->codes),
        packed(c.join->codes),
        left_scale(_mm512_set1_ps(c.join->a_scale)),
        scale(_mm512_set1_ps(c.join->divides ? c.join->scale : 1.0f / c.join->scale)),
        multiplies(c.join->multiplies != 0),
        divides(c.join->divides != 0),
        is_small(most(*c.join) < 1e9f),
        with(c.join->b.data),
        with_image(c.join->b.image),
        with_row(c.join->b.row) {}

  [[gnu::always_inline]] void begin(int64_t block) { own.begin(block); }

  [[gnu::always_inline]] void begin_half(int64_t block, int64_t half) { own.begin_half(block, half); }

  static float most(const Binary& p) {
    const float a = 256 * fabsf(p.a_scale), b = 256 * fabsf(p.b_scale);
    return (p.multiplies ? a * b : a + b) / fabsf(p.scale);
  }

  At place(int64_t y, int64_t x) const { return {own.place(y, x), y * with_row + x * own.conv->y.C}; }

  void store(int64_t n, At at, __m512i sums0, __m512i sums1) const {
    uint8_t* const to = own.conv->y.data + n * own.conv->y.image + at.to + own.channel;
    const uint8_t* const from = with + n * with_image + at.with + own.channel;
    join(sums0, own.scale0, from, to, own.mask0);
    if (own.mask1) {
      join(sums1, own.scale1, from + 16, to + 16, own.mask1);
    }
  }

  void store(int64_t n, At at, const int32_t* sums) const {
    store(n, at, _mm512_loadu_si512(sums), _mm512_loadu_si512(sums + 16));
  }

  template <int pixels>
  [[gnu::always_inline]] void store_all(int64_t n, At at, const __m512i (&sums)[pixels][2]) const {
    const int64_t step = own.conv->pixel, with_step = own.conv->y.C;
    if (own.outputs < kBlock || !is_small) {  // masks are slow, and so is what waits for its turn in memory
      alignas(64) int32_t kept[pixels][kBlock];
      unrolled<pixels>([&](auto i) ONNXQ_INLINE {
        _mm512_store_si512(kept[i], sums[i][0]);
        _mm512_store_si512(kept[i] + 16, sums[i][1]);
      });
      for (int i = 0; i < pixels; ++i) {
        store(n, {at.to + i * step, at.with + i * with_step}, kept[i]);
      }
      return;
    }
    uint8_t* const to = own.conv->y.data + n * own.conv->y.image + at.to + own.channel;
    const uint8_t* const from = with + n * with_image + at.with + own.channel;
    unrolled<pixels / 2>([&](auto i) ONNXQ_INLINE {
      const uint8_t* const one = from + 2 * i * with_step;
      const __m512i both =
          packed.in_order(joined(sums[2 * i][0], own.scale0, one), joined(sums[2 * i][1], own.scale1, one + 16),
                          joined(sums[2 * i + 1][0], own.scale0, one + with_step),
                          joined(sums[2 * i + 1][1], own.scale1, one + with_step + 16));
      uint8_t* const pair = to + 2 * i * step;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pair), _mm512_castsi512_si256(both));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pair + step), _mm512_extracti64x4_epi64(both, 1));
    });
    if constexpr (pixels % 2) {
      const uint8_t* const last = from + (pixels - 1) * with_step;
      const __m512i first = joined(sums[pixels - 1][0], own.scale0, last);
      const __m512i second = joined(sums[pixels - 1][1], own.scale1, last + 16);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (pixels - 1) * step),
                          _mm512_castsi512_si256(packed.in_order(first, second, first, second)));
    }
  }
  // The same of 16 outputs or fewer.
  template <int pixels>
  [[gnu::always_inline]] void store_all(int64_t n, At at, const __m512i (&sums)[pixels][1]) const {
    const int64_t step = own.conv->pixel, with_step = own.conv->y.C;
    uint8_t* const to = own.conv->y.data + n * own.conv->y.image + at.to + own.channel;
    const uint8_t* const from = with + n * with_image + at.with + own.channel;
    const bool are_four = own.outputs == 16 && is_small;
    unrolled<pixels / 4>([&](auto i) ONNXQ_INLINE {
      if (are_four) {
        const auto codes_of = [&](int pixel) ONNXQ_INLINE {
          return joined(sums[4 * i + pixel][0], own.scale0, from + (4 * i + pixel) * with_step);
        };
        Finish::store_four(to + 4 * i * step, step, packed.in_order(codes_of(0), codes_of(1), codes_of(2), codes_of(3)));
      }
    });
    unrolled<pixels>([&](auto i) ONNXQ_INLINE {
      if (!are_four || i >= pixels / 4 * 4) {
        join(sums[i][0], own.scale0, from + i * with_step, to + i * step, own.mask0);
      }
    });
  }

 private:
  void join(__m512i sums, __m512 factor, const uint8_t* from, uint8_t* to, __mmask16 mask) const {
    store_some(to, mask, codes(value(sums, factor, right.load(from, mask))));
  }

  // Steps of the result, of 16 codes of the other operand.
  __m512i joined(__m512i sums, __m512 factor, const uint8_t* from) const {
    const __m128i other = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtps_epi32(value(sums, factor, right.number(other)));
  }

  __m512 value(__m512i sums, __m512 factor, __m512 b) const {
    const __m512i steps = own.codes.steps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), factor));
    const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(steps), left_scale);
    const __m512 value = multiplies ? _mm512_mul_ps(a, b) : _mm512_add_ps(a, b);
    return divides ? _mm512_div_ps(value, scale) : _mm512_mul_ps(value, scale);
  }
};

struct ZmmDots {
  static constexpr int kLanes = 16, kVectors = 2, kPixels = 14;
  static constexpr bool kIsInOrder = true;
  using Problem = Conv;
  using Finish = onnxq::Finish;
  using Sum = int32_t;
  using I = __m512i;
  using X = I;
  using W = I;

  static const int32_t* starts(const Conv& c, int64_t block) { return c.bias + block * kBlock; }
  static I load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void store(int32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static W weights(const int8_t* p) { return _mm512_loadu_si512(p); }
  static X pixel(const uint8_t* p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static I dot(I sum, X x, W w) { return _mm512_dpbusd_epi32(sum, x, w); }

  // For winograd.h.
  static constexpr int kSquares = 8;
  using Words = uint32_t __attribute__((vector_size(64)));
  using Signed = int32_t __attribute__((vector_size(64)));
  static I weights_of_pairs(const int16_t* p) { return _mm512_loadu_si512(p); }
  static I dot_pairs(I sum, const int16_t* x, I w) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(pair));
  }

  // The same number, which the compiler takes for another one.
  ONNXQ_INLINE static void renew(I& sum) { asm("" : "+v"(sum)); }
};

struct JoinedDots : ZmmDots {
  using Finish = FinishJoined;
};

inline void conv_zmm(const Conv& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  (c.join ? conv_dots<JoinedDots> : conv_dots<ZmmDots>)(c, n, first, last, block, end);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_ZMM_H_
