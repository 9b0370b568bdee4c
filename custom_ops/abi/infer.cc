#include "infer.h"

namespace onnxq {

using namespace ort;

Shape inferred_input(const OrtApi* api, const OrtShapeInferContext* context, size_t index) {
  Shape shape;
  size_t count = 0, rank = 0;
  OrtTensorTypeAndShapeInfo* info = nullptr;  // stays the context's
  check(api, api->ShapeInferContext_GetInputCount(context, &count));
  if (index >= count) {
    return shape;
  }
  check(api, api->ShapeInferContext_GetInputTypeShape(context, index, &info));
  check(api, api->GetTensorElementType(info, &shape.type));
  check(api, api->GetDimensionsCount(info, &rank));
  shape.dims.resize(rank);
  check(api, api->GetDimensions(info, shape.dims.data(), rank));
  std::vector<const char*> names(rank, "");
  check(api, api->GetSymbolicDimensions(info, names.data(), rank));
  shape.names.assign(names.begin(), names.end());
  return shape;
}

void infer_output(const OrtApi* api, const OrtShapeInferContext* context, size_t index, const Shape& shape) {
  for (size_t i = 0; i < shape.dims.size(); ++i) {
    if (shape.dims[i] < 0 && shape.names[i].empty()) {
      return;  // onnxruntime would take an unknown size without a name for the number -1
    }
  }
  OrtTensorTypeAndShapeInfo* made = nullptr;
  check(api, api->CreateTensorTypeAndShapeInfo(&made));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api->ReleaseTensorTypeAndShapeInfo)> info(
      made, api->ReleaseTensorTypeAndShapeInfo);
  std::vector<const char*> names;
  for (const std::string& name : shape.names) {
    names.push_back(name.c_str());
  }
  check(api, api->SetTensorElementType(made, shape.type));
  check(api, api->SetDimensions(made, shape.dims.data(), shape.dims.size()));
  check(api, api->SetSymbolicDimensions(made, names.data(), names.size()));
  check(api, api->ShapeInferContext_SetOutputTypeShape(context, index, made));
}

int64_t inferred_attribute(const OrtApi* api, const OrtShapeInferContext* context, const char* name,
                           int64_t otherwise) {
  const OrtOpAttr* attribute = nullptr;
  int64_t value = otherwise;
  size_t size = 0;
  OrtStatus* status = api->ShapeInferContext_GetAttribute(context, name, &attribute);
  if (!status) {
    status = api->ReadOpAttr(attribute, kAttributeInt, &value, sizeof value, &size);
  }
  if (status) {  // not there, or no number: what computes the node will say so
    api->ReleaseStatus(status);
    return otherwise;
  }
  return value;
}

}  // namespace onnxq
