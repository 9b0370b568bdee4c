// Types and shapes of outputs, while onnxruntime loads a model.

#ifndef ONNXQ_INFER_H_
#define ONNXQ_INFER_H_

#include "op.h"

namespace onnxq {

// A tensor that does not exist yet. Where a name is not empty, the dimension has that name and no size.
struct Shape {
  ort::ElementType type = ort::kUndefined;
  std::vector<int64_t> dims;
  std::vector<std::string> names;

  void push_back(int64_t dim) {
    dims.push_back(dim);
    names.emplace_back();
  }
};

// A missing input has rank 0, and so has one of unknown rank.
Shape inferred_input(const ort::OrtApi* api, const ort::OrtShapeInferContext* context, size_t index);
void infer_output(const ort::OrtApi* api, const ort::OrtShapeInferContext* context, size_t index, const Shape& shape);

int64_t inferred_attribute(const ort::OrtApi* api, const ort::OrtShapeInferContext* context, const char* name,
                           int64_t otherwise);

}  // namespace onnxq

#endif  // ONNXQ_INFER_H_
