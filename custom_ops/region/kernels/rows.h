// Rows of numbers in registers of sixteen, whatever the processor makes of these: what is written here once is compiled for
// each ISA, without contraction, so all give the same bits.

#ifndef ONNXQ_REGION_ROWS_H_
#define ONNXQ_REGION_ROWS_H_

#include <math.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "../../base/unrolled.h"
#include "../row_kernel.h"

namespace onnxq {
namespace {

constexpr int64_t kLanes = 16;
typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint8_t B __attribute__((vector_size(16)));

ONNXQ_INLINE inline F all(float a) { return F{} + a; }

// Lanes that are not there are zeros, and are not stored.
ONNXQ_INLINE inline F load(const float* p) {
  F a;
  memcpy(&a, p, sizeof a);
  return a;
}
ONNXQ_INLINE inline F load(const float* p, int64_t lanes) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), p);
#else
  F a = {};
  memcpy(&a, p, static_cast<size_t>(lanes) * sizeof(float));
  return a;
#endif
}
ONNXQ_INLINE inline void store(float* p, F a) { memcpy(p, &a, sizeof a); }
ONNXQ_INLINE inline void store(float* p, F a, int64_t lanes) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << lanes) - 1), (__m512)a);
#else
  memcpy(p, &a, static_cast<size_t>(lanes) * sizeof(float));
#endif
}
ONNXQ_INLINE inline F numbers(B codes) { return __builtin_convertvector(__builtin_convertvector(codes, I), F); }
ONNXQ_INLINE inline F load(const uint8_t* p) {
  B a;
  memcpy(&a, p, sizeof a);
  return numbers(a);
}
ONNXQ_INLINE inline F load(const uint8_t* p, int64_t lanes) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  return numbers((B)_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << lanes) - 1), p));
#else
  B a = {};
  memcpy(&a, p, static_cast<size_t>(lanes));
  return numbers(a);
#endif
}
ONNXQ_INLINE inline void store(uint8_t* p, B a) { memcpy(p, &a, sizeof a); }
ONNXQ_INLINE inline void store(uint8_t* p, B a, int64_t lanes) {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  _mm_mask_storeu_epi8(p, static_cast<__mmask16>((1u << lanes) - 1), (__m128i)a);
#else
  memcpy(p, &a, static_cast<size_t>(lanes));
#endif
}

// The second where either is no number.
ONNXQ_INLINE inline F larger(F a, F b) { return a > b ? a : b; }
ONNXQ_INLINE inline F smaller(F a, F b) { return a < b ? a : b; }

// The first lanes of a; the others are `rest`.
ONNXQ_INLINE inline F first_of(F a, int64_t lanes, float rest) {
  const I number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return number < static_cast<int32_t>(lanes) ? a : all(rest);
}

// Of all lanes, in halves.
ONNXQ_INLINE inline float total(F a) {
  float lanes[kLanes];
  memcpy(lanes, &a, sizeof a);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}
ONNXQ_INLINE inline float largest(F a) {
  float lanes[kLanes];
  memcpy(lanes, &a, sizeof a);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
  }
  return lanes[0];
}

// Codes of numbers in steps of their scale: as QuantizeLinear rounds.
struct ToBytes {
  F low, high;
  int32_t zero;

  explicit ToBytes(const Codes& range)
      : low(all(static_cast<float>(range.low - range.zero))),
        high(all(static_cast<float>(range.high - range.zero))),
        zero(range.zero) {}

  ONNXQ_INLINE I integers(F steps) const {
    const F bounded = steps > low ? smaller(steps, high) : low;
    // 1.5 · 2^23: leaves no bits behind the point, rounded half to even; the integer is in the last bits then.
    return (I)(bounded + 12582912.0f) - (0x4B400000 - zero);
  }
  ONNXQ_INLINE B operator()(F steps) const { return __builtin_convertvector(integers(steps), B); }
};

// e^x for x ≤ 0, within 2^-22 of itself; 0 where it would be subnormal; no number of none.
ONNXQ_INLINE inline F exponential(F x) {
  const F lowest = all(-87.0f), least = larger(x, lowest);
  const F shifted = least * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const F r = (least - n * 0.693359375f) + n * 2.12194440e-4f;
  F y = all(1.0f / 720);
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  const F power = (F)(((I)shifted - 0x4B400000 + 127) << 23);
  return x < lowest ? F{} : (x == x ? y * power : x);
}

// work(i, lanes) for all of a row: with a constant where the register is full.
template <typename Work>
ONNXQ_INLINE inline void each_vector(int64_t C, const Work& work) {
  int64_t i = 0;
  for (; i + kLanes <= C; i += kLanes) {
    work(i, std::integral_constant<bool, true>(), kLanes);
  }
  if (i < C) {
    work(i, std::integral_constant<bool, false>(), C - i);
  }
}

// A row that is read, of floats or of codes.
template <typename Number>
struct RowOf {
  const Number* at;
  float zero, scale;

  RowOf(const RowsIn& x, int64_t row, int64_t C) : zero(static_cast<float>(x.zero)), scale(x.scale) {
    if constexpr (sizeof(Number) == 1) {
      at = x.codes + row * C;
    } else {
      at = x.floats + row * C;
    }
  }
  template <bool whole>
  ONNXQ_INLINE F operator()(int64_t i, int64_t lanes) const {
    F found;
    if constexpr (whole) {
      found = load(at + i);
    } else {
      found = load(at + i, lanes);
    }
    if constexpr (sizeof(Number) == 1) {
      return (found - zero) * scale;
    } else {
      return found;
    }
  }
};

// A row that is made.
template <bool makes_codes>
struct RowTo {
  const RowsOut& y;
  const ToBytes bytes;
  const float steps;  // of a number
  int64_t at = 0;

  explicit RowTo(const RowsOut& y) : y(y), bytes(y.range), steps(1.0f / y.scale) {}

  template <bool whole>
  ONNXQ_INLINE void put(int64_t i, int64_t lanes, F value) const {
    if constexpr (makes_codes) {
      const B codes = bytes(value * steps);
      whole ? store(y.codes + at + i, codes) : store(y.codes + at + i, codes, lanes);
    } else {
      whole ? store(y.floats + at + i, value) : store(y.floats + at + i, value, lanes);
    }
  }
};

// body.template operator()<float or codes, makes codes>(): what all rows share is known when this is compiled.
template <template <typename, bool> class Rows, class Problem>
inline void by_kind(const Problem& p, int64_t first, int64_t last) {
  if (p.x.codes) {
    p.y.codes ? Rows<uint8_t, true>::run(p, first, last) : Rows<uint8_t, false>::run(p, first, last);
  } else {
    p.y.codes ? Rows<float, true>::run(p, first, last) : Rows<float, false>::run(p, first, last);
  }
}

// --- normalizations --------------------------------------------------------------------------------------------------------

// add(i, x) of each number of a row, 64 at a time while there are as many.
template <class Row, typename Of>
ONNXQ_INLINE inline float sum_of(const Row& x, int64_t C, const Of& of) {
  F part[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= C; i += 4 * kLanes) {
    unrolled<4>([&](auto k) ONNXQ_INLINE { part[k] += of(x.template operator()<true>(i + k * kLanes, kLanes)); });
  }
  for (; i < C; i += kLanes) {
    const int64_t lanes = C - i < kLanes ? C - i : kLanes;
    const F value = of(lanes == kLanes ? x.template operator()<true>(i, kLanes) : x.template operator()<false>(i, lanes));
    part[0] += lanes == kLanes ? value : first_of(value, lanes, 0.0f);  // what is not there counts nothing
  }
  return total((part[0] + part[1]) + (part[2] + part[3]));
}

template <typename Number, bool makes_codes>
struct NormRows {
  static void run(const Norm& given, int64_t first, int64_t last) {
    const Norm p = given;  // which nothing that is written can be
    RowTo<makes_codes> to(p.y);
    const float count = static_cast<float>(p.C);
    for (int64_t row = first; row < last; ++row) {
      const RowOf<Number> x(p.x, row, p.C);
      const float mean = p.centred ? sum_of(x, p.C, [](F a) ONNXQ_INLINE { return a; }) / count : 0.0f;
      const float square = sum_of(x, p.C, [&](F a) ONNXQ_INLINE { return (a - mean) * (a - mean); }) / count;
      const float factor = 1.0f / sqrtf(square + p.epsilon);
      to.at = row * p.C;
      each_vector(p.C, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
        constexpr bool is_whole = decltype(whole)::value;
        F y = (x.template operator()<is_whole>(i, lanes) - mean) * factor;
        if (p.weight) {
          y *= is_whole ? load(p.weight + i) : load(p.weight + i, lanes);
        }
        if (p.bias) {
          y += is_whole ? load(p.bias + i) : load(p.bias + i, lanes);
        }
        to.template put<is_whole>(i, lanes, y);
      });
    }
  }
};

inline void norm_rows(const Norm& p, int64_t first, int64_t last) { by_kind<NormRows>(p, first, last); }

// --- softmax ---------------------------------------------------------------------------------------------------------------

template <typename Number, bool makes_codes>
struct SoftmaxRows {
  static void run(const Softmax& given, int64_t first, int64_t last) {
    const Softmax p = given;
    RowTo<makes_codes> to(p.y);
    for (int64_t row = first; row < last; ++row) {
      const RowOf<Number> x(p.x, row, p.C);
      F most = all(-INFINITY);
      each_vector(p.C, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
        constexpr bool is_whole = decltype(whole)::value;
        F a = x.template operator()<is_whole>(i, lanes);
        if constexpr (!is_whole) {
          a = first_of(a, lanes, -INFINITY);
        }
        most = larger(a, most);
      });
      const float top = largest(most);
      const float sum = sum_of(x, p.C, [&](F a) ONNXQ_INLINE { return exponential(a - top); });
      const float factor = 1.0f / sum;
      to.at = row * p.C;
      each_vector(p.C, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
        constexpr bool is_whole = decltype(whole)::value;
        to.template put<is_whole>(i, lanes, exponential(x.template operator()<is_whole>(i, lanes) - top) * factor);
      });
    }
  }

};

inline void softmax_rows(const Softmax& p, int64_t first, int64_t last) { by_kind<SoftmaxRows>(p, first, last); }

// --- sums, and turned rows ---------------------------------------------------------------------------------------------------

// Row of a tensor that is repeated along sizes of 1; counted in rows.
inline int64_t row_in(const int64_t (&own)[4], int64_t n, int64_t h, int64_t w) {
  return ((own[0] == 1 ? 0 : n) * own[1] + (own[1] == 1 ? 0 : h)) * own[2] + (own[2] == 1 ? 0 : w);
}

inline void plus_rows(const Plus& given, int64_t first, int64_t last) {
  const Plus p = given;
  const int64_t C = p.y_sizes[3];
  for (int64_t row = first; row < last; ++row) {
    const int64_t w = row % p.y_sizes[2], h = row / p.y_sizes[2] % p.y_sizes[1], n = row / p.y_sizes[2] / p.y_sizes[1];
    const float* const a = p.a + row_in(p.a_sizes, n, h, w) * p.a_sizes[3];
    const float* const b = p.b + row_in(p.b_sizes, n, h, w) * p.b_sizes[3];
    const bool repeats_a = p.a_sizes[3] != C, repeats_b = p.b_sizes[3] != C;
    each_vector(C, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
      const auto of = [&](const float* from, bool repeats) ONNXQ_INLINE {
        return repeats ? all(*from) : decltype(whole)::value ? load(from + i) : load(from + i, lanes);
      };
      const F sum = of(a, repeats_a) + of(b, repeats_b);
      decltype(whole)::value ? store(p.y + row * C + i, sum) : store(p.y + row * C + i, sum, lanes);
    });
  }
}

template <bool makes_codes>
void turn_rows(const Rotary& given, int64_t first, int64_t last) {
  const Rotary p = given;
  RowTo<makes_codes> to(p.y);
  const int64_t half = p.C / 2;
  for (int64_t row = first; row < last; ++row) {
    const float* const x = p.x + row * p.C;
    for (int64_t part = 0; part < p.C; part += half) {
      const float* const own = x + part;
      const float* const other = x + (half - part);
      const float *const cos = p.cos + row % p.period * p.C + part, *const sin = p.sin + row % p.period * p.C + part;
      to.at = row * p.C + part;
      each_vector(half, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
        constexpr bool is_whole = decltype(whole)::value;
        const auto of = [&](const float* from) ONNXQ_INLINE { return is_whole ? load(from + i) : load(from + i, lanes); };
        const F turned = part ? of(other) : -of(other);
        to.template put<is_whole>(i, lanes, of(own) * of(cos) + turned * of(sin));
      });
    }
  }
}

inline void rotary_rows(const Rotary& p, int64_t first, int64_t last) {
  (p.y.codes ? turn_rows<true> : turn_rows<false>)(p, first, last);
}

// --- attention ---------------------------------------------------------------------------------------------------------------

// Scores of a row and what is added to them.
struct Scores {
  const float *scores, *mask;
  int64_t mask_token;

  template <bool whole>
  ONNXQ_INLINE F operator()(int64_t i, int64_t lanes) const {
    const F own = whole ? load(scores + i) : load(scores + i, lanes);
    if (!mask) {
      return own;
    }
    return own + (mask_token == 0 ? all(*mask) : whole ? load(mask + i) : load(mask + i, lanes));
  }
};

inline void weigh_rows(const Weigh& given) {
  const Weigh p = given;
  const ToBytes bytes({0, 0, 255});
  const float one = 1.0f / (1.0f / 255.0f);
  for (int64_t row = 0; row < p.rows; ++row) {
    const Scores x = {p.scores + row * p.width, p.mask ? p.mask + row * p.mask_row : nullptr, p.mask_token};
    uint8_t* const codes = p.codes + row * p.codes_row;
    F most = all(-INFINITY);
    each_vector(p.tokens, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
      constexpr bool is_whole = decltype(whole)::value;
      const F a = x.template operator()<is_whole>(i, lanes);
      most = larger(is_whole ? a : first_of(a, lanes, -INFINITY), most);
    });
    const float top = largest(most);
    F sums = {};
    I totals = {};
    each_vector(p.tokens, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
      constexpr bool is_whole = decltype(whole)::value;
      F weight = exponential(x.template operator()<is_whole>(i, lanes) - top);
      weight = is_whole ? weight : first_of(weight, lanes, 0.0f);
      sums += weight;
      const I found = bytes.integers(weight * one);
      totals += found;
      const B stored = __builtin_convertvector(found, B);
      is_whole ? store(codes + i, stored) : store(codes + i, stored, lanes);
    });
    memset(codes + p.tokens, 0, static_cast<size_t>(p.codes_tokens - p.tokens));
    p.sums[row] = total(sums);
    int32_t sum = 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      sum += totals[i];
    }
    p.totals[row] = sum;
  }
}

inline void average_rows(const Average& given) {
  const Average p = given;
  const ToBytes bytes(p.range);
  const float steps = 1.0f / p.scale;
  for (int64_t row = 0; row < p.rows; ++row) {
    const float shift = p.shift * static_cast<float>(p.totals[row]), factor = 1.0f / p.weights[row];
    each_vector(p.C, [&](int64_t i, auto whole, int64_t lanes) ONNXQ_INLINE {
      constexpr bool is_whole = decltype(whole)::value;
      const float* const from = p.sums + row * p.C + i;
      const B codes = bytes(((is_whole ? load(from) : load(from, lanes)) + shift) * factor * steps);
      uint8_t* const to = p.y + row * p.y_row + i;
      is_whole ? store(to, codes) : store(to, codes, lanes);
    });
  }
}

// --- products of two tensors -------------------------------------------------------------------------------------------------

constexpr int64_t kQuad = 4, kOutputs = 16;  // bytes that are multiplied together, and for so many outputs

// A row of 64 inputs, or fewer, of one output.
inline int32_t pack_output(const uint8_t* from, int64_t inputs, int8_t* to) {
  uint8_t codes[kChunk];
  memset(codes, 128, sizeof codes);
  memcpy(codes, from, static_cast<size_t>(inputs));
  int32_t sum = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    codes[i] ^= 128;
    sum += static_cast<int8_t>(codes[i]);
  }
  for (int64_t quad = 0; quad < kChunk / kQuad; ++quad) {
    memcpy(to + quad * kQuad * kOutputs, codes + quad * kQuad, kQuad);
  }
  return sum;
}

// Four rows of inputs, or fewer, each of 16 outputs or fewer, which take turns.
inline void pack_inputs(const uint8_t* const (&rows)[kQuad], int64_t outputs, int8_t* to, I& sums) {
  B each[kQuad];
  for (int64_t i = 0; i < kQuad; ++i) {
    uint8_t codes[kOutputs];
    memset(codes, 128, sizeof codes);
    if (rows[i]) {
      outputs == kOutputs ? memcpy(codes, rows[i], kOutputs) : memcpy(codes, rows[i], static_cast<size_t>(outputs));
    }
    memcpy(&each[i], codes, sizeof codes);
    sums += __builtin_convertvector(each[i], I) - 128;
    each[i] ^= 128;
  }
  typedef uint16_t Pairs __attribute__((vector_size(16)));
  const auto low = [](B a, B b) ONNXQ_INLINE {
    return (Pairs)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  };
  const auto high = [](B a, B b) ONNXQ_INLINE {
    return (Pairs)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  };
  const auto store_both = [](Pairs a, Pairs b, int8_t* at) ONNXQ_INLINE {
    const Pairs one = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    const Pairs two = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    memcpy(at, &one, sizeof one);
    memcpy(at + sizeof one, &two, sizeof two);
  };
  store_both(low(each[0], each[1]), low(each[2], each[3]), to);
  store_both(high(each[0], each[1]), high(each[2], each[3]), to + 32);
}

inline void pack_block_of_rows(const Second& p, int64_t block) {
  for (int64_t lane = 0; lane < kBlock; ++lane) {
    const int64_t output = block * kBlock + lane;
    int8_t* to = p.weight + block * p.chunks * kBlockBytes + lane / kOutputs * (kBlockBytes / 2) + lane % kOutputs * kQuad;
    int32_t sum = 0;
    for (int64_t i = 0; i < p.inputs; i += kChunk, to += kBlockBytes) {
      const int64_t left = output < p.outputs ? p.inputs - i : 0;
      sum += pack_output(p.codes + (left ? output * p.output + i : 0), left < kChunk ? left : kChunk, to);
    }
    p.totals[output] = sum;
  }
}

inline void pack_block_of_columns(const Second& p, int64_t block) {
  for (int64_t lane = 0; lane < kBlock; lane += kOutputs) {
    const int64_t output = block * kBlock + lane, left = p.outputs - output;
    const int64_t outputs = left < 0 ? 0 : left < kOutputs ? left : kOutputs;
    int8_t* to = p.weight + block * p.chunks * kBlockBytes + lane / kOutputs * (kBlockBytes / 2);
    I sums = {};
    for (int64_t i = 0; i < p.inputs; i += kChunk, to += kBlockBytes) {
      for (int64_t quad = 0; quad < kChunk / kQuad; ++quad) {
        const uint8_t* rows[kQuad];
        for (int64_t k = 0; k < kQuad; ++k) {
          const int64_t input = i + quad * kQuad + k;
          rows[k] = input < p.inputs && outputs ? p.codes + input * p.input + output : nullptr;
        }
        pack_inputs(rows, outputs, to + quad * kQuad * kOutputs, sums);
      }
    }
    memcpy(p.totals + output, &sums, sizeof sums);
  }
}

inline void pack_blocks(const Second& p, int64_t block, int64_t end) {
  for (; block < end; ++block) {
    (p.input == 1 ? pack_block_of_rows : pack_block_of_columns)(p, block);
  }
}

// --- moments -----------------------------------------------------------------------------------------------------------------

inline void moments_of_rows(const Moments& p, int64_t first, int64_t last) {
  constexpr int64_t kPixels = 16384;  // whose squares fit 32 bits
  for (int64_t row = first; row < last; ++row) {
    const uint8_t* const line = p.x.data + p.n * p.x.image + row * p.x.row;
    for (int64_t begin = 0; begin < p.x.W; begin += kPixels) {
      const int64_t end = begin + kPixels < p.x.W ? begin + kPixels : p.x.W;
      each_vector(p.x.C, [&](int64_t c, auto whole, int64_t lanes) ONNXQ_INLINE {
        I sums = {}, squares = {};
        for (int64_t pixel = begin; pixel < end; ++pixel) {
          const uint8_t* const from = line + pixel * p.x.C + c;
          B codes = {};
          decltype(whole)::value ? memcpy(&codes, from, sizeof codes) : memcpy(&codes, from, static_cast<size_t>(lanes));
          const I code = __builtin_convertvector(codes, I);
          sums += code;
          squares += code * code;
        }
        for (int64_t i = 0; i < lanes; ++i) {
          p.sums[c + i] += sums[i];
          p.squares[c + i] += static_cast<uint32_t>(squares[i]);
        }
      });
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_ROWS_H_
