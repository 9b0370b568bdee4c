// Steps of rows that compute float32 alone: normalizations, Softmax, sums, turned rows.

#ifndef ONNXQ_REGION_FLOAT_ROWS_H_
#define ONNXQ_REGION_FLOAT_ROWS_H_

#include "rows.h"

namespace onnxq {
namespace {

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
      const float* const cos = p.cos + row % p.cos_rows * p.C + part;
      const float* const sin = p.sin + row % p.sin_rows * p.C + part;
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

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_FLOAT_ROWS_H_
