// Depthwise convolutions of bfloat16 in registers of 512 bits, 32 channels at a time: neighbouring pixels share what they read.

#ifndef ONNXQ_REGION_BF16_DEPTHWISE_H_
#define ONNXQ_REGION_BF16_DEPTHWISE_H_

#include "bf16_zmm.h"

namespace onnxq {
namespace {

// 32 channels of one row.
struct DepthwiseRow {
  const NumberDepthwise& d;
  const ZmmAct& act;
  __mmask32 mask;
  const float *weight, *bias;
  int64_t padded;  // channels of a weight
  const uint16_t *window, *plus;
  uint16_t* to;

  DepthwiseRow(const NumberDepthwise& given, const ZmmAct& act, int64_t row, int64_t c)
      : d(given), act(act), mask(first_numbers(d.y.C - c)), weight(d.weight + c), bias(d.bias + c), padded(cover(d.y.C, 32) * 32),
        window(d.x.data + row / d.y.H * d.x.image + d.first + row % d.y.H * d.step_y + c),
        plus(d.plus.data ? row_of(d.plus, row) + c : nullptr), to(row_of(d.y, row) + c) {}

  void store(int64_t x, __m512 even, __m512 odd) const {
    if (plus) {
      const __m512i numbers = _mm512_maskz_loadu_epi16(mask, plus + x * d.plus.pixel);
      even = _mm512_add_ps(even, even_numbers(numbers));
      odd = _mm512_add_ps(odd, odd_numbers(numbers));
    }
    act(even, odd);
    store_some(to + x * d.y.pixel, mask, in_order(even, odd));
  }

  void pixel(int64_t x) const {
    __m512 even = _mm512_loadu_ps(bias), odd = _mm512_loadu_ps(bias + 16);
    for (int64_t ky = 0; ky < d.kernel_y; ++ky) {
      for (int64_t kx = 0; kx < d.kernel_x; ++kx) {
        const __m512i numbers = _mm512_maskz_loadu_epi16(mask, window + x * d.step_x + ky * d.next_y + kx * d.next_x);
        const float* const w = weight + (ky * d.kernel_x + kx) * padded;
        even = _mm512_fmadd_ps(even_numbers(numbers), _mm512_loadu_ps(w), even);
        odd = _mm512_fmadd_ps(odd_numbers(numbers), _mm512_loadu_ps(w + 16), odd);
      }
    }
    store(x, even, odd);
  }

  // Pixels of a row, `apart` from each other, by a window of `kernel` columns: each is read and widened once for all.
  template <int pixels, int kernel, int stride>
  void together(int64_t x, int64_t apart) const {
    __m512 even[pixels], odd[pixels];
    unrolled<pixels>([&](auto p) ONNXQ_INLINE {
      even[p] = _mm512_loadu_ps(bias);
      odd[p] = _mm512_loadu_ps(bias + 16);
    });
    for (int64_t ky = 0; ky < d.kernel_y; ++ky) {
      const uint16_t* const line = window + x * d.step_x + ky * d.next_y;
      __m512 by_even[kernel], by_odd[kernel];
      unrolled<kernel>([&](auto kx) ONNXQ_INLINE {
        by_even[kx] = _mm512_loadu_ps(weight + (ky * kernel + kx) * padded);
        by_odd[kx] = _mm512_loadu_ps(weight + (ky * kernel + kx) * padded + 16);
      });
      unrolled<(pixels - 1) * stride + kernel>([&](auto column) ONNXQ_INLINE {
        const __m512i numbers = _mm512_maskz_loadu_epi16(mask, line + column * d.next_x);
        const __m512 a = even_numbers(numbers), b = odd_numbers(numbers);
        unrolled<pixels>([&](auto p) ONNXQ_INLINE {
          constexpr int kx = column - p * stride;
          if constexpr (kx >= 0 && kx < kernel) {
            even[p] = _mm512_fmadd_ps(a, by_even[kx], even[p]);
            odd[p] = _mm512_fmadd_ps(b, by_odd[kx], odd[p]);
          }
        });
      });
    }
    unrolled<pixels>([&](auto p) ONNXQ_INLINE { store(x + p * apart, even[p], odd[p]); });
  }

  // By any window.
  void run() const {
    for (int64_t x = 0; x < d.y.W; ++x) {
      pixel(x);
    }
  }

  // By one of `kernel` columns, of which those of pixels that are `apart` begin `stride` columns from each other.
  template <int kernel, int stride>
  void run(int64_t apart) const {
    constexpr int kTogether = 4;
    for (int64_t first = 0; first < apart; ++first) {
      int64_t x = first;
      for (; x + (kTogether - 1) * apart < d.y.W; x += kTogether * apart) {
        together<kTogether, kernel, stride>(x, apart);
      }
      for (; x < d.y.W; x += apart) {
        together<1, kernel, stride>(x, apart);
      }
    }
  }

  template <int kernel>
  void run() const {
    d.next_x % d.step_x == 0   ? run<kernel, 1>(d.next_x / d.step_x)
    : d.step_x == 2 * d.next_x ? run<kernel, 2>(1)
                               : run();
  }
};

// Rows of a problem, from one pixel of each on.
inline void depthwise_rows(const NumberDepthwise& d, int64_t first, int64_t last) {
  const ZmmAct act(d.act);
  for (int64_t row = first; row < last; ++row) {
    for (int64_t c = 0; c < d.y.C; c += 32) {
      const DepthwiseRow each(d, act, row, c);
      switch (d.kernel_x) {
        case 3: each.run<3>(); break;
        case 5: each.run<5>(); break;
        case 7: each.run<7>(); break;
        default: each.run();
      }
    }
  }
}

constexpr int64_t kMostRepeated = 25;  // taps of a window

// How many neighbouring pixels of few channels are as good as one of 32.
inline int64_t pixels_in_32(const NumberDepthwise& d) {
  const int64_t C = d.y.C;
  const bool follow = d.next_x == C && d.step_x == C && d.y.pixel == C && (!d.plus.data || d.plus.pixel == C);
  return (C == 8 || C == 16) && follow && d.kernel_y * d.kernel_x <= kMostRepeated ? 32 / C : 1;
}

// Of `channels`, the even ones and the odd ones, again and again.
inline void repeat(const float* from, int64_t channels, float* to) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    to[lane] = from[lane / 16 * 16 + lane % 16 % (channels / 2)];
  }
}

inline void number_depthwise(const NumberDepthwise& d, int64_t first, int64_t last) {
  const int64_t pixels = pixels_in_32(d), taps = d.kernel_y * d.kernel_x;
  if (pixels == 1 || d.y.W < pixels) {
    return depthwise_rows(d, first, last);
  }
  float weight[kMostRepeated * 32], bias[32];
  for (int64_t tap = 0; tap < taps; ++tap) {
    repeat(d.weight + tap * 32, d.y.C, weight + tap * 32);
  }
  repeat(d.bias, d.y.C, bias);
  NumberDepthwise wide = d, rest = d;
  wide.weight = weight;
  wide.bias = bias;
  wide.y.C = 32;
  wide.y.W = d.y.W / pixels;
  wide.y.pixel = wide.plus.pixel = wide.step_x = 32;
  depthwise_rows(wide, first, last);
  const int64_t done = wide.y.W * pixels;
  rest.y.W = d.y.W - done;
  rest.y.data += done * d.y.pixel;
  rest.plus.data += d.plus.data ? done * d.plus.pixel : 0;
  rest.first += done * d.step_x;
  depthwise_rows(rest, first, last);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_BF16_DEPTHWISE_H_
