// Rows of codes, and sums of their products with the codes of weights: registers of gates.h, and registers I of kLanes sums.
//
// V: weights(p) reads four codes for each sum, broadcast(p) four bytes for all, dot(sum, weights, bytes); start(bytes) is what a
// sum begins with, given the sum of the bytes: dot products that take codes as they are, with 128 added, begin with what takes it
// off. renew(sum) is an instruction to the compiler alone: from here on the sum is a new one. kSums: registers of a tile's sums
// that leave enough for the rest.

#ifndef ONNXQ_RECURRENT_KERNELS_SUMS_H_
#define ONNXQ_RECURRENT_KERNELS_SUMS_H_

#include <string.h>

#include "../../base/unrolled.h"
#include "gates.h"

namespace onnxq {
namespace {

constexpr float kSmallest = 1.17549435e-38f, kLargest = 3.40282347e38f;

// What a row is a multiple of in codes of `terms` bytes: of its largest number, whose bits are given.
struct Scaling {
  float scale, inverse;

  Scaling(uint32_t largest, int terms) {
    const float amax = bits_to_float(largest), most = terms == 2 ? 127.0f * 128.0f : 127.0f;
    const float step = (amax <= kLargest ? amax : kLargest) / most, held = step < kSmallest ? kSmallest : step;
    scale = amax <= kLargest ? held : amax;  // an infinite or NaN scale carries what codes cannot
    inverse = 1.0f / held;
  }
};

// x[K] as a row of codes: of two terms 128 · high + low, low from -64 to 63. Bytes behind K are 0.
template <class V, int kTerms>
void to_codes(const float* x, int64_t K, char* row) {
  typename V::U largest = V::no_bits();
  int64_t k = 0;
  for (; k + V::kLanes <= K; k += V::kLanes) {
    largest = V::larger(largest, V::magnitude_bits(V::load(x + k)));
  }
  if (k < K) {
    largest = V::larger(largest, V::magnitude_bits(V::load(x + k, K - k)));
  }
  const Scaling by(V::largest(largest), kTerms);
  CodesRow head{by.scale, 0, 0, 0};
  char* to = row + sizeof head;
  typename V::I high_sum = V::no_sum(), low_sum = V::no_sum();
  for (k = 0; k < K; k += V::kLanes, to += V::kLanes * kTerms) {
    const typename V::F some = K - k >= V::kLanes ? V::load(x + k) : V::load(x + k, K - k);
    const typename V::I number = V::nearest(V::multiply(V::finite(some), V::all(by.inverse)));
    if constexpr (kTerms == 2) {
      const typename V::I high = V::high_of(number), low = V::low_of(number, high);
      high_sum = V::sum(high_sum, high), low_sum = V::sum(low_sum, low);
      V::store_pairs(to, high, low);
    } else {
      high_sum = V::sum(high_sum, number);
      V::store_bytes(to, number);
    }
  }
  head.high = V::total(high_sum), head.low = kTerms == 2 ? V::total(low_sum) : 0;
  memcpy(row, &head, sizeof head);
}

// Rows that are computed together, so many gates of each.
template <class V, int gates, int kTerms>
constexpr int rows_at_once() {
  constexpr int rows = V::kSums / (gates * kTerms);
  return rows < 1 ? 1 : rows > 4 ? 4 : rows;
}

// The products of R rows of codes with `count` of the G gates of a tile, from `first` on, as numbers. `w` and `scales` are those
// of the first gate's first number that is computed.
template <class V, int R, int first, int count, int G, int kTerms>
[[gnu::noinline]] void product(const uint8_t* w, const float* scales, const char* codes, int64_t stride, int64_t K, typename V::F (&made)[R][count]) {
  using I = typename V::I;
  using F = typename V::F;
  I sum[R][count][kTerms];
  unrolled<R>([&](auto r) ONNXQ_INLINE {
    CodesRow head;
    memcpy(&head, codes + r * stride, sizeof head);
    const I start = V::start(head.high), low_start = V::start(head.low);
    unrolled<count>([&](auto g) ONNXQ_INLINE {
      sum[r][g][0] = start;
      if constexpr (kTerms == 2) {
        sum[r][g][1] = low_start;
      }
    });
  });
  const char* x = codes + sizeof(CodesRow);
  w += first * kLine;
  for (int64_t k = fours(K); k > 0; --k, w += G * kLine, x += 4 * kTerms) {
    typename V::W weight[count];
    unrolled<count>([&](auto g) ONNXQ_INLINE { weight[g] = V::weights(w + g * kLine); });
    unrolled<R>([&](auto r) ONNXQ_INLINE {
      unrolled<kTerms>([&](auto t) ONNXQ_INLINE {
        const I bytes = V::broadcast(x + r * stride + 4 * t);
        unrolled<count>([&](auto g) ONNXQ_INLINE { sum[r][g][t] = V::dot(sum[r][g][t], weight[g], bytes); });
      });
    });
  }
  // Sums that wait in memory for what is done behind the loop, GCC would put there in each of its turns.
  unrolled<R>([&](auto r) ONNXQ_INLINE {
    unrolled<count>([&](auto g) ONNXQ_INLINE { unrolled<kTerms>([&](auto t) ONNXQ_INLINE { V::renew(sum[r][g][t]); }); });
  });
  unrolled<R>([&](auto r) ONNXQ_INLINE {
    float of_row;
    memcpy(&of_row, codes + r * stride, sizeof of_row);
    unrolled<count>([&](auto g) ONNXQ_INLINE {
      F found = V::to_float(sum[r][g][0]);
      if constexpr (kTerms == 2) {
        found = V::fma(found, V::all(128.0f), V::to_float(sum[r][g][1]));
      }
      made[r][g] = V::multiply(found, V::multiply(V::load(scales + (first + g) * kTile), V::all(of_row)));
    });
  });
}

// body(a constant): `most`, or what is left.
template <int most, typename Body>
void with_rows(int64_t left, const Body& body) {
  if constexpr (most > 1) {
    if (left < most) {
      return with_rows<most - 1>(left, body);
    }
  }
  body(std::integral_constant<int, most>());
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_RECURRENT_KERNELS_SUMS_H_
