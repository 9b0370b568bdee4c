// Convolutions of 3×3 with stride 1 by Winograd's F(4×4, 3×3), in integers: 16 pixels take 36 products of a channel in the
// place of 144. Of 16 bits, half as many are an instruction as of bytes; where channels are many, half the time is left.
// After Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (arXiv:1509.09308), scaled so that nothing is a
// fraction:
//
//   y = Aᵀ [ (G w Gᵀ) · (Bᵀ x B) ] A / 24², for squares x of 6×6 codes, kernels w of 3×3 and squares y of 4×4 sums.
//
// Bᵀ x B and G w Gᵀ fit 16 bits, whatever codes and weights are (17340 and 18432 at most). Sums of their products wrap: 576 y
// is known modulo 2^32, and times the inverse of 9 it is 64 y, from which y follows where it fits 26 bits (`fits_squares`).
//
// V, beside what dot.h says: vectors `Words` and `Signed` of 32 bits without and with signs, as wide as I;
// dot_pairs(sum, x, w) adds products of pairs of 16 bits, where `x` points to one pair for all lanes; kSquares at once.

#ifndef ONNXQ_REGION_KERNELS_WINOGRAD_H_
#define ONNXQ_REGION_KERNELS_WINOGRAD_H_

#include <string.h>

#include "../../base/unrolled.h"
#include "../squares.h"
#include "tiles_of.h"

namespace onnxq {
namespace {

// Vectors of 16 bits, and of as many bytes. (Attributes of types that a template makes are not heard by GCC 12.)
template <int lanes>
struct Wide;
template <>
struct Wide<32> {
  using H = int16_t __attribute__((vector_size(64)));
  using Bytes = uint8_t __attribute__((vector_size(32)));
};
template <>
struct Wide<16> {
  using H = int16_t __attribute__((vector_size(32)));
  using Bytes = uint8_t __attribute__((vector_size(16)));
};
template <>
struct Wide<8> {
  using H = int16_t __attribute__((vector_size(16)));
  using Bytes = uint8_t __attribute__((vector_size(8)));
};

constexpr int kOut = kSquareOut, kIn = kSquareIn;
constexpr uint32_t kInverseOf9 = 954437177;  // modulo 2^32

// Along one side: Bᵀ x.
template <class H>
ONNXQ_INLINE inline void spread(const H (&x)[kIn], H (&to)[kIn]) {
  const H even = x[4] - x[2], odd = x[3] - x[1], twice = odd + odd;
  const H near = x[2] * 4 - x[4], next = x[1] * 4 - x[3];
  to[0] = (x[0] - x[2]) * 4 + even;
  to[1] = near + next;
  to[2] = near - next;
  to[3] = even + twice;
  to[4] = even - twice;
  to[5] = (x[5] - x[3]) - (twice + twice);
}

// G w, whose last row is halved, or its squares would not fit.
template <class H>
ONNXQ_INLINE inline void spread_weight(const H (&w)[3], H (&to)[kIn]) {
  const H sum = w[0] + w[2], far = w[0] + w[2] * 4, twice = w[1] + w[1];
  to[0] = w[0] * 6;
  to[1] = (sum + w[1]) * 4;
  to[2] = (sum - w[1]) * 4;
  to[3] = far + twice;
  to[4] = far - twice;
  to[5] = w[2] * 12;
}

// Aᵀ m.
template <class S>
ONNXQ_INLINE inline void gather(const S (&m)[kIn], S (&to)[kOut]) {
  const S sum = m[1] + m[2], difference = m[1] - m[2], far_sum = m[3] + m[4], far = m[3] - m[4];
  to[0] = m[0] + sum + far_sum;
  to[1] = difference + far * 2;
  to[2] = sum + far_sum * 4;
  to[3] = difference + far * 8 + m[5] * 2;
}

// Of 16 outputs and four channels: quads of bytes, at each of 3×3 taps, become pairs of 16 bits at each of 6×6 places.
template <class V>
inline void spread_quads(const typename V::Words (&taps)[9], int16_t* to, int64_t next) {
  using H = typename Wide<2 * V::kLanes>::H;
  using W = typename V::Words;
  for (int pair = 0; pair < 2; ++pair, to += 2 * kBlock) {
    H w[3][3], columns[3][kIn];
    for (int i = 0; i < 9; ++i) {
      const W quad = pair ? taps[i] >> 16 : taps[i];
      w[i % 3][i / 3] = (H)((quad << 8 & 0xFF00) | (quad << 16 & 0xFF000000)) >> 8;
    }
    for (int x = 0; x < 3; ++x) {
      spread_weight(w[x], columns[x]);
    }
    for (int y = 0; y < kIn; ++y) {
      const H row[3] = {columns[0][y], columns[1][y], columns[2][y]};
      H found[kIn];
      spread_weight(row, found);
      for (int x = 0; x < kIn; ++x) {
        memcpy(to + (y * kIn + x) * next, &found[x], sizeof(H));
      }
    }
  }
}

// [36][pairs of channels][32 outputs][2] of each block; quads of channels [first, last).
template <class V>
void transform_weights(const Conv& c, int16_t* to, int64_t first, int64_t last) {
  const int64_t row = cover(3 * c.group_in, kChunk) * kBlockBytes, next = next_place(c.group_in * kBlock);
  for (int64_t b = 0; b < c.blocks; ++b) {
    const int8_t* const weight = c.weight + b * c.chunks * kBlockBytes;
    for (int64_t quad = first; quad < last; ++quad) {
      for (int lane = 0; lane < kBlock; lane += V::kLanes) {
        typename V::Words taps[9];
        for (int i = 0; i < 9; ++i) {
          const int64_t byte = i % 3 * c.group_in + 4 * quad;
          memcpy(&taps[i], weight + i / 3 * row + in_chunks(byte, lane), sizeof taps[i]);
        }
        spread_quads<V>(taps, to + b * winograd_block(c.group_in) + 4 * quad * kBlock + 2 * lane, next);
      }
    }
  }
}

// Squares in order of rows; what is read of them.
struct Squares {
  const Conv& c;
  int64_t n, across;

  Squares(const Conv& c, int64_t n) : c(c), n(n), across(squares_along(c.y.W)) {}

  int64_t y(int64_t square) const { return square / across * kOut; }
  int64_t x(int64_t square) const { return square % across * kOut; }
  // Rows of x that no output reads are like the last one that some do.
  const uint8_t* row(int64_t y) const {
    const int64_t last = c.y.H + 1;
    return c.x.data + n * c.x.image + c.first + (y < last ? y : last) * c.x.row;
  }
};

// Bᵀ x B of one square, of channels of a register. `columns` begin at column `start` of x, modulo 6; where the square
// follows another one, the first two of them are there.
template <int lanes, int start, bool follows>
inline void spread_square(const uint8_t* const (&rows)[kIn], int64_t pixel, typename Wide<lanes>::H (&columns)[kIn][kIn], int16_t* to,
                          int64_t next) {
  using H = typename Wide<lanes>::H;
  using Bytes = typename Wide<lanes>::Bytes;
  constexpr int kept = follows ? kIn - kOut : 0;
  unrolled<kIn - kept>([&](auto i) ONNXQ_INLINE {
    H read[kIn];
    unrolled<kIn>([&](auto row) ONNXQ_INLINE {
      Bytes bytes;
      memcpy(&bytes, rows[row] + (kept + i) * pixel, sizeof bytes);
      read[row] = __builtin_convertvector(bytes, H);
    });
    spread(read, columns[(start + kept + i) % kIn]);
  });
  unrolled<kIn>([&](auto row) ONNXQ_INLINE {
    H read[kIn], found[kIn];
    unrolled<kIn>([&](auto i) ONNXQ_INLINE { read[i] = columns[(start + i) % kIn][row]; });
    spread(read, found);
    unrolled<kIn>([&](auto i) ONNXQ_INLINE { memcpy(to + (row * kIn + i) * next, &found[i], sizeof(H)); });
  });
}

// Those of squares [first, first + count), of channels from `channel` on: [36][count][padded channels].
template <int lanes>
inline void spread_squares(const Squares& squares, int64_t first, int64_t count, int64_t channel, int64_t channels, int16_t* to) {
  typename Wide<lanes>::H columns[kIn][kIn];
  int64_t start = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t y = squares.y(first + i), x = squares.x(first + i), pixel = squares.c.x.C;
    const uint8_t* rows[kIn];
    for (int r = 0; r < kIn; ++r) {
      rows[r] = squares.row(y + r) + x * pixel + channel;
    }
    int16_t* const at = to + i * channels + channel;
    const int64_t next = next_place(count * channels);
    if (i == 0 || x == 0) {
      spread_square<lanes, 0, false>(rows, pixel, columns, at, next);
      start = kOut;
    } else if (start == 4) {
      spread_square<lanes, 4, true>(rows, pixel, columns, at, next);
      start = 2;
    } else if (start == 2) {
      spread_square<lanes, 2, true>(rows, pixel, columns, at, next);
      start = 0;
    } else {
      spread_square<lanes, 0, true>(rows, pixel, columns, at, next);
      start = 4;
    }
  }
}

// At one place: sums of products of T squares with the outputs from `w` on.
template <class V, int T, int vectors>
inline void multiply_squares(const int16_t* x, int64_t channels, const int16_t* w, int64_t pairs, int32_t* to) {
  typename V::I sums[T][vectors] = {};
  for (int64_t k = 0; k < pairs; ++k, x += 2, w += 2 * kBlock) {
    typename V::I weight[vectors];
    unrolled<vectors>([&](auto v) ONNXQ_INLINE { weight[v] = V::weights_of_pairs(w + v * 2 * V::kLanes); });
    unrolled<T>([&](auto t) ONNXQ_INLINE {
      unrolled<vectors>([&](auto v) ONNXQ_INLINE { sums[t][v] = V::dot_pairs(sums[t][v], x + t * channels, weight[v]); });
    });
  }
  unrolled<T>([&](auto t) ONNXQ_INLINE {
    unrolled<vectors>([&](auto v) ONNXQ_INLINE { V::store(to + t * kBlock + v * V::kLanes, sums[t][v]); });
  });
}

template <class V, int T>
inline void multiply_all(int64_t count, const int16_t* x, int64_t channels, const int16_t* w, int64_t pairs, int64_t outputs, int32_t* to) {
  if constexpr (T > 1) {
    if (count < T) {
      return multiply_all<V, T - 1>(count, x, channels, w, pairs, outputs, to);
    }
  }
  for (int place = 0; place < kPlaces; ++place) {
    for (int lane = 0; lane < outputs; lane += V::kLanes * V::kVectors) {
      if (outputs <= lane + V::kLanes) {
        multiply_squares<V, T, 1>(x, channels, w + 2 * lane, pairs, to + lane);
      } else {
        multiply_squares<V, T, V::kVectors>(x, channels, w + 2 * lane, pairs, to + lane);
      }
    }
    x += next_place(count * channels);
    w += next_place(pairs * 2 * kBlock);
    to += next_sums(count * kBlock);
  }
}

// Sums of 4×4 pixels and the outputs of a register.
template <class V>
ONNXQ_INLINE inline void gather_square(const int32_t* from, int64_t next, const int32_t* bias, typename V::Words (&to)[kOut][kOut]) {
  using S = typename V::Words;
  S rows[kOut][kIn];
  unrolled<kIn>([&](auto x) ONNXQ_INLINE {
    S m[kIn], found[kOut];
    unrolled<kIn>([&](auto y) ONNXQ_INLINE { memcpy(&m[y], from + (y * kIn + x) * next, sizeof(S)); });
    gather(m, found);
    unrolled<kOut>([&](auto y) ONNXQ_INLINE { rows[y][x] = found[y]; });
  });
  S start;
  memcpy(&start, bias, sizeof start);
  unrolled<kOut>([&](auto y) ONNXQ_INLINE {
    gather(rows[y], to[y]);
    unrolled<kOut>([&](auto x) ONNXQ_INLINE {
      to[y][x] = (S)((typename V::Signed)(to[y][x] * kInverseOf9) >> 6) + start;
    });
  });
}

// Codes of a row of a square, whose sums are in registers.
template <class V>
ONNXQ_INLINE inline void store_row(const typename V::Finish& to, int64_t n, int64_t y, int64_t x, int64_t columns,
                                   const typename V::Words (&row)[kOut]) {
  using I = typename V::I;
  if (columns >= kOut) {
    const I all[kOut][1] = {{(I)row[0]}, {(I)row[1]}, {(I)row[2]}, {(I)row[3]}};
    return to.template store_all<kOut>(n, to.place(y, x), all);
  }
  unrolled<kOut - 1>([&](auto i) ONNXQ_INLINE {
    if (i < columns) {
      const I one[1][1] = {{(I)row[i]}};
      to.template store_all<1>(n, to.place(y, x + i), one);
    }
  });
}

// Codes of squares [first, first + count) of a block.
template <class V>
inline void finish_squares(const Squares& squares, int64_t first, int64_t count, int64_t block, const typename V::Finish& shared,
                           const int32_t* sums) {
  const Conv& c = squares.c;
  const int64_t outputs = outputs_of(c, block), next = next_sums(count * kBlock);
  typename V::Finish to = shared;
  to.begin(block);
  for (int half = 0; half * V::kLanes < outputs; ++half) {
    if constexpr (V::Finish::kTakesRegisters) {
      to.begin_half(block, half);
      for (int64_t i = 0; i < count; ++i) {
        typename V::Words all[kOut][kOut];
        gather_square<V>(sums + i * kBlock + half * V::kLanes, next, c.bias + block * kBlock + half * V::kLanes, all);
        const int64_t y = squares.y(first + i), x = squares.x(first + i);
        unrolled<kOut>([&](auto row) ONNXQ_INLINE {
          if (y + row < c.y.H) {
            store_row<V>(to, squares.n, y + row, x, c.y.W - x, all[row]);
          }
        });
      }
    }
  }
  if constexpr (!V::Finish::kTakesRegisters) {
    for (int64_t i = 0; i < count; ++i) {
      alignas(64) int32_t found[kOut * kOut][kBlock] = {};
      for (int lane = 0; lane < outputs; lane += V::kLanes) {
        typename V::Words all[kOut][kOut];
        gather_square<V>(sums + i * kBlock + lane, next, c.bias + block * kBlock + lane, all);
        unrolled<kOut * kOut>([&](auto at) ONNXQ_INLINE { memcpy(&found[at][lane], &all[at / kOut][at % kOut], sizeof all[0][0]); });
      }
      const int64_t y = squares.y(first + i), x = squares.x(first + i);
      for (int at = 0; at < kOut * kOut; ++at) {
        if (y + at / kOut < c.y.H && x + at % kOut < c.y.W) {
          to.store(squares.n, to.place(y + at / kOut, x + at % kOut), found[at]);
        }
      }
    }
  }
}

template <class V>
void convolve_squares(const Conv& c, const int16_t* weight, uint8_t* scratch, int64_t n, int64_t first, int64_t last) {
  const Squares squares(c, n);
  const int64_t channels = square_channels(c.group_in), pairs = c.group_in / 2;
  const int64_t at_once = cover(last - first, cover(last - first, V::kSquares));
  int16_t* const x = reinterpret_cast<int16_t*>(scratch);
  int32_t* const sums = reinterpret_cast<int32_t*>(scratch + kPlaces * next_place(at_once * channels) * 2);
  const typename V::Finish finish(c);
  for (int64_t square = first; square < last; square += at_once) {
    const int64_t count = last - square < at_once ? last - square : at_once;
    int64_t channel = 0;
    for (; channel + V::kLanes < c.group_in; channel += 2 * V::kLanes) {
      spread_squares<2 * V::kLanes>(squares, square, count, channel, channels, x);
    }
    if (channel < c.group_in) {
      spread_squares<V::kLanes>(squares, square, count, channel, channels, x);
    }
    for (int64_t b = 0; b < c.blocks; ++b) {
      multiply_all<V, V::kSquares>(count, x, channels, weight + b * winograd_block(c.group_in), pairs, outputs_of(c, b), sums);
      finish_squares<V>(squares, square, count, b, finish, sums);
    }
  }
}

template <class V, class Joined = V>
void convolve_by_squares(const Conv& c, const int16_t* weight, uint8_t* scratch, int64_t n, int64_t first, int64_t last) {
  (c.join ? convolve_squares<Joined> : convolve_squares<V>)(c, weight, scratch, n, first, last);
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_KERNELS_WINOGRAD_H_
