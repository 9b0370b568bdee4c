#include <algorithm>
#include <string>

#include "moments.h"
#include "row_stage.h"
#include "shapes.h"

namespace onnxq {
namespace {

void require_rows(size_t number, const Placed& x) {
  if (!x.is_rows()) {
    refuse_stage(number, "reads rows of what is no matrix, and no stack of them");
  }
}

void require_numbers(size_t number, size_t size, int64_t channels, const char* what) {
  if (size && size != static_cast<size_t>(channels)) {
    refuse_stage(number, "has as its " + std::string(what) + " " + std::to_string(size) + " numbers for " +
                             std::to_string(channels) + " channels");
  }
}

// Rows of cos and sin begin again for each matrix, or are one for all.
void rotary(size_t number, const std::vector<Placed*>& x) {
  const Placed& rows = *x[0];
  for (const Placed* each : {x[1], x[2]}) {
    const bool fits = (each->W == rows.W || each->W == 1) && each->C == rows.C && each->N == 1 && each->H == 1;
    if (!fits || rows.C % 2) {
      refuse_stage(number, "turns rows by numbers whose shape is not theirs");
    }
  }
}

}  // namespace

Placed row_shape(size_t number, const Stage& stage, const std::vector<Placed*>& x, Plan& plan) {
  const Step& step = stage.step;
  Placed made;
  if (!x.empty()) {
    static_cast<Extent&>(made) = *x[0];
  }
  for (const Placed* each : x) {
    if (step.does != Does::kInstanceNorm) {
      require_rows(number, *each);
    }
  }
  std::shared_ptr<Products> products;
  int64_t scratch = 0;
  switch (step.does) {
    case Does::kRead:
      made = of_shape(number, plan.inputs[static_cast<size_t>(step.in)], step.stack);
      made.in = step.in;
      break;
    case Does::kWrite:
      plan.outputs[static_cast<size_t>(step.out)] = dims(made);
      if (x[0]->in == kNone && x[0]->out == kNone) {
        x[0]->out = step.out;  // where it is made at once
      }
      made.C = 0;
      break;
    case Does::kPlus:
      binary_shape(number, *x[1], made);
      break;
    case Does::kNorm:
      require_numbers(number, stage.factors.size(), made.C, "weight");
      require_numbers(number, stage.starts.size(), made.C, "bias");
      break;
    case Does::kInstanceNorm:
      if (x[0]->is_rows()) {
        refuse_stage(number, "normalizes channels of a matrix");
      }
      if (stage.factors.empty() || stage.starts.empty() || made.C % step.group) {
        refuse_stage(number, "has no weight or bias, or groups of different sizes");
      }
      require_numbers(number, stage.factors.size(), made.C, "weight");
      require_numbers(number, stage.starts.size(), made.C, "bias");
      scratch = product(number, {made.N, made.C, MomentMemory<int64_t>::bytes_of_channel(pieces_of_moments(made.H))});
      break;
    case Does::kRotary:
      rotary(number, x);
      break;
    case Does::kMatMul:
    case Does::kAttention:
      products = std::make_shared<Products>();
      (step.does == Does::kMatMul ? plan_matmul : plan_attention)(number, stage, x, made, *products);
      scratch = products->scratch();
      x[0]->behind = std::max(x[0]->behind, read_behind(product(number, {products->a.row})));
      break;
    default:
      break;
  }
  plan.products.resize(number);
  plan.products.push_back(products);
  plan.scratch.resize(number);
  plan.scratch.emplace_back().bytes = round_up_to_line(scratch);
  return made;
}

}  // namespace onnxq
