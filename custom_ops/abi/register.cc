// Where onnxruntime enters: the table of operators and nothing else.

#include <cstdio>
#include <deque>
#include <string>

#include "../base/export.h"
#include "ops.h"

namespace {

using namespace onnxq;

#if defined(ONNXQ_CUDA)
constexpr const Ops* kOps[] = {&kMatMulNBits, &kDenseMatMul, &kGatherNBits, &kObserve,         &kRegion,
                               &kBf16Region,  &kAttention,   &kRecurrent,   &kCudaMatMulNBits, &kCudaGatherNBits};
#else
constexpr const Ops* kOps[] = {&kMatMulNBits, &kDenseMatMul, &kGatherNBits, &kObserve,
                               &kRegion,      &kBf16Region,  &kAttention,   &kRecurrent};
#endif

// onnxruntime before 1.24 crashes in shape inference of a custom operator whose optional inputs are left out, and has no
// version 24 of its interface.
bool is_recent(const ort::OrtApiBase* base) {
  int major = 0, minor = 0;
  return std::sscanf(base->GetVersionString(), "%d.%d", &major, &minor) == 2 && (major > 1 || minor >= 24);
}

// Made once and never released: it has to outlive every session, and nobody says when the last one is gone.
ort::OrtCustomOpDomain* domain(const ort::OrtApiBase* base, const ort::OrtApi* api) {
  static std::deque<Op> registered;
  static ort::OrtCustomOpDomain* const made = [&] {
    shows_shapes = is_recent(base);
    ort::OrtCustomOpDomain* empty = nullptr;
    check(api, api->CreateCustomOpDomain("onnxq", &empty));
    for (const Ops* ops : kOps) {
      for (size_t i = 0; i < (ops->here && !ops->here() ? 0 : ops->count); ++i) {
        Op& op = registered.emplace_back(Op{ops->first[i], api});
        op.InferOutputShapeFn = is_recent(base) ? op.InferOutputShapeFn : nullptr;
        check(api, api->CustomOpDomain_Add(empty, &op));
      }
    }
    return empty;
  }();
  return made;
}

}  // namespace

ONNXQ_EXPORT ort::OrtStatus* RegisterCustomOps(ort::OrtSessionOptions* options, const ort::OrtApiBase* base) {
  const ort::OrtApi* api = base->GetApi(ort::kApiVersion);
  if (!api) {
    const std::string reason =
        std::string("onnxq needs onnxruntime 1.17 or newer; this is ") + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ort::kFail, reason.c_str());
  }
  return guarded(api, [&] { check(api, api->AddCustomOpDomain(options, domain(base, api))); });
}
