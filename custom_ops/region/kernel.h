// What a kernel of regions is: loops over int8 images for one ISA. Kernels never see onnxruntime, and what calls them
// never sees an intrinsic (../cpu/kernel.h says the same of products). An ISA is one file in kernels/, which ends with
//
//     namespace onnxq { extern const RegionKernel region_NAME; constexpr RegionKernel region_NAME = {"NAME", kNeeds, …}; }
//
// where "NAME" is a kernel of ../cpu/kernels too, so that ONNXQ_FORCE_ISA means the same here; a file may have a kernel of that
// name for processors that can do more.

#ifndef ONNXQ_REGION_KERNEL_H_
#define ONNXQ_REGION_KERNEL_H_

#include <stdint.h>

namespace onnxq {

// Codes of a tensor, channels last. A row is followed by pixels that hold the zero point where readers pad; so are the
// images above and below. Behind the last one as many bytes may be read as `Conv` says.
struct Image {
  uint8_t* data;  // pixel (0, 0) of image 0
  int64_t N, H, W, C;
  int64_t row, image;  // bytes from one to the next
};

// How sums become codes: clamp(round(sum · scale) + zero, low, high), round half to even.
struct Codes {
  int32_t zero, low, high;
};

constexpr int64_t kBlock = 32;   // outputs that are computed together
constexpr int64_t kChunk = 64;   // bytes of a window that are multiplied together; the last ones by zeros
constexpr int64_t kBlockBytes = kBlock * kChunk;

constexpr int64_t cover(int64_t size, int64_t part) { return (size + part - 1) / part; }
// Where in the chunks of a block a byte of a window is, for one of the block's outputs: quads of bytes for 16 outputs take
// turns.
constexpr int64_t in_chunks(int64_t byte, int64_t output) {
  return byte / kChunk * kBlockBytes + output / 16 * (kBlockBytes / 2) + byte % kChunk / 4 * 64 + output % 16 * 4 + byte % 4;
}

// y = round((a − za) · sa + (b − zb) · sb, or their product) in steps of y's scale.
struct Binary {
  Image a, b, y;  // sizes of a and b are those of y, or 1
  Codes codes;
  int32_t a_zero, b_zero;
  float a_scale, b_scale, scale;
  int32_t multiplies;
  int32_t divides;  // by `scale`; else by what is multiplied with its reciprocal, where that is known to give the same
};

// A convolution. Windows are cut into pieces that lie in one place: a row of pixels, or one pixel where channels or
// columns are skipped. Each piece is cut into chunks.
struct Conv {
  Image x, y;
  Codes codes;
  const int8_t* weight;    // [groups · blocks][chunks][2][16][16][4]: half a block, quad of the chunk, output, byte
  const int32_t* bias;     // [groups · blocks][32], less the zero point of x times the weights
  const float* scale;      // [groups · blocks][32]
  const int64_t* offsets;  // [chunks] in bytes, from the first byte of a window
  const uint8_t* quads;    // [chunks], of 4 bytes, that hold weights
  int64_t chunks;
  int64_t groups, group_in, group_out, blocks;  // blocks of a group
  int64_t first;           // bytes from pixel (0, 0) to the window of output (0, 0); none or negative
  int64_t step_x, step_y;  // bytes between windows
  int64_t pixel;           // bytes between pixels of y: more than its channels, where others lie between them
  float* floats;           // where results stay float: [pixels, groups · group_out], scale · sum; else null
  // Where its codes are read by a sum or product of two tensors alone, what makes y of them as `a` and of `join->b`, which
  // has the sizes of y; else null.
  const Binary* join;

  // Set by `plan` of the kernel. Pixels are taken in tiles of `tile` from one row, or, where `flat`, from rows as they lie
  // in memory, so that some fall between two rows and are left out.
  int64_t tile, tiles, units;
  int32_t flat;
};

// Bytes that `Conv` may read behind the last pixel of x.
constexpr int64_t read_behind(int64_t step_x) { return 32 * step_x + kChunk; }

// A convolution of each channel with a kernel of its own.
struct Depthwise {
  Image x, y;
  Codes codes;
  const int8_t* weight;   // [kernel_y · kernel_x][C rounded up to 64]
  const int32_t* bias;    // [C rounded up to 64], less the zero point of x times the weights
  const float* scale;
  int64_t kernel_y, kernel_x;
  int64_t first, step_x, step_y;  // as above
  int64_t next_x, next_y;         // bytes between pixels of a window
  // The same for dot products: see kernels/depthwise_dot.h.
  const int8_t* dot_weight;  // [blocks of 64 channels][fours of kernel_y][kernel_x][4][64]
  const int32_t* dot_bias;   // [blocks][4][16]
  const float* dot_scale;
};

struct Pool {
  Image x, y;
  Codes codes;
  int64_t kernel_y, kernel_x, stride_y, stride_x, dilation_y, dilation_x, top, left;
  int32_t average, counts_pads;
  int64_t bottom, right;  // pads; what lies behind them does not count
  int32_t x_zero;
  float x_scale, scale;
};

// The two pixels, or rows, of x that one of y lies between, and what each of them weighs.
struct Tap {
  int64_t first, second;
  float first_weight, second_weight;
};

// Each code between four: as numbers, weighted and added in the order of ONNX's definition.
struct Interpolation {
  Image x, y;
  Codes codes;
  const Tap *rows, *columns;  // of y
  int32_t x_zero;
  float x_scale, scale;
};

// Each code by a table: pixels of x go to the first channels of those of y.
struct Lookup {
  Image x, y;
  const uint8_t* table;  // of 256 bytes, one for all or `by_channel`; or null: copied
  bool by_channel;
};

// Each code times the factor of its channel, and more by where that starts: steps of y. Where lines have a knee, those
// behind them are for the codes from it on.
struct Affine {
  Image x, y;  // of one size
  Codes codes;
  const float *factor, *start;  // [lines][C]
  const float* knee;            // [C], or null: there is one line
};

// Between float32 [N, C, H, W] and codes.
struct Border {
  Image codes;
  float* floats;
  float scale;
  int32_t zero;
};

// Convolutions of 3×3 in squares of 4×4 outputs, by Winograd's transformation (kernels/winograd.h).
struct WinogradKernel {
  int64_t at_once;  // squares that are computed together, at most
  float cost;       // of products of pairs of 16 bits that an instruction has, in those of `RegionKernel::conv`
  // Transforms weights of quads of channels [first, last) of all blocks: `weight` has winograd_block (squares.h) numbers of each.
  void (*transform)(const Conv&, int16_t* weight, int64_t first, int64_t last);
  // Squares [first, last) of image n. `scratch` has winograd_scratch bytes.
  void (*conv)(const Conv&, const int16_t* weight, uint8_t* scratch, int64_t n, int64_t first, int64_t last);
};

struct RegionKernel {
  const char* isa;
  uint64_t needs;  // of CpuFeature

  // Whether a convolution is for this kernel; else the next one in line is asked. Where it is, sets what is the kernel's.
  bool (*plan)(Conv&);
  // Units [first, last) of image n, outputs of blocks [block, end) of all groups.
  void (*conv)(const Conv&, int64_t n, int64_t first, int64_t last, int64_t block, int64_t end);
  // Rows [first, last) of N · H of the output.
  void (*depthwise)(const Depthwise&, int64_t first, int64_t last);
  void (*binary)(const Binary&, int64_t first, int64_t last);
  void (*pool)(const Pool&, int64_t first, int64_t last);
  void (*lookup)(const Lookup&, int64_t first, int64_t last);
  void (*affine)(const Affine&, int64_t first, int64_t last);
  void (*interpolate)(const Interpolation&, int64_t first, int64_t last);
  void (*quantize)(const Border&, int64_t first, int64_t last);
  void (*dequantize)(const Border&, int64_t first, int64_t last);
  const WinogradKernel* winograd;  // or null
};

}  // namespace onnxq

#endif  // ONNXQ_REGION_KERNEL_H_
