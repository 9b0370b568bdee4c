// At most a tile of rows of x, on AMX: there decoding is what takes time, so as little as can be is decoded.
//
// A code becomes the bfloat16 of its value with one look-up in a table of 16 words, four of them from a line's 16-bit words
// shifted by 0, 4, 8 and 12. Scales are not in it: they multiply the sums of a block, which the tiles give in float32. So of
// whole numbers nothing is rounded but x. Shifting puts every 8 k in the order 0 2 | 4 6 | 1 3 | 5 7 (pairs of a B tile's rows,
// one for each shift), and x is packed in that one:
//
//     bfloat16 [Kp/32][16 rows][32 k], then, where there are zero points, float [blocks][16 rows]: minus the sums of x
//
// Codes of 8 bits, as two of 4 each, took longer than amx.cc takes.

#ifndef ONNXQ_CPU_KERNELS_FEW_ROWS_H_
#define ONNXQ_CPU_KERNELS_FEW_ROWS_H_

#include "dense.h"
#include "streams.h"
#include "tiles.h"
#include "zmm.h"

namespace onnxq {
namespace {

// Words of 16 codes, twice: the index has five bits, of which the fifth belongs to another code.
inline __m512i word_table(const float* values16) {
  uint16_t words[32];
  for (int i = 0; i < 32; ++i) {
    const uint32_t bits = float_to_bits(values16[i % 16]);
    words[i] = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
  return _mm512_loadu_si512(words);
}

struct NibbleTiles {
  explicit NibbleTiles(const Problem& p) {
    float values[16];
    for (int i = 0; i < 16; ++i) {
      values[i] = is_affine(p.format) ? static_cast<float>(i - 8) : kLevels[p.format][i];
    }
    table = word_table(values);
  }
  // 32 k: four lines of 8 k.
  inline __attribute__((always_inline)) void decode(const uint8_t* from, uint8_t* to) const {
    for (int i = 0; i < 4; ++i, from += kLine, to += 4 * kLine) {
      const __m512i line = Zmm::load(from);
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(line, table));
      _mm512_storeu_si512(to + kLine, _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 4), table));
      _mm512_storeu_si512(to + 2 * kLine, _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 8), table));
      _mm512_storeu_si512(to + 3 * kLine, _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 12), table));
    }
  }
  static __m128i order() { return _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15); }
  __m512i table;
};

struct FewRows {
  static bool offered(const Problem& p) { return p.M <= kTileRows && p.block % 32 == 0 && code_bits(p.format) == 4; }

  static int64_t steps(const Problem& p) { return padded(p.K, p.block) / 32; }

  static int64_t workspace(const Problem& p) {
    return steps(p) * kTileBytes + (p.zero_points ? blocks(p.K, p.block) * kTileRows * 4 : 0);
  }

  static int64_t tasks(const Problem& p, int phase) {
    if (phase == 0) {
      return packing_tasks(p, blocks(p.K, p.block));
    }
    const int64_t wanted = wanted_tasks(p), most = phase == 1 ? tiles(p.N) : 0;
    return wanted < most ? wanted : most;
  }

  static void run(const Problem& p, int phase, int64_t task, int64_t tasks_, void* workspace) {
    uint8_t* const packed = static_cast<uint8_t*>(workspace);
    float* const sums = reinterpret_cast<float*>(packed + steps(p) * kTileBytes);
    const int64_t all = phase == 0 ? blocks(p.K, p.block) : tiles(p.N);
    const int64_t begin = cut(all, tasks_, task), end = cut(all, tasks_, task + 1);
    if (phase == 0) {
      return pack(p, begin, end, packed, sums);
    }
    p.M <= 8 ? multiply<8>(p, begin, end, packed, sums) : multiply<16>(p, begin, end, packed, sums);
  }

 private:
  static constexpr int kBefore = 2, kBuffers = 4;  // steps that are decoded before they are multiplied: stores take time

  // A number that a generic lambda takes as a constant.
  template <int n>
  struct Which {
    constexpr operator int() const { return n; }
  };

  static void pack(const Problem& p, int64_t begin, int64_t end, uint8_t* packed, float* sums) {
    const __m512i order = _mm512_broadcast_i32x4(NibbleTiles::order());
    const int64_t of_block = p.block / 32;
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t row = 0; row < kTileRows; ++row) {
        __m512 sum = Zmm::zero();
        for (int64_t step = b * of_block; step < (b + 1) * of_block; ++step) {
          const int64_t left = row < p.M ? p.K - step * 32 : 0;
          const __m512i x = load_bfloat16(p.x + (left > 0 ? row * p.K + step * 32 : 0), left);
          sum = _mm512_add_ps(sum, Zmm::add(Zmm::pair<0>(x), Zmm::pair<1>(x)));
          _mm512_storeu_si512(packed + step * kTileBytes + row * 64, _mm512_shuffle_epi8(x, order));
        }
        if (p.zero_points) {
          sums[b * kTileRows + row] = -_mm512_reduce_add_ps(sum);
        }
      }
    }
  }

  // Tiles [begin, end) of columns. Sums stay in registers; a block's are added while the next one is multiplied.
  template <int R>
  static void multiply(const Problem& p, int64_t begin, int64_t end, const uint8_t* packed, const float* sums) {
    constexpr int64_t kLines = 4 * kLine;  // bytes of a step
    alignas(64) uint8_t decoded[kBuffers][kTileBytes], of_block[4][kTileBytes];
    const NibbleTiles codes(p);
    const int64_t count = blocks(p.K, p.block), all = steps(p), block_steps = p.block / 32;
    tiles_begin(R);
    for (int64_t t = begin; t < end; ++t) {
      const uint8_t* weight = p.weight + t * all * kLines;
      const char* scales = static_cast<const char*>(p.scales) + t * count * kTile * scale_bytes(p.scale_type);
      const uint8_t* zero_points = p.zero_points ? p.zero_points + t * count * kTile : nullptr;
      __m512 y[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        y[r] = Zmm::zero();
      }
      const auto add_block = [&](int64_t b) {
        const __m512 scale = load_scales<Zmm>(scales + b * kTile * scale_bytes(p.scale_type), p.scale_type);
        const uint8_t* const block = of_block[b % 4];
        if (zero_points) {
          const float middle = middle_code(p.format);
          const __m512 zero = Zmm::subtract(Zmm::to_float(Zmm::from_bytes(zero_points + b * kTile)), Zmm::broadcast(&middle));
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            const __m512 sum = Zmm::load(reinterpret_cast<const float*>(block + r * 64));
            y[r] = Zmm::fma(Zmm::fma(zero, Zmm::broadcast(sums + b * kTileRows + r), sum), scale, y[r]);
          }
        } else {
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            y[r] = Zmm::fma(Zmm::load(reinterpret_cast<const float*>(block + r * 64)), scale, y[r]);
          }
        }
      };
      // One block's tiles of four: what is multiplied, what is stored and what is added are different blocks.
      const int64_t before = all < kBefore ? all : kBefore;
      for (int64_t i = 0; i < before; ++i, weight += kLines) {
        codes.decode(weight, decoded[i]);
      }
      int64_t step = 0;
      const auto block = [&](auto which, int64_t b) {
        constexpr int kSum = which, kX = 4 + which % 2;
        tile_zero<kSum>();
        for (int64_t i = 0; i < block_steps; ++i, ++step) {
          if (step + kBefore < all) {
            codes.decode(weight, decoded[(step + kBefore) % kBuffers]);
          }
          for (int64_t line = 0; line < kLines; line += kLine) {  // over the edge of a page, where the processor stops by itself
            _mm_prefetch(reinterpret_cast<const char*>(weight) + kTilesAhead + line, _MM_HINT_T0);
          }
          weight += kLines;
          const uint8_t* const now = decoded[step % kBuffers];
          tile_load<kX>(packed + step * kTileBytes);
          tile_load<kX + 2>(now);
          tile_multiply<kSum, kX, kX + 2>();
        }
        if (b > 0) {
          tile_store<(kSum + 3) % 4>(of_block[(b - 1) % 4]);
        }
        if (b > 1) {
          add_block(b - 2);
        }
      };
      for (int64_t b = 0; b < count; b += 4) {
        block(Which<0>(), b);
        if (b + 1 < count) {
          block(Which<1>(), b + 1);
        }
        if (b + 2 < count) {
          block(Which<2>(), b + 2);
        }
        if (b + 3 < count) {
          block(Which<3>(), b + 3);
        }
      }
      const int last = static_cast<int>((count - 1) % 4);
      last == 0 ? tile_store<0>(of_block[0]) : last == 1 ? tile_store<1>(of_block[1])
      : last == 2 ? tile_store<2>(of_block[2]) : tile_store<3>(of_block[3]);
      if (count > 1) {
        add_block(count - 2);
      }
      add_block(count - 1);
      store(p, t, y, R);
    }
    tiles_end();
  }

  static inline __attribute__((always_inline)) void store(const Problem& p, int64_t tile, const __m512* y, int R) {
    Group g = {};
    const int64_t left = p.N - tile * kTile;
    g.column[0] = tile * kTile, g.lanes[0] = left < kTile ? left : kTile;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if (r < p.M) {
        store_sum<Zmm>(p, g, 0, r, y[r], true);
      }
    }
  }
};

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_FEW_ROWS_H_
