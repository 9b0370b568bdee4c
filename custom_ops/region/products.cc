#include "products.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "shapes.h"
#include "tasks.h"

namespace onnxq {
namespace {

// Sums of so many products of codes fit int32.
constexpr int64_t kMostInputs = 1 << 15;
// Rows of a product that are computed at once, and numbers of them that stay in the second-level cache.
constexpr int64_t kMostRows = 64, kFewestRows = 16, kCachedNumbers = 1 << 15;

}  // namespace

Matrices matrices_of(const Placed& t) {
  Matrices made;
  made.N = t.N;
  made.H = t.H;
  made.rows = t.W;
  made.columns = made.row = t.C;
  made.head = t.W * t.C;
  made.image = t.H * made.head;
  return made;
}

void pack_plan(size_t number, const Matrices& b, bool transposed, int32_t zero, bool passes, Packed& made) {
  made.inputs = transposed ? b.columns : b.rows;
  made.outputs = transposed ? b.rows : b.columns;
  made.input = transposed ? 1 : b.row;
  made.output = transposed ? b.row : 1;
  if (made.inputs < 1 || made.inputs > kMostInputs) {
    refuse_stage(number, "multiplies " + std::to_string(made.inputs) + " numbers of a row, and must have 1 to 32768");
  }
  // 128 less the zero point, which as one weight would not fit 8 bits where that is 0.
  for (int32_t left = passes ? 128 - zero : 0; left != 0;) {
    const int32_t each = std::min(left, 127);
    made.passes.push_back(static_cast<int8_t>(each));
    left -= each;
  }
  made.blocks = cover(made.outputs, kBlock);
  for (size_t pass = 0; pass <= made.passes.size(); ++pass) {
    for (int64_t at = 0; at < made.inputs; at += kChunk) {
      made.offsets.push_back(at);
      made.quads.push_back(static_cast<uint8_t>(cover(std::min(kChunk, made.inputs - at), 4)));
    }
  }
  made.chunks = static_cast<int64_t>(made.quads.size());
  product(number, {b.N, b.H, made.blocks, made.chunks, kBlockBytes});
}

void share_out(size_t number, int64_t work, Products& made) {
  const int64_t width = std::max<int64_t>(made.by.biases(), 1);
  made.rows = std::min(std::max(kCachedNumbers / width / 16 * 16, kFewestRows), kMostRows);
  made.blocks = cover(made.a.rows, made.rows);
  made.rows = cover(cover(std::max<int64_t>(made.a.rows, 1), std::max<int64_t>(made.blocks, 1)), 16) * 16;  // of one size
  made.tasks = parts(product(number, {made.y.N, made.y.H, made.blocks}), work);
}

void plan_matmul(size_t number, const Stage& stage, const std::vector<Placed*>& x, Placed& y, Products& made) {
  made.a = matrices_of(*x[0]);
  made.b = matrices_of(*x[1]);
  pack_plan(number, made.b, stage.step.transposed != 0, stage.second_zero, true, made.by);
  if (made.by.inputs != made.a.columns) {
    refuse_stage(number, "multiplies rows of " + std::to_string(made.a.columns) + " by a matrix for " +
                             std::to_string(made.by.inputs));
  }
  Extent shape = *x[1];  // whose matrices are repeated, or those of the first one
  shape.W = y.W;
  shape.C = y.C;
  binary_shape(number, shape, y);
  y.C = made.by.outputs;
  made.y = matrices_of(y);
  made.by.scales.assign(static_cast<size_t>(made.by.biases()), stage.scales[0]);
  made.packed = product(number, {made.b.count(), made.by.bytes()});
  made.biases = round_up_to_line(product(number, {made.b.count(), made.by.biases(), 4}));
  share_out(number, product(number, {made.y.count(), made.a.rows, made.by.bytes() / kChunk}), made);
}

Conv product_of(const Packed& by, const int8_t* weight, const int32_t* bias, const uint8_t* a, int64_t row, int64_t rows) {
  Conv c{};
  c.x = {const_cast<uint8_t*>(a), 1, 1, rows, by.inputs, rows * row, rows * row};
  c.weight = weight;
  c.bias = bias;
  c.scale = by.scales.data();
  c.offsets = by.offsets.data();
  c.quads = by.quads.data();
  c.chunks = by.chunks;
  c.groups = 1;
  c.group_in = by.inputs;
  c.group_out = by.outputs;
  c.blocks = by.blocks;
  c.step_x = row;
  c.step_y = c.x.row;
  return c;
}

void multiply(const ProductRun& run, Conv& c) {
  size_t chosen = 0;
  while (!run.kernels[chosen]->plan(c)) {
    ++chosen;
  }
  run.kernels[chosen]->conv(c, 0, 0, c.units, 0, c.blocks);
}

void pack_all(const ProductRun& run, const Packed& by, const Matrices& b, const uint8_t* codes, int8_t* weights,
              int32_t* totals) {
  const int64_t blocks = b.count() * by.blocks, own = by.codes_chunks();
  in_rows(run.place, blocks, 4 * blocks * own * kBlockBytes, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t number = i / by.blocks, block = i % by.blocks;
      int8_t* const weight = weights + number * by.bytes();
      const Second p = {codes + b.at(number / b.H, number % b.H), by.inputs, by.outputs, by.input, by.output, by.chunks, weight,
                        totals + number * by.biases()};
      run.rows.pack(p, block, block + 1);
      for (size_t pass = 0; pass < by.passes.size(); ++pass) {
        int8_t* const to = weight + (block * by.chunks + static_cast<int64_t>(pass + 1) * own) * kBlockBytes;
        std::memset(to, by.passes[pass], static_cast<size_t>(own * kBlockBytes));
        // Of the last quads, what is behind the inputs must count nothing.
        for (int64_t input = by.inputs; input < own * kChunk; ++input) {
          for (int64_t lane = 0; lane < kBlock; ++lane) {
            to[in_chunks(input, lane)] = 0;
          }
        }
      }
    }
  });
}

void run_matmul(const ProductRun& run) {
  const Products& p = run.plan;
  int8_t* const weights = reinterpret_cast<int8_t*>(run.scratch);
  int32_t* const biases = reinterpret_cast<int32_t*>(run.scratch + p.packed);
  pack_all(run, p.by, p.b, run.x[1], weights, biases);
  // Sums begin less the zero point of a times all of the weights.
  const int32_t zero = run.sources[0]->codes.zero;
  const int64_t shift = p.by.inputs * (128 - run.sources[1]->codes.zero);
  for (int64_t i = 0; i < p.b.count() * p.by.biases(); ++i) {
    const int64_t all = static_cast<int64_t>(biases[i]) + shift;
    biases[i] = static_cast<int32_t>(static_cast<uint32_t>(-all * zero));
  }
  const int64_t units = p.y.count() * p.blocks;
  run.place.parallel(p.tasks, [&](int64_t task) {
    for (int64_t i = units * task / p.tasks; i < units * (task + 1) / p.tasks; ++i) {
      const int64_t number = i / p.blocks, n = number / p.y.H, h = number % p.y.H, row = i % p.blocks * p.rows;
      const int64_t rows = std::min(p.rows, p.a.rows - row), of_b = p.b.number(n, h), to = p.y.at(n, h) + row * p.y.row;
      Conv c = product_of(p.by, weights + of_b * p.by.bytes(), biases + of_b * p.by.biases(),
                          run.x[0] + p.a.at(n, h) + row * p.a.row, p.a.row, rows);
      c.codes = run.stage.codes;
      c.y = {run.codes ? run.codes + to : nullptr, 1, 1, rows, p.y.row, rows * p.y.row, rows * p.y.row};
      c.pixel = p.y.row;
      c.floats = run.floats ? run.floats + to : nullptr;
      multiply(run, c);
    }
  });
}

}  // namespace onnxq
