// The operators of the CUDA provider, registered for the processor's: the code between onnxruntime and the kernels is
// the same, and the kernels below it are emulated.
#include <deque>

#include "base/export.h"
#include "abi/ops.h"

ONNXQ_EXPORT onnxq::ort::OrtStatus* RegisterCustomOps(onnxq::ort::OrtSessionOptions* options,
                                                      const onnxq::ort::OrtApiBase* base) {
  using namespace onnxq;
  const ort::OrtApi* api = base->GetApi(ort::kApiVersion);
  static std::deque<Op> registered;
  static ort::OrtCustomOpDomain* domain = nullptr;
  return guarded(api, [&] {
    if (!domain) {
      check(api, api->CreateCustomOpDomain("onnxq", &domain));
      for (const Ops* ops : {&kCudaMatMulNBits, &kCudaGatherNBits}) {
        for (size_t i = 0; i < ops->count; ++i) {
          Op& op = registered.emplace_back(Op{ops->first[i], api});
          op.GetExecutionProviderType = [](const ort::OrtCustomOp*) { return "CPUExecutionProvider"; };
          check(api, api->CustomOpDomain_Add(domain, &op));
        }
      }
    }
    check(api, api->AddCustomOpDomain(options, domain));
  });
}
