// Products of two tensors of a region, matrix by matrix: the second ones are packed as constant weights are, in every run, so
// that the kernels of convolutions multiply by them.

#ifndef ONNXQ_REGION_PRODUCTS_H_
#define ONNXQ_REGION_PRODUCTS_H_

#include <array>
#include <vector>

#include "../cpu/run.h"
#include "row_kernel.h"
#include "stage.h"

namespace onnxq {

struct Placed;

// Where the matrices of a tensor lie, in elements: [N][H] of them, or one for all where it is 1.
struct Matrices {
  int64_t N = 1, H = 1, rows = 0, columns = 0;
  int64_t first = 0, image = 0, head = 0, row = 0;  // of the first one; from one to the next

  int64_t count() const { return N * H; }
  int64_t at(int64_t n, int64_t h) const { return first + (N == 1 ? 0 : n) * image + (H == 1 ? 0 : h) * head; }
  // The number of the matrix that serves the one of these.
  int64_t number(int64_t n, int64_t h) const { return (N == 1 ? 0 : n) * H + (H == 1 ? 0 : h); }
};

// Those of a stack, or of one matrix.
Matrices matrices_of(const Placed& t);

// A matrix that is multiplied by, packed. What is less its zero point is what codes less 128 are, and the same for all inputs
// of it: that is multiplied in `passes` of its own, where it matters.
struct Packed {
  int64_t inputs = 0, outputs = 0, blocks = 0, chunks = 0;
  int64_t input = 0, output = 0;  // as Second has them
  std::vector<int8_t> passes;     // what all weights of them are
  std::vector<int64_t> offsets;
  std::vector<uint8_t> quads;
  std::vector<float> scales;

  int64_t codes_chunks() const { return chunks / static_cast<int64_t>(1 + passes.size()); }
  int64_t bytes() const { return blocks * chunks * kBlockBytes; }
  int64_t biases() const { return blocks * kBlock; }
};

// Of products of two tensors, and of attentions, for inputs of given shapes.
struct Products {
  Matrices a, b, y;  // of an attention q, k and what it makes
  Matrices v, mask;
  Packed by, values;  // b or k; and v
  int64_t rows = 0, blocks = 0;  // that are computed at once, and how many times so many there are
  int64_t tasks = 0;
  // Bytes of scratch memory: packed matrices, biases of the first ones, and what each task has.
  int64_t packed = 0, biases = 0, of_task = 0;
  int64_t scores = 0, weights = 0, weights_row = 0, sums = 0;  // of a task, one behind the other
  int64_t scratch() const { return packed + biases + of_task * tasks; }
};

// Throws Refusal. `x`: what it reads, `y` what it makes, whose shape is set.
void plan_matmul(size_t number, const Stage& stage, const std::vector<Placed*>& x, Placed& y, Products& made);
void plan_attention(size_t number, const Stage& stage, const std::vector<Placed*>& x, Placed& y, Products& made);

// What both share. `passes`: whether the zero point of b matters.
void pack_plan(size_t number, const Matrices& b, bool transposed, int32_t zero, bool passes, Packed& made);
void share_out(size_t number, int64_t work, Products& made);

// What runs them.
struct ProductRun {
  const Place& place;
  const std::vector<const RegionKernel*>& kernels;
  const RowKernel& rows;
  const Stage& stage;
  const Products& plan;
  std::array<const Stage*, 3> sources;
  std::array<const uint8_t*, 3> x;
  const float* mask;
  uint8_t* codes;  // or
  float* floats;   // the result
  uint8_t* scratch;
};
void run_matmul(const ProductRun& run);
void run_attention(const ProductRun& run);

// A part of a product: rows of `a` by packed matrix `number`, into floats or codes. Bounds and scales are the caller's.
Conv product_of(const Packed& by, const int8_t* weight, const int32_t* bias, const uint8_t* a, int64_t row, int64_t rows);
void multiply(const ProductRun& run, Conv& c);
// Packs all matrices of `b`, and adds up the codes of each output.
void pack_all(const ProductRun& run, const Packed& by, const Matrices& b, const uint8_t* codes, int8_t* weights,
              int32_t* totals);

}  // namespace onnxq

#endif  // ONNXQ_REGION_PRODUCTS_H_
