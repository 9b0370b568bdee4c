#include "scan.h"

#include <math.h>

#include <limits>

#include "../base/clones.h"

namespace onnxq {
namespace {

template <typename T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float Row __attribute__((vector_size(kLanes * 4), aligned(4)));
  typedef int32_t Mask __attribute__((vector_size(kLanes * 4)));
};
template <>
struct Lanes<double> {
  typedef double Row __attribute__((vector_size(kLanes * 8), aligned(8)));
  typedef int64_t Mask __attribute__((vector_size(kLanes * 8)));
};
typedef double Doubles __attribute__((vector_size(kLanes * 8)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

// What comes of the lanes in the end. The same for one number after the other.
template <typename T>
struct Running {
  T low[kLanes], high[kLanes];
  double total[kLanes], squares[kLanes];
};

template <typename T>
Scan finish(const Running<T>& lanes, int64_t zeros, int64_t nans, int64_t infinities) {
  Scan seen{HUGE_VAL, -HUGE_VAL, 0, 0, zeros, nans, infinities};
  for (size_t j = 0; j < kLanes; ++j) {
    seen.low = lanes.low[j] < seen.low ? lanes.low[j] : seen.low;
    seen.high = lanes.high[j] > seen.high ? lanes.high[j] : seen.high;
    seen.total += lanes.total[j];
    seen.squares += lanes.squares[j];
  }
  seen.low += 0.0;  // no minus zero
  seen.high += 0.0;
  return seen;
}

// One number after the other; what is not finite counts as zero in the sums.
template <typename T>
Scan scan_slowly(const T* x, size_t n) {
  Running<T> lanes;
  for (size_t j = 0; j < kLanes; ++j) {
    lanes.low[j] = std::numeric_limits<T>::infinity();
    lanes.high[j] = -lanes.low[j];
    lanes.total[j] = lanes.squares[j] = 0;
  }
  int64_t zeros = 0, nans = 0, infinities = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t j = i % kLanes;
    if (!isfinite(x[i])) {
      (isnan(x[i]) ? nans : infinities) += 1;
      continue;
    }
    const double value = x[i];
    zeros += x[i] == 0;
    lanes.low[j] = x[i] < lanes.low[j] ? x[i] : lanes.low[j];
    lanes.high[j] = x[i] > lanes.high[j] ? x[i] : lanes.high[j];
    lanes.total[j] += value;
    lanes.squares[j] += value * value;
  }
  return finish(lanes, zeros, nans, infinities);
}

// Sums and zeros only if they are wanted: without, memory is read as fast as it comes.
template <bool sums, typename T>
inline __attribute__((always_inline)) Scan scan_rows(const T* x, size_t n) {
  using Row = typename Lanes<T>::Row;
  using Mask = typename Lanes<T>::Mask;
  const size_t rows = n / kLanes;
  if (!rows) {
    return scan_slowly(x, n);
  }
  Row low = *reinterpret_cast<const Row*>(x), high = low;
  Doubles total{}, squares{};
  Mask zeros{}, odd{};
  for (size_t i = 0; i < rows; ++i) {
    const Row row = reinterpret_cast<const Row*>(x)[i];
    low = row < low ? row : low;
    high = row > high ? row : high;
    odd |= (row - row) != 0;  // NaN for infinities too
    if (sums) {
      zeros -= row == 0;
      const Doubles wide = __builtin_convertvector(row, Doubles);
      total += wide;
      squares += wide * wide;
    }
  }
  bool is_finite = true;
  for (size_t j = 0; j < kLanes; ++j) {
    is_finite = is_finite && !odd[j];
  }
  for (size_t i = rows * kLanes; i < n; ++i) {
    is_finite = is_finite && isfinite(x[i]);
  }
  if (!is_finite) {
    return scan_slowly(x, n);
  }
  Running<T> lanes;
  int64_t all_zeros = 0;
  for (size_t j = 0; j < kLanes; ++j) {
    lanes.low[j] = low[j];
    lanes.high[j] = high[j];
    lanes.total[j] = total[j];
    lanes.squares[j] = squares[j];
    all_zeros += zeros[j];
  }
  for (size_t i = rows * kLanes, j = 0; i < n; ++i, ++j) {
    const double value = x[i];
    all_zeros += x[i] == 0;
    lanes.low[j] = x[i] < lanes.low[j] ? x[i] : lanes.low[j];
    lanes.high[j] = x[i] > lanes.high[j] ? x[i] : lanes.high[j];
    lanes.total[j] += value;
    lanes.squares[j] += value * value;
  }
  return finish(lanes, all_zeros, 0, 0);
}

ONNXQ_CLONES Scan scan_floats(const float* x, size_t n) { return scan_rows<true>(x, n); }
ONNXQ_CLONES Scan scan_doubles(const double* x, size_t n) { return scan_rows<true>(x, n); }
ONNXQ_CLONES Scan extremes_of_floats(const float* x, size_t n) { return scan_rows<false>(x, n); }

// Multiplying by a power of two is exact, or so small that it is cut off in any case.
ONNXQ_CLONES void count_floats(const float* x, size_t n, float scale, int32_t first, uint32_t* tables,
                               size_t stride) {
  using Row = Lanes<float>::Row;
  const size_t rows = n / kLanes;
  int32_t index[kLanes];
  for (size_t i = 0; i < rows; ++i) {
    const Row row = reinterpret_cast<const Row*>(x)[i];
    const Ints bin = __builtin_convertvector(row * scale, Ints) + (row < 0) - first;
    __builtin_memcpy(index, &bin, sizeof index);
    for (size_t j = 0; j < kLanes; ++j) {
      tables[(j % kTables) * stride + static_cast<uint32_t>(index[j])] += 1;
    }
  }
  for (size_t i = rows * kLanes; i < n; ++i) {
    tables[static_cast<int32_t>(x[i] * scale) - (x[i] < 0) - first] += 1;
  }
}

template <typename T>
void count_slowly(const T* x, size_t n, const Counting& how, uint32_t* tables) {
  for (size_t i = 0; i < n; ++i) {
    if (isfinite(x[i])) {
      tables[bin_of(x[i], how.exponent) - how.first] += 1;
    }
  }
}

}  // namespace

Scan scan(const float* x, size_t n, bool sums) { return sums ? scan_floats(x, n) : extremes_of_floats(x, n); }
Scan scan(const double* x, size_t n, bool) { return scan_doubles(x, n); }

void count(const float* x, size_t n, const Counting& how, uint32_t* tables, size_t stride) {
  if (how.all_finite && how.small_index) {
    count_floats(x, n, static_cast<float>(ldexp(1.0, -how.exponent)), static_cast<int32_t>(how.first), tables,
                 stride);
  } else {
    count_slowly(x, n, how, tables);
  }
}

void count(const double* x, size_t n, const Counting& how, uint32_t* tables, size_t) {
  count_slowly(x, n, how, tables);
}

int64_t bin_of(double x, int exponent) { return static_cast<int64_t>(ldexp(x, -exponent)) - (x < 0); }

}  // namespace onnxq
