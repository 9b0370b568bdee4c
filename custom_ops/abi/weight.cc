#include "weight.h"

#include <cstring>

namespace onnxq {
namespace {

using namespace ort;

// How a file spells a format; formats that differ only in how their scales were chosen are one to a kernel.
// Those of E2M1 differ in the type of their scales, which the tensor has.
constexpr struct {
  const char* name;
  int32_t format;
} kFormatNames[] = {{"int4", kInt4}, {"int8", onnxq::kInt8}, {"nf4", kNf4},
                    {"fp4", kFp4},   {"mxfp4", kMxfp4}, {"e2m1", kMxfp4}};
static_assert(sizeof kFormatNames / sizeof *kFormatNames == kFormats + 1, "every format has a name");

// What a function of the interface writes that is asked for the size first.
template <typename Get>
std::string text_from(const OrtApi* api, const Get& get) {
  size_t size = 0;
  check(api, get(nullptr, &size));
  std::string text(size, '\0');
  check(api, get(text.data(), &size));
  text.resize(size ? size - 1 : 0);  // without the zero that ends it
  return text;
}

int64_t size_attribute(const OrtApi* api, const OrtKernelInfo* info, const WeightAttributes& node, const char* name) {
  const int64_t size = int_attribute(api, info, name, 0);
  if (size < 1 || size > INT32_MAX) {
    node.refuse(std::string("attribute ") + name + " must be a whole number from 1 to 2147483647");
  }
  return size;
}

void expect(const WeightAttributes& node, const char* name, const Tensor& tensor, const std::vector<int64_t>& shape) {
  if (tensor.shape != shape) {
    node.refuse(std::string(name) + " has shape " + text(tensor.shape) + "; K = " + std::to_string(node.K) +
                ", N = " + std::to_string(node.N) + " and block_size = " + std::to_string(node.block) + " ask for " +
                text(shape));
  }
}

}  // namespace

std::string node_name(const OrtApi* api, const OrtKernelInfo* info) {
  return text_from(api, [&](char* out, size_t* size) { return api->KernelInfo_GetNodeName(info, out, size); });
}

int64_t int_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, int64_t otherwise) {
  int64_t value = otherwise;
  if (OrtStatus* const missing = api->KernelInfoGetAttribute_int64(info, name, &value)) {
    api->ReleaseStatus(missing);
    return otherwise;
  }
  return value;
}

std::string string_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name,
                             const std::string& otherwise) {
  size_t size = 0;
  if (OrtStatus* const missing = api->KernelInfoGetAttribute_string(info, name, nullptr, &size)) {
    api->ReleaseStatus(missing);
    return otherwise;
  }
  return text_from(
      api, [&](char* out, size_t* room) { return api->KernelInfoGetAttribute_string(info, name, out, room); });
}

std::string text(const std::vector<int64_t>& shape) {
  std::string all;
  for (const int64_t dim : shape) {
    all += (all.empty() ? "" : ", ") + std::to_string(dim);
  }
  return "[" + all + "]";
}

bool has_input(const OrtApi* api, const OrtKernelInfo* info, size_t index) {
  size_t count = 0;
  check(api, api->KernelInfo_GetInputCount(info, &count));
  return index < count && !text_from(api, [&](char* out, size_t* size) {
    return api->KernelInfo_GetInputName(info, index, out, size);
  }).empty();
}

Tensor constant_input(const OrtApi* api, const OrtKernelInfo* info, size_t index) {
  size_t count = 0;
  int constant = 0;
  const OrtValue* value = nullptr;
  check(api, api->KernelInfo_GetInputCount(info, &count));
  if (index < count) {
    check(api, api->KernelInfoGetConstantInput_tensor(info, index, &constant, &value));
  }
  return read(api, constant ? value : nullptr);
}

void WeightAttributes::refuse(const std::string& reason) const { throw Refusal("onnxq node '" + node + "': " + reason); }

WeightAttributes::WeightAttributes(const OrtApi* api, const OrtKernelInfo* info, int64_t block, int32_t format)
    : node(node_name(api, info)), block(block), format(format) {
  K = size_attribute(api, info, *this, "K");
  N = size_attribute(api, info, *this, "N");
  const std::string activations = string_attribute(api, info, "activations", "fast");
  exact = activations == "exact";
  if (!exact && activations != "fast") {
    refuse("attribute activations is '" + activations + "', but must be fast or exact");
  }
}

WeightAttributes WeightAttributes::dense(const OrtApi* api, const OrtKernelInfo* info, int32_t format) {
  return {api, info, kDenseBlock, format};
}

WeightAttributes::WeightAttributes(const OrtApi* api, const OrtKernelInfo* info)
    : WeightAttributes(api, info, int_attribute(api, info, "block_size", 0), kFormats) {
  if (block < kMinBlock || block > kMaxBlock || block % kMinBlock) {
    refuse("attribute block_size must be a multiple of 16 from 16 to 256, not " + std::to_string(block));
  }
  const std::string name = string_attribute(api, info, "format", "");
  std::string known;
  for (const auto& each : kFormatNames) {
    known += (known.empty() ? "" : ", ") + std::string(each.name);
    format = name == each.name ? each.format : format;
  }
  if (format == kFormats) {
    refuse("attribute format is '" + name + "', but must be one of " + known);
  }
}

WeightTensors::WeightTensors(const WeightAttributes& node, const Tensor& w, const Tensor& s, const Tensor& z)
    : weight(static_cast<const uint8_t*>(w.data)), scales(s.data), zero_points(static_cast<const uint8_t*>(z.data)) {
  const int64_t Kp = padded(node.K, node.block);
  if (w.type != kUint8) {
    node.refuse("weight must be uint8");
  }
  expect(node, "weight", w, {tiles(node.N), Kp / line_k(node.format), kTile, 4});
  const std::vector<int64_t> shape = {tiles(node.N), Kp / node.block, kTile};
  scale_type = s.type == kFloat     ? kScaleFloat32
               : s.type == kFloat16 ? kScaleFloat16
               : s.type == kUint8   ? kScaleE8M0
                                    : kScaleTypes;
  if (scale_type == kScaleTypes) {
    node.refuse("scales must be float32, float16 or uint8 (powers of two)");
  }
  expect(node, "scales", s, shape);
  if (!is_aligned(s)) {
    const size_t bytes = static_cast<size_t>(s.size()) * element_bytes(s.type);
    std::shared_ptr<char[]> copy(new char[bytes]);  // new aligns for every type
    scales = std::memcpy(copy.get(), s.data, bytes);
    copied_scales = copy;
  }
  if (z.type == kUndefined) {
    zero_points = nullptr;
    return;
  }
  if (z.type != kUint8 || !is_affine(node.format)) {
    node.refuse("zero_points must be uint8, and only integer formats have them");
  }
  expect(node, "zero_points", z, shape);
}

WeightTensors WeightTensors::dense(const WeightAttributes& node, const Tensor& w) {
  const bool is_half = node.format == kDenseFloat16;
  if (w.type != (is_half ? kFloat16 : kBFloat16)) {
    node.refuse(std::string("weight must be ") + (is_half ? "float16" : "bfloat16"));
  }
  expect(node, "weight", w, {tiles(node.N), padded(node.K, node.block) / 2, kTile, 2});
  WeightTensors made;
  made.weight = static_cast<const uint8_t*>(w.data);
  made.scale_type = kNoScales;
  return made;
}

WeightInputs::WeightInputs(const OrtApi* api, const OrtKernelInfo* info, const WeightAttributes& node, size_t first)
    : api_(api), first_(first) {
  const Tensor weight = constant_input(api, info, first), scales = constant_input(api, info, first + 1);
  const Tensor zero_points = constant_input(api, info, first + 2);
  const bool zero_points_known = zero_points.type != kUndefined || !has_input(api, info, first + 2);
  if (weight.type != kUndefined && scales.type != kUndefined && zero_points_known) {
    constants_ = {node, weight, scales, zero_points};
  }
}

WeightTensors WeightInputs::at(const OrtKernelContext* context, const WeightAttributes& node) const {
  if (constants_.weight) {
    return constants_;
  }
  return {node, input(api_, context, first_), input(api_, context, first_ + 1), input(api_, context, first_ + 2)};
}

}  // namespace onnxq
