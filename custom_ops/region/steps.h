// What a region computes: the attribute `steps` of its node, which docs/regions.md describes. Whoever made the file may
// mean harm: everything that is said in it is looked at here or where it meets constants and shapes.

#ifndef ONNXQ_REGION_STEPS_H_
#define ONNXQ_REGION_STEPS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace onnxq {

// What tensors between steps hold.
enum class Element { kCodes, kBfloat16 };

enum class Does {
  kQuantize,
  kConv,
  kConvTranspose,
  kGemm,     // makes float32
  kProduct,  // the same, makes codes
  kConstant,
  kAdd,
  kSub,
  kMul,
  kTable,
  kMaxPool,
  kAveragePool,
  kGlobalAveragePool,
  kConcat,
  kFlatten,
  kSlice,
  kPad,
  kResize,
  kResizeLinear,
  kArrange,
  kDequantize,
  kAffine,
  kInstanceNorm,
  // Of rows (row_stage.h): what makes or reads float32, or computes in it.
  kRead,
  kWrite,
  kEncode,
  kDecode,
  kSums,  // as kGemm, for others to read
  kPlus,
  kNorm,
  kSoftmax,
  kRotary,
  kMatMul,  // of two tensors
  kAttention,
};

constexpr int64_t kNone = -1;

// A line. Tensors are named by the number of the step that makes them, so that none can be read before it is made.
struct Step {
  Does does;
  std::vector<int64_t> x;
  // Numbers of inputs and outputs of the node.
  int64_t in = kNone, out = kNone, weight = kNone, weight_scale = kNone, bias = kNone, scale = kNone, zero = kNone;
  int64_t table = kNone, knee = kNone, low = kNone, high = kNone, codes = kNone, sizes = kNone, ratios = kNone;
  int64_t epsilon = kNone, factor = kNone;
  int64_t group = 1, relu = 0, ceil = 0, counts_pads = 0, transposed = 0;
  int64_t act = 0;   // ActKind
  int64_t keeps = 1;  // what is averaged as rank 3 or 4 (1), or as matrix (0)
  int64_t stack = 0;  // what is made is a stack of matrices: Placed::is_stack
  int64_t same = 0;  // pads as large as needed for size / stride windows, the odd one behind (1) or before (2)
  std::array<int64_t, 2> kernel{{1, 1}}, strides{{1, 1}}, dilations{{1, 1}};  // y, x
  std::array<int64_t, 4> pads{};                                              // top, left, bottom, right
  std::array<int64_t, 2> output_padding{};                                    // of a transposed convolution: y, x
  int64_t axis = 1;
  // Of what moves codes: n, c, y, x.
  std::array<int64_t, 4> starts{}, stops{}, steps{}, before{}, behind{};
  int64_t block = 0, to_depth = 0;  // DepthToSpace, and back
  int64_t mode = 0, coordinates = 0, nearest = 0;
  int64_t centred = 1;   // of a normalization: the mean is taken off
  int64_t heads = 0;     // whose numbers lie together in what is `joined`
  std::array<int64_t, 2> width{};   // numbers of a head of q and k, and of v
  std::array<int64_t, 4> joined{};  // of an attention: q, k, v and what it makes
  std::array<int64_t, 3> first{};   // of q, k and v, where their channels begin
  std::vector<int64_t> split, perm, shape;  // dimensions as Reshape takes them, and as Transpose
};

// Throws Refusal.
std::vector<Step> read_steps(const std::string& text, size_t inputs, size_t outputs, Element element);

// The lines of the steps, for people.
std::vector<std::string> lines_of(const std::string& text);

// Whether a step makes a tensor that others may read.
constexpr bool makes_tensor(Does does) {
  return does != Does::kDequantize && does != Does::kGemm && does != Does::kWrite;
}
// Whether it only moves elements: moves.h.
constexpr bool moves_elements(Does does) {
  return does == Does::kSlice || does == Does::kPad || does == Does::kResize || does == Does::kArrange;
}

}  // namespace onnxq

#endif  // ONNXQ_REGION_STEPS_H_
