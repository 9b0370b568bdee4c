#include "gather.h"

namespace onnxq {
namespace {

// Where it is called with a constant for `format`, the loop has no test of it.
inline __attribute__((always_inline)) void decode_block(const uint8_t* line, int32_t format, float scale, float zero,
                                                        int64_t size, float* y) {
  for (int64_t k = 0; k < size; ++k) {
    const uint8_t byte = line[code_byte(format, 0, k)];
    const uint8_t code = format == kInt8 ? byte : in_high_nibble(k) ? byte >> 4 : byte & 15;
    y[k] = scale * (is_affine(format) ? static_cast<float>(code) - zero : kLevels[format][code]);
  }
}

}  // namespace

void gather_row(const Problem& p, int64_t row, float* y) {
  const int64_t tile = row / kTile, count = blocks(p.K, p.block);
  const uint8_t* weight = p.weight + tile * tile_bytes(p.format, count * p.block) + code_byte(p.format, row, 0);
  for (int64_t b = 0; b < count; ++b) {
    const int64_t start = b * p.block, at = (tile * count + b) * kTile + row % kTile;
    const int64_t size = p.K - start < p.block ? p.K - start : p.block;
    const float scale = scale_at(p.scales, p.scale_type, at);
    const float zero = p.zero_points ? p.zero_points[at] : middle_code(p.format);
    const uint8_t* line = weight + code_byte(p.format, 0, start);
    if (p.format == kInt4) {
      decode_block(line, kInt4, scale, zero, size, y + start);
    } else if (p.format == kInt8) {
      decode_block(line, kInt8, scale, zero, size, y + start);
    } else {
      decode_block(line, p.format, scale, zero, size, y + start);
    }
  }
}

}  // namespace onnxq
