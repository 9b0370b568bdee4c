// The two loops over an activation: sums and extremes, and counting into bins.

#ifndef ONNXQ_CPU_SCAN_H_
#define ONNXQ_CPU_SCAN_H_

#include <stddef.h>
#include <stdint.h>

namespace onnxq {

// Sums are made in this order everywhere (onnxq/summaries/summary.py): number i of a block goes to lane i mod kLanes,
// lanes are added up from the first.
constexpr size_t kLanes = 16, kBlock = size_t{1} << 15;
// Numbers next to each other go to different tables: many are equal, and adding one has to wait for the one before.
constexpr size_t kTables = 4;

struct Scan {
  double low, high, total, squares;  // of the finite numbers; low is above high where there are none
  int64_t zeros, nans, infinities;
};

// Of n <= kBlock numbers. Without `sums`, those and the zeros are of no meaning.
Scan scan(const float* x, size_t n, bool sums);
Scan scan(const double* x, size_t n, bool sums);

// Where numbers are counted: bin i of width 2^exponent is entry i - first.
struct Counting {
  int exponent;
  int64_t first;
  bool all_finite;    // else those that are not are left out
  bool small_index;   // every bin's number fits 30 bits, the scale and its inverse are normal float32 numbers
};

// Adds one for each number to one of the kTables tables, `stride` entries apart. No table overflows: n < 2^32.
void count(const float* x, size_t n, const Counting& how, uint32_t* tables, size_t stride);
void count(const double* x, size_t n, const Counting& how, uint32_t* tables, size_t stride);

// The bin of one number: cut off, not rounded down, and those of negative numbers mirrored.
int64_t bin_of(double x, int exponent);

}  // namespace onnxq

#endif  // ONNXQ_CPU_SCAN_H_
