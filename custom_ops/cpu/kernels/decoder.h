// Weights with codes, decoded to panels of bfloat16 tiles in the pauses between the products of AMX.
//
//     panel  bfloat16 [steps][2 halves][16 pairs of k][16 columns][2]    B tiles; a pair is the 32-bit lane of a column

#ifndef ONNXQ_CPU_KERNELS_DECODER_H_
#define ONNXQ_CPU_KERNELS_DECODER_H_

#include "float32.h"
#include "panels.h"

namespace onnxq {
namespace {

// Decoded numbers are cut to bfloat16: rounding takes two more of the instructions that are the bottleneck. What cutting takes
// away on average, 2^-8 · mean of 1 / mantissa = 2^-8 / (2 ln 2), scales are given before. So the error is 1.05 times that of
// rounding, and numbers that bfloat16 holds stay as they are.
constexpr float kCutAway = 1.0f + 0.7213475f / 256;

// value = code · scale + offset.
struct Scaling {
  __m512 scale, offset;
};

template <int kScale>
Scaling scaling(const Problem& p, const char* scales, const uint8_t* zero_points) {
  const __m512 scale = load_scales<Zmm, kScale>(scales), zero = zero_of<Zmm>(p, zero_points);
  // 16 bits of it: the product with a zero point is exact, and that code becomes 0.
  const __m512i grown = (__m512i)Zmm::multiply(scale, _mm512_set1_ps(kCutAway));
  const __m512 used = (__m512)_mm512_and_si512(grown, _mm512_set1_epi32(~0xFF));
  return {used, Zmm::subtract(Zmm::zero(), Zmm::multiply(zero, used))};
}

// The upper halves of two vectors of one k each, k and k + 1, as pairs: lane n = {k, k + 1} of column n.
void store_pair(uint8_t* to, __m512 first, __m512 second) {
  const __m512i words = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0, 0, 14, 15, 0, 0));
  _mm512_storeu_si512(to, _mm512_mask_shuffle_epi8((__m512i)second, 0x3333333333333333, (__m512i)first, words));
}

template <class Codes, int i>
inline __attribute__((always_inline)) void decode_pairs(const Codes& codes, __m512i line, const Scaling& by, uint8_t* to) {
  if constexpr (i < Codes::kCount) {
    const auto value = [&](__m512 code) { return Zmm::fma(code, by.scale, by.offset); };
    store_pair(to + i / 2 * 64, value(codes.template get<i>(line)), value(codes.template get<i + 1>(line)));
    decode_pairs<Codes, i + 2>(codes, line, by, to);
  }
}

// Decodes a panel in the pauses between products, line after line: first one half, then the other.
template <class Codes, int kScale>
class Decoder {
 public:
  explicit Decoder(const Problem& p) : p_(p), codes_(p.format) {}

  // Bytes `ahead` are fetched: a later panel's.
  void begin(const Group& g, const Chunk& c, int64_t ahead, uint8_t* panel, int64_t pauses) {
    const int64_t k = c.first * kStep, whole = c.count * kStep, real = padded(p_.K, p_.block) - k;
    group_ = g, k_ = k, ahead_ = ahead, panel_ = panel;
    lines_ = (real < whole ? real : whole) / Codes::kCount;
    due_ = 0, pauses_ = pauses;
    if (real < whole) {  // half a tile, as blocks are multiples of 16
      memset(panel + (c.count - 1) * kPairBytes + kTileBytes / 2, 0, kTileBytes / 2);
      memset(panel + c.count * kPairBytes - kTileBytes / 2, 0, kTileBytes / 2);
    }
    begin_half(0);
  }

  // Called as often as `pauses` says, decodes all.
  inline __attribute__((always_inline)) void pause() {
    for (due_ += kVectors * lines_; due_ >= pauses_; due_ -= pauses_) {
      decode_line();
    }
  }

  void finish() {
    while (half_ < kVectors) {
      decode_line();
    }
    lines_ = 0;
  }

 private:
  void begin_half(int half) {
    half_ = half, done_ = 0;
    if (half < kVectors) {
      const int64_t block = k_ / p_.block;
      line_ = group_.weight[half] + k_ / Codes::kCount * kLine;
      scale_ = group_.scales[half] + block * kTile * scale_bytes(kScale);
      zero_point_ = group_.zero_points[half] ? group_.zero_points[half] + block * kTile : nullptr;
      to_ = panel_ + half * kTileBytes;
      begin_block((block + 1) * p_.block - k_);
    }
  }

  void begin_block(int64_t k) {
    scaling_ = scaling<kScale>(p_, scale_, zero_point_);
    scale_ += kTile * scale_bytes(kScale);
    zero_point_ += zero_point_ ? kTile : 0;
    of_block_ = k / Codes::kCount;
  }

  inline __attribute__((always_inline)) void decode_line() {
    constexpr int64_t kLinesOfTile = kStep / Codes::kCount;
    if (of_block_ == 0) {
      begin_block(p_.block);
    }
    _mm_prefetch(reinterpret_cast<const char*>(line_) + ahead_, _MM_HINT_T1);
    const Codes codes = codes_;  // copies: else they are read again after everything that is stored
    const Scaling by = scaling_;
    decode_pairs<Codes, 0>(codes, Zmm::load(line_), by, to_);
    --of_block_;
    line_ += kLine;
    to_ += kTileBytes / kLinesOfTile;
    if (++done_ % kLinesOfTile == 0) {
      to_ += kPairBytes - kTileBytes;
    }
    if (done_ == lines_) {
      begin_half(half_ + 1);
    }
  }

  const Problem& p_;
  const Codes codes_;
  Group group_ = {};
  int64_t k_ = 0, ahead_ = 0, due_ = 0, pauses_ = 1;
  uint8_t* panel_ = nullptr;
  int64_t lines_ = 0, done_ = 0, of_block_ = 0;  // lines of a half, of these done, to the end of the block
  int half_ = 0;
  // The next line:
  const uint8_t* line_ = nullptr;
  const char* scale_ = nullptr;
  const uint8_t* zero_point_ = nullptr;
  uint8_t* to_ = nullptr;
  Scaling scaling_ = {};
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_DECODER_H_
