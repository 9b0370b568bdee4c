// Registers of 512 bits: products of pairs by AVX512-BF16, activations, and from sums to numbers.

#ifndef ONNXQ_REGION_BF16_ZMM_H_
#define ONNXQ_REGION_BF16_ZMM_H_

#include <immintrin.h>

#include "../../cpu/kernel.h"
#include "act_zmm.h"
#include "bf16_simple.h"
#include "dot.h"
#include "planes.h"
#include "store_zmm.h"

namespace onnxq {
namespace {

inline __mmask32 first_numbers(int64_t count) { return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1; }

inline __m512 low_numbers(__m512i numbers) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(numbers)), 16));
}
inline __m512 high_numbers(__m512i numbers) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(numbers, 1)), 16));
}
// Of 32 numbers, those that lie in the halves of 32-bit words.
inline __m512 even_numbers(__m512i numbers) { return _mm512_castsi512_ps(_mm512_slli_epi32(numbers, 16)); }
inline __m512 odd_numbers(__m512i numbers) {
  return _mm512_castsi512_ps(_mm512_and_si512(numbers, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

// An activation of two registers.
struct ZmmAct {
  __m512 low, high;
  Act act;

  explicit ZmmAct(const Act& given) : act(given) {
    const float infinity = bits_to_float(0x7F800000u);
    const bool clips = act.kind == kClip;
    low = _mm512_set1_ps(clips ? act.a : act.kind == kRelu ? 0.0f : -infinity);
    high = _mm512_set1_ps(clips ? act.b : infinity);
  }

  // Of kinds up to kClip. In this order what is no number stays none.
  __m512 clipped(__m512 x) const { return _mm512_min_ps(high, _mm512_max_ps(low, x)); }

  void operator()(__m512& x) const { x = act.kind <= kClip ? clipped(x) : curved(act, x); }
  void operator()(__m512& a, __m512& b) const {
    (*this)(a);
    (*this)(b);
  }
};

inline __m512i rounded(__m512 low, __m512 high) {
  const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
  __m512i numbers;
  memcpy(&numbers, &both, sizeof numbers);
  return numbers;
}

// What the blocks of a convolution share while their pixels are stored.
struct NumberFinish {
  struct At {
    int64_t to, plus;  // numbers from the first output of an image on
  };
  static constexpr bool kPairs = false, kTakesRegisters = true;

  const NumberConv* conv;
  ZmmAct act;
  __mmask32 mask;
  bool is_plain;  // no mask
  // From the first output of the block on.
  uint16_t* data;
  const uint16_t* plus;
  int64_t image, plus_image;

  explicit NumberFinish(const NumberConv& c) : conv(&c), act(c.act), image(c.to.image), plus_image(c.plus.image) {}

  [[gnu::always_inline]] void begin(int64_t block) {
    const int64_t channel = channel_of(*conv, block);
    mask = first_numbers(outputs_of(*conv, block));
    is_plain = mask == 0xFFFFFFFF;
    data = conv->to.data + channel;
    plus = conv->plus.data ? conv->plus.data + channel : nullptr;
  }
  At place(int64_t y, int64_t x) const {
    return {y * conv->to.row + x * conv->to.pixel, y * conv->plus.row + x * conv->plus.pixel};
  }
  void store(int64_t n, const At& at, __m512 a, __m512 b) const {
    if (plus) {
      const __m512i numbers = _mm512_maskz_loadu_epi16(mask, plus + n * plus_image + at.plus);
      a = _mm512_add_ps(a, low_numbers(numbers));
      b = _mm512_add_ps(b, high_numbers(numbers));
    }
    act(a);
    if (mask >> 16) {  // else nothing was computed there
      act(b);
    }
    store_some(data + n * image + at.to, mask, rounded(a, b));
  }
  void store(int64_t n, const At& at, __m512i a, __m512i b) const {
    store(n, at, _mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
  }
  void store(int64_t n, const At& at, const float* sums) const {
    store(n, at, _mm512_loadu_ps(sums), _mm512_loadu_ps(sums + 16));
  }

  // Numbers of pixels one behind the other.
  template <int pixels>
  ONNXQ_INLINE void store_all(int64_t n, const At& at, const __m512 (&sums)[pixels][2]) const {
    const int64_t step = conv->to.pixel, plus_step = conv->plus.pixel;
    if (!is_plain) {
      alignas(64) float kept[pixels][kBlock];
      unrolled<pixels>([&](auto i) ONNXQ_INLINE {
        _mm512_store_ps(kept[i], sums[i][0]);
        _mm512_store_ps(kept[i] + 16, sums[i][1]);
      });
      for (int i = 0; i < pixels; ++i) {
        store(n, {at.to + i * step, at.plus + i * plus_step}, kept[i]);
      }
      return;
    }
    uint16_t* const to = data + n * image + at.to;
    const uint16_t* const with = plus ? plus + n * plus_image + at.plus : nullptr;
    unrolled<pixels>([&](auto i) ONNXQ_INLINE {
      __m512 a = sums[i][0], b = sums[i][1];
      if (with) {
        const __m512i numbers = _mm512_loadu_si512(with + i * plus_step);
        a = _mm512_add_ps(a, low_numbers(numbers));
        b = _mm512_add_ps(b, high_numbers(numbers));
      }
      act(a, b);
      _mm512_storeu_si512(to + i * step, rounded(a, b));
    });
  }
};

struct PairDots {
  static constexpr int kLanes = 16, kVectors = 2, kPixels = 14;
  static constexpr bool kIsInOrder = false;  // even ones are
  using Problem = NumberConv;
  using Finish = NumberFinish;
  using Sum = float;
  using I = __m512;
  using X = __m512bh;
  using W = __m512bh;

  static const float* starts(const NumberConv& c, int64_t block) { return c.starts + block * kBlock; }
  static I load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, I a) { _mm512_storeu_ps(p, a); }
  static W weights(const int8_t* p) {
    W w;
    memcpy(&w, p, sizeof w);
    return w;
  }
  static X pixel(const uint8_t* p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    const __m512i all = _mm512_set1_epi32(pair);
    X x;
    memcpy(&x, &all, sizeof x);
    return x;
  }
  static I dot(I sum, X x, W w) { return _mm512_dpbf16_ps(sum, x, w); }
  ONNXQ_INLINE static void renew(I& sum) { asm("" : "+v"(sum)); }
};

// Rounded, even ones before odd ones back in their order.
inline __m512i in_order(__m512 even, __m512 odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                         20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, rounded(even, odd));
}

inline bool plan_pairs(NumberConv& c) { return plan_dots<PairDots>(c); }

// --- pools -------------------------------------------------------------------------------------------------------------------

template <bool average>
inline void number_pools(const NumberPool& given, int64_t first, int64_t last) {
  const NumberPool p = given;  // which nothing that is written can be
  const __m512 start = _mm512_set1_ps(average ? 0.0f : bits_to_float(0xFF800000u));
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.y.H, y0 = row % p.y.H * p.stride_y - p.top;
    const Inside rows(y0, p.kernel_y, p.dilation_y, 0, p.x.H);
    const Inside counted_rows(y0, p.kernel_y, p.dilation_y, -p.top, p.x.H + p.bottom);
    const uint16_t* const image = p.x.data + n * p.x.image + (y0 + rows.first * p.dilation_y) * p.x.row;
    uint16_t* to = row_of(p.y, row);
    for (int64_t ox = 0; ox < p.y.W; ++ox, to += p.y.pixel) {
      const int64_t x0 = ox * p.stride_x - p.left;
      const Inside columns(x0, p.kernel_x, p.dilation_x, 0, p.x.W);
      const Inside counted(x0, p.kernel_x, p.dilation_x, -p.left, p.x.W + p.right);
      const int64_t high = rows.last - rows.first, wide = columns.last - columns.first;
      const int64_t all = (counted_rows.last - counted_rows.first) * (counted.last - counted.first);
      const __m512 count = _mm512_set1_ps(static_cast<float>(p.counts_pads ? all : high * wide));
      const uint16_t* const window = image + (x0 + columns.first * p.dilation_x) * p.x.pixel;
      for (int64_t c = 0; c < p.y.C; c += 32) {
        const __mmask32 mask = first_numbers(p.y.C - c);
        __m512 even = start, odd = start;
        for (int64_t ky = 0; ky < high; ++ky) {
          const uint16_t* pixel = window + ky * p.dilation_y * p.x.row + c;
          for (int64_t kx = 0; kx < wide; ++kx, pixel += p.dilation_x * p.x.pixel) {
            const __m512i numbers = _mm512_maskz_loadu_epi16(mask, pixel);
            const __m512 a = even_numbers(numbers), b = odd_numbers(numbers);
            even = average ? _mm512_add_ps(even, a) : _mm512_max_ps(a, even);
            odd = average ? _mm512_add_ps(odd, b) : _mm512_max_ps(b, odd);
          }
        }
        if (average) {
          even = _mm512_div_ps(even, count);
          odd = _mm512_div_ps(odd, count);
        }
        store_some(to + c, mask, in_order(even, odd));
      }
    }
  }
}

inline void number_pool(const NumberPool& p, int64_t first, int64_t last) {
  (p.average ? number_pools<true> : number_pools<false>)(p, first, last);
}

// --- borders -----------------------------------------------------------------------------------------------------------------

// 16 rows of 16 numbers, turned.
inline void turn(__m512 (&r)[16]) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const auto pair = [&](int low, int high, bool upper) {
      const __m512d a = _mm512_castps_pd(t[i + low]), b = _mm512_castps_pd(t[i + high]);
      return _mm512_castpd_ps(upper ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b));
    };
    r[i] = pair(0, 2, false);
    r[i + 1] = pair(0, 2, true);
    r[i + 2] = pair(1, 3, false);
    r[i + 3] = pair(1, 3, true);
  }
  // r[4 i + j]: of columns 4 q + j, rows 4 i to 4 i + 3, in quarter q.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44), b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xEE);
    const __m512 c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44), d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xEE);
    t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(a, c, 0xDD);
    t[8 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
    t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    r[i] = t[i];
  }
}

inline __mmask16 first_of_16(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1u << count) - 1); }

// Squares of 16 channels and 16 pixels of rows [first, last): body(floats of the first channel, numbers of the first
// pixel, pixels, channels). Rows that follow each other without a seam are one.
template <_mm_hint hint, typename Body>
inline void in_squares(const NumberBorder& p, int64_t first, int64_t last, const Body& body) {
  const Numbers& t = p.numbers;
  const int64_t plane = t.H * t.W, most = pixels_at_once(2 * t.C);
  for (int64_t row = first; row < last;) {
    const int64_t n = row / t.H, y = row % t.H, left = at_most(last - row, t.H - y);
    const int64_t rows = t.row == t.W * t.pixel ? left : 1, pixels = rows * t.W;
    for (int64_t x0 = 0; x0 < pixels; x0 += most) {
      for (int64_t c = 0; c < t.C; c += 16) {
        float* const floats = p.floats + (n * t.C + c) * plane + y * t.W;
        const int64_t channels = at_most(t.C - c, 16), end = at_most(pixels, x0 + most);
        for (int64_t x = x0; x < end; x += 16) {
          fetch<hint>(floats + x, plane, channels);
          body(floats + x, t.data + n * t.image + y * t.row + x * t.pixel + c, at_most(end - x, 16), channels);
        }
      }
    }
    row += rows;
  }
}

// Of up to four channels, that follow each other from pixel to pixel.
inline void number_read_few(const NumberBorder& p, int64_t first, int64_t last) {
  const Numbers& t = p.numbers;
  const int64_t plane = t.H * t.W;
  alignas(64) uint16_t from[64];
  for (int64_t i = 0; i < 64; ++i) {  // channel · 16 + pixel
    from[i] = static_cast<uint16_t>(i % t.C * 16 + i / t.C % 16);
  }
  const __m512i low = _mm512_load_si512(from), high = _mm512_load_si512(from + 32);
  for (int64_t row = first; row < last; ++row) {
    uint16_t* const to = row_of(t, row);
    const float* const floats = p.floats + row / t.H * t.C * plane + row % t.H * t.W;
    for (int64_t x = 0; x < t.W; x += 16) {
      const __mmask16 mask = first_of_16(t.W - x);
      const int64_t count = at_most(t.W - x, 16) * t.C;
      __m512 r[4];
#pragma GCC unroll 4
      for (int64_t c = 0; c < 4; ++c) {
        r[c] = c < t.C ? _mm512_maskz_loadu_ps(mask, floats + c * plane + x) : _mm512_setzero_ps();
      }
      const __m512i a = rounded(r[0], r[1]), b = rounded(r[2], r[3]);
      _mm512_mask_storeu_epi16(to + x * t.C, first_numbers(count), _mm512_permutex2var_epi16(a, low, b));
      if (count > 32) {
        _mm512_mask_storeu_epi16(to + x * t.C + 32, first_numbers(count - 32), _mm512_permutex2var_epi16(a, high, b));
      }
    }
  }
}

inline void number_read(const NumberBorder& p, int64_t first, int64_t last) {
  const int64_t plane = p.numbers.H * p.numbers.W, pixel = p.numbers.pixel;
  if (p.numbers.C <= 4 && pixel == p.numbers.C) {
    return number_read_few(p, first, last);
  }
  in_squares<_MM_HINT_T0>(p, first, last, [&](const float* from, uint16_t* to, int64_t pixels, int64_t channels) {
    const __mmask16 columns = first_of_16(pixels), mask = first_of_16(channels);
    __m512 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      r[i] = i < channels ? _mm512_maskz_loadu_ps(columns, from + i * plane) : _mm512_setzero_ps();
    }
    turn(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < pixels) {
        const __m256bh half = _mm512_cvtneps_pbh(r[i]);
        __m256i numbers;
        memcpy(&numbers, &half, sizeof numbers);
        uint16_t* const at = to + i * pixel;
        mask == 0xFFFF ? _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), numbers)  // masks are slow
                       : _mm256_mask_storeu_epi16(at, mask, numbers);
      }
    }
  });
}

inline void number_write(const NumberBorder& p, int64_t first, int64_t last) {
  const int64_t plane = p.numbers.H * p.numbers.W, pixel = p.numbers.pixel;
  in_squares<_MM_HINT_ET0>(p, first, last, [&](float* to, const uint16_t* from, int64_t pixels, int64_t channels) {
    const __mmask16 columns = first_of_16(pixels), mask = first_of_16(channels);
    __m512 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m256i numbers = i < pixels ? _mm256_maskz_loadu_epi16(mask, from + i * pixel) : _mm256_setzero_si256();
      r[i] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
    }
    turn(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < channels) {
        _mm512_mask_storeu_ps(to + i * plane, columns, r[i]);
      }
    }
  });
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_BF16_ZMM_H_
