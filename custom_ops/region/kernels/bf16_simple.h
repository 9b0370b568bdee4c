// Every loop of bf16 regions in plain C++, which compilers make vectors of, by the flags of the file that includes it.

#ifndef ONNXQ_REGION_BF16_SIMPLE_H_
#define ONNXQ_REGION_BF16_SIMPLE_H_

#include <string.h>

#include "../../base/format.h"
#include "../bf16_kernel.h"
#include "act.h"
#include "interpolate.h"

namespace onnxq {
namespace {

constexpr int64_t kTogether = 32;  // channels

inline float widened(uint16_t number) { return bfloat16_to_float(number); }

// To the nearest, half to even; what is no number stays none.
inline uint16_t narrowed(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(x != x ? bits >> 16 | 0x40 : rounded);
}

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

inline uint16_t* row_of(const Numbers& t, int64_t row) { return t.data + row / t.H * t.image + row % t.H * t.row; }
// The only one there is, where sizes are 1.
inline const uint16_t* row_of(const Numbers& t, int64_t n, int64_t y) {
  return t.data + (t.N == 1 ? 0 : n * t.image) + (t.H == 1 ? 0 : y * t.row);
}

// Where the channel that lies at `i` of 32 belongs.
constexpr int64_t channel_at(int64_t i) { return i < 16 ? 2 * i : 2 * (i - 16) + 1; }

// --- convolutions --------------------------------------------------------------------------------------------------------

// Up to 32 sums become numbers of one pixel.
inline void store_sums(float* sums, const Act& act, const uint16_t* plus, uint16_t* to, int64_t size) {
  if (plus) {
    for (int64_t i = 0; i < size; ++i) {
      sums[i] += widened(plus[i]);
    }
  }
  activate(act, sums, kTogether);
  for (int64_t i = 0; i < size; ++i) {
    to[i] = narrowed(sums[i]);
  }
}

inline void store_block(const NumberConv& c, int64_t n, int64_t y, int64_t x, int64_t block, const float* found) {
  float sums[kBlock];
  memcpy(sums, found, sizeof sums);
  const int64_t channel = channel_of(c, block);
  const uint16_t* const plus =
      c.plus.data ? c.plus.data + n * c.plus.image + y * c.plus.row + x * c.plus.pixel + channel : nullptr;
  store_sums(sums, c.act, plus, c.to.data + n * c.to.image + y * c.to.row + x * c.to.pixel + channel, outputs_of(c, block));
}

inline bool plan_number_by_number(NumberConv& c) { return plan_one_by_one(c); }

inline void number_conv_one_by_one(const NumberConv& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  for (int64_t unit = first; unit < last; ++unit) {
    const Pixels at(c, n, unit);
    if (!at.is_there(c)) {
      continue;
    }
    for (int64_t b = block; b < end; ++b) {
      const uint8_t* const window = at.window + group_of(c, b) * c.group_in;
      const int8_t* w = c.weight + b * c.chunks * kBlockBytes;
      float sums[kBlock];
      memcpy(sums, c.starts + b * kBlock, sizeof sums);
      for (int64_t k = 0; k < c.chunks; ++k, w += kBlockBytes) {
        for (int64_t pair = 0; pair < c.quads[k]; ++pair) {
          uint16_t x[2], q[2];
          memcpy(x, window + c.offsets[k] + 4 * pair, sizeof x);
          for (int64_t i = 0; i < kBlock; ++i) {
            memcpy(q, w + i / 16 * (kBlockBytes / 2) + pair * 64 + i % 16 * 4, sizeof q);
            sums[i] += widened(x[0]) * widened(q[0]) + widened(x[1]) * widened(q[1]);
          }
        }
      }
      store_block(c, n, at.y, at.x, b, sums);
    }
  }
}

inline void number_depthwise_simple(const NumberDepthwise& d, int64_t first, int64_t last) {
  const int64_t padded = cover(d.y.C, kTogether) * kTogether;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / d.y.H, y = row % d.y.H;
    for (int64_t c = 0; c < d.y.C; c += kTogether) {
      const int64_t channels = at_most(d.y.C - c, kTogether);
      for (int64_t ox = 0; ox < d.y.W; ++ox) {
        const uint16_t* const window = d.x.data + n * d.x.image + d.first + y * d.step_y + ox * d.step_x + c;
        float found[kTogether], sums[kTogether];
        memcpy(found, d.bias + c, sizeof found);
        for (int64_t ky = 0; ky < d.kernel_y; ++ky) {
          for (int64_t kx = 0; kx < d.kernel_x; ++kx) {
            const float* const w = d.weight + (ky * d.kernel_x + kx) * padded + c;
            for (int64_t i = 0; i < kTogether; ++i) {
              const int64_t channel = channel_at(i);
              found[i] += channel < channels ? widened(window[ky * d.next_y + kx * d.next_x + channel]) * w[i] : 0.0f;
            }
          }
        }
        for (int64_t i = 0; i < kTogether; ++i) {
          sums[channel_at(i)] = found[i];
        }
        const uint16_t* const plus = d.plus.data ? row_of(d.plus, row) + ox * d.plus.pixel + c : nullptr;
        store_sums(sums, d.act, plus, row_of(d.y, row) + ox * d.y.pixel + c, channels);
      }
    }
  }
}

// --- pixel by pixel ------------------------------------------------------------------------------------------------------

// to[i] = act(body(i)), i < size.
template <typename Body>
inline void in_pieces(int64_t size, const Act& act, uint16_t* to, const Body& body) {
  constexpr int64_t kPiece = 256;
  float values[kPiece];
  for (int64_t at = 0; at < size; at += kPiece) {
    const int64_t count = at_most(size - at, kPiece);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = body(at + i);
    }
    activate(act, values, count);
    for (int64_t i = 0; i < count; ++i) {
      to[at + i] = narrowed(values[i]);
    }
  }
}

template <bool multiplies>
inline float joined(uint16_t a, uint16_t b) {
  return multiplies ? widened(a) * widened(b) : widened(a) + widened(b);
}

template <bool multiplies>
inline void number_binary(const NumberBinary& p, int64_t first, int64_t last) {
  const bool same_channels = p.a.C == p.b.C;
  const bool is_dense = p.a.pixel == p.a.C && p.b.pixel == p.b.C && p.y.pixel == p.y.C;
  const bool same_pixels = same_channels && p.a.W == p.b.W && is_dense;
  const int64_t pixels = same_pixels ? 1 : p.y.W, size = same_pixels ? p.y.W * p.y.C : p.y.C;
  for (int64_t row = first; row < last; ++row) {
    const uint16_t *a = row_of(p.a, row / p.y.H, row % p.y.H), *b = row_of(p.b, row / p.y.H, row % p.y.H);
    uint16_t* to = row_of(p.y, row);
    for (int64_t x = 0; x < pixels; ++x, to += p.y.pixel) {
      if (same_channels) {
        in_pieces(size, p.act, to, [&](int64_t i) { return joined<multiplies>(a[i], b[i]); });
      } else {
        const int64_t each_a = p.a.C == 1 ? 0 : 1, each_b = p.b.C == 1 ? 0 : 1;
        in_pieces(size, p.act, to, [&](int64_t i) { return joined<multiplies>(a[i * each_a], b[i * each_b]); });
      }
      a += p.a.W == 1 ? 0 : p.a.pixel;
      b += p.b.W == 1 ? 0 : p.b.pixel;
    }
  }
}

inline void number_binary_simple(const NumberBinary& p, int64_t first, int64_t last) {
  (p.multiplies ? number_binary<true> : number_binary<false>)(p, first, last);
}

// Few channels that lie side by side: pixels are computed together, so that there is something to make vectors of.
inline void number_affine_simple(const NumberAffine& p, int64_t first, int64_t last) {
  constexpr int64_t kMost = 256;
  const int64_t C = p.x.C;
  const bool is_dense = p.x.pixel == C && p.y.pixel == C && C <= kMost / 2;
  const int64_t together = is_dense ? kMost / C : 1;
  float repeated[2][kMost];
  const float *factor = p.factor, *shift = p.shift;
  if (together > 1) {
    for (int64_t i = 0; i < together * C; ++i) {
      repeated[0][i] = factor[i % C];
      repeated[1][i] = shift[i % C];
    }
    factor = repeated[0], shift = repeated[1];
  }
  for (int64_t row = first; row < last; ++row) {
    const uint16_t* x = row_of(p.x, row);
    uint16_t* to = row_of(p.y, row);
    for (int64_t ox = 0; ox < p.x.W; ox += together, x += together * p.x.pixel, to += together * p.y.pixel) {
      const int64_t size = at_most(p.x.W - ox, together) * C;
      in_pieces(size, p.act, to, [&](int64_t i) { return widened(x[i]) * factor[i] + shift[i]; });
    }
  }
}

// `count` times `lanes` numbers, `step` from each other: what is above `start`, and its squares.
template <bool is_full>
inline void add_moments(const uint16_t* x, int64_t lanes, int64_t count, int64_t step, const float* start, float* sum,
                        float* square) {
  for (int64_t n = 0; n < count; ++n, x += step) {
    for (int64_t i = 0; i < (is_full ? kTogether : lanes); ++i) {
      const float above = widened(x[i]) - start[i];
      sum[i] += above;
      square[i] += above * above;
    }
  }
}

// Sums of a row are float32, and of what is above the first pixel of the image: where means are large beside deviations,
// squares of the numbers themselves would have no digits left for these. Where channels are few, pixels are added up together.
inline void number_moments_simple(const NumberMoments& p, int64_t first, int64_t last) {
  const uint16_t* const image = p.x.data + p.n * p.x.image;
  const int64_t C = p.x.C, together = p.x.pixel == C && C < kTogether ? kTogether / C : 1;
  const int64_t steps = p.x.W / together, left = p.x.W % together;
  const double count = static_cast<double>(p.x.W);
  for (int64_t c = 0; c < C; c += kTogether) {
    const int64_t channels = at_most(C - c, kTogether), lanes = channels * together;
    float start[kTogether] = {};
    for (int64_t i = 0; i < lanes; ++i) {
      start[i] = widened(image[c + i % channels]);
    }
    for (int64_t row = first; row < last; ++row) {
      float sum[kTogether] = {}, square[kTogether] = {};
      const uint16_t* const x = image + row * p.x.row + c;
      (lanes == kTogether ? add_moments<true> : add_moments<false>)(x, lanes, steps, together * p.x.pixel, start, sum, square);
      add_moments<false>(x + steps * together * p.x.pixel, channels, left, p.x.pixel, start, sum, square);
      for (int64_t i = 0; i < channels; ++i) {
        double all = 0.0, squares = 0.0;
        for (int64_t lane = i; lane < lanes; lane += channels) {
          all += sum[lane];
          squares += square[lane];
        }
        const double from = start[i];
        p.sums[c + i] += all + count * from;
        p.squares[c + i] += squares + 2 * from * all + count * from * from;
      }
    }
  }
}

inline void number_copy_simple(const NumberCopy& p, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const uint16_t* x = row_of(p.x, row);
    uint16_t* to = row_of(p.y, row);
    for (int64_t ox = 0; ox < p.x.W; ++ox, x += p.x.pixel, to += p.y.pixel) {
      memcpy(to, x, static_cast<size_t>(p.x.C) * sizeof *x);
    }
  }
}

inline void number_interpolate_simple(const NumberInterpolation& p, int64_t first, int64_t last) {
  const int64_t C = p.y.C;
  for (int64_t row = first; row < last; ++row) {
    const Tap& rows = p.rows[row % p.y.H];
    const uint16_t *const upper = p.x.data + row / p.y.H * p.x.image + rows.first * p.x.row,
                   *const lower = p.x.data + row / p.y.H * p.x.image + rows.second * p.x.row;
    uint16_t* to = row_of(p.y, row);
    for (int64_t x = 0; x < p.y.W; ++x, to += p.y.pixel) {
      const Tap& columns = p.columns[x];
      const Weights w(rows, columns);
      const uint16_t *const a = upper + columns.first * p.x.pixel, *const b = upper + columns.second * p.x.pixel;
      const uint16_t *const c = lower + columns.first * p.x.pixel, *const d = lower + columns.second * p.x.pixel;
      uint16_t* __restrict const made = to;  // no pixel of x
      for (int64_t i = 0; i < C; ++i) {
        made[i] = narrowed(w.a * widened(a[i]) + w.b * widened(b[i]) + w.c * widened(c[i]) + w.d * widened(d[i]));
      }
    }
  }
}

// --- pools ---------------------------------------------------------------------------------------------------------------

inline void number_pool_simple(const NumberPool& p, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.y.H, y = row % p.y.H, y0 = y * p.stride_y - p.top;
    const uint16_t* const image = p.x.data + n * p.x.image;
    const Inside rows(y0, p.kernel_y, p.dilation_y, 0, p.x.H);
    const Inside counted_rows(y0, p.kernel_y, p.dilation_y, -p.top, p.x.H + p.bottom);
    for (int64_t ox = 0; ox < p.y.W; ++ox) {
      const int64_t x0 = ox * p.stride_x - p.left;
      const Inside columns(x0, p.kernel_x, p.dilation_x, 0, p.x.W);
      const Inside counted(x0, p.kernel_x, p.dilation_x, -p.left, p.x.W + p.right);
      const int64_t real = (rows.last - rows.first) * (columns.last - columns.first);
      const int64_t all = (counted_rows.last - counted_rows.first) * (counted.last - counted.first);
      const float count = static_cast<float>(p.counts_pads ? all : real);
      for (int64_t c = 0; c < p.y.C; c += kTogether) {
        const int64_t channels = at_most(p.y.C - c, kTogether);
        float found[kTogether];
        const float start = p.average ? 0.0f : bits_to_float(0xFF800000u);
        for (int64_t i = 0; i < kTogether; ++i) {
          found[i] = start;
        }
        for (int64_t ky = rows.first; ky < rows.last; ++ky) {
          for (int64_t kx = columns.first; kx < columns.last; ++kx) {
            const uint16_t* const pixel =
                image + (y0 + ky * p.dilation_y) * p.x.row + (x0 + kx * p.dilation_x) * p.x.pixel + c;
            if (p.average) {
              for (int64_t i = 0; i < channels; ++i) {
                found[i] += widened(pixel[i]);
              }
            } else {
              for (int64_t i = 0; i < channels; ++i) {
                const float x = widened(pixel[i]);
                found[i] = found[i] > x ? found[i] : x;
              }
            }
          }
        }
        uint16_t* const to = row_of(p.y, row) + ox * p.y.pixel + c;
        for (int64_t i = 0; i < channels; ++i) {
          to[i] = narrowed(p.average ? found[i] / count : found[i]);
        }
      }
    }
  }
}

// --- borders -------------------------------------------------------------------------------------------------------------

inline void number_read_simple(const NumberBorder& p, int64_t first, int64_t last) {
  const Numbers& t = p.numbers;
  const int64_t plane = t.H * t.W;
  for (int64_t row = first; row < last; ++row) {
    uint16_t* const to = row_of(t, row);
    for (int64_t c = 0; c < t.C; ++c) {
      const float* const from = p.floats + (row / t.H * t.C + c) * plane + row % t.H * t.W;
      for (int64_t x = 0; x < t.W; ++x) {
        to[x * t.pixel + c] = narrowed(from[x]);
      }
    }
  }
}

inline void number_write_simple(const NumberBorder& p, int64_t first, int64_t last) {
  const Numbers& t = p.numbers;
  const int64_t plane = t.H * t.W;
  for (int64_t row = first; row < last; ++row) {
    const uint16_t* const from = row_of(t, row);
    for (int64_t c = 0; c < t.C; ++c) {
      float* const to = p.floats + (row / t.H * t.C + c) * plane + row % t.H * t.W;
      for (int64_t x = 0; x < t.W; ++x) {
        to[x] = widened(from[x * t.pixel + c]);
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_BF16_SIMPLE_H_
