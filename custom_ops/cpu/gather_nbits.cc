// onnxq::GatherNBits: y[…, K] = w[indices[…], :], for embeddings. The table is w[N, K].



#include "../infer.h"
#include "../ops.h"
#include "../weight.h"
#include "gather.h"
#include "run.h"

namespace onnxq {
namespace {

using namespace ort;

enum Input : size_t { kWeight, kIndices = 3 };

bool is_float(int64_t dtype) { return dtype == kFloat || dtype == kFloat16 || dtype == kBFloat16; }

class Gather {
 public:
  Gather(const OrtApi* api, const OrtKernelInfo* info) : api_(api), node_(api, info), weight_(api, info, node_, kWeight) {
    const int64_t dtype = int_attribute(api, info, "dtype", kFloat);
    dtype_ = static_cast<ElementType>(dtype);
    if (!is_float(dtype)) {
      node_.refuse("attribute dtype must be 1 (float32), 10 (float16) or 16 (bfloat16)");
    }
  }

  void compute(OrtKernelContext* context) {
    const Place place(api_, context);
    const Tensor indices = input(api_, context, kIndices);
    if (indices.type != kInt32 && indices.type != kInt64) {
      node_.refuse("indices must be int32 or int64");
    }
    if (!is_aligned(indices)) {
      node_.refuse("indices begin at an address that is no multiple of their elements' size");
    }
    const WeightTensors w = weight_.at(context, node_);
    std::vector<int64_t> shape = indices.shape;
    shape.push_back(node_.K);
    const Tensor y = output(api_, context, 0, shape);
    if (y.type != dtype_) {
      node_.refuse("the output's type is not the one that attribute dtype names");
    }
    gather(place, w, indices, y);
  }

 private:
  void gather(const Place& place, const WeightTensors& w, const Tensor& indices, const Tensor& y) const {
    const Problem p = problem(node_, w);
    const int64_t count = indices.size();
    std::vector<int64_t> rows(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = indices.type == kInt64 ? static_cast<const int64_t*>(indices.data)[i]
                                                   : static_cast<const int32_t*>(indices.data)[i];
      if (index < -p.N || index >= p.N) {
        node_.refuse("index " + std::to_string(index) + " is outside of the table's " + std::to_string(p.N) + " rows");
      }
      rows[static_cast<size_t>(i)] = index < 0 ? index + p.N : index;
    }
    if (count == 0) {
      return;
    }
    const bool converts = dtype_ != kFloat;
    Scratch scratch(place, converts ? round_up_to_line(4 * count * p.K) : 0);
    float* const to = static_cast<float*>(converts ? scratch.take(4 * count * p.K) : y.data);
    place.parallel(count, [&](int64_t i) { gather_row(p, rows[static_cast<size_t>(i)], to + i * p.K); });
    if (converts) {
      from_float(place, dtype_, to, y.data, count * p.K);
    }
  }

  const OrtApi* api_;
  WeightAttributes node_;
  WeightInputs weight_;
  ElementType dtype_;
};

void infer(const OrtApi* api, const OrtShapeInferContext* context) {
  Shape shape = inferred_input(api, context, kIndices);
  const int64_t K = inferred_attribute(api, context, "K", 0);
  const int64_t dtype = inferred_attribute(api, context, "dtype", kFloat);
  if (!shape.dims.empty() && K > 0 && is_float(dtype)) {  // no dimensions: a number, or unknown
    shape.type = static_cast<ElementType>(dtype);
    shape.push_back(K);
    infer_output(api, context, 0, shape);
  }
}

template <ElementType y>
struct GatherNBits {
  using Kernel = Gather;
  static constexpr const char* name = "GatherNBits";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 4> inputs = {{{kUint8}, {kUndefined}, {kUint8, kOptional}, {kUndefined}}};
  static constexpr std::array<Parameter, 1> outputs = {{{y}}};
  static constexpr auto infer = onnxq::infer;
};

constexpr OrtCustomOp kOps[] = {make_op<GatherNBits<kFloat>>(), make_op<GatherNBits<kFloat16>>(),
                                make_op<GatherNBits<kBFloat16>>()};

}  // namespace

constexpr Ops kGatherNBits = {kOps, 3};

}  // namespace onnxq
