// softmax(factor · q kᵀ + mask) v of codes, a few rows of scores at a time: products of codes, float32 between. What a token
// weighs, relative to the largest weight of the row, is rounded to 8 bits before v is multiplied by it; the sum that all is
// divided by is that of weights as they were.

#include <algorithm>
#include <string>
#include <utility>

#include "products.h"
#include "shapes.h"

namespace onnxq {
namespace {

constexpr int64_t kMostTokens = 1 << 15;
// What is added to scores of tokens that are not to count.
constexpr float kHidden = -1e30f;

// Matrices of a tensor whose heads lie side by side in its rows, or of a stack of these.
Matrices heads_of(size_t number, const Step& step, size_t which, const Placed& t, int64_t size) {
  if (!t.is_rows()) {
    refuse_stage(number, "attends to what is no matrix, and no stack of them");
  }
  if (!step.joined[which]) {
    return matrices_of(t);
  }
  const int64_t first = which < 3 ? step.first[which] : 0;
  if (t.H != 1 || size < 1 || step.heads < 1 || first > t.C || step.heads > (t.C - first) / size) {
    refuse_stage(number, "reads " + std::to_string(step.heads) + " heads of " + std::to_string(size) +
                             " numbers where rows have " + std::to_string(t.C));
  }
  Matrices made;
  made.N = t.N;
  made.H = step.heads;
  made.rows = t.W;
  made.columns = made.head = size;
  made.row = t.C;
  made.image = t.W * t.C;
  made.first = first;
  return made;
}

bool serves(const Matrices& some, const Matrices& all) {
  return (some.N == 1 || some.N == all.N) && (some.H == 1 || some.H == all.H);
}

// How many tokens it takes to hold all that these rows of a mask show; all where a row shows none.
int64_t tokens_seen(const float* mask, int64_t row, int64_t token, int64_t rows, int64_t tokens) {
  if (!mask || !token) {
    return tokens;
  }
  int64_t most = 0;
  for (int64_t r = 0; r < (row ? rows : 1) && most < tokens; ++r) {
    int64_t t = tokens;
    while (t > most && mask[r * row + (t - 1) * token] <= kHidden) {
      --t;
    }
    if (t == most) {  // whether there is one before that
      while (t > 0 && mask[r * row + (t - 1) * token] <= kHidden) {
        --t;
      }
      if (t == 0) {
        return tokens;
      }
    }
    most = std::max(most, t);
  }
  return most;
}

// One task's memory.
struct Scratchpad {
  float* scores;
  uint8_t* weights;
  float *sums, *of_weights;
  int32_t* totals;
};

class Attention {
 public:
  explicit Attention(const ProductRun& run)
      : run_(run), p_(run.plan),
        keys_(reinterpret_cast<int8_t*>(run.scratch)),
        values_(keys_ + p_.b.count() * p_.by.bytes()),
        biases_(reinterpret_cast<int32_t*>(run.scratch + p_.packed)),
        zeros_(biases_ + p_.b.count() * p_.by.biases()) {}

  void all() const {
    pack_all(run_, p_.by, p_.b, run_.x[1], keys_, biases_);
    pack_all(run_, p_.values, p_.v, run_.x[2], values_, zeros_);
    // Scores begin less the zero point of q times k. What that of k would take off is the same for all tokens.
    for (int64_t i = 0; i < p_.b.count() * p_.by.biases(); ++i) {
      biases_[i] *= -run_.sources[0]->codes.zero;
    }
    std::fill(zeros_, zeros_ + p_.v.count() * p_.values.biases(), 0);
    const int64_t units = p_.y.count() * p_.blocks;
    run_.place.parallel(p_.tasks, [&](int64_t task) {
      const Scratchpad own = scratchpad(task);
      for (int64_t i = units * task / p_.tasks; i < units * (task + 1) / p_.tasks; ++i) {
        const int64_t number = i / p_.blocks;
        rows_of(number / p_.y.H, number % p_.y.H, i % p_.blocks * p_.rows, own);
      }
    });
  }

 private:
  Scratchpad scratchpad(int64_t task) const {
    uint8_t* const at = run_.scratch + p_.packed + p_.biases + task * p_.of_task;
    uint8_t* const weights = at + p_.scores;
    float* const sums = reinterpret_cast<float*>(weights + p_.weights);
    float* const of_weights = sums + p_.sums / 4;
    return {reinterpret_cast<float*>(at), weights, sums, of_weights, reinterpret_cast<int32_t*>(of_weights + p_.rows)};
  }

  void rows_of(int64_t n, int64_t h, int64_t row, const Scratchpad& own) const {
    const int64_t rows = std::min(p_.rows, p_.a.rows - row), width = p_.by.biases(), E = p_.values.outputs;
    const float* const mask = run_.mask ? run_.mask + p_.mask.at(n, h) + (p_.mask.rows == 1 ? 0 : row * p_.mask.row) : nullptr;
    const int64_t mask_row = p_.mask.rows == 1 ? 0 : p_.mask.row, mask_token = p_.mask.columns == 1 ? 0 : 1;
    const int64_t seen = tokens_seen(mask, mask_row, mask_token, rows, p_.by.outputs);
    const int64_t key = p_.b.number(n, h), value = p_.v.number(n, h);
    Conv c = product_of(p_.by, keys_ + key * p_.by.bytes(), biases_ + key * width, run_.x[0] + p_.a.at(n, h) + row * p_.a.row,
                        p_.a.row, rows);
    c.group_out = seen;
    c.blocks = (seen + kBlock - 1) / kBlock;
    c.y = {nullptr, 1, 1, rows, width, 0, 0};
    c.floats = own.scores;
    multiply(run_, c);
    const int64_t chunks = (seen + kChunk - 1) / kChunk;
    run_.rows.weigh({own.scores, mask, rows, width, seen, mask_row, mask_token, own.weights, p_.weights_row, chunks * kChunk,
                     own.of_weights, own.totals});
    // With fewer chunks, blocks are as far apart as they were.
    const bool is_whole = chunks == p_.values.chunks;
    for (int64_t block = 0; block < p_.values.blocks; block += is_whole ? p_.values.blocks : 1) {
      Conv by_values = product_of(p_.values, values_ + value * p_.values.bytes() + block * p_.values.chunks * kBlockBytes, zeros_,
                                  own.weights, p_.weights_row, rows);
      by_values.chunks = chunks;
      if (!is_whole) {
        by_values.group_out = std::min(kBlock, E - block * kBlock);
        by_values.blocks = 1;
      }
      by_values.y = {nullptr, 1, 1, rows, E, 0, 0};
      by_values.floats = own.sums + block * kBlock;
      multiply(run_, by_values);
    }
    run_.rows.average({own.sums, own.of_weights, own.totals, p_.values.scales[0] * static_cast<float>(128 - run_.sources[2]->codes.zero),
                       rows, E, run_.codes + p_.y.at(n, h) + row * p_.y.row, p_.y.row, run_.stage.scale, run_.stage.codes});
  }

  const ProductRun& run_;
  const Products& p_;
  int8_t *keys_, *values_;
  int32_t *biases_, *zeros_;
};

}  // namespace

void plan_attention(size_t number, const Stage& stage, const std::vector<Placed*>& x, Placed& y, Products& made) {
  const Step& step = stage.step;
  made.a = heads_of(number, step, 0, *x[0], step.width[0]);
  made.b = heads_of(number, step, 1, *x[1], step.width[0]);
  made.v = heads_of(number, step, 2, *x[2], step.width[1]);
  pack_plan(number, made.b, !step.transposed, 128, false, made.by);
  pack_plan(number, made.v, false, 128, false, made.values);
  made.y = made.a;
  made.y.columns = made.values.outputs;
  const bool turns_heads = step.transposed && step.joined[1];
  if (turns_heads || made.by.inputs != made.a.columns || made.values.inputs != made.by.outputs || made.values.inputs > kMostTokens ||
      !serves(made.b, made.a) || !serves(made.v, made.a)) {
    refuse_stage(number, "attends to tensors whose shapes do not go together");
  }
  y = *x[0];
  y.W = made.a.rows;
  y.H = step.joined[3] ? 1 : made.a.H;
  y.C = (step.joined[3] ? made.a.H : 1) * made.values.outputs;
  y.rank = step.joined[3] ? 3 : step.joined[0] ? 4 : x[0]->rank;
  y.is_stack = y.rank > 2;
  product(number, {y.N, y.H, y.W, y.C});
  Step as_made = step;
  as_made.heads = made.a.H;
  made.y = heads_of(number, as_made, 3, y, made.values.outputs);
  if (x.size() > 3) {
    made.mask = matrices_of(*x[3]);
    const int64_t rank = step.joined[0] ? 4 : x[0]->rank;
    if (x[3]->rank == 3 && rank == 4) {  // which are repeated for all images
      std::swap(made.mask.N, made.mask.H);
      std::swap(made.mask.image, made.mask.head);
    }
    const bool fits = x[3]->is_rows() && x[3]->rank <= rank && serves(made.mask, made.a) && (made.mask.rows == 1 || made.mask.rows == made.a.rows) &&
                      (made.mask.columns == 1 || made.mask.columns == made.by.outputs);
    if (!fits) {
      refuse_stage(number, "adds a mask whose shape is not that of its scores");
    }
  }
  made.by.scales.assign(static_cast<size_t>(made.by.biases()), stage.scales[0]);
  made.values.scales.assign(static_cast<size_t>(made.values.biases()), stage.scales[1]);
  made.packed = product(number, {made.b.count(), made.by.bytes()}) + product(number, {made.v.count(), made.values.bytes()});
  made.biases = round_up_to_line(4 * (made.b.count() * made.by.biases() + made.v.count() * made.values.biases()));
  share_out(number, product(number, {made.y.count(), made.a.rows, 2 * made.by.bytes() / kChunk}), made);
  made.scores = round_up_to_line(4 * made.rows * made.by.biases());
  made.weights_row = made.values.chunks * kChunk;
  made.weights = round_up_to_line(made.rows * made.weights_row + read_behind(made.weights_row));
  made.sums = round_up_to_line(4 * made.rows * made.values.outputs);
  made.of_task = made.scores + made.weights + made.sums + round_up_to_line(8 * made.rows);
}

void run_attention(const ProductRun& run) { Attention(run).all(); }

}  // namespace onnxq
