#include "winograd.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "squares.h"
#include "tasks.h"

namespace onnxq {
namespace {

// What both ways take, in dot products of registers: measured on a Zen 4, near enough for others. A register of sums is made
// codes; 16 channels of a square are transformed, and so are sums of a square; and weights of two channels.
constexpr double kCodes = 4.5, kSpread = 90.0, kGather = 260.0, kWeights = 150.0;
// Of places' products: sums are stored and loaded.
constexpr double kStored = 1.08;
// What Winograd's has to save: the costs are not known better.
constexpr double kWorthwhile = 0.92;

double registers(int64_t outputs) { return static_cast<double>((outputs + 15) / 16); }

bool is_worthwhile(const Stage& stage, const Placed& y, float cost) {
  const Stage& other = stage.phases.empty() ? stage : stage.phases.front();
  double quads = 0;
  for (const uint8_t each : other.quads) {
    quads += each;
  }
  const double pairs = static_cast<double>(stage.inputs) / 2, all = registers(stage.outputs);
  const double windows = static_cast<double>(y.N * y.H * y.W) / static_cast<double>(other.step.strides[1]);
  const double squares = static_cast<double>(y.N * squares_along(y.H) * squares_along(y.W));
  const double direct = windows * registers(other.outputs) * (quads + kCodes);
  const double of_square = all * (kPlaces * pairs * kStored * static_cast<double>(cost) + kGather) + pairs / 8 * kSpread;
  return squares * of_square + pairs * all * kWeights < kWorthwhile * direct;
}

bool can_be(const Stage& stage) {
  const Step& step = stage.step;
  constexpr std::array<int64_t, 2> one{{1, 1}}, three{{3, 3}};
  return step.does == Does::kConv && !stage.is_depthwise && step.group == 1 && step.kernel == three && step.strides == one &&
         step.dilations == one && stage.inputs % 4 == 0 && stage.fits_squares;
}

// Memory of tasks: as many parts as there are threads, or those beyond wait.
class Parts {
 public:
  Parts(uint8_t* memory, int64_t bytes, int64_t count) : memory_(memory), bytes_(bytes), taken_(static_cast<size_t>(count)) {}

  template <typename Work>
  void with_one(const Work& work) {
    size_t part = 0;
    while (taken_[part].exchange(true, std::memory_order_acquire)) {
      if (++part == taken_.size()) {
        part = 0;
        std::this_thread::yield();
      }
    }
    work(memory_ + static_cast<int64_t>(part) * bytes_);
    taken_[part].store(false, std::memory_order_release);
  }

 private:
  uint8_t* memory_;
  int64_t bytes_;
  std::vector<std::atomic<bool>> taken_;
};

}  // namespace

WinogradUse winograd_use() {
  const char* const text = std::getenv("ONNXQ_WINOGRAD");
  const std::string said = text ? text : "";
  if (!said.empty() && said != "always" && said != "never") {
    throw Refusal("ONNXQ_WINOGRAD = '" + said + "': may be always, never or nothing");
  }
  return said.empty() ? WinogradUse::kWhereFaster : said == "always" ? WinogradUse::kAlways : WinogradUse::kNever;
}

void plan_winograd(Plan& plan, const std::vector<Stage>& stages, const WinogradKernel& kernel, WinogradUse use) {
  if (use == WinogradUse::kNever) {
    return;
  }
  int64_t most = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const Placed& y = plan.tensors[i];
    plan.winograd.emplace_back();
    if (!can_be(stage) || y.is_empty() || (use == WinogradUse::kWhereFaster && !is_worthwhile(stage, y, kernel.cost))) {
      continue;
    }
    Winograd& planned = plan.winograd.back();
    planned.weight = round_up_to_line(2 * stage.blocks * winograd_block(stage.inputs));
    planned.scratch = round_up_to_line(winograd_scratch(stage.inputs, kernel.at_once));
    const int64_t squares = y.N * squares_along(y.H) * squares_along(y.W);
    planned.parts = std::min<int64_t>(threads(), (squares + kernel.at_once - 1) / kernel.at_once);
    most = std::max(most, planned.bytes());
  }
  plan.scratch = plan.workspace;
  plan.workspace += most;
}

void run_winograd(const Place& place, const WinogradKernel& kernel, const Conv& c, const Winograd& planned, uint8_t* memory) {
  int16_t* const weight = reinterpret_cast<int16_t*>(memory);
  const int64_t quads = c.group_in / 4;
  // A quad is two times two channels, and a block two registers.
  const int64_t pieces = parts(quads, 4 * static_cast<int64_t>(kWeights) * quads * c.blocks);
  place.parallel(pieces, [&](int64_t i) { kernel.transform(c, weight, quads * i / pieces, quads * (i + 1) / pieces); });
  Parts all(memory + planned.weight, planned.scratch, planned.parts);
  const int64_t squares = squares_of(c.y), groups = (squares + kernel.at_once - 1) / kernel.at_once;
  const int64_t tasks = parts(groups * c.y.N, squares * c.y.N * kPlaces * quads * c.blocks * kBlock / 8);
  const int64_t an_image = std::min(groups, (tasks + c.y.N - 1) / c.y.N);
  place.parallel(an_image * c.y.N, [&](int64_t task) {
    const int64_t n = task / an_image, piece = task % an_image;
    all.with_one([&](uint8_t* scratch) {
      kernel.conv(c, weight, scratch, n, squares * piece / an_image, squares * (piece + 1) / an_image);
    });
  });
}

}  // namespace onnxq
