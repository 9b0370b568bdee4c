// Runs every kernel of int8 regions of this machine against the scalar one, for processors on which no Python runs: emulated
// ones. All give the same bits.

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "region/kernel.h"

namespace onnxq {
#define ONNXQ_REGION(name) extern const RegionKernel region_##name;
#include "regions.inc"
#undef ONNXQ_REGION
}  // namespace onnxq

namespace {

using namespace onnxq;

constexpr const RegionKernel* kKernelsOfRegions[] = {
#define ONNXQ_REGION(name) &region_##name,
#include "regions.inc"
#undef ONNXQ_REGION
};

std::mt19937 numbers(1);

struct Shape {
  int64_t N, H, W, C, kernel, stride, groups, outputs;  // outputs of a group; H and W with pads
};

std::vector<uint8_t> random_bytes(int64_t count) {
  std::vector<uint8_t> made(static_cast<size_t>(count));
  for (auto& byte : made) byte = static_cast<uint8_t>(numbers());
  return made;
}

// Every buffer has a size of its own on the heap.
struct Made {
  std::vector<uint8_t> x, quads;
  std::vector<int8_t> weight;
  std::vector<int32_t> bias;
  std::vector<float> scale;
  std::vector<int64_t> offsets;
  Conv conv{};

  explicit Made(const Shape& s) {
    Conv& c = conv;
    const int64_t H = (s.H - s.kernel) / s.stride + 1, W = (s.W - s.kernel) / s.stride + 1, row = s.W * s.C;
    c.groups = s.groups, c.group_in = s.C / s.groups, c.group_out = s.outputs, c.blocks = cover(s.outputs, kBlock);
    c.step_x = s.stride * s.C, c.step_y = s.stride * row, c.pixel = s.groups * s.outputs;
    x = random_bytes(s.N * s.H * row + read_behind(c.step_x));
    c.x = {x.data(), s.N, s.H, s.W, s.C, row, s.H * row};
    c.y = {nullptr, s.N, H, W, c.pixel, W * c.pixel, H * W * c.pixel};
    c.codes = {static_cast<int32_t>(numbers() % 256), 0, static_cast<int32_t>(200 + numbers() % 56)};
    // Rows of a window lie in one place, or of a group each pixel.
    std::vector<int64_t> used;
    const int64_t pieces = s.groups > 1 ? s.kernel : 1, size = s.kernel / pieces * c.group_in;
    for (int64_t y = 0; y < s.kernel; ++y) {
      for (int64_t piece = 0; piece < pieces; ++piece) {
        for (int64_t at = 0; at < size; at += kChunk) {
          offsets.push_back(y * row + piece * s.C + at);
          used.push_back(size - at < kChunk ? size - at : kChunk);
          quads.push_back(static_cast<uint8_t>(cover(used.back(), 4)));
        }
      }
    }
    c.chunks = static_cast<int64_t>(offsets.size());
    const int64_t blocks = c.groups * c.blocks;
    weight.assign(static_cast<size_t>(blocks * c.chunks * kBlockBytes), 0);
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t k = 0; k < c.chunks; ++k) {
        for (int64_t byte = 0; byte < used[static_cast<size_t>(k)]; ++byte) {
          for (int64_t o = 0; o < kBlock; ++o) {
            weight[static_cast<size_t>((b * c.chunks + k) * kBlockBytes + in_chunks(byte, o))] = static_cast<int8_t>(numbers());
          }
        }
      }
    }
    std::uniform_real_distribution<float> scales(1e-5f, 1e-3f);
    for (int64_t i = 0; i < blocks * kBlock; ++i) {
      bias.push_back(static_cast<int32_t>(numbers() % 200001) - 100000);
      scale.push_back(scales(numbers));
    }
    c.weight = weight.data(), c.bias = bias.data(), c.scale = scale.data();
    c.offsets = offsets.data(), c.quads = quads.data();
  }

  // In two parts of pixels and two of blocks, as threads take them.
  template <typename T>
  std::vector<T> run(const RegionKernel& kernel) {
    Conv c = conv;
    std::vector<T> made(static_cast<size_t>(c.y.N * c.y.image), T{77});
    if constexpr (sizeof(T) == 1) {
      c.y.data = made.data();
    } else {
      c.floats = made.data();
    }
    if (!kernel.plan(c)) {
      return {};
    }
    const int64_t units = c.units / 2, all = c.groups * c.blocks, half = all / 2;
    for (int64_t n = 0; n < c.y.N; ++n) {
      for (const auto& [first, last] : {std::pair{int64_t{0}, units}, std::pair{units, c.units}}) {
        kernel.conv(c, n, first, last, 0, half);
        kernel.conv(c, n, first, last, half, all);
      }
    }
    return made;
  }
};

}  // namespace

int main() {
  const Shape shapes[] = {{1, 1, 1, 1, 1, 1, 1, 1},   {1, 1, 7, 3, 1, 1, 1, 4},    {2, 9, 11, 5, 3, 1, 1, 17}, {1, 8, 8, 64, 1, 1, 1, 32},
                          {1, 7, 6, 70, 3, 2, 1, 65}, {2, 5, 13, 8, 1, 3, 2, 33}, {1, 12, 12, 12, 5, 1, 4, 3}, {1, 3, 40, 130, 3, 1, 1, 2},
                          {3, 1, 1, 257, 1, 1, 1, 100}};
  int failures = 0;
  for (const RegionKernel* kernel : kKernelsOfRegions) {
    if (kernel->needs & ~cpu_features()) {
      continue;
    }
    std::printf("%s%s\n", kernel->isa, kernel->needs & kNeonI8mm ? " with matrices" : "");
    for (const Shape& s : shapes) {
      Made made(s);
      const bool same = made.run<uint8_t>(*kernel) == made.run<uint8_t>(region_scalar) &&
                        made.run<float>(*kernel) == made.run<float>(region_scalar);
      if (!same) {
        std::printf("%s: N%ld H%ld W%ld C%ld kernel %ld stride %ld, %ld groups of %ld\n", kernel->isa, static_cast<long>(s.N),
                    static_cast<long>(s.H), static_cast<long>(s.W), static_cast<long>(s.C), static_cast<long>(s.kernel),
                    static_cast<long>(s.stride), static_cast<long>(s.groups), static_cast<long>(s.outputs));
        ++failures;
      }
    }
  }
  return failures != 0;
}
