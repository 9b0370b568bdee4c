// What a kernel of bf16 regions is; kernel.h says the same of int8. Tensors hold bfloat16, sums are float32. An ISA is one
// file in kernels/, bf16_NAME.cc, where NAME is a kernel of ../cpu/kernels too.

#ifndef ONNXQ_REGION_BF16_KERNEL_H_
#define ONNXQ_REGION_BF16_KERNEL_H_

#include "kernel.h"

namespace onnxq {

// Numbers of a tensor, channels last; all distances are in numbers. Where several tensors share an image (Concat in
// place), pixels are further apart than there are channels. Pixels around it hold zeros where readers pad.
struct Numbers {
  uint16_t* data;  // pixel (0, 0) of image 0
  int64_t N, H, W, C;
  int64_t pixel, row, image;
};

// What is done to a sum before it is rounded. The word `act` of a step is one of these.
enum ActKind : int32_t {
  kNoAct,
  kRelu,
  kClip,         // to [a, b]
  kLeakyRelu,    // x < 0: a · x
  kHardSigmoid,  // clip(a · x + b, 0, 1)
  kSigmoid,
  kTanh,
  kSilu,       // x · sigmoid(a · x)
  kHardSwish,  // x · clip(x / 6 + 1/2, 0, 1)
  kActs,
};

struct Act {
  int32_t kind;
  float a, b;
};

// A convolution, in the words of `Conv`, whose distances are in bytes: 4 of them are two numbers. Of `y` only sizes are
// read, `codes`, `bias`, `scale` and `floats` not at all; `x.C` counts bytes.
struct NumberConv : Conv {
  Numbers to;
  Numbers plus;         // what is added before the activation; data is null where nothing is
  const float* starts;  // [groups · blocks][32], the bias
  Act act;
  // Where rows of a window are so short that all of them together have half as many chunks: weights for rows that follow
  // each other, as `weight` in shape. Else null.
  const int8_t* dense_weight;
  int64_t dense_chunks, window_rows, row_bytes;
};

constexpr int64_t kMostDense = 4;  // chunks

// A convolution of each channel with a kernel of its own. Of 32 channels, even ones lie before odd ones in weight and
// bias, as the halves of 16 words of 32 bits.
struct NumberDepthwise {
  Numbers x, y, plus;
  const float* weight;  // [kernel_y · kernel_x][C rounded up to 32]
  const float* bias;    // [C rounded up to 32]
  int64_t kernel_y, kernel_x;
  int64_t first, step_x, step_y, next_x, next_y;  // as of `Depthwise`, in numbers
  Act act;
};

// y = act(a + b), or their product.
struct NumberBinary {
  Numbers a, b, y;  // sizes of a and b are those of y, or 1
  int32_t multiplies;
  Act act;
};

// y = act(x · factor + shift), by channel.
struct NumberAffine {
  Numbers x, y;
  const float *factor, *shift;  // [C]
  Act act;
};

// Of image n, what numbers and their squares add up to, by channel.
struct NumberMoments {
  Numbers x;
  int64_t n;
  double *sums, *squares;  // [C] each, which are added to
};

struct NumberPool {
  Numbers x, y;
  int64_t kernel_y, kernel_x, stride_y, stride_x, dilation_y, dilation_x, top, left, bottom, right;
  int32_t average, counts_pads;
};

// Each number between four: see `Interpolation`.
struct NumberInterpolation {
  Numbers x, y;
  const Tap *rows, *columns;
};

// Pixels of x go to y.
struct NumberCopy {
  Numbers x, y;
};

// Between float32 [N, C, H, W] and images.
struct NumberBorder {
  Numbers numbers;
  float* floats;
};

struct NumberKernel {
  const char* isa;
  uint64_t needs;  // of CpuFeature

  // As of RegionKernel.
  bool (*plan)(NumberConv&);
  void (*conv)(const NumberConv&, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end);
  // Rows [first, last) of N · H of the output.
  void (*depthwise)(const NumberDepthwise&, int64_t first, int64_t last);
  void (*binary)(const NumberBinary&, int64_t first, int64_t last);
  void (*affine)(const NumberAffine&, int64_t first, int64_t last);
  // Rows of the image.
  void (*moments)(const NumberMoments&, int64_t first, int64_t last);
  void (*pool)(const NumberPool&, int64_t first, int64_t last);
  void (*interpolate)(const NumberInterpolation&, int64_t first, int64_t last);
  void (*copy)(const NumberCopy&, int64_t first, int64_t last);
  void (*read)(const NumberBorder&, int64_t first, int64_t last);
  void (*write)(const NumberBorder&, int64_t first, int64_t last);
};

}  // namespace onnxq

#endif  // ONNXQ_REGION_BF16_KERNEL_H_
