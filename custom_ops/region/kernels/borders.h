// Between float32, where channels lie apart, and codes, where they lie side by side: sixteen channels of sixteen pixels are
// turned in registers. The numbers are those of simple.h.

#ifndef ONNXQ_REGION_BORDERS_H_
#define ONNXQ_REGION_BORDERS_H_

#include <emmintrin.h>

#include "planes.h"
#include "simple.h"

namespace onnxq {
namespace {

constexpr int64_t kTurned = 16;

// Rows become columns: bytes that are eight rows apart are put side by side, four times.
inline void turn(uint8_t* bytes) {
  __m128i rows[kTurned], next[kTurned];
  for (int64_t i = 0; i < kTurned; ++i) {
    rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i * kTurned));
  }
  for (int64_t step = 0; step < 4; ++step) {
    for (int64_t i = 0; i < kTurned / 2; ++i) {
      next[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
      next[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
    }
    memcpy(rows, next, sizeof rows);
  }
  for (int64_t i = 0; i < kTurned; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i * kTurned), rows[i]);
  }
}

// Up to sixteen; all of them most of the time, by one instruction.
template <typename T>
inline void copy_some(T* to, const T* from, int64_t size) {
  size == kTurned ? memcpy(to, from, kTurned * sizeof(T)) : memcpy(to, from, static_cast<size_t>(size) * sizeof(T));
}

// work(codes of the first pixel, floats of the first channel, channels, pixels) for squares of at most sixteen.
template <_mm_hint hint, typename Work>
inline void in_squares(const Border& p, int64_t first, int64_t last, const Work& work) {
  const int64_t C = p.codes.C;
  in_pieces(p, first, last, [&](const RowPiece& piece) {
    for (int64_t c = 0; c < C; c += kTurned) {
      const int64_t channels = C - c < kTurned ? C - c : kTurned;
      for (int64_t x = 0; x < piece.pixels; x += kTurned) {
        float* const floats = piece.floats(c) + x;
        fetch<hint>(floats, piece.plane, channels);
        work(piece.codes + x * C + c, floats, channels, piece.pixels - x < kTurned ? piece.pixels - x : kTurned);
      }
    }
  });
}

inline void quantize_turned(const Border& p, int64_t first, int64_t last) {
  const int64_t C = p.codes.C, plane = p.codes.H * p.codes.W;
  if (C < kTurned / 2) {
    return quantize_simple(p, first, last);
  }
  const Codes all = {p.zero, 0, 255};
  const float scale = p.scale;
  in_squares<_MM_HINT_T0>(p, first, last, [&](uint8_t* to, const float* from, int64_t channels, int64_t pixels) {
    float values[kTurned * kTurned] = {};
    for (int64_t j = 0; j < channels; ++j) {
      copy_some(values + j * kTurned, from + j * plane, pixels);
    }
    uint8_t flat[kTurned * kTurned];
    for (int64_t i = 0; i < kTurned * kTurned; ++i) {  // in one loop, which compilers make vectors of
      flat[i] = to_code(values[i] / scale, all);
    }
    turn(flat);
    for (int64_t i = 0; i < pixels; ++i) {
      copy_some(to + i * C, flat + i * kTurned, channels);
    }
  });
}

inline void dequantize_turned(const Border& p, int64_t first, int64_t last) {
  const int64_t C = p.codes.C, plane = p.codes.H * p.codes.W;
  if (C < kTurned / 2) {
    return dequantize_simple(p, first, last);
  }
  const float scale = p.scale;
  const int32_t zero = p.zero;
  in_squares<_MM_HINT_ET0>(p, first, last, [&](const uint8_t* from, float* to, int64_t channels, int64_t pixels) {
    uint8_t flat[kTurned * kTurned] = {};
    for (int64_t i = 0; i < pixels; ++i) {
      copy_some(flat + i * kTurned, from + i * C, channels);
    }
    turn(flat);
    float values[kTurned * kTurned];
    for (int64_t i = 0; i < kTurned * kTurned; ++i) {
      values[i] = static_cast<float>(flat[i] - zero) * scale;
    }
    for (int64_t j = 0; j < channels; ++j) {
      copy_some(to + j * plane, values + j * kTurned, pixels);
    }
  });
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_REGION_BORDERS_H_
