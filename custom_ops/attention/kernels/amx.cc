// Attention on AMX: q, k, v and weights are rounded to bfloat16, products are summed in float32. As in_floats.h, with tiles in
// the place of vectors; what is exact, or has few rows, is computed there.
//
// Phase 0 rounds k and v, 32 tokens at a time, to tiles as products read them, pairs of what is summed side by side:
//   k: [T / 16][D / 32] tiles of [16 pairs of numbers][16 tokens][2]
//   v: [E / 16][T / 32] tiles of [16 pairs of tokens][16 outputs][2]
// 32 rows at a time, as two tiles: q [2][D / 32], scores and weighted sums [2][T or E / 16] of [16][16], weights [2][T / 32].

#include "../../cpu/kernels/tiles.h"
#include "in_floats.h"
#include "zmm_math.h"

namespace onnxq {
namespace {

using Floats = InFloats<ZmmMath>;

constexpr int64_t kBlockRows = 32, kMostNumbers = 256;  // D and E
constexpr int64_t kRowsFrom = 8;                        // below, tiles are mostly empty

bool by_tiles(const Attention& p) { return !p.exact && p.S >= kRowsFrom && p.D <= kMostNumbers && p.E <= kMostNumbers; }

// Sizes in tiles, whole pairs of them where 32 are needed.
int64_t number_tiles(const Attention& p) { return (p.D + 31) / 32; }
int64_t token_steps(const Attention& p) { return (p.T + 31) / 32; }
int64_t output_tiles(const Attention& p) { return (p.E + 31) / 32 * 2; }
int64_t k_bytes(const Attention& p) { return 2 * token_steps(p) * number_tiles(p) * kTileBytes; }
int64_t head_bytes(const Attention& p) { return k_bytes(p) + output_tiles(p) * token_steps(p) * kTileBytes; }
int64_t row_blocks(const Attention& p) { return (p.S + kBlockRows - 1) / kBlockRows; }

__m512 load(const float* from, int64_t lanes) {
  return lanes >= 16 ? Zmm::load(from) : lanes > 0 ? Zmm::load(from, lanes) : Zmm::zero();
}

__m512i round_two(__m512 first, __m512 second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }

// Numbers from two rows side by side, in bfloat16.
__m512i pairs_of(__m512 first, __m512 second) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, round_two(first, second));
}

// rows[i] holds what the rows held at i.
void transpose(__m512i* rows) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 4) {  // within 128 bits: 4 × 4
    const __m512i low01 = _mm512_unpacklo_epi32(rows[i], rows[i + 1]), low23 = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]);
    const __m512i high01 = _mm512_unpackhi_epi32(rows[i], rows[i + 1]), high23 = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
    a[i] = _mm512_unpacklo_epi64(low01, low23);
    a[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    a[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    a[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  for (int i = 0; i < 4; ++i) {  // between them
    const __m512i low01 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88), low23 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xDD), high23 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xDD);
    rows[i] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    rows[i + 4] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
}

// Up to 16 tokens of k and 32 of their numbers.
void pack_keys(const Attention& p, const float* k, int64_t tokens, int64_t numbers, __m512i* tile) {
  if (p.k_number == 1) {
    for (int64_t t = 0; t < 16; ++t) {
      const float* const from = k + (t < tokens ? t * p.k_token : 0);
      tile[t] = t < tokens ? round_two(load(from, numbers), load(from + (numbers > 16 ? 16 : 0), numbers - 16))
                           : _mm512_setzero_si512();
    }
    return transpose(tile);
  }
  for (int64_t i = 0; i < 16; ++i) {  // k_token is 1
    const float* const first = k + (2 * i < numbers ? 2 * i * p.k_number : 0);
    const bool has_second = 2 * i + 1 < numbers;
    tile[i] = pairs_of(2 * i < numbers ? load(first, tokens) : Zmm::zero(),
                       has_second ? load(first + p.k_number, tokens) : Zmm::zero());
  }
}

// 32 tokens of k and v.
void pack_tokens(const Attention& p, const Head& h, int64_t step, uint8_t* packed) {
  const int64_t first = step * 32, tokens = p.T - first;
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t left = tokens - 16 * half < 0 ? 0 : tokens - 16 * half;
    const float* const k = h.k + (left ? (first + 16 * half) * p.k_token : 0);
    for (int64_t c = 0; c < number_tiles(p); ++c) {
      const int64_t tile = (2 * step + half) * number_tiles(p) + c;
      pack_keys(p, k + 32 * c * p.k_number, left < 16 ? left : 16, p.D - 32 * c,
                reinterpret_cast<__m512i*>(packed + tile * kTileBytes));
    }
  }
  uint8_t* const values = packed + k_bytes(p);
  for (int64_t c = 0; c < output_tiles(p); ++c) {
    const int64_t left = p.E - 16 * c;
    __m512i* const tile = reinterpret_cast<__m512i*>(values + (c * token_steps(p) + step) * kTileBytes);
    for (int64_t i = 0; i < 16; ++i) {
      const float* const v = h.v + (first + (2 * i < tokens ? 2 * i : 0)) * p.v_token + (left > 0 ? 16 * c : 0);
      tile[i] = pairs_of(2 * i < tokens ? load(v, left) : Zmm::zero(),
                         2 * i + 1 < tokens ? load(v + p.v_token, left) : Zmm::zero());
    }
  }
}

// A block of rows: what it multiplies by, and what it knows.
struct Block {
  __m512i q[2][kMostNumbers / 32][16];
  __m512 scores[2][kTokens / 16][16];
  __m512i weights[2][kTokens / 32][16];
  __m512 y[2][kMostNumbers / 16][16];
  Known<kBlockRows> known;
};

// Four tiles of sums: two of rows by two of what `b0` and `b1` hold, over `steps` tiles of each.
void multiply(const void* a0, const void* a1, const void* b0, const void* b1, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t at = i * kTileBytes;
    tile_load<4>(static_cast<const uint8_t*>(a0) + at);
    tile_load<6>(static_cast<const uint8_t*>(b0) + at);
    tile_multiply<0, 4, 6>();
    tile_load<7>(static_cast<const uint8_t*>(b1) + at);
    tile_multiply<1, 4, 7>();
    tile_load<5>(static_cast<const uint8_t*>(a1) + at);
    tile_multiply<2, 5, 6>();
    tile_multiply<3, 5, 7>();
  }
}

void store_sums(__m512* first, __m512* second) {  // a tile and the next one behind it, of either half of the rows
  tile_store<0>(first);
  tile_store<1>(first + 16);
  tile_store<2>(second);
  tile_store<3>(second + 16);
}

void load_queries(const Attention& p, const Head& h, int64_t row, int64_t rows, Block& b) {
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const float* const q = h.q + (row + (r < rows ? r : 0)) * p.q_row;
    for (int64_t c = 0; c < number_tiles(p); ++c) {
      const int64_t left = p.D - 32 * c;
      b.q[r / 16][c][r % 16] = r < rows ? round_two(load(q + 32 * c, left), load(q + 32 * c + (left > 16 ? 16 : 0), left - 16))
                                        : _mm512_setzero_si512();
    }
  }
}

// As ZmmMath::exp, good enough for what is rounded to bfloat16: within 2^-13.
__m512 exp_for_bfloat16(__m512 x) {
  const __m512 lowest = _mm512_set1_ps(-126.0f), power = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 least = _mm512_max_ps(lowest, power);
  const __m512 n = _mm512_roundscale_ps(least, 8), r = _mm512_sub_ps(least, n);  // 2^r, r in -1/2 … 1/2
  __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(0.0558263180f), r, _mm512_set1_ps(0.240153617f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693153073f));
  const __mmask16 is_more = _mm512_cmp_ps_mask(power, lowest, _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(is_more, _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.999925345f)), n);
}

// As InFloats::weigh, for a row of tiles.
float weigh(const Attention& p, const Head& h, int64_t row, int64_t first, int64_t count, int64_t r, Block& b) {
  const int64_t half = r / 16, line = r % 16, steps = (count + 31) / 32;
  const float* const mask = h.mask ? h.mask + row * p.mask_row + first * p.mask_token : nullptr;
  const __m512 scale = _mm512_set1_ps(p.scale), nothing = _mm512_set1_ps(-INFINITY);
  float &most = b.known.most[r], &sum = b.known.sum[r];
  __m512 largest = _mm512_set1_ps(most);
  for (int64_t t = 0; t < 2 * steps; ++t) {
    const int64_t left = count - 16 * t;
    const __m512 added = !mask || left <= 0 ? Zmm::zero() : p.mask_token ? load(mask + 16 * t, left) : _mm512_set1_ps(*mask);
    const __mmask16 there = static_cast<__mmask16>(left >= 16 ? 0xFFFF : left > 0 ? (1 << left) - 1 : 0);
    const __m512 score = _mm512_mask_fmadd_ps(b.scores[half][t][line], there, scale, added);
    b.scores[half][t][line] = _mm512_mask_mov_ps(nothing, there, score);
    largest = _mm512_max_ps(b.scores[half][t][line], largest);
  }
  const float now = ZmmMath::largest(largest), origin = now == -INFINITY ? 0.0f : now;
  const __m512 from = _mm512_set1_ps(origin);
  __m512 total = Zmm::zero();
  for (int64_t t = 0; t < steps; ++t) {
    const __m512 one = exp_for_bfloat16(_mm512_sub_ps(b.scores[half][2 * t][line], from));
    const __m512 two = exp_for_bfloat16(_mm512_sub_ps(b.scores[half][2 * t + 1][line], from));
    b.weights[half][t][line] = round_two(one, two);
    total = _mm512_add_ps(total, _mm512_add_ps(one, two));
  }
  const float factor = expf(most - origin);
  sum = sum * factor + ZmmMath::sum(total);
  most = now;
  return factor;
}

void rows_by_tiles(const Attention& p, int64_t head, int64_t row, int64_t rows, const uint8_t* packed) {
  alignas(64) Block b;
  const Head& h = p.head[head];
  const uint8_t* const values = packed + k_bytes(p);
  load_queries(p, h, row, rows, b);
  for (int64_t r = 0; r < kBlockRows; ++r) {
    b.known.most[r] = -INFINITY;
    b.known.sum[r] = 0;
  }
  for (int64_t half = 0; half < 2; ++half) {
    memset(b.y[half], 0, static_cast<size_t>(output_tiles(p) * kTileBytes));
    if (rows < kBlockRows) {
      memset(b.weights[half], 0, sizeof b.weights[half]);  // of rows that are not there
    }
  }
  tiles_begin();
  const int64_t seen = tokens_seen<ZmmMath>(p, h, row, rows);
  for (int64_t first = 0; first < seen; first += kTokens) {
    const int64_t count = seen - first < kTokens ? seen - first : kTokens, steps = (count + 31) / 32;
    for (int64_t t = 0; t < 2 * steps; t += 2) {
      const uint8_t* const k = packed + (first / 16 + t) * number_tiles(p) * kTileBytes;
      tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
      multiply(b.q[0], b.q[1], k, k + number_tiles(p) * kTileBytes, number_tiles(p));
      store_sums(b.scores[0][t], b.scores[1][t]);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float factor = weigh(p, h, row + r, first, count, r, b);
      for (int64_t e = 0; first > 0 && factor != 1.0f && e < output_tiles(p); ++e) {
        b.y[r / 16][e][r % 16] = _mm512_mul_ps(b.y[r / 16][e][r % 16], _mm512_set1_ps(factor));
      }
    }
    for (int64_t e = 0; e < output_tiles(p); e += 2) {
      const uint8_t* const v = values + (e * token_steps(p) + first / 32) * kTileBytes;
      tile_load<0>(b.y[0][e]);
      tile_load<1>(b.y[0][e + 1]);
      tile_load<2>(b.y[1][e]);
      tile_load<3>(b.y[1][e + 1]);
      multiply(b.weights[0], b.weights[1], v, v + token_steps(p) * kTileBytes, steps);
      store_sums(b.y[0][e], b.y[1][e]);
    }
  }
  tiles_end();
  for (int64_t r = 0; r < rows; ++r) {
    const __m512 part = _mm512_set1_ps(1.0f / b.known.sum[r]);
    float* const y = p.head[head].y + (row + r) * p.y_row;
    for (int64_t e = 0; e < p.E; e += 16) {
      const __m512 numbers = _mm512_mul_ps(b.y[r / 16][e / 16][r % 16], part);
      p.E - e >= 16 ? Zmm::store(y + e, numbers) : Zmm::store(y + e, numbers, p.E - e);
    }
  }
}

int64_t workspace(const Attention& p) { return by_tiles(p) ? p.heads * head_bytes(p) : Floats::workspace(p); }

int64_t units(const Attention& p, int phase) { return p.heads * (phase == 0 ? token_steps(p) : row_blocks(p)); }

int64_t tasks(const Attention& p, int phase, int threads) {
  return !by_tiles(p) ? Floats::tasks(p, phase, threads) : phase > 1 ? 0 : balanced(units(p, phase), threads);
}

void run(const Attention& p, int phase, int64_t task, int64_t tasks, void* workspace) {
  if (!by_tiles(p)) {
    return Floats::run(p, phase, task, tasks, workspace);
  }
  uint8_t* const packed = static_cast<uint8_t*>(workspace);
  const int64_t all = units(p, phase), of_head = all / p.heads;
  for (int64_t unit = part_begin(all, tasks, task); unit < part_begin(all, tasks, task + 1); ++unit) {
    const int64_t head = unit / of_head, at = unit % of_head;
    uint8_t* const mine = packed + head * head_bytes(p);
    if (phase == 0) {
      pack_tokens(p, p.head[head], at, mine);
    } else {
      const int64_t row = at * kBlockRows;
      rows_by_tiles(p, head, row, p.S - row < kBlockRows ? p.S - row : kBlockRows, mine);
    }
  }
}

#if defined(ONNXQ_EMULATE)
constexpr uint64_t kNeeds = kAvx512 | kAvx512Bf16;
#else
constexpr uint64_t kNeeds = kAvx512 | kAvx512Bf16 | kAmxBf16;
#endif

}  // namespace

extern const AttentionKernel attention_amx;
constexpr AttentionKernel attention_amx = {"amx", kNeeds, workspace, tasks, run};

}  // namespace onnxq
