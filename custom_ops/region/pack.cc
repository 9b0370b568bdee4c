#include "pack.h"

#include <algorithm>
#include <array>

#include "../base/clones.h"
#include "winograd.h"

namespace onnxq {
namespace {

// Groups of few channels are padded to blocks: a small file must not take all memory.
constexpr int64_t kMostPacked = int64_t{1} << 32;

// bias − zero · Σ weights, wrapping as sums of int32 do.
int32_t begin(const int32_t* bias, int64_t output, int64_t sum, int32_t zero) {
  const int64_t given = bias ? bias[output] : 0;
  return static_cast<int32_t>(static_cast<uint32_t>(given) - static_cast<uint32_t>(sum * zero));
}

// Four bytes of the windows of a block's outputs.
using Quad = std::array<std::array<int8_t, kBlock>, 4>;

// What the weights of each output of a block add up to, those above zero and those below it.
struct Signed {
  std::array<int64_t, kBlock> above{}, below{};
};

// Those of `lanes` outputs, from one on. They lie side by side in matrices that are not turned.
void gather(const PlainWeight& weight, const PlainWeight::Place& first, int64_t lanes, int8_t* to) {
  if (weight.merged.groups > 1) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      to[lane] = weight.at({first.output + lane, first.input, first.y, first.x});
    }
    return;
  }
  const int8_t* const from = weight.address(first);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    to[lane] = from[lane * weight.output];
  }
}

ONNXQ_CLONES void add_up(const Quad& quad, Signed& sums) {
  for (size_t lane = 0; lane < kBlock; ++lane) {
    int32_t above = 0, below = 0;
    for (const std::array<int8_t, kBlock>& bytes : quad) {
      above += std::max<int32_t>(bytes[lane], 0);
      below += std::min<int32_t>(bytes[lane], 0);
    }
    sums.above[lane] += above;
    sums.below[lane] += below;
  }
}

ONNXQ_CLONES void weave(const Quad& quad, int8_t* to) {
  for (int64_t half = 0; half < kBlock; half += 16) {
    int8_t* const line = to + in_chunks(0, half);
    for (int64_t lane = 0; lane < 16; ++lane) {
      for (size_t byte = 0; byte < 4; ++byte) {
        line[4 * lane + static_cast<int64_t>(byte)] = quad[byte][static_cast<size_t>(half + lane)];
      }
    }
  }
}

// How many pixels of a row are computed together.
int64_t pixels_together(const Stage& stage) {
  // What a register of sums takes until it is codes, in its dot products; and what has to be saved.
  constexpr double kCodes = 4.5, kWorthwhile = 0.8;
  constexpr int64_t kMostBytes = 1 << 22;
  const Step& step = stage.step;
  if (step.does != Does::kConv || step.group != 1 || stage.merged.groups > 1 || step.dilations[1] != 1) {
    return 1;
  }
  const auto bytes = [&](int64_t pixels) { return (step.kernel[1] + (pixels - 1) * step.strides[1]) * stage.inputs; };
  const auto cost = [&](int64_t pixels) {
    const double dots = static_cast<double>(step.kernel[0] * cover(bytes(pixels), 4)) + kCodes;
    return dots * static_cast<double>(cover(pixels * stage.outputs, 16)) / static_cast<double>(pixels);
  };
  int64_t best = 1;
  for (int64_t pixels = 2; pixels * stage.outputs <= kBlock && step.kernel[0] * bytes(pixels) * kBlock <= kMostBytes; ++pixels) {
    best = cost(pixels) < cost(best) && cost(pixels) < kWorthwhile * cost(1) ? pixels : best;
  }
  return best;
}

}  // namespace

std::vector<Piece> pieces(const Step& step) {
  std::vector<Piece> found;
  const bool is_row = step.group == 1 && step.dilations[1] == 1;
  for (int64_t y = 0; y < step.kernel[0]; ++y) {
    for (int64_t x = 0; x < (is_row ? 1 : step.kernel[1]); ++x) {
      found.push_back({y, x, is_row ? step.kernel[1] : 1});
    }
  }
  return found;
}

int64_t cut_windows(Stage& stage, int64_t width) {
  for (const Piece& piece : pieces(stage.step)) {
    const int64_t bytes = piece.pixels * (stage.inputs / stage.step.group) * width;
    for (int64_t at = 0; at < bytes; at += kChunk) {
      stage.quads.push_back(static_cast<uint8_t>(cover(bytes - at < kChunk ? bytes - at : kChunk, 4)));
    }
  }
  const int64_t chunks = static_cast<int64_t>(stage.quads.size());
  if (stage.step.group * stage.blocks > kMostPacked / kBlockBytes / chunks) {
    throw Refusal("attribute steps has a convolution whose groups are too small for their number");
  }
  return chunks;
}

void pack(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale,
          int32_t x_zero) {
  const Step& step = stage.step;
  const int64_t in = stage.inputs / step.group, out = stage.outputs / step.group;
  const std::vector<Piece> all = pieces(step);
  const int64_t blocks = step.group * stage.blocks, chunks = cut_windows(stage, 1);
  stage.weight.assign(static_cast<size_t>(blocks * chunks * kBlockBytes), 0);
  stage.bias.assign(static_cast<size_t>(blocks * kBlock), 0);
  stage.scales.assign(static_cast<size_t>(blocks * kBlock), 0.0f);
  stage.fits_squares = true;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t in_group = block % stage.blocks * kBlock, first = block / stage.blocks * out + in_group;
    const int64_t lanes = std::min(kBlock, out - in_group);
    int8_t* to = stage.weight.data() + block * chunks * kBlockBytes;
    Signed sums;
    for (const Piece& piece : all) {
      const int64_t bytes = piece.pixels * in;
      for (int64_t start = 0; start < bytes; start += 4) {
        Quad quad{};
        for (int64_t byte = start; byte < std::min(bytes, start + 4); ++byte) {
          const PlainWeight::Place place = {first, byte % in, piece.y, piece.x + byte / in};
          gather(weight, place, lanes, quad[static_cast<size_t>(byte - start)].data());
        }
        add_up(quad, sums);
        weave(quad, to + in_chunks(start, 0));
      }
      to += cover(bytes, kChunk) * kBlockBytes;
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const size_t at = static_cast<size_t>(block * kBlock + lane), from = static_cast<size_t>(lane);
      const int64_t above = sums.above[from], below = sums.below[from];
      stage.bias[at] = begin(bias, first + lane, above + below, x_zero);
      stage.fits_squares = stage.fits_squares && fits_squares(above, below);
      stage.scales[at] = scale[static_cast<size_t>(first + lane)];
    }
  }
}

void pack_together(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale, int32_t x_zero) {
  const int64_t pixels = pixels_together(stage), outputs = stage.outputs;
  if (pixels == 1) {
    return;
  }
  const Step& step = stage.step;
  Stage wide;
  wide.step = step;
  wide.step.kernel[1] += (pixels - 1) * step.strides[1];
  wide.step.strides[1] *= pixels;
  wide.scale = stage.scale;
  wide.codes = stage.codes;
  wide.rank = stage.rank;
  wide.inputs = stage.inputs;
  wide.outputs = pixels * outputs;
  wide.blocks = 1;
  const int64_t rows = step.kernel[0], columns = wide.step.kernel[1];
  std::vector<int8_t> plain(static_cast<size_t>(wide.outputs * rows * columns * stage.inputs));
  std::vector<int32_t> biases;
  std::vector<float> scales;
  for (int64_t o = 0; o < wide.outputs; ++o) {
    int8_t* const to = plain.data() + (o * rows * columns + o / outputs * step.strides[1]) * stage.inputs;
    for (int64_t y = 0; y < rows; ++y) {
      for (int64_t x = 0; x < step.kernel[1]; ++x) {
        for (int64_t i = 0; i < stage.inputs; ++i) {
          to[(y * columns + x) * stage.inputs + i] = weight.at({o % outputs, i, y, x});
        }
      }
    }
    biases.push_back(bias ? bias[o % outputs] : 0);
    scales.push_back(scale[static_cast<size_t>(o % outputs)]);
  }
  const PlainWeight packed = {plain.data(), rows * columns * stage.inputs, 1, columns * stage.inputs, stage.inputs, {}};
  pack(wide, packed, biases.data(), scales, x_zero);
  stage.phases.push_back(std::move(wide));
}

void pack_depthwise(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale,
                    int32_t x_zero) {
  const int64_t kernel_y = stage.step.kernel[0], kernel_x = stage.step.kernel[1];
  const int64_t blocks = cover(stage.outputs, 64), padded = blocks * 64;
  const int64_t fours = cover(kernel_y, 4);
  stage.weight.assign(static_cast<size_t>(kernel_y * kernel_x * padded), 0);
  stage.bias.assign(static_cast<size_t>(padded), 0);
  stage.scales.assign(static_cast<size_t>(padded), 0.0f);
  stage.dot_weight.assign(static_cast<size_t>(blocks * fours * kernel_x * 256), 0);
  stage.dot_bias.assign(static_cast<size_t>(padded), 0);
  stage.dot_scales.assign(static_cast<size_t>(padded), 0.0f);
  for (int64_t c = 0; c < stage.outputs; ++c) {
    const int64_t block = c / 64, l = c % 64 / 16, v = c % 16 / 4, j = c % 4, lane = 4 * l + j;
    int64_t sum = 0;
    for (int64_t y = 0; y < kernel_y; ++y) {
      for (int64_t x = 0; x < kernel_x; ++x) {
        const int8_t q = weight.at({c, 0, y, x});
        stage.weight[static_cast<size_t>((y * kernel_x + x) * padded + c)] = q;
        const int64_t column = (block * fours + y / 4) * kernel_x + x;
        stage.dot_weight[static_cast<size_t>(column * 256 + v * 64 + lane * 4 + y % 4)] = q;
        sum += q;
      }
    }
    const int32_t start = begin(bias, c, sum, x_zero);
    const float factor = scale[static_cast<size_t>(c)];
    stage.bias[static_cast<size_t>(c)] = start;
    stage.scales[static_cast<size_t>(c)] = factor;
    const size_t at = static_cast<size_t>(block * 64 + v * 16 + lane);
    stage.dot_bias[at] = start;
    stage.dot_scales[at] = factor;
  }
}

}  // namespace onnxq
