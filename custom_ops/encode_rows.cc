// Encoding weights to nearest at the speed of reading them. Bit for bit what onnxq/formats does in numpy, which is the
// reference; encode.cc has the search for scales.
//
// Blocks lie one behind the other in memory, or are brought there, a few columns at a time, if they run along an outer
// axis. Any float type comes in: what is not float32 is converted a piece at a time. Loops are plain C++ over whole blocks,
// which the compiler vectorizes for each processor; reductions are over integers (the bits of a float without its sign
// are ordered like its magnitude), because those of floats may not be reordered. Built without contraction of products
// and sums.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "clones.h"
#include "export.h"

#define ONNXQ_INLINE inline __attribute__((always_inline))

namespace {

// How a scale follows from a block, and a code from a weight and its scale. Numbers are those of native.py.
enum Rule : int32_t {
  kRange = 0,     // [min, max] with zero over 0…qmax; zero point
  kAbsmax = 1,    // largest magnitude on qmax
  kExtreme = 2,   // weight of largest magnitude, with its sign, on -qmax - 1
  kLevels = 3,    // largest magnitude times one of 16 levels
  kMicro = 4,     // 16 levels times a power of two: OCP MX
  kGgufSigned = 5,  // as kExtreme, rounded as ggml does
  kGgufAbsmax = 6,  // as kAbsmax with 127, rounded as ggml does
};

enum Type : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kFloat64 = 3 };

constexpr double kLargest = 3.4028e38;  // as in _affine.py
constexpr float kTiny = std::numeric_limits<float>::min();
constexpr uint32_t kInfinite = 0x7f800000;
constexpr int64_t kPiece = 8192;  // elements converted at a time: they stay in the first-level cache

struct Job {
  const void* w;  // [rows, k, inner]
  int32_t type;
  int64_t rows, k, inner, block;
  int32_t rule, qmax;
  const float* middles;  // between ascending levels, 15 of them
  uint8_t* codes;        // [rows, k, inner]
  float* scales;         // [rows, ceil(k / block), inner]
  uint8_t* zeros;        // as scales; kRange only
  // Codes of the ascending levels, the first in the lowest nibble.
  bool is_sorted;
  uint32_t order_low, order_high;
};

// The largest and the smallest number of a block, as magnitudes; 0 where there is none of that sign.
struct Span {
  uint32_t high = 0, low = 0;
  uint32_t largest() const { return std::max(high, low); }
};

ONNXQ_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

ONNXQ_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Half to even for |x| < 2^22, which own scales leave.
ONNXQ_INLINE int32_t round_half_even(float x) { return static_cast<int32_t>(bits_of(x + 12582912.0f)) - 0x4B400000; }

template <int J>
ONNXQ_INLINE int32_t above(float y, const float* middles) {
  if constexpr (J == 0) {
    return 0;
  } else {
    return above<J - 1>(y, middles) + (y > middles[J - 1] ? 1 : 0);
  }
}

// Among the non-negative bit patterns signed order is that of magnitude; among all, unsigned order puts the negative
// numbers on top.
ONNXQ_INLINE Span span(const float* x, int64_t n) {
  int32_t high = 0;
  uint32_t low = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(x[i]);
    high = std::max(high, static_cast<int32_t>(bits));
    low = std::max(low, bits);
  }
  return {static_cast<uint32_t>(high), low >> 31 ? low & 0x7fffffffu : 0u};
}

ONNXQ_INLINE uint32_t largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, bits_of(x[i]) & 0x7fffffffu);
  }
  return largest;
}

// The weight of largest magnitude, with its sign; of equal magnitudes the first.
inline float extreme(const float* x, Span s) {
  if (s.high != s.low) {
    return s.high > s.low ? float_of(s.high) : -float_of(s.low);
  }
  while ((bits_of(*x) & 0x7fffffffu) != s.high) {
    ++x;
  }
  return *x;
}

inline float usable_scale(double scale, double qmax) {
  if (scale < kTiny && scale > -kTiny) {
    return 1.0f;
  }
  const double limit = kLargest / qmax;
  return static_cast<float>(std::max(-limit, std::min(limit, scale)));
}

inline float reciprocal(float d) { return d >= kTiny || d <= -kTiny ? 1.0f / d : 0.0f; }

ONNXQ_INLINE void integers(const float* __restrict x, int64_t n, float scale, int32_t zero, int32_t low, int32_t high,
                           uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t q = round_half_even(x[i] / scale) + zero;
    codes[i] = static_cast<uint8_t>(std::min(std::max(q, low), high));
  }
}

ONNXQ_INLINE void levels(const float* __restrict x, int64_t n, float scale, const Job& job, uint8_t* __restrict codes) {
  float middles[15];
  std::memcpy(middles, job.middles, sizeof middles);
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(above<15>(x[i] / scale, middles));
  }
  if (job.is_sorted) {
    return;
  }
  // A table of 16 nibbles fits two registers, and shifting them is faster than looking up.
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t position = codes[i];
    const uint32_t half = position < 8 ? job.order_low : job.order_high;
    codes[i] = static_cast<uint8_t>((half >> (4 * (position & 7))) & 15);
  }
}

ONNXQ_INLINE void gguf_signed(const float* __restrict x, int64_t n, float inverse, int32_t half,
                              uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    const double step = static_cast<double>(x[i]) * static_cast<double>(inverse) + (half + 0.5);
    const int32_t q = std::min(static_cast<int32_t>(step), 2 * half - 1);
    codes[i] = static_cast<uint8_t>(q - half);
  }
}

ONNXQ_INLINE void gguf_absmax(const float* __restrict x, int64_t n, float inverse, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    const float step = x[i] * inverse;
    const float size = std::min(float_of(bits_of(step) & 0x7fffffffu), 127.0f);
    const int32_t down = static_cast<int32_t>(size);
    const int32_t rounded = down + static_cast<int32_t>(2.0f * (size - static_cast<float>(down)));
    codes[i] = static_cast<uint8_t>(step < 0.0f ? -rounded : rounded);
  }
}

// One block of n elements. Returns whether all of them are finite.
ONNXQ_INLINE bool encode_block(const Job& job, const float* x, int64_t n, uint8_t* codes, float* scale, uint8_t* zero) {
  const double qmax = job.qmax;
  switch (job.rule) {
    case kLevels:
    case kMicro: {
      const uint32_t largest = largest_magnitude(x, n);
      if (largest >= kInfinite) {
        return false;
      }
      if (job.rule == kMicro) {
        const uint32_t exponent = std::max<uint32_t>(largest >> 23, 2) - 2;
        *scale = exponent ? float_of(exponent << 23) : float_of(0x00400000);
      } else {
        *scale = float_of(largest);
      }
      levels(x, n, *scale == 0.0f ? 1.0f : *scale, job, codes);
      return true;
    }
    case kAbsmax: {
      const uint32_t largest = largest_magnitude(x, n);
      if (largest >= kInfinite) {
        return false;
      }
      *scale = usable_scale(static_cast<double>(float_of(largest)) / qmax, qmax);
      integers(x, n, *scale, 0, -job.qmax, job.qmax, codes);
      return true;
    }
    case kGgufAbsmax: {
      const uint32_t largest = largest_magnitude(x, n);
      if (largest >= kInfinite) {
        return false;
      }
      *scale = float_of(largest) / 127.0f;
      gguf_absmax(x, n, reciprocal(*scale), codes);
      return true;
    }
    default: {
      const Span s = span(x, n);
      if (s.largest() >= kInfinite) {
        return false;
      }
      if (job.rule == kRange) {
        const double low = -static_cast<double>(float_of(s.low)), high = static_cast<double>(float_of(s.high));
        *scale = usable_scale((high - low) / qmax, qmax);
        // Half to even for doubles of this size; never below zero.
        const double middle = -low / static_cast<double>(*scale), magic = 6755399441055744.0;
        *zero = static_cast<uint8_t>(std::min((middle + magic) - magic, qmax));
        integers(x, n, *scale, *zero, 0, job.qmax, codes);
      } else if (job.rule == kExtreme) {
        // Of equal magnitudes the negative number, as onnxruntime; ggml takes the first.
        const double outermost = s.high > s.low ? float_of(s.high) : -float_of(s.low);
        *scale = usable_scale(outermost / (-qmax - 1), qmax + 1);
        integers(x, n, *scale, 0, -job.qmax - 1, job.qmax, codes);
      } else {
        *scale = extreme(x, s) / static_cast<float>(-job.qmax - 1);
        gguf_signed(x, n, reciprocal(*scale), job.qmax + 1, codes);
      }
      return true;
    }
  }
}

// Blocks of N elements, known to the compiler where it is a usual number. Returns how many were finite.
template <int64_t N>
ONNXQ_INLINE int64_t encode_blocks(const Job& job, const float* x, int64_t blocks, uint8_t* codes, float* scales,
                                   uint8_t* zeros, int64_t block) {
  const int64_t n = N ? N : block;
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t zero = 0;
    if (!encode_block(job, x + b * n, n, codes + b * n, scales + b, &zero)) {
      return b;
    }
    if (zeros) {
      zeros[b] = zero;
    }
  }
  return blocks;
}

ONNXQ_CLONES int64_t encode_piece(const Job& job, const float* x, int64_t blocks, int64_t n, uint8_t* codes,
                                  float* scales, uint8_t* zeros) {
  switch (n) {
    case 32:
      return encode_blocks<32>(job, x, blocks, codes, scales, zeros, n);
    case 64:
      return encode_blocks<64>(job, x, blocks, codes, scales, zeros, n);
    case 128:
      return encode_blocks<128>(job, x, blocks, codes, scales, zeros, n);
    default:
      return encode_blocks<0>(job, x, blocks, codes, scales, zeros, n);
  }
}

ONNXQ_CLONES void to_float32(const void* w, int32_t type, int64_t first, int64_t n, float* __restrict x) {
  if (type == kFloat16) {
    const uint16_t* from = static_cast<const uint16_t*>(w) + first;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t half = from[i];
      // The exponent moves by 112; the product also makes subnormal halves normal.
      const uint32_t size = bits_of(float_of((half & 0x7fffu) << 13) * 0x1p112f);
      const uint32_t sign = (half & 0x8000u) << 16;
      x[i] = float_of(sign | ((half & 0x7c00u) == 0x7c00u ? size | kInfinite : size));
    }
  } else if (type == kBfloat16) {
    const uint16_t* from = static_cast<const uint16_t*>(w) + first;
    for (int64_t i = 0; i < n; ++i) {
      x[i] = float_of(static_cast<uint32_t>(from[i]) << 16);
    }
  } else {
    const double* from = static_cast<const double*>(w) + first;
    for (int64_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(from[i]);
    }
  }
}

// `count` blocks of `n` elements from `element` on. Returns whether all were finite.
bool encode_run(const Job& job, std::vector<float>& buffer, int64_t element, int64_t count, int64_t n, int64_t block) {
  const int64_t at_once = std::max<int64_t>(1, kPiece / n);
  for (int64_t b = 0; b < count; b += at_once) {
    const int64_t blocks = std::min(at_once, count - b), first = element + b * n;
    const float* x = static_cast<const float*>(job.w) + first;
    if (job.type != kFloat32) {
      buffer.resize(static_cast<size_t>(std::max<int64_t>(kPiece, n)));
      to_float32(job.w, job.type, first, blocks * n, buffer.data());
      x = buffer.data();
    }
    uint8_t* zeros = job.zeros ? job.zeros + block + b : nullptr;
    if (encode_piece(job, x, blocks, n, job.codes + first, job.scales + block + b, zeros) < blocks) {
      return false;
    }
  }
  return true;
}

// Blocks first…last - 1 of the weight, counted by rows.
bool encode_range(const Job& job, int64_t first, int64_t last) {
  std::vector<float> buffer;
  const int64_t full = job.k / job.block, rest = job.k % job.block, per_row = full + (rest > 0);
  if (rest == 0) {  // rows follow each other without a gap
    return encode_run(job, buffer, first * job.block, last - first, job.block, first);
  }
  while (first < last) {
    const int64_t row = first / per_row, b = first % per_row;
    const int64_t whole = std::min(full - b, last - first);
    if (whole > 0 && !encode_run(job, buffer, row * job.k + b * job.block, whole, job.block, first)) {
      return false;
    }
    first += std::max<int64_t>(whole, 0);
    if (first < last && first % per_row == full) {
      if (!encode_run(job, buffer, row * job.k + full * job.block, 1, rest, first)) {
        return false;
      }
      ++first;
    }
  }
  return true;
}

// How many columns are turned into rows at a time: a cache line of codes.
constexpr int64_t kColumns = 64;

struct Columns {
  explicit Columns(int64_t block) : x(static_cast<size_t>(kColumns * block)), codes(x.size()) {}

  std::vector<float> x;        // [columns, n]
  std::vector<uint8_t> codes;  // the same
  float scales[kColumns];
  uint8_t zeros[kColumns];
};

ONNXQ_CLONES void scatter(const float* __restrict from, int64_t columns, int64_t n, float* __restrict to) {
  for (int64_t c = 0; c < columns; ++c) {
    to[c * n] = from[c];
  }
}

ONNXQ_CLONES void gather_codes(const uint8_t* __restrict from, int64_t columns, int64_t n, uint8_t* __restrict to) {
  for (int64_t c = 0; c < columns; ++c) {
    to[c] = from[c * n];
  }
}

// Bands first…last - 1, each the blocks of one number of one row: `inner` of them side by side.
bool encode_bands(const Job& job, int64_t first, int64_t last) {
  Columns t(job.block);
  float line[kColumns];
  const int64_t blocks = (job.k + job.block - 1) / job.block;
  for (int64_t band = first; band < last; ++band) {
    const int64_t start = band % blocks * job.block, n = std::min(job.block, job.k - start);
    const int64_t corner = (band / blocks * job.k + start) * job.inner;
    for (int64_t c = 0; c < job.inner; c += kColumns) {
      const int64_t columns = std::min(kColumns, job.inner - c);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = corner + i * job.inner + c;
        const float* from = static_cast<const float*>(job.w) + at;
        if (job.type != kFloat32) {
          to_float32(job.w, job.type, at, columns, line);
          from = line;
        }
        scatter(from, columns, n, t.x.data() + i);
      }
      uint8_t* zeros = job.zeros ? t.zeros : nullptr;
      if (encode_piece(job, t.x.data(), columns, n, t.codes.data(), t.scales, zeros) < columns) {
        return false;
      }
      for (int64_t i = 0; i < n; ++i) {
        gather_codes(t.codes.data() + i, columns, n, job.codes + corner + i * job.inner + c);
      }
      std::copy_n(t.scales, columns, job.scales + band * job.inner + c);
      if (zeros) {
        std::copy_n(zeros, columns, job.zeros + band * job.inner + c);
      }
    }
  }
  return true;
}

template <typename Work>
void in_threads(int64_t tasks, int32_t threads, const Work& work) {
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(threads, tasks));
  std::vector<std::thread> pool;
  for (int64_t i = 1; i < workers; ++i) {
    pool.emplace_back(work, tasks * i / workers, tasks * (i + 1) / workers);
  }
  work(0, tasks / workers);
  for (auto& thread : pool) {
    thread.join();
  }
}

// Of the two codes of a byte the first goes to the bits from `low` on. Pairs are read as one number of 16 bits.
ONNXQ_CLONES void pack_range(const uint8_t* __restrict codes, int64_t first, int64_t last, bool high_first,
                             uint32_t flip, uint8_t* __restrict packed) {
  for (int64_t i = first; i < last; ++i) {
    uint16_t pair;
    std::memcpy(&pair, codes + 2 * i, sizeof pair);
    const uint32_t one = pair & 15, other = (pair >> 8) & 15;
    packed[i] = static_cast<uint8_t>((high_first ? one << 4 | other : one | other << 4) ^ flip);
  }
}

// Squares of 64 by 64 bytes are turned in the cache; memory is read and written a line at a time, as strides of powers
// of two would fall on the same few lines of the cache.
ONNXQ_CLONES void transpose_bands(const uint8_t* __restrict from, int64_t rows, int64_t columns, int64_t first,
                                  int64_t last, uint8_t* __restrict to) {
  uint8_t square[kColumns * kColumns] = {}, turned[kColumns * kColumns];
  for (int64_t band = first; band < last; ++band) {
    const int64_t c0 = band * kColumns, width = std::min(columns - c0, kColumns);
    for (int64_t r0 = 0; r0 < rows; r0 += kColumns) {
      const int64_t height = std::min(rows - r0, kColumns);
      for (int64_t r = 0; r < height; ++r) {
        std::memcpy(square + r * kColumns, from + (r0 + r) * columns + c0, static_cast<size_t>(width));
      }
      for (int64_t c = 0; c < kColumns; ++c) {
        for (int64_t r = 0; r < kColumns; ++r) {
          turned[c * kColumns + r] = square[r * kColumns + c];
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        std::memcpy(to + (c0 + c) * rows + r0, turned + c * kColumns, static_cast<size_t>(height));
      }
    }
  }
}

}  // namespace

// Encodes [rows, k, inner] weights of `type`, `block` along k sharing a scale. Returns 1, or 0 at the first block with a
// number that is not finite as float32; what was written then is of no use.
ONNXQ_EXPORT int32_t onnxq_encode_rows(const void* w, int32_t type, int64_t rows, int64_t k, int64_t inner,
                                       int64_t block, int32_t rule, int32_t qmax, const float* middles, const uint8_t* order, uint8_t* codes,
                                       float* scales, uint8_t* zeros, int32_t threads) {
  Job job{w, type, rows, k, inner, block, rule, qmax, middles, codes, scales, zeros, true, 0, 0};
  for (uint32_t j = 0; order && j < 16; ++j) {
    job.is_sorted = job.is_sorted && order[j] == j;
    (j < 8 ? job.order_low : job.order_high) |= static_cast<uint32_t>(order[j]) << (4 * (j & 7));
  }
  std::atomic<int32_t> finite{1};
  in_threads(rows * ((k + block - 1) / block), threads, [&](int64_t first, int64_t last) {
    if (!(inner == 1 ? encode_range(job, first, last) : encode_bands(job, first, last))) {
      finite = 0;
    }
  });
  return finite;
}

// Two codes a byte, the first of two in the low nibble or, with `high_first`, in the high one; `pairs` bytes. The bits
// of `flip` are inverted: 0x88 adds 8 to every code.
ONNXQ_EXPORT void onnxq_pack_nibbles(const uint8_t* codes, int64_t pairs, int32_t high_first, int32_t flip,
                                     uint8_t* packed, int32_t threads) {
  in_threads(pairs, threads, [=](int64_t first, int64_t last) {
    pack_range(codes, first, last, high_first != 0, static_cast<uint32_t>(flip), packed);
  });
}

// [rows, columns] bytes as [columns, rows].
ONNXQ_EXPORT void onnxq_transpose(const uint8_t* from, int64_t rows, int64_t columns, uint8_t* to, int32_t threads) {
  in_threads((columns + kColumns - 1) / kColumns, threads, [=](int64_t first, int64_t last) {
    transpose_bands(from, rows, columns, first, last, to);
  });
}
