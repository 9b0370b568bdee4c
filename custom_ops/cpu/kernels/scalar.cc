// For every processor: what the others are measured against. A task is a tile of 16 rows of the weight, whose blocks are
// decoded once for all rows of x.

#include "../kernel.h"

namespace onnxq {
namespace {

// value(code) of one block of a tile, as values[k][row].
void decode(const Problem& p, const uint8_t* weight, const uint8_t* zero_points, float (*values)[kTile]) {
  float zeros[kTile];
  for (int64_t row = 0; row < kTile; ++row) {
    zeros[row] = zero_points ? zero_points[row] : middle_code(p.format);
  }
  for (int64_t k = 0; k < p.block; ++k) {
    for (int64_t row = 0; row < kTile; ++row) {
      const uint8_t* const at = weight + code_byte(p.format, row, k);
      if (is_dense(p.format)) {
        const auto bits = static_cast<uint16_t>(at[0] | at[1] << 8);
        values[k][row] = p.format == kDenseFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
        continue;
      }
      const uint8_t byte = *at;
      const uint8_t code = p.format == kInt8 ? byte : in_high_nibble(k) ? byte >> 4 : byte & 15;
      values[k][row] = is_affine(p.format) ? static_cast<float>(code) - zeros[row] : kLevels[p.format][code];
    }
  }
}

int64_t workspace(const Problem&) { return 0; }

int64_t tasks(const Problem& p, int phase) { return phase == 0 ? tiles(p.N) : 0; }

void run(const Problem& p, int, int64_t tile, int64_t, void*) {
  const int64_t Kp = padded(p.K, p.block), first = tile * kTile;
  const int64_t rows = p.N - first < kTile ? p.N - first : kTile;
  const uint8_t* weight = p.weight + tile * tile_bytes(p.format, Kp);
  float values[kMaxBlock][kTile], scale[kTile];
  for (int64_t b = 0; b < blocks(p.K, p.block); ++b) {
    const int64_t start = b * p.block, at = (tile * blocks(p.K, p.block) + b) * kTile;
    const int64_t size = p.K - start < p.block ? p.K - start : p.block;
    decode(p, weight + code_byte(p.format, 0, start), p.zero_points ? p.zero_points + at : nullptr, values);
    for (int64_t row = 0; row < kTile; ++row) {
      scale[row] = scale_at(p.scales, p.scale_type, at + row);
    }
    for (int64_t m = 0; m < p.M; ++m) {
      const float* x = p.x + m * p.K + start;
      float sum[kTile] = {};
      for (int64_t k = 0; k < size; ++k) {
        for (int64_t row = 0; row < kTile; ++row) {
          sum[row] += x[k] * values[k][row];
        }
      }
      float* y = p.y + m * p.N + first;
      for (int64_t row = 0; row < rows; ++row) {
        const float before = b ? y[row] : p.bias ? p.bias[first + row] : 0.0f;
        y[row] = before + scale[row] * sum[row];
      }
    }
  }
}

}  // namespace

extern const Kernel kernel_scalar;
constexpr Kernel kernel_scalar = {"scalar", 0, workspace, tasks, run};

}  // namespace onnxq
