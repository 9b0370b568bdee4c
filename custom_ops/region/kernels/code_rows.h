// What steps of rows need around products of codes: weights of an attention, averages, operands as kernels read them, moments.

#ifndef ONNXQ_REGION_CODE_ROWS_H_
#define ONNXQ_REGION_CODE_ROWS_H_

#include "rows.h"

namespace onnxq {
namespace {

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

#endif  // ONNXQ_REGION_CODE_ROWS_H_
