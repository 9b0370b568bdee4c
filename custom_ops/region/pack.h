// Weights as kernels read them.

#ifndef ONNXQ_REGION_PACK_H_
#define ONNXQ_REGION_PACK_H_

#include "stage.h"

namespace onnxq {

// A weight as it lies in the file: element (output, input of its group, y, x) at the sum of these multiples.
struct PlainWeight {
  const int8_t* data;
  int64_t output, input, y, x;
  Merged merged;

  struct Place {
    int64_t output, input, y, x;
  };

  // Where an element lies, if it is none of the zeros between groups.
  const int8_t* address(const Place& p) const {
    return data + p.output * output + merged.inside(p.input) * input + p.y * y + p.x * x;
  }
  int8_t at(const Place& p) const { return merged.is_zero(p.output, p.input) ? int8_t{0} : *address(p); }
};

// Fills quads; `width`: bytes of an element. Returns how many chunks a window has.
int64_t cut_windows(Stage& stage, int64_t width);

// Fills weight, bias, scales and quads of `stage`, which knows its sizes. `bias` (int32, or null) and `scale` are of each
// output; a scale is already that from sums to codes.
void pack(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale, int32_t x_zero);

// Of few outputs, neighbouring pixels are computed together, where that is faster: as outputs of one window that holds all of
// theirs. Makes a phase that does, for all columns but what is left of their number.
void pack_together(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale, int32_t x_zero);

void pack_depthwise(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale,
                    int32_t x_zero);

}  // namespace onnxq

#endif  // ONNXQ_REGION_PACK_H_
