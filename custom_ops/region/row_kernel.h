// What a kernel of rows is: the steps of int8 regions that compute float32 inside, of tensors whose rows lie one behind the
// other. As kernel.h says it of those for images: an ISA is one file in kernels/, which ends with
//
//     namespace onnxq { extern const RowKernel rows_NAME; constexpr RowKernel rows_NAME = {"NAME", kNeeds, …}; }
//
// All of them compute the same numbers to the last bit: sums are of sixteen lanes each, added up in one order.

#ifndef ONNXQ_REGION_ROW_KERNEL_H_
#define ONNXQ_REGION_ROW_KERNEL_H_

#include "kernel.h"

namespace onnxq {

// Rows of C numbers, float32 or codes: one of the two is null.
struct RowsIn {
  const uint8_t* codes;
  const float* floats;
  float scale;
  int32_t zero;
};
struct RowsOut {
  uint8_t* codes;
  float* floats;
  float scale;
  Codes range;
};

// y = (x − mean) / √(mean of squares of that + epsilon) · weight + bias, row by row; without `centred` nothing is taken off.
struct Norm {
  RowsIn x;
  RowsOut y;
  const float *weight, *bias;  // [C], or null: 1 and 0
  int64_t C;
  float epsilon;
  int32_t centred;
};

struct Softmax {
  RowsIn x;
  RowsOut y;
  int64_t C;
};

// The sum of two tensors, each of whose sizes is that of y or 1.
struct Plus {
  const float *a, *b;
  float* y;
  int64_t a_sizes[4], b_sizes[4], y_sizes[4];  // images, rows of these, rows of matrices, numbers
};

// x · cos + turned x · sin, where halves of a row are turned: the second one, with its sign changed, before the first.
struct Rotary {
  const float *x, *cos, *sin;
  RowsOut y;
  int64_t C, cos_rows, sin_rows;  // which begin again
};

// Of a few rows of scores what each token weighs, as codes of 0…1 of the largest one of the row.
struct Weigh {
  const float* scores;  // [rows, width]
  const float* mask;    // added to them; or null
  int64_t rows, width, tokens;     // of which those that are seen
  int64_t mask_row, mask_token;    // from one number to the next; 0: the same for all
  uint8_t* codes;       // [rows, codes_row]; behind the tokens zeros up to `codes_tokens`
  int64_t codes_row, codes_tokens;
  float* sums;          // [rows]: of the weights, not rounded
  int32_t* totals;      // [rows]: of the codes
};

// Sums of rows of `values` as those weigh, divided by the sums of the weights.
struct Average {
  const float* sums;    // [rows, C]: of codes of weights times those of values, less 128, in steps of both
  const float* weights;  // Weigh::sums
  const int32_t* totals;
  float shift;          // of one code of a weight: 128 less the zero point, in steps of both
  int64_t rows, C;
  uint8_t* y;
  int64_t y_row;
  float scale;
  Codes range;
};

// A matrix of codes that is multiplied by as a weight is, Conv::weight: less 128, so that they have 8 bits with a sign.
struct Second {
  const uint8_t* codes;
  int64_t inputs, outputs;
  int64_t input, output;  // bytes from one to the next; one of them is 1
  int64_t chunks;         // [blocks][chunks] of which these inputs are the first
  int8_t* weight;
  int32_t* totals;        // [blocks · 32]: of each output, of all inputs
};

// Of channels of an image, sums of codes and of their squares.
struct Moments {
  Image x;
  int64_t n;
  int64_t *sums, *squares;  // [C], which are added to
};

struct RowKernel {
  const char* isa;
  uint64_t needs;  // of CpuFeature

  void (*norm)(const Norm&, int64_t first, int64_t last);
  void (*softmax)(const Softmax&, int64_t first, int64_t last);
  void (*plus)(const Plus&, int64_t first, int64_t last);
  void (*rotary)(const Rotary&, int64_t first, int64_t last);
  void (*weigh)(const Weigh&);
  void (*average)(const Average&);
  void (*pack)(const Second&, int64_t block, int64_t end);
  void (*moments)(const Moments&, int64_t first, int64_t last);
};

}  // namespace onnxq

#endif  // ONNXQ_REGION_ROW_KERNEL_H_
