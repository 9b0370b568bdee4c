// Every loop in plain C++, which compilers make vectors of, by the flags of the file that includes it. All arithmetic is
// that of the operators' definitions in float32, so every ISA gives the same codes: no contraction (CMakeLists.txt).

#ifndef ONNXQ_REGION_SIMPLE_H_
#define ONNXQ_REGION_SIMPLE_H_

#include <string.h>

#include "tiles_of.h"

namespace onnxq {
namespace {

// clamp(round(x) + zero), of any x: numbers too large for int32, and none, end at a bound.
inline uint8_t to_code(float x, const Codes& codes) {
  const float low = static_cast<float>(codes.low - codes.zero), high = static_cast<float>(codes.high - codes.zero);
  const float bounded = x > low ? (x < high ? x : high) : low;
  // 1.5 · 2^23: leaves no bits behind the point, rounded half to even.
  const float rounded = (bounded + 12582912.0f) - 12582912.0f;
  return static_cast<uint8_t>(static_cast<int32_t>(rounded) + codes.zero);
}

template <bool multiplies, bool divides>
inline uint8_t binary_code(const Binary& p, float reciprocal, uint8_t a, uint8_t b) {
  const float left = static_cast<float>(a - p.a_zero) * p.a_scale;
  const float right = static_cast<float>(b - p.b_zero) * p.b_scale;
  const float value = multiplies ? left * right : left + right;
  return to_code(divides ? value / p.scale : value * reciprocal, p.codes);
}

inline uint8_t joined_code(const Binary& p, float reciprocal, uint8_t a, uint8_t b) {
  if (p.multiplies) {
    return p.divides ? binary_code<true, true>(p, reciprocal, a, b) : binary_code<true, false>(p, reciprocal, a, b);
  }
  return p.divides ? binary_code<false, true>(p, reciprocal, a, b) : binary_code<false, false>(p, reciprocal, a, b);
}

// --- convolutions --------------------------------------------------------------------------------------------------------

inline void store_block(const Conv& c, int64_t n, int64_t y, int64_t x, int64_t block, const int32_t* sums) {
  const int64_t outputs = outputs_of(c, block), channel = channel_of(c, block);
  const float* const scale = c.scale + block * kBlock;
  if (c.floats) {
    float* const to = c.floats + ((n * c.y.H + y) * c.y.W + x) * c.y.C + channel;
    for (int64_t i = 0; i < outputs; ++i) {
      to[i] = static_cast<float>(sums[i]) * scale[i];
    }
    return;
  }
  uint8_t codes[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    codes[i] = to_code(static_cast<float>(sums[i]) * scale[i], c.codes);
  }
  if (c.join) {
    const Image& b = c.join->b;
    const uint8_t* const with = b.data + n * b.image + y * b.row + x * b.C + channel;
    const float reciprocal = 1.0f / c.join->scale;
    for (int64_t i = 0; i < outputs; ++i) {
      codes[i] = joined_code(*c.join, reciprocal, codes[i], with[i]);
    }
  }
  memcpy(c.y.data + n * c.y.image + y * c.y.row + x * c.pixel + channel, codes, static_cast<size_t>(outputs));
}

// For dot.h: pixels are stored one by one, by numbers of their row and column.
struct BlockFinish {
  struct At {
    int64_t y, x;
  };
  const Conv* conv;
  int64_t block = 0;

  static constexpr bool kPairs = false, kTakesRegisters = false;

  explicit BlockFinish(const Conv& c) : conv(&c) {}
  void begin(int64_t of) { block = of; }
  static At place(int64_t y, int64_t x) { return {y, x}; }
  void store(int64_t n, At at, const int32_t* sums) const { store_block(*conv, n, at.y, at.x, block, sums); }
};

inline bool plan_one_by_one(Conv& c) {
  plan_tiles(c, 1, 1);
  return true;
}

inline void conv_one_by_one(const Conv& c, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end) {
  for (int64_t unit = first; unit < last; ++unit) {
    const Pixels at(c, n, unit);
    if (!at.is_there(c)) {
      continue;
    }
    for (int64_t b = block; b < end; ++b) {
      const uint8_t* const window = at.window + group_of(c, b) * c.group_in;
      const int8_t* w = c.weight + b * c.chunks * kBlockBytes;
      uint32_t sums[kBlock];  // that wrap, as those of vectors do
      memcpy(sums, c.bias + b * kBlock, sizeof sums);
      for (int64_t k = 0; k < c.chunks; ++k, w += kBlockBytes) {
        const uint8_t* const x = window + c.offsets[k];
        for (int64_t quad = 0; quad < c.quads[k]; ++quad) {
          for (int64_t i = 0; i < kBlock; ++i) {
            const int8_t* const q = w + i / 16 * (kBlockBytes / 2) + quad * 64 + i % 16 * 4;
            const int32_t dot = x[4 * quad] * q[0] + x[4 * quad + 1] * q[1] + x[4 * quad + 2] * q[2] + x[4 * quad + 3] * q[3];
            sums[i] += static_cast<uint32_t>(dot);
          }
        }
      }
      int32_t found[kBlock];
      memcpy(found, sums, sizeof found);
      store_block(c, n, at.y, at.x, b, found);
    }
  }
}

inline void depthwise_simple(const Depthwise& d, int64_t first, int64_t last) {
  constexpr int64_t kChannels = 64;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / d.y.H, y = row % d.y.H, padded = cover(d.y.C, kChannels) * kChannels;
    const uint8_t* const x = d.x.data + n * d.x.image + d.first + y * d.step_y;
    uint8_t* const to = d.y.data + n * d.y.image + y * d.y.row;
    for (int64_t c = 0; c < d.y.C; c += kChannels) {
      const int64_t channels = d.y.C - c < kChannels ? d.y.C - c : kChannels;
      for (int64_t ox = 0; ox < d.y.W; ++ox) {
        uint32_t sums[kChannels];
        memcpy(sums, d.bias + c, sizeof sums);
        for (int64_t ky = 0; ky < d.kernel_y; ++ky) {
          for (int64_t kx = 0; kx < d.kernel_x; ++kx) {
            const uint8_t* const pixel = x + ox * d.step_x + ky * d.next_y + kx * d.next_x + c;
            const int8_t* const w = d.weight + (ky * d.kernel_x + kx) * padded + c;
            for (int64_t i = 0; i < channels; ++i) {
              sums[i] += static_cast<uint32_t>(static_cast<int16_t>(pixel[i] * w[i]));  // 255 · 128 < 2^15
            }
          }
        }
        uint8_t codes[kChannels];
        for (int64_t i = 0; i < kChannels; ++i) {
          codes[i] = to_code(static_cast<float>(static_cast<int32_t>(sums[i])) * d.scale[c + i], d.codes);
        }
        memcpy(to + ox * d.y.C + c, codes, static_cast<size_t>(channels));
      }
    }
  }
}

// --- pixel by pixel ----------------------------------------------------------------------------------------------------

// Row y of image n; the only one there is, where sizes are 1.
inline const uint8_t* row_of(const Image& image, int64_t n, int64_t y) {
  return image.data + (image.N == 1 ? 0 : n * image.image) + (image.H == 1 ? 0 : y * image.row);
}

template <bool multiplies, bool divides>
void binary_rows(const Binary& given, int64_t first, int64_t last) {
  const Binary p = given;  // which no byte that is written can be, so that numbers stay in registers
  const float reciprocal = 1.0f / p.scale;
  const bool same_channels = p.a.C == p.b.C, same_pixels = same_channels && p.a.W == p.b.W;
  const int64_t pixels = same_pixels ? 1 : p.y.W, size = same_pixels ? p.y.W * p.y.C : p.y.C;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.y.H, y = row % p.y.H;
    const uint8_t *a = row_of(p.a, n, y), *b = row_of(p.b, n, y);
    uint8_t* to = p.y.data + n * p.y.image + y * p.y.row;
    for (int64_t x = 0; x < pixels; ++x, to += size) {
      if (same_channels) {
        for (int64_t i = 0; i < size; ++i) {
          to[i] = binary_code<multiplies, divides>(p, reciprocal, a[i], b[i]);
        }
      } else {
        for (int64_t i = 0; i < size; ++i) {
          to[i] = binary_code<multiplies, divides>(p, reciprocal, a[p.a.C == 1 ? 0 : i], b[p.b.C == 1 ? 0 : i]);
        }
      }
      a += p.a.W == 1 ? 0 : p.a.C;
      b += p.b.W == 1 ? 0 : p.b.C;
    }
  }
}

inline void binary_simple(const Binary& p, int64_t first, int64_t last) {
  const auto rows = p.multiplies ? (p.divides ? binary_rows<true, true> : binary_rows<true, false>)
                                 : (p.divides ? binary_rows<false, true> : binary_rows<false, false>);
  rows(p, first, last);
}

inline void lookup_simple(const Lookup& p, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.x.H, y = row % p.x.H;
    const uint8_t* x = p.x.data + n * p.x.image + y * p.x.row;
    uint8_t* to = p.y.data + n * p.y.image + y * p.y.row;
    for (int64_t ox = 0; ox < p.x.W; ++ox, x += p.x.C, to += p.y.C) {
      if (!p.table) {
        memcpy(to, x, static_cast<size_t>(p.x.C));
        continue;
      }
      const int64_t next = p.by_channel ? 256 : 0;
      const uint8_t* table = p.table;
      for (int64_t i = 0; i < p.x.C; ++i, table += next) {
        to[i] = table[x[i]];
      }
    }
  }
}

template <bool is_bent>
void affine_rows(const Affine& p, int64_t first, int64_t last) {
  constexpr int64_t kChannels = 64;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.x.H, y = row % p.x.H, C = p.x.C;
    const uint8_t* x = p.x.data + n * p.x.image + y * p.x.row;
    uint8_t* to = p.y.data + n * p.y.image + y * p.y.row;
    for (int64_t ox = 0; ox < p.x.W; ++ox, x += C, to += C) {
      for (int64_t c = 0; c < C; c += kChannels) {
        const int64_t channels = C - c < kChannels ? C - c : kChannels;
        uint8_t codes[kChannels];  // which no factor can be: compilers need not ask
        for (int64_t i = 0; i < channels; ++i) {
          const float number = static_cast<float>(x[c + i]);
          const bool is_behind = is_bent && number >= p.knee[c + i];
          const float factor = is_behind ? p.factor[C + c + i] : p.factor[c + i];
          const float start = is_behind ? p.start[C + c + i] : p.start[c + i];
          codes[i] = to_code(number * factor + start, p.codes);
        }
        memcpy(to + c, codes, static_cast<size_t>(channels));
      }
    }
  }
}

inline void affine_simple(const Affine& p, int64_t first, int64_t last) {
  (p.knee ? affine_rows<true> : affine_rows<false>)(p, first, last);
}

// --- pools ---------------------------------------------------------------------------------------------------------------

// Positions of a window inside [from, to): steps [first, last) of `size`.
struct Inside {
  int64_t first, last;

  Inside(int64_t start, int64_t size, int64_t dilation, int64_t from, int64_t to) : first(0), last(size) {
    while (first < last && start + first * dilation < from) {
      ++first;
    }
    while (last > first && start + (last - 1) * dilation >= to) {
      --last;
    }
  }
};

inline void pool_simple(const Pool& p, int64_t first, int64_t last) {
  constexpr int64_t kChannels = 64;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.y.H, y = row % p.y.H, y0 = y * p.stride_y - p.top;
    const uint8_t* const image = p.x.data + n * p.x.image;
    const Inside rows(y0, p.kernel_y, p.dilation_y, 0, p.x.H);
    const Inside counted_rows(y0, p.kernel_y, p.dilation_y, -p.top, p.x.H + p.bottom);
    for (int64_t ox = 0; ox < p.y.W; ++ox) {
      const int64_t x0 = ox * p.stride_x - p.left;
      const Inside columns(x0, p.kernel_x, p.dilation_x, 0, p.x.W);
      const Inside counted(x0, p.kernel_x, p.dilation_x, -p.left, p.x.W + p.right);
      const int64_t real = (rows.last - rows.first) * (columns.last - columns.first);
      const int64_t all = (counted_rows.last - counted_rows.first) * (counted.last - counted.first);
      const float count = static_cast<float>(p.counts_pads ? all : real);
      for (int64_t c = 0; c < p.y.C; c += kChannels) {
        const int64_t channels = p.y.C - c < kChannels ? p.y.C - c : kChannels;
        int32_t sums[kChannels] = {};
        uint8_t codes[kChannels] = {};
        for (int64_t ky = rows.first; ky < rows.last; ++ky) {
          for (int64_t kx = columns.first; kx < columns.last; ++kx) {
            const uint8_t* const pixel =
                image + (y0 + ky * p.dilation_y) * p.x.row + (x0 + kx * p.dilation_x) * p.x.C + c;
            if (p.average) {
              for (int64_t i = 0; i < channels; ++i) {
                sums[i] += pixel[i] - p.x_zero;
              }
            } else {
              for (int64_t i = 0; i < channels; ++i) {
                codes[i] = codes[i] > pixel[i] ? codes[i] : pixel[i];
              }
            }
          }
        }
        for (int64_t i = 0; p.average && i < kChannels; ++i) {
          codes[i] = to_code(static_cast<float>(sums[i]) * p.x_scale / count / p.scale, p.codes);
        }
        memcpy(p.y.data + n * p.y.image + y * p.y.row + ox * p.y.C + c, codes, static_cast<size_t>(channels));
      }
    }
  }
}

// --- borders -------------------------------------------------------------------------------------------------------------

constexpr int64_t kPiece = 256;  // pixels of a row at once

inline void quantize_simple(const Border& p, int64_t first, int64_t last) {
  const Codes all = {p.zero, 0, 255};
  const float scale = p.scale;  // which no byte that is written can be
  uint8_t codes[kPiece];
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.codes.H, y = row % p.codes.H, plane = p.codes.H * p.codes.W, C = p.codes.C;
    uint8_t* const to = p.codes.data + n * p.codes.image + y * p.codes.row;
    for (int64_t x = 0; x < p.codes.W; x += kPiece) {
      const int64_t size = p.codes.W - x < kPiece ? p.codes.W - x : kPiece;
      for (int64_t c = 0; c < C; ++c) {
        const float* const from = p.floats + (n * C + c) * plane + y * p.codes.W + x;
        for (int64_t i = 0; i < size; ++i) {
          codes[i] = to_code(from[i] / scale, all);
        }
        if (C == 1) {
          memcpy(to + x, codes, static_cast<size_t>(size));
          continue;
        }
        for (int64_t i = 0; i < size; ++i) {
          to[(x + i) * C + c] = codes[i];
        }
      }
    }
  }
}

inline void dequantize_simple(const Border& p, int64_t first, int64_t last) {
  uint8_t codes[kPiece];
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.codes.H, y = row % p.codes.H, plane = p.codes.H * p.codes.W, C = p.codes.C;
    const uint8_t* const from = p.codes.data + n * p.codes.image + y * p.codes.row;
    for (int64_t x = 0; x < p.codes.W; x += kPiece) {
      const int64_t size = p.codes.W - x < kPiece ? p.codes.W - x : kPiece;
      for (int64_t c = 0; c < C; ++c) {
        if (C == 1) {
          memcpy(codes, from + x, static_cast<size_t>(size));
        } else {
          for (int64_t i = 0; i < size; ++i) {
            codes[i] = from[(x + i) * C + c];
          }
        }
        float* const to = p.floats + (n * C + c) * plane + y * p.codes.W + x;
        for (int64_t i = 0; i < size; ++i) {
          to[i] = static_cast<float>(codes[i] - p.zero) * p.scale;
        }
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_SIMPLE_H_
