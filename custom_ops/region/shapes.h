// Shapes of tensors between steps.

#ifndef ONNXQ_REGION_SHAPES_H_
#define ONNXQ_REGION_SHAPES_H_

#include <array>
#include <initializer_list>

#include "plan.h"

namespace onnxq {

// The product of sizes, or a refusal where it is larger than any memory.
int64_t product(size_t number, std::initializer_list<int64_t> sizes);

// Where each pixel comes from is found before anything is computed: refuses more of them, of all steps together, than are
// worth the time and memory of that.
void check_moves(const std::vector<Stage>& stages, const Plan& plan);

// Pads of one dimension by which there are size / stride windows.
void same_pads(const Step& step, size_t axis, int64_t size, std::array<int64_t, 4>& pads);

// Windows that fit. Of pools, onnxruntime lets one overhang by less than a stride: its quotient is cut off, not floored.
int64_t windows(size_t number, int64_t size, int64_t before, int64_t behind, int64_t kernel, int64_t stride,
                int64_t dilation, bool ceil, bool pools);

// Rows or columns that a transposed convolution makes of `size`.
int64_t spread(size_t number, const Step& step, size_t axis, int64_t size);

// As the definition orders dimensions, and as n, c, y, x.
Dims dims(const Extent& t);
Sizes sizes(const Extent& t);
void set_sizes(Extent& t, const Sizes& sizes);

// A tensor of this shape; `stack`: of matrices.
Placed of_shape(size_t number, const Dims& shape, int64_t stack);

// Of two tensors that are added or multiplied; `made` is the first one before.
void binary_shape(size_t number, const Extent& other, Extent& made);

}  // namespace onnxq

#endif  // ONNXQ_REGION_SHAPES_H_
