#include "pack.h"

namespace onnxq {
namespace {

// Groups of few channels are padded to blocks, and steps may share a weight: a small file must not take all memory. Of
// all steps of a node; of chunks every plan has a number each.
constexpr int64_t kMostPacked = int64_t{1} << 32, kMostChunks = int64_t{1} << 22;

constexpr int64_t cover(int64_t size, int64_t part) { return (size + part - 1) / part; }

// bias − zero · Σ weights, wrapping as sums of int32 do.
int32_t begin(const int32_t* bias, int64_t output, int64_t sum, int32_t zero) {
  const int64_t given = bias ? bias[output] : 0;
  return static_cast<int32_t>(static_cast<uint32_t>(given) - static_cast<uint32_t>(sum * zero));
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

namespace {

// Quads of all chunks of all pieces.
std::vector<uint8_t> quads_of(const std::vector<Piece>& all, int64_t in) {
  std::vector<uint8_t> quads;
  for (const Piece& piece : all) {
    const int64_t bytes = piece.pixels * in;
    for (int64_t at = 0; at < bytes; at += kChunk) {
      quads.push_back(static_cast<uint8_t>(cover(bytes - at < kChunk ? bytes - at : kChunk, 4)));
    }
  }
  return quads;
}

// Where an output lies among blocks.
struct Lane {
  int64_t block, lane;
  Lane(const Stage& stage, int64_t o) {
    const int64_t out = stage.outputs / stage.step.group;
    block = o / out * stage.blocks + o % out / kBlock;
    lane = o % out % kBlock;
  }
};

void pack_blocks(const Stage& stage, const PlainWeight& weight, const std::vector<Piece>& all, Packed& packed) {
  const int64_t in = stage.inputs / stage.step.group, chunks = static_cast<int64_t>(packed.quads.size());
  packed.weight.assign(static_cast<size_t>(stage.step.group * stage.blocks * chunks * kBlockBytes), 0);
  for (int64_t o = 0; o < stage.outputs; ++o) {
    const Lane at(stage, o);
    int8_t* to = packed.weight.data() + at.block * chunks * kBlockBytes + at.lane / 16 * (kBlockBytes / 2) + at.lane % 16 * 4;
    int64_t sum = 0;
    for (const Piece& piece : all) {
      for (int64_t byte = 0; byte < piece.pixels * in; ++byte) {
        const int8_t q = weight.at(o, byte % in, piece.y, piece.x + byte / in);
        to[byte / kChunk * kBlockBytes + byte % kChunk / 4 * 64 + byte % 4] = q;
        sum += q;
      }
      to += cover(piece.pixels * in, kChunk) * kBlockBytes;
    }
    packed.sums.push_back(sum);
  }
}

// Where a channel of a depthwise convolution lies among those of a block, in the order of dot products.
int64_t dot_place(int64_t c) { return c / 64 * 64 + c % 16 / 4 * 16 + 4 * (c % 64 / 16) + c % 4; }

void pack_channels(const Stage& stage, const PlainWeight& weight, Packed& packed) {
  const int64_t kernel_y = stage.step.kernel[0], kernel_x = stage.step.kernel[1];
  const int64_t blocks = cover(stage.outputs, 64), padded = blocks * 64, fours = cover(kernel_y, 4);
  packed.weight.assign(static_cast<size_t>(kernel_y * kernel_x * padded), 0);
  packed.dot_weight.assign(static_cast<size_t>(blocks * fours * kernel_x * 256), 0);
  for (int64_t c = 0; c < stage.outputs; ++c) {
    int64_t sum = 0;
    for (int64_t y = 0; y < kernel_y; ++y) {
      for (int64_t x = 0; x < kernel_x; ++x) {
        const int8_t q = weight.at(c, 0, y, x);
        packed.weight[static_cast<size_t>((y * kernel_x + x) * padded + c)] = q;
        const int64_t column = (c / 64 * fours + y / 4) * kernel_x + x;
        packed.dot_weight[static_cast<size_t>(column * 256 + dot_place(c) % 64 * 4 + y % 4)] = q;
        sum += q;
      }
    }
    packed.sums.push_back(sum);
  }
}

}  // namespace

void PackedWeights::take(int64_t bytes) {
  if (bytes > kMostPacked - taken_) {
    throw Refusal("attribute steps has convolutions that take more than 4 GiB as kernels read them: too many steps, or "
                  "groups that are too small for their number");
  }
  taken_ += bytes;
}

void PackedWeights::pack(Stage& stage, const PlainWeight& weight, const int32_t* bias, const std::vector<float>& scale,
                         int32_t x_zero) {
  const Step& step = stage.step;
  const int64_t outputs = stage.is_depthwise ? cover(stage.outputs, 64) * 64 : step.group * stage.blocks * kBlock;
  const int64_t columns = cover(step.kernel[0], 4) * 4 * step.kernel[1];
  const std::vector<Piece> all = stage.is_depthwise ? std::vector<Piece>() : pieces(step);
  take(outputs * (stage.is_depthwise ? 16 : 8));
  const bool is_product = step.does == Does::kGemm;
  const Key key = {step.weight, step.group, step.dilations[1] == 1, stage.is_depthwise, is_product ? 1 + step.transposed : 0};
  std::shared_ptr<const Packed>& known = known_[key];
  if (!known) {
    auto made = std::make_shared<Packed>();
    made->quads = quads_of(all, stage.inputs / step.group);
    const int64_t each = stage.is_depthwise ? 2 * columns : static_cast<int64_t>(made->quads.size()) * kChunk;
    take(outputs > kMostPacked / each ? kMostPacked + 1 : outputs * each);
    stage.is_depthwise ? pack_channels(stage, weight, *made) : pack_blocks(stage, weight, all, *made);
    known = made;
  }
  chunks_ += static_cast<int64_t>(known->quads.size());
  if (chunks_ > kMostChunks) {
    throw Refusal("attribute steps has too many steps for windows of this size");
  }
  stage.packed = known;
  stage.bias.assign(static_cast<size_t>(outputs), 0);
  stage.scales.assign(static_cast<size_t>(outputs), 0.0f);
  stage.dot_bias.assign(static_cast<size_t>(stage.is_depthwise ? outputs : 0), 0);
  stage.dot_scales.assign(stage.dot_bias.size(), 0.0f);
  for (int64_t o = 0; o < stage.outputs; ++o) {
    const int32_t start = begin(bias, o, known->sums[static_cast<size_t>(o)], x_zero);
    const float factor = scale[static_cast<size_t>(o)];
    const Lane place(stage, o);
    const size_t at = static_cast<size_t>(stage.is_depthwise ? o : place.block * kBlock + place.lane);
    stage.bias[at] = start;
    stage.scales[at] = factor;
    if (stage.is_depthwise) {
      const size_t dot = static_cast<size_t>(dot_place(o));
      stage.dot_bias[dot] = start;
      stage.dot_scales[dot] = factor;
    }
  }
}

}  // namespace onnxq
