// Observe: an operator without outputs that adds its input to the summary of the number `summary`.
// onnxruntime runs it where the activation is made; nothing is copied and nothing has to be kept for it.
// Number 0 is no summary: such nodes only keep the graph as it is when others are observed.

#include <string>

#include "../abi/ops.h"
#include "run.h"
#include "summary.h"

namespace onnxq {
namespace {

struct Observe {
  static constexpr const char* name = "Observe";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 1> inputs = {{{ort::kUndefined}}};
  static constexpr std::array<Parameter, 0> outputs = {};
  static void infer(const ort::OrtApi*, ort::OrtShapeInferContext*) {}

  class Kernel {
   public:
    Kernel(const ort::OrtApi* api, const ort::OrtKernelInfo* info) : api_(api) {
      int64_t number = 0;
      check(api, api->KernelInfoGetAttribute_int64(info, "summary", &number));
      summary_ = find_summary(number);
      if (!summary_ && number) {
        throw Refusal("Observe: this process has no summary " + std::to_string(number) +
                      "; such nodes only work in the process that put them into the model");
      }
    }

    void compute(ort::OrtKernelContext* context) {
      if (!summary_) {
        return;
      }
      const Tensor x = input(api_, context, 0);
      const auto type = x.type;
      if (type != ort::kFloat && type != ort::kDouble && type != ort::kFloat16 && type != ort::kBFloat16) {
        throw Refusal("Observe: the input is not of a float type");
      }
      Place place(api_, context);
      const Pool pool{[](void* self, void (*task)(void*, size_t), size_t tasks, void* data) {
                        static_cast<const Place*>(self)->parallel(
                            static_cast<int64_t>(tasks), [&](int64_t i) { task(data, static_cast<size_t>(i)); });
                      },
                      &place};
      summary_->update(x.data, x.type, x.shape, pool);
    }

   private:
    const ort::OrtApi* api_;
    std::shared_ptr<Summary> summary_;
  };
};

const ort::OrtCustomOp kOps[] = {make_op<Observe>()};

}  // namespace

const Ops kObserve = {kOps, 1};

}  // namespace onnxq
