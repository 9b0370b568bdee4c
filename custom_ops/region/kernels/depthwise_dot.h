// Depthwise convolutions by dot products: bytes of up to four rows are interleaved, so that one dot product adds what
// four rows of a column of a window say to 16 channels. 64 channels are four registers; register v holds channels
// 16 l + 4 v + j at lane 4 l + j, which is what unpacking and packing bytes makes of their order.

#ifndef ONNXQ_REGION_DEPTHWISE_DOT_H_
#define ONNXQ_REGION_DEPTHWISE_DOT_H_

#include "zmm.h"

namespace onnxq {
namespace {

struct Column {
  __m512i v[4];

  // Rows beyond `rows` are multiplied by zero, and repeat the first.
  Column(const uint8_t* x, int64_t next, int64_t rows, __mmask64 mask) {
    const auto row = [&](int64_t i) { return _mm512_maskz_loadu_epi8(mask, x + (i < rows ? i * next : 0)); };
    const __m512i a = row(0), b = row(1), c = row(2), d = row(3);
    const __m512i low0 = _mm512_unpacklo_epi8(a, b), high0 = _mm512_unpackhi_epi8(a, b);
    const __m512i low1 = _mm512_unpacklo_epi8(c, d), high1 = _mm512_unpackhi_epi8(c, d);
    v[0] = _mm512_unpacklo_epi16(low0, low1);
    v[1] = _mm512_unpackhi_epi16(low0, low1);
    v[2] = _mm512_unpacklo_epi16(high0, high1);
    v[3] = _mm512_unpackhi_epi16(high0, high1);
  }
  Column() = default;
};

struct Channels {
  const Depthwise* d;
  const int8_t* weight;
  ToPackedCodes codes;
  __m512i bias[4];
  __m512 scale[4];
  __mmask64 mask;

  Channels(const Depthwise& d, int64_t first) : d(&d), codes(d.codes) {
    const int64_t block = first / 64, left = d.y.C - first;
    weight = d.dot_weight + block * cover(d.kernel_y, 4) * d.kernel_x * 256;
    for (int v = 0; v < 4; ++v) {
      bias[v] = _mm512_loadu_si512(d.dot_bias + block * 64 + v * 16);
      scale[v] = _mm512_loadu_ps(d.dot_scale + block * 64 + v * 16);
    }
    mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
  }

  void start(__m512i* sums) const {
    for (int v = 0; v < 4; ++v) {
      sums[v] = bias[v];
    }
  }
  void add(__m512i* sums, const Column& column, int64_t number) const {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      sums[v] = _mm512_dpbusd_epi32(sums[v], column.v[v], _mm512_loadu_si512(weight + number * 256 + v * 64));
    }
  }
  void store(uint8_t* to, const __m512i* sums) const {
    const auto steps = [&](int v) { return codes.steps(sums[v], scale[v]); };
    store_some(to, mask, codes(steps(0), steps(1), steps(2), steps(3)));
  }
};

inline void store_three(const Channels& channels, const Column& a, const Column& b, const Column& c, uint8_t* to) {
  __m512i sums[4];
  channels.start(sums);
  channels.add(sums, a, 0);
  channels.add(sums, b, 1);
  channels.add(sums, c, 2);
  channels.store(to, sums);
}

// A row of outputs. Three columns of four rows at most, as far apart as some outputs are: each is interleaved once and
// serves three of these outputs. Those between them are another pass over the row.
inline void three_columns(const Depthwise& d, const Channels& channels, const uint8_t* x, uint8_t* to) {
  const int64_t apart = d.next_x / d.step_x;
  for (int64_t first = 0; first < apart && first < d.y.W; ++first, x += d.step_x) {
    const auto column = [&](int64_t i) { return Column(x + i * d.next_x, d.next_y, d.kernel_y, channels.mask); };
    Column a = column(0), b = column(1);
    int64_t next = 2;
    for (int64_t ox = first; ox < d.y.W; ox += apart, ++next) {
      const Column c = column(next);
      store_three(channels, a, b, c, to + ox * d.y.C);
      a = b;
      b = c;
    }
  }
}

// The same where an output's last column is the first of the next one.
inline void every_other_column(const Depthwise& d, const Channels& channels, const uint8_t* x, uint8_t* to) {
  const auto column = [&](int64_t i) { return Column(x + i * d.next_x, d.next_y, d.kernel_y, channels.mask); };
  Column a = column(0);
  for (int64_t ox = 0; ox < d.y.W; ++ox, to += d.y.C) {
    const Column b = column(2 * ox + 1), c = column(2 * ox + 2);
    store_three(channels, a, b, c, to);
    a = c;
  }
}

inline void any_columns(const Depthwise& d, const Channels& channels, const uint8_t* x, uint8_t* to) {
  for (int64_t ox = 0; ox < d.y.W; ++ox, to += d.y.C, x += d.step_x) {
    __m512i sums[4];
    channels.start(sums);
    const uint8_t* rows = x;
    for (int64_t ky = 0, number = 0; ky < d.kernel_y; ky += 4, rows += 4 * d.next_y) {
      for (int64_t kx = 0; kx < d.kernel_x; ++kx, ++number) {
        channels.add(sums, Column(rows + kx * d.next_x, d.next_y, d.kernel_y - ky, channels.mask), number);
      }
    }
    channels.store(to, sums);
  }
}

inline void depthwise_dots(const Depthwise& d, int64_t first, int64_t last) {
  const bool is_three = d.kernel_x == 3 && d.kernel_y <= 4;
  const auto work = is_three && d.next_x % d.step_x == 0        ? three_columns
                    : is_three && d.step_x == 2 * d.next_x ? every_other_column
                                                           : any_columns;
  for (int64_t c = 0; c < d.y.C; c += 64) {
    const Channels channels(d, c);
    for (int64_t row = first; row < last; ++row) {
      const int64_t n = row / d.y.H, y = row % d.y.H;
      const uint8_t* const x = d.x.data + n * d.x.image + d.first + y * d.step_y + c;
      uint8_t* const to = d.y.data + n * d.y.image + y * d.y.row + c;
      work(d, channels, x, to);
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_DEPTHWISE_DOT_H_
