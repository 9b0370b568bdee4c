// onnxq::GatherNBits: y[…, K] = w[indices[…], :], for embeddings. The table is w[N, K].

#include "../abi/nodes.h"
#include "../abi/ops.h"
#include "gather.h"
#include "run.h"

namespace onnxq {
namespace {

using namespace ort;

class Gather {
 public:
  static constexpr const char* provider = "CPUExecutionProvider";

  Gather(const OrtApi* api, const OrtKernelInfo* info)
      : api_(api), node_(api, info), weight_(api, info, node_, kGatherWeight), dtype_(gathered_type(api, info, node_)) {}

  void compute(OrtKernelContext* context) {
    const Place place(api_, context);
    const Tensor indices = input(api_, context, kGatherIndices);
    const std::vector<int64_t> shape = gathered_shape(node_, indices);
    const WeightTensors w = weight_.at(context, node_);
    const Tensor y = output(api_, context, 0, shape);
    check_gathered(node_, dtype_, y);
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

constexpr OrtCustomOp kOps[] = {make_op<GatherNBits<Gather, kFloat>>(), make_op<GatherNBits<Gather, kFloat16>>(),
                                make_op<GatherNBits<Gather, kBFloat16>>()};

}  // namespace

constexpr Ops kGatherNBits = {kOps, 3};

}  // namespace onnxq
