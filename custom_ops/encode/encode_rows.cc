// Encoding weights to nearest at the speed of reading them. Bit for bit what onnxq/formats does in numpy, which is the
// reference; encode.cc has the search for scales.
//
// Blocks lie one behind the other in memory or, if they run along an outer axis, side by side. Any float type comes in:
// what is not float32 is converted a piece at a time. Loops are plain C++ over whole blocks, which the compiler
// vectorizes for each processor; reductions are over integers (the bits of a float without its sign are ordered like its
// magnitude), because those of floats may not be reordered. Built without contraction of products and sums.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../base/export.h"
#include "../base/convert.h"
#include "../base/threads.h"
#include "encode_rules.h"

namespace onnxq {
namespace encoding {
namespace {

constexpr int64_t kPiece = 8192;  // elements converted at a time: they stay in the first-level cache

// Blocks of N elements, known to the compiler where it is a usual number. Returns how many were finite.
template <int64_t N>
ONNXQ_INLINE int64_t encode_blocks(const Job& job, const float* x, int64_t blocks, uint8_t* codes, float* scales,
                                   uint8_t* zeros, int64_t block) {
  const int64_t n = N ? N : block;
  const bool needs_sign = job.rule == kRange || job.rule == kExtreme || job.rule == kGgufSigned;
  for (int64_t b = 0; b < blocks; ++b, x += n) {
    OneBlock one;
    const Span s = needs_sign ? span(x, n) : Span{largest_magnitude(x, n), 0};
    if (!find_scale(job, s, x, 1, scales + b, &one)) {
      return b;
    }
    encode(job, x, n, one, codes + b * n);
    if (zeros) {
      zeros[b] = static_cast<uint8_t>(one.zero_point);
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

void to_float32(const void* w, int32_t type, int64_t first, int64_t n, float* x) {
  if (type == kFloat16 || type == kBfloat16) {
    const auto convert = type == kFloat16 ? from_half : from_bfloat16;
    convert(static_cast<const uint16_t*>(w) + first, x, n);
  } else {
    from_double(static_cast<const double*>(w) + first, x, n);
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

// How many columns are worked on at a time: a cache line of codes.
constexpr int64_t kColumns = 64;

// A block in each column of `x`, [n, kColumns]: the numbers of each column's scale, then its codes, a row at a time.
ONNXQ_CLONES void column_spans(const float* __restrict x, int64_t n, int32_t* __restrict high,
                               uint32_t* __restrict low) {
  for (int64_t i = 0; i < n; ++i, x += kColumns) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const uint32_t bits = float_to_bits(x[c]);
      high[c] = std::max(high[c], static_cast<int32_t>(bits));
      low[c] = std::max(low[c], bits);
    }
  }
}

ONNXQ_CLONES void encode_line(const Job& job, const float* x, const float* factors, const int32_t* zeros,
                              uint8_t* codes) {
  encode(job, x, kColumns, ManyBlocks{factors, zeros}, codes);
}

// Bands first…last - 1, each the blocks of one number of one row: `inner` of them side by side.
bool encode_bands(const Job& job, int64_t first, int64_t last) {
  std::vector<float> buffer(static_cast<size_t>(kColumns * job.block));
  const int64_t blocks = (job.k + job.block - 1) / job.block;
  for (int64_t band = first; band < last; ++band) {
    const int64_t start = band % blocks * job.block, n = std::min(job.block, job.k - start);
    const int64_t corner = (band / blocks * job.k + start) * job.inner;
    for (int64_t c0 = 0; c0 < job.inner; c0 += kColumns) {
      const int64_t columns = std::min(kColumns, job.inner - c0);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = corner + i * job.inner + c0;
        if (job.type == kFloat32) {
          std::copy_n(static_cast<const float*>(job.w) + at, columns, &buffer[i * kColumns]);
        } else {
          to_float32(job.w, job.type, at, columns, &buffer[i * kColumns]);
        }
      }
      int32_t high[kColumns] = {}, zeros[kColumns] = {};
      uint32_t low[kColumns] = {};
      float factors[kColumns];
      std::fill_n(factors, kColumns, 1.0f);
      column_spans(buffer.data(), n, high, low);
      for (int64_t c = 0; c < columns; ++c) {
        const Span s{static_cast<uint32_t>(high[c]), low[c] >> 31 ? low[c] & 0x7fffffffu : 0u};
        OneBlock one;
        if (!find_scale(job, s, &buffer[c], kColumns, job.scales + band * job.inner + c0 + c, &one)) {
          return false;
        }
        factors[c] = one.value;
        zeros[c] = one.zero_point;
        if (job.zeros) {
          job.zeros[band * job.inner + c0 + c] = static_cast<uint8_t>(one.zero_point);
        }
      }
      for (int64_t i = 0; i < n; ++i) {
        uint8_t line[kColumns];
        encode_line(job, &buffer[i * kColumns], factors, zeros, line);
        std::memcpy(job.codes + corner + i * job.inner + c0, line, static_cast<size_t>(columns));
      }
    }
  }
  return true;
}

}  // namespace
}  // namespace encoding
}  // namespace onnxq

// Encodes [rows, k, inner] weights of `type`, `block` along k sharing a scale. Returns 1, or 0 at the first block with a
// number that is not finite as float32; what was written then is of no use.
ONNXQ_EXPORT int32_t onnxq_encode_rows(const void* w, int32_t type, int64_t rows, int64_t k, int64_t inner,
                                       int64_t block, int32_t rule, int32_t qmax, const float* middles,
                                       const uint8_t* order, uint8_t* codes, float* scales, uint8_t* zeros,
                                       int32_t threads) {
  using namespace onnxq;
  using namespace onnxq::encoding;
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
