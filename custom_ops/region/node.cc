// onnxq::Region and onnxq::Bf16Region: islands of operators as one node. Its steps are those of attribute `steps`
// (docs/regions.md).

#include <deque>
#include <memory>
#include <mutex>
#include <new>

#include "../abi/ops.h"
#include "../abi/weight.h"
#include "../cpu/isa.h"
#include "profile.h"
#include "run_stage.h"
#include "winograd.h"

namespace onnxq {

#define ONNXQ_REGION(name) extern const RegionKernel region_##name;
#include "regions.inc"  // written by CMake, best first
#undef ONNXQ_REGION
#define ONNXQ_REGION(name) extern const NumberKernel bf16_region_##name;
#include "bf16_regions.inc"
#undef ONNXQ_REGION

#define ONNXQ_REGION(name) extern const RowKernel rows_##name;
#include "row_regions.inc"
#undef ONNXQ_REGION

namespace {

using namespace ort;

constexpr const RegionKernel* kRegionKernels[] = {
#define ONNXQ_REGION(name) &region_##name,
#include "regions.inc"
#undef ONNXQ_REGION
};
constexpr const NumberKernel* kNumberKernels[] = {
#define ONNXQ_REGION(name) &bf16_region_##name,
#include "bf16_regions.inc"
#undef ONNXQ_REGION
};

constexpr const RowKernel* kRowKernels[] = {
#define ONNXQ_REGION(name) &rows_##name,
#include "row_regions.inc"
#undef ONNXQ_REGION
};

struct Int8 {
  using Kernel = RegionKernel;
  static constexpr Element element = Element::kCodes;
  static constexpr const auto& kernels = kRegionKernels;

  static Stage stage(const Step& step, const std::vector<Stage>& before, const Constants& constants, const Kernel& simple) {
    return make_stage(step, before, constants, simple);
  }
  static Plan plan(const std::vector<Stage>& stages, const std::vector<Dims>& inputs, size_t outputs, const Kernel& kernel,
                   WinogradUse use) {
    Plan made = make_plan(stages, inputs, outputs, element);
    if (kernel.winograd) {
      plan_winograd(made, stages, *kernel.winograd, use);
    }
    return made;
  }
};

struct Bf16 {
  using Kernel = NumberKernel;
  static constexpr Element element = Element::kBfloat16;
  static constexpr const auto& kernels = kNumberKernels;

  static Stage stage(const Step& step, const std::vector<Stage>& before, const Constants& constants, const Kernel&) {
    return make_bf16_stage(step, before, constants);
  }
  static Plan plan(const std::vector<Stage>& stages, const std::vector<Dims>& inputs, size_t outputs, const Kernel&, WinogradUse) {
    return make_plan(stages, inputs, outputs, element);
  }
};

struct Rows {
  using Kernel = RowKernel;
  static constexpr const auto& kernels = kRowKernels;
};

// Those that run here, from the one that is forced on, or where it has none the next best.
template <class E>
std::vector<const typename E::Kernel*> kernels_here() {
  const char* const forced = forced_isa();
  if (const std::string reason = forced ? why_not(forced) : ""; !reason.empty()) {
    throw Refusal("ONNXQ_FORCE_ISA = " + reason);
  }
  std::vector<const typename E::Kernel*> found;
  bool allowed = !forced;
  for (const Kernel* const* each = kKernels; *each; ++each) {
    allowed = allowed || std::string((*each)->isa) == forced;
    for (const typename E::Kernel* region : E::kernels) {
      const bool runs = (region->needs & ~cpu_features()) == 0;
      if (allowed && runs && std::string(region->isa) == (*each)->isa) {
        found.push_back(region);
      }
    }
  }
  return found;
}

template <class E>
class Region {
 public:
  Region(const OrtApi* api, const OrtKernelInfo* info) : api_(api), name_(node_name(api, info)) {
    check(api, api->KernelInfo_GetInputCount(info, &inputs_));
    check(api, api->KernelInfo_GetOutputCount(info, &outputs_));
    named([&] { prepare(info); });
  }

  ~Region() { profile_.write(name_, kernels_.empty() ? "" : kernels_.front()->isa); }

  void compute(OrtKernelContext* context) {
    named([&] { run(context); });
  }

 private:
  static constexpr int64_t kMostBytes = int64_t{1} << 29, kMostPerByte = 16;  // of all steps, and by byte of constants
  static constexpr size_t kPlans = 16;  // that are kept, for as many shapes

  // Refusals say whose they are.
  template <typename Body>
  void named(const Body& body) const {
    try {
      body();
    } catch (const Refusal& refusal) {
      throw Refusal("onnxq node '" + name_ + "': " + refusal.what());
    } catch (const std::bad_alloc&) {
      throw Refusal("onnxq node '" + name_ + "': there is not enough memory for what attribute steps asks for");
    }
  }

  void prepare(const OrtKernelInfo* info) {
    kernels_ = kernels_here<E>();
    rows_ = kernels_here<Rows>().front();
    use_ = winograd_use();
    // Steps may share a weight: a small file must not take all memory.
    int64_t taken = 0, most = kMostBytes;
    Constants constants;
    for (size_t i = 0; i < inputs_; ++i) {
      constants.push_back(constant_input(api_, info, i));
      most += kMostPerByte * static_cast<int64_t>(element_bytes(constants.back().type)) * constants.back().size();
    }
    const std::string text = string_attribute(api_, info, "steps", "");
    for (const Step& step : read_steps(text, inputs_, outputs_, E::element)) {
      stages_.push_back(E::stage(step, stages_, constants, *kernels_.front()));
      taken += stages_.back().nbytes();
      if (taken > most) {
        throw Refusal("attribute steps takes more memory than its weights may: too many steps, or groups too small");
      }
    }
    if (profile_.is_on()) {
      profile_.begin(lines_of(text));
    }
  }

  void run(OrtKernelContext* context) {
    const Place place(api_, context);
    Memory memory{nullptr, std::vector<const float*>(inputs_), std::vector<float*>(outputs_), rows_};
    std::vector<Dims> shapes(inputs_);
    for (const Stage& stage : stages_) {
      if (stage.step.does == Does::kQuantize || stage.step.does == Does::kRead) {
        const size_t in = static_cast<size_t>(stage.step.in);
        const Tensor x = given_input(api_, context, in);
        if (x.type != kFloat || !is_aligned(x)) {
          throw Refusal("input " + std::to_string(in) + " is read, and must be float32, aligned as its elements");
        }
        shapes[in] = x.shape;
        memory.inputs[in] = static_cast<const float*>(x.data);
      }
    }
    const std::shared_ptr<const Plan> plan = plan_for(shapes);
    for (size_t i = 0; i < outputs_; ++i) {
      const Tensor y = output(api_, context, i, plan->outputs[i]);
      if (y.type != kFloat) {
        throw Refusal("output " + std::to_string(i) + " must be float32");
      }
      memory.outputs[i] = static_cast<float*>(y.data);
    }
    Scratch scratch(place, plan->workspace);
    memory.workspace = static_cast<uint8_t*>(scratch.take(plan->workspace));
    for (size_t i = 0; i < stages_.size(); ++i) {
      profile_.time(i, [&] { run_stage(kernels_, stages_, *plan, i, memory, place); });
    }
  }

  std::shared_ptr<const Plan> plan_for(const std::vector<Dims>& shapes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& plan : plans_) {
      if (plan->inputs == shapes) {
        return plan;
      }
    }
    plans_.push_front(std::make_shared<const Plan>(E::plan(stages_, shapes, outputs_, *kernels_.front(), use_)));
    plans_.resize(std::min(plans_.size(), kPlans));
    return plans_.front();
  }

  const OrtApi* api_;
  std::string name_;
  size_t inputs_ = 0, outputs_ = 0;
  std::vector<const typename E::Kernel*> kernels_;
  const RowKernel* rows_ = nullptr;
  WinogradUse use_ = WinogradUse::kWhereFaster;
  std::vector<Stage> stages_;
  Profile profile_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<const Plan>> plans_;
};

template <class E>
struct RegionOp {
  using Kernel = Region<E>;
  static constexpr const char* name = E::element == Element::kCodes ? "Region" : "Bf16Region";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 1> inputs = {{{kUndefined, kVariadic}}};
  // Of a type that is told here: where onnxruntime moves a QuantizeLinear up to an output, that gets a name without one.
  static constexpr std::array<Parameter, 1> outputs = {{{kFloat, kVariadic}}};
  // Files say the shapes of outputs; those of steps are known when there are inputs.
  static void infer(const OrtApi*, const OrtShapeInferContext*) {}
};

template <class E>
constexpr OrtCustomOp make_region() {
  OrtCustomOp op = make_op<RegionOp<E>>();
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  return op;
}

constexpr OrtCustomOp kOps[] = {make_region<Int8>()}, kNumberOps[] = {make_region<Bf16>()};

// Without instructions for bfloat16 the bodies in float32 are faster: they run where there is no kernel. By name one can
// be asked for anywhere.
bool multiplies_bfloat16() { return forced_isa() || (cpu_features() & kAvx512Bf16) != 0; }

}  // namespace

constexpr Ops kRegion = {kOps, 1, nullptr};
constexpr Ops kBf16Region = {kNumberOps, 1, multiplies_bfloat16};

}  // namespace onnxq
