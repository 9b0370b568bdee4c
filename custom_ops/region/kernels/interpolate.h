// Resize between pixels. Numbers are those of DequantizeLinear, weighted and added in the order in which onnxruntime's float32
// kernel adds them, so that its body gives the same codes.

#ifndef ONNXQ_REGION_INTERPOLATE_H_
#define ONNXQ_REGION_INTERPOLATE_H_

#include "simple.h"

namespace onnxq {
namespace {

// Of one pixel of y, what its four neighbours weigh: upper left, upper right, lower left, lower right.
struct Weights {
  float a, b, c, d;

  Weights(const Tap& row, const Tap& column)
      : a(column.first_weight * row.first_weight),
        b(column.second_weight * row.first_weight),
        c(column.first_weight * row.second_weight),
        d(column.second_weight * row.second_weight) {}
};

constexpr int64_t kNear = 16;  // channels that are taken together

// Pixels [x, …) of a row that lie between the same two of x.
inline int64_t end_of_run(const Tap* columns, int64_t x, int64_t W) {
  int64_t end = x + 1;
  while (end < W && columns[end].first == columns[x].first && columns[end].second == columns[x].second) {
    ++end;
  }
  return end;
}

inline void interpolate_simple(const Interpolation& given, int64_t first, int64_t last) {
  const Interpolation p = given;  // which no byte that is written can be
  const float zero = static_cast<float>(p.x_zero);
  const auto load = [&](const uint8_t* from, int64_t size, float* to) {
    uint8_t codes[kNear] = {};
    size == kNear ? memcpy(codes, from, kNear) : memcpy(codes, from, static_cast<size_t>(size));
    for (int64_t i = 0; i < kNear; ++i) {
      to[i] = (static_cast<float>(codes[i]) - zero) * p.x_scale;
    }
  };
  const int64_t C = p.y.C;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / p.y.H, y = row % p.y.H;
    const Tap& rows = p.rows[y];
    const uint8_t *const upper = p.x.data + n * p.x.image + rows.first * p.x.row,
                  *const lower = p.x.data + n * p.x.image + rows.second * p.x.row;
    uint8_t* const to = p.y.data + n * p.y.image + y * p.y.row;
    for (int64_t x = 0, end = 0; x < p.y.W; x = end) {
      end = end_of_run(p.columns, x, p.y.W);
      const int64_t left = p.columns[x].first * C, right = p.columns[x].second * C;
      for (int64_t at = 0; at < C; at += kNear) {
        const int64_t size = C - at < kNear ? C - at : kNear;
        float a[kNear], b[kNear], c[kNear], d[kNear];
        load(upper + left + at, size, a);
        load(upper + right + at, size, b);
        load(lower + left + at, size, c);
        load(lower + right + at, size, d);
        for (int64_t pixel = x; pixel < end; ++pixel) {
          const Weights w(rows, p.columns[pixel]);
          uint8_t codes[kNear];
          for (int64_t i = 0; i < kNear; ++i) {
            codes[i] = to_code((w.a * a[i] + w.b * b[i] + w.c * c[i] + w.d * d[i]) / p.scale, p.codes);
          }
          size == kNear ? memcpy(to + pixel * C + at, codes, kNear) : memcpy(to + pixel * C + at, codes, static_cast<size_t>(size));
        }
      }
    }
  }
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_INTERPOLATE_H_
