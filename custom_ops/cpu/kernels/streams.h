// What all vector kernels share: where the bytes of two vectors of columns lie, how rows and columns are dealt to tasks.

#ifndef ONNXQ_CPU_KERNELS_STREAMS_H_
#define ONNXQ_CPU_KERNELS_STREAMS_H_

#include "../kernel.h"

namespace onnxq {
namespace {

constexpr int kVectors = 2;  // side by side in one pass over K: enough independent sums to hide latencies

// Bytes that weights are fetched ahead, over the edge of a page, where the processor stops by itself, and into the second
// cache: one or few rows wait for memory, and lines on their way from there would hold the few buffers of the first cache
// that lines from the second need. On Zen 4, against 2048 bytes ahead into the first cache: kernels alone, weights of 256 MB
// in small pages, 1 to 4 rows, int8 1.3 to 1.8 times as fast and int4 1.0 to 1.3; in sessions 1.05 to 1.2; int8 that stays
// in the third cache, 1 row: 0.87.
constexpr int64_t kAhead = 4096;
inline void fetch_ahead(const void* at) { __builtin_prefetch(at, 0, 2); }

// A group: kVectors vectors of outputs, and their weights.
struct Group {
  const uint8_t* weight[kVectors];
  const char* scales[kVectors];
  const uint8_t* zero_points[kVectors];
  int64_t column[kVectors];
  int64_t lanes[kVectors];  // to be written; 0 where the group reaches behind the last tile
};

template <class V>
int64_t groups(const Problem& p) {
  constexpr int64_t columns = kVectors * V::kLanes;
  return p.N / columns + (p.N % columns != 0);
}

template <class V>
Group group(const Problem& p, int64_t index) {
  Group g = {};
  const int64_t Kp = padded(p.K, p.block);
  for (int c = 0; c < kVectors; ++c) {
    const int64_t column = (index * kVectors + c) * V::kLanes;
    // Behind the last tile: that one's bytes once more, for products that nobody reads.
    const int64_t tile = column / kTile < tiles(p.N) ? column / kTile : tiles(p.N) - 1;
    const int64_t scale = tile * blocks(p.K, p.block) * kTile + column % kTile;
    g.weight[c] = p.weight + tile * tile_bytes(p.format, Kp) + column % kTile * 4;
    g.scales[c] = static_cast<const char*>(p.scales) + scale * scale_bytes(p.scale_type);
    g.zero_points[c] = p.zero_points ? p.zero_points + scale : nullptr;
    g.column[c] = column;
    g.lanes[c] = p.N <= column ? 0 : p.N - column < V::kLanes ? p.N - column : V::kLanes;
  }
  return g;
}

// How far ahead of the bytes of a group others are fetched: of the same streams, and near their end of the next group's,
// which are that much further as a group's streams lie one behind the other. Short streams spend half their time there.
template <class V>
class Fetch {
 public:
  Fetch(const Problem& p, const Group& g) {
    const int64_t stream = tile_bytes(p.format, padded(p.K, p.block));
    edge_ = g.weight[0] + (stream > kAhead ? stream - kAhead : 0);
    others_ = (kVectors * V::kLanes / kTile - 1) * stream;
  }
  int64_t ahead(const uint8_t* weight) const { return weight < edge_ ? kAhead : kAhead + others_; }

 private:
  const uint8_t* edge_;
  int64_t others_;
};

template <class V, int kScale>
typename V::F load_scales(const char* at) {
  if constexpr (kScale == kScaleFloat32) {
    return V::load(reinterpret_cast<const float*>(at));
  } else if constexpr (kScale == kScaleFloat16) {
    return V::from_half(reinterpret_cast<const uint16_t*>(at));
  } else if constexpr (kScale == kScaleE8M0) {
    return V::from_e8m0(reinterpret_cast<const uint8_t*>(at));
  } else {
    constexpr float kOne = 1.0f;
    return V::broadcast(&kOne);
  }
}

template <class V>
typename V::F load_scales(const char* at, int32_t type) {
  return type == kScaleFloat32   ? load_scales<V, kScaleFloat32>(at)
         : type == kScaleFloat16 ? load_scales<V, kScaleFloat16>(at)
                                 : load_scales<V, kScaleE8M0>(at);
}

// y[column…] = sum (+ bias), or += sum where there are earlier ones.
template <class V>
void store_sum(const Problem& p, const Group& g, int c, int64_t row, typename V::F sum, bool first) {
  float* y = p.y + row * p.N + g.column[c];
  if (g.lanes[c] == V::kLanes) {
    sum = !first ? V::add(sum, V::load(y)) : p.bias ? V::add(sum, V::load(p.bias + g.column[c])) : sum;
    V::store(y, sum);
  } else if (g.lanes[c] > 0) {
    sum = !first    ? V::add(sum, V::load(y, g.lanes[c]))
          : p.bias ? V::add(sum, V::load(p.bias + g.column[c], g.lanes[c]))
                   : sum;
    V::store(y, sum, g.lanes[c]);
  }
}

// `count` things dealt to `parts`, as evenly as can be: part i has [cut(i), cut(i + 1)).
constexpr int64_t cut(int64_t count, int64_t parts, int64_t i) { return count / parts * i + (i < count % parts ? i : count % parts); }

// Rows of x in tiles of at most `most`, none much smaller than the others.
constexpr int64_t row_tiles(int64_t M, int64_t most) { return M / most + (M % most != 0); }

// Tasks of a product: columns first, since they share nothing but x; rows too where there are too few columns.
struct Cuts {
  int64_t columns, rows;
};

inline Cuts product_cuts(int64_t groups, int64_t row_tiles, int64_t tasks) {
  const int64_t columns = groups < tasks ? groups : tasks, rows = tasks / columns;
  return {columns, rows < row_tiles ? rows : row_tiles};
}

// A few tasks for every thread balance the load; a task of less than some microseconds is not worth waking one, and no thread
// should be left with one more than the others. Reading a weight takes as long as about three products.
inline int64_t wanted_tasks(const Problem& p) {
  constexpr int64_t kTasksPerThread = 4, kProducts = 1 << 20;
  const double useful = static_cast<double>(p.N) * static_cast<double>(p.K) * static_cast<double>(p.M + 3) / kProducts;
  const int64_t threads = p.threads > 1 ? p.threads : 1, most = threads * kTasksPerThread;
  const int64_t count = useful < static_cast<double>(most) ? static_cast<int64_t>(useful) + 1 : most;
  return count > threads ? count / threads * threads : count;
}

// Tasks of packing x, which lies in `most` parts: waking threads takes longer than packing a few rows.
inline int64_t packing_tasks(const Problem& p, int64_t most) {
  constexpr int64_t kNumbers = 1 << 16;
  const int64_t useful = p.M * p.K / kNumbers + 1, wanted = wanted_tasks(p), tasks = useful < wanted ? useful : wanted;
  return tasks < most ? tasks : most;
}

}  // namespace
}  // namespace onnxq

#endif  // ONNXQ_CPU_KERNELS_STREAMS_H_
