#include "steps.h"

#include <algorithm>
#include <cstring>

#include "../abi/op.h"
#include "bf16_kernel.h"

namespace onnxq {
namespace {

constexpr size_t kMostSteps = 4096, kMostBytes = size_t{1} << 20, kMostSources = 1024;
constexpr int64_t kMostNumber = 1 << 24;
constexpr size_t kMostDims = 8;

// What a word may say. `most` is replaced by the number of inputs or outputs where it names one. Dims are numbers, up to
// eight.
enum class Kind { kSources, kInput, kOutput, kNumber, kDims };

struct Word {
  const char* name;
  Kind kind;
  int64_t least, most;
  void (*set)(Step&, const std::vector<int64_t>&);
  size_t count;
};

#define ONNXQ_ONE(member) [](Step& s, const std::vector<int64_t>& v) { s.member = v[0]; }
#define ONNXQ_MANY(member) [](Step& s, const std::vector<int64_t>& v) { std::copy(v.begin(), v.end(), s.member.begin()); }
#define ONNXQ_LIST(member) [](Step& s, const std::vector<int64_t>& v) { s.member = v; }
constexpr Word kWords[] = {
    {"x", Kind::kSources, 0, 0, [](Step& s, const std::vector<int64_t>& v) { s.x = v; }, 0},
    {"in", Kind::kInput, 0, 0, ONNXQ_ONE(in), 1},
    {"out", Kind::kOutput, 0, 0, ONNXQ_ONE(out), 1},
    {"weight", Kind::kInput, 0, 0, ONNXQ_ONE(weight), 1},
    {"weight_scale", Kind::kInput, 0, 0, ONNXQ_ONE(weight_scale), 1},
    {"bias", Kind::kInput, 0, 0, ONNXQ_ONE(bias), 1},
    {"scale", Kind::kInput, 0, 0, ONNXQ_ONE(scale), 1},
    {"zero", Kind::kInput, 0, 0, ONNXQ_ONE(zero), 1},
    {"table", Kind::kInput, 0, 0, ONNXQ_ONE(table), 1},
    {"knee", Kind::kInput, 0, 0, ONNXQ_ONE(knee), 1},
    {"low", Kind::kInput, 0, 0, ONNXQ_ONE(low), 1},
    {"high", Kind::kInput, 0, 0, ONNXQ_ONE(high), 1},
    {"epsilon", Kind::kInput, 0, 0, ONNXQ_ONE(epsilon), 1},
    {"factor", Kind::kInput, 0, 0, ONNXQ_ONE(factor), 1},
    {"group", Kind::kNumber, 1, kMostNumber, ONNXQ_ONE(group), 1},
    {"relu", Kind::kNumber, 0, 1, ONNXQ_ONE(relu), 1},
    {"ceil", Kind::kNumber, 0, 1, ONNXQ_ONE(ceil), 1},
    {"counts_pads", Kind::kNumber, 0, 1, ONNXQ_ONE(counts_pads), 1},
    {"transposed", Kind::kNumber, 0, 1, ONNXQ_ONE(transposed), 1},
    {"keeps", Kind::kNumber, 0, 1, ONNXQ_ONE(keeps), 1},
    {"stack", Kind::kNumber, 0, 1, ONNXQ_ONE(stack), 1},
    {"act", Kind::kNumber, 0, kActs - 1, ONNXQ_ONE(act), 1},
    {"same", Kind::kNumber, 1, 2, ONNXQ_ONE(same), 1},
    {"kernel", Kind::kNumber, 1, 4096, ONNXQ_MANY(kernel), 2},
    {"strides", Kind::kNumber, 1, 4096, ONNXQ_MANY(strides), 2},
    {"dilations", Kind::kNumber, 1, 4096, ONNXQ_MANY(dilations), 2},
    {"pads", Kind::kNumber, 0, 1 << 20, ONNXQ_MANY(pads), 4},
    {"output_padding", Kind::kNumber, 0, 4096, ONNXQ_MANY(output_padding), 2},
    {"codes", Kind::kInput, 0, 0, ONNXQ_ONE(codes), 1},
    {"sizes", Kind::kInput, 0, 0, ONNXQ_ONE(sizes), 1},
    {"ratios", Kind::kInput, 0, 0, ONNXQ_ONE(ratios), 1},
    {"axis", Kind::kNumber, 0, 3, ONNXQ_ONE(axis), 1},
    {"starts", Kind::kNumber, -kMostNumber, kMostNumber, ONNXQ_MANY(starts), 4},
    {"stops", Kind::kNumber, -kMostNumber, kMostNumber, ONNXQ_MANY(stops), 4},
    {"steps", Kind::kNumber, -kMostNumber, kMostNumber, ONNXQ_MANY(steps), 4},
    {"before", Kind::kNumber, -kMostNumber, kMostNumber, ONNXQ_MANY(before), 4},
    {"behind", Kind::kNumber, -kMostNumber, kMostNumber, ONNXQ_MANY(behind), 4},
    {"block", Kind::kNumber, 1, 64, ONNXQ_ONE(block), 1},
    {"to_depth", Kind::kNumber, 0, 1, ONNXQ_ONE(to_depth), 1},
    {"mode", Kind::kNumber, 0, 2, ONNXQ_ONE(mode), 1},
    {"coordinates", Kind::kNumber, 0, 3, ONNXQ_ONE(coordinates), 1},
    {"nearest", Kind::kNumber, 0, 3, ONNXQ_ONE(nearest), 1},
    {"centred", Kind::kNumber, 0, 1, ONNXQ_ONE(centred), 1},
    {"heads", Kind::kNumber, 1, kMostNumber, ONNXQ_ONE(heads), 1},
    {"width", Kind::kNumber, 1, kMostNumber, ONNXQ_MANY(width), 2},
    {"joined", Kind::kNumber, 0, 1, ONNXQ_MANY(joined), 4},
    {"first", Kind::kNumber, 0, kMostNumber, ONNXQ_MANY(first), 3},
    {"split", Kind::kDims, -1, kMostNumber, ONNXQ_LIST(split), 0},
    {"perm", Kind::kDims, 0, kMostDims - 1, ONNXQ_LIST(perm), 0},
    {"shape", Kind::kDims, -1, kMostNumber, ONNXQ_LIST(shape), 0},
};
#undef ONNXQ_ONE
#undef ONNXQ_LIST
#undef ONNXQ_MANY

// The words of an operator: those it must say, and after the bar those it may.
struct Operator {
  const char* name;
  Does does;
  size_t least, most;  // sources
  const char* words;
};
// Those of both languages, which move what there is and leave it what it is.
constexpr Operator kMoves[] = {
    {"flatten", Does::kFlatten, 1, 1, " x |"},
    {"slice", Does::kSlice, 1, 1, " x starts stops steps |"},
    {"pad", Does::kPad, 1, 1, " x before behind | mode "},
    {"resize", Does::kResize, 1, 1, " x | sizes ratios coordinates nearest "},
    {"depth_to_space", Does::kArrange, 1, 1, " x block | mode "},
    {"space_to_depth", Does::kArrange, 1, 1, " x block to_depth |"},
    {"arrange", Does::kArrange, 1, 1, " x | split perm shape "},
};
constexpr Operator kOperators[] = {
    {"quantize", Does::kQuantize, 0, 0, " in scale zero | stack "},
    {"conv", Does::kConv, 1, 1, " x weight weight_scale scale zero | bias group strides dilations pads same relu low high "},
    {"conv_transpose", Does::kConvTranspose, 1, 1,
     " x weight weight_scale scale zero | bias group strides dilations pads output_padding relu low high "},
    {"resize_linear", Does::kResizeLinear, 1, 1, " x scale zero | sizes ratios coordinates "},
    {"gemm", Does::kGemm, 1, 1, " x weight weight_scale out | bias transposed factor "},
    {"product", Does::kProduct, 1, 1, " x weight weight_scale scale zero | bias transposed relu low high "},
    {"constant", Does::kConstant, 0, 0, " codes scale zero | stack "},
    {"add", Does::kAdd, 2, 2, " x scale zero | relu low high "},
    {"sub", Does::kSub, 2, 2, " x scale zero | relu low high "},
    {"mul", Does::kMul, 2, 2, " x scale zero | relu low high "},
    {"table", Does::kTable, 1, 1, " x table scale zero |"},
    {"affine", Does::kAffine, 1, 1, " x weight bias scale zero | knee relu low high "},
    {"max_pool", Does::kMaxPool, 1, 1, " x kernel | strides dilations pads same ceil "},
    {"average_pool", Does::kAveragePool, 1, 1, " x kernel scale zero | strides pads same counts_pads "},
    {"global_average_pool", Does::kGlobalAveragePool, 1, 1, " x scale zero | keeps "},
    {"concat", Does::kConcat, 1, kMostSources, " x scale zero | axis "},
    {"arrange", Does::kArrange, 1, 1, " x | split perm shape stack "},  // before that of kMoves
    {"dequantize", Does::kDequantize, 1, 1, " x out |"},
    {"instance_norm", Does::kInstanceNorm, 1, 1, " x weight bias epsilon scale zero | group relu low high "},
    {"read", Does::kRead, 0, 0, " in | stack "},
    {"write", Does::kWrite, 1, 1, " x out |"},
    {"encode", Does::kEncode, 1, 1, " x scale zero |"},
    {"decode", Does::kDecode, 1, 1, " x |"},
    {"sums", Does::kSums, 1, 2, " x weight weight_scale | bias transposed factor "},
    {"plus", Does::kPlus, 2, 2, " x |"},
    {"layer_norm", Does::kNorm, 1, 1, " x epsilon | weight bias centred scale zero "},
    {"softmax", Does::kSoftmax, 1, 1, " x | scale zero "},
    {"rotary", Does::kRotary, 3, 3, " x | scale zero "},
    {"matmul", Does::kMatMul, 2, 2, " x | transposed scale zero "},
    {"attention", Does::kAttention, 3, 4, " x factor scale zero | heads width joined first transposed "},
};
// The same of bf16.
constexpr Operator kNumberOperators[] = {
    {"read", Does::kQuantize, 0, 0, " in |"},
    {"conv", Does::kConv, 1, 2, " x weight | bias group strides dilations pads same act low high "},
    {"conv_transpose", Does::kConvTranspose, 1, 1,
     " x weight | bias group strides dilations pads output_padding act low high "},
    {"resize_linear", Does::kResizeLinear, 1, 1, " x | sizes ratios coordinates "},
    {"add", Does::kAdd, 2, 2, " x | act low high "},
    {"mul", Does::kMul, 2, 2, " x | act low high "},
    {"affine", Does::kAffine, 1, 1, " x | weight bias act low high "},
    {"instance_norm", Does::kInstanceNorm, 1, 1, " x weight bias epsilon | group act low high "},
    {"max_pool", Does::kMaxPool, 1, 1, " x kernel | strides dilations pads same ceil "},
    {"average_pool", Does::kAveragePool, 1, 1, " x kernel | strides pads same counts_pads "},
    {"global_average_pool", Does::kGlobalAveragePool, 1, 1, " x | keeps "},
    {"concat", Does::kConcat, 1, kMostSources, " x |"},
    {"write", Does::kDequantize, 1, 1, " x out |"},
};

// What a list of steps may say.
struct Language {
  const char* first_line;
  const Operator *begin, *end;
};
constexpr Language kCodes = {"region 1", std::begin(kOperators), std::end(kOperators)};
constexpr Language kNumbers = {"bf16 region 1", std::begin(kNumberOperators), std::end(kNumberOperators)};

[[noreturn]] void refuse(size_t step, const std::string& reason) {
  throw Refusal("step " + std::to_string(step) + " of attribute steps " + reason);
}

std::vector<std::string> cut(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t start = 0, end = 0; end != std::string::npos; start = end + 1) {
    end = text.find(at, start);
    parts.push_back(text.substr(start, end == std::string::npos ? end : end - start));
  }
  return parts;
}

// Whole numbers between commas.
std::vector<int64_t> numbers(const std::string& text, size_t step, const std::string& word) {
  std::vector<int64_t> found;
  for (const std::string& digits : cut(text, ',')) {
    const size_t sign = digits.rfind('-', 0) == 0 ? 1 : 0;
    const bool is_number = digits.size() > sign && digits.size() < 10 + sign &&
                           digits.find_first_not_of("0123456789", sign) == std::string::npos;
    if (!is_number) {
      refuse(step, "says '" + word + "' with something else than whole numbers");
    }
    found.push_back(std::stoll(digits));
  }
  return found;
}

bool has_word(const char* words, const std::string& name) {
  return std::strstr(words, (" " + name + " ").c_str()) != nullptr;
}

void read_word(const Operator& op, const std::string& text, const std::vector<Step>& before, size_t inputs,
               size_t outputs, std::string& said, Step& step) {
  const size_t number = before.size(), equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const auto word = std::find_if(std::begin(kWords), std::end(kWords), [&](const Word& w) { return name == w.name; });
  if (equals == std::string::npos || word == std::end(kWords) || !has_word(op.words, name)) {
    refuse(number, std::string("(") + op.name + ") says a word that it has no use for");
  }
  if (has_word(said.c_str(), name)) {
    refuse(number, "says '" + name + "' twice");
  }
  said += name + " ";
  const std::vector<int64_t> values = numbers(text.substr(equals + 1), number, name);
  const bool is_list = word->kind == Kind::kSources, is_dims = word->kind == Kind::kDims;
  if (is_list   ? values.size() < op.least || values.size() > op.most
      : is_dims ? values.size() > kMostDims
                : values.size() != word->count) {
    refuse(number, "says '" + name + "' with " + std::to_string(values.size()) + " numbers");
  }
  for (const int64_t value : values) {
    const int64_t most = word->kind == Kind::kNumber || is_dims ? word->most
                         : word->kind == Kind::kInput  ? static_cast<int64_t>(inputs) - 1
                         : word->kind == Kind::kOutput ? static_cast<int64_t>(outputs) - 1
                                                       : static_cast<int64_t>(number) - 1;
    if (value < word->least || value > most) {
      refuse(number, "says '" + name + "' with the number " + std::to_string(value) + ", which is out of range");
    }
    if (is_list && !makes_tensor(before[static_cast<size_t>(value)].does)) {
      refuse(number, "reads step " + std::to_string(value) + ", which makes no codes");
    }
  }
  word->set(step, values);
}

Step read_step(const Language& language, const std::string& line, const std::vector<Step>& before, size_t inputs,
               size_t outputs) {
  const std::vector<std::string> words = cut(line, ' ');
  const auto named = [&](const Operator& each) { return words[0] == each.name; };
  const Operator* op = std::find_if(language.begin, language.end, named);
  if (op == language.end) {
    op = std::find_if(std::begin(kMoves), std::end(kMoves), named);
    if (op == std::end(kMoves)) {
      refuse(before.size(), "is none that this version of onnxq knows");
    }
  }
  Step step{};
  step.does = op->does;
  std::string said = " ";
  for (size_t i = 1; i < words.size(); ++i) {
    read_word(*op, words[i], before, inputs, outputs, said, step);
  }
  const std::string all = op->words;
  for (const std::string& name : cut(all.substr(1, all.find('|') - 2), ' ')) {
    if (!has_word(said.c_str(), name)) {
      refuse(before.size(), std::string("(") + op->name + ") must say '" + name + "'");
    }
  }
  return step;
}

}  // namespace

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = cut(text, '\n');
  lines.erase(lines.begin());
  return lines;
}

std::vector<Step> read_steps(const std::string& text, size_t inputs, size_t outputs, Element element) {
  const Language& language = element == Element::kCodes ? kCodes : kNumbers;
  const std::vector<std::string> lines =
      text.size() > kMostBytes ? std::vector<std::string>(1) : cut(text, '\n');
  if (lines[0] != language.first_line) {
    throw Refusal(std::string("attribute steps must begin with the line '") + language.first_line + "'");
  }
  if (lines.size() < 2 || lines.size() > kMostSteps + 1) {
    throw Refusal("attribute steps must have 1 to 4096 steps");
  }
  std::vector<Step> steps;
  std::vector<bool> made(outputs);
  for (size_t i = 1; i < lines.size(); ++i) {
    steps.push_back(read_step(language, lines[i], steps, inputs, outputs));
    if (steps.back().out != kNone) {
      const size_t out = static_cast<size_t>(steps.back().out);
      if (made[out]) {
        refuse(i - 1, "makes output " + std::to_string(out) + ", which another step makes");
      }
      made[out] = true;
    }
  }
  if (std::find(made.begin(), made.end(), false) != made.end()) {
    throw Refusal("attribute steps makes not all outputs of the node");
  }
  return steps;
}

}  // namespace onnxq
