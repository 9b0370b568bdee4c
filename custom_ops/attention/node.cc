// onnxq::Attention: y = softmax(scale · q kᵀ + mask) v, of any number of heads, in the type of q.

#include <algorithm>
#include <string>

#include "../abi/nodes.h"
#include "../abi/ops.h"
#include "../cpu/isa.h"
#include "../cpu/run.h"
#include "choose.h"

namespace onnxq {
namespace {

using namespace ort;

enum Input : size_t { kQ, kK, kV, kMask, kInputs };
// Bits of the attribute `joined`, by input; and of y.
constexpr int64_t kJoinedY = 8, kAllJoined = 15;
constexpr int64_t kMostHeads = 1 << 24, kMostNumbers = int64_t{1} << 40;
constexpr const char* kInputNames[] = {"q", "k", "v", "mask"};

class Heads {
 public:
  Heads(const OrtApi* api, const OrtKernelInfo* info) : api_(api), name_(node_name(api, info)) {
    if (const char* const isa = forced_isa()) {
      isa_ = isa;
      if (const std::string reason = why_not(isa); !reason.empty()) {
        refuse("ONNXQ_FORCE_ISA = " + reason);
      }
    }
    const std::string activations = string_attribute(api, info, "activations", "fast");
    exact_ = activations == "exact";
    if (!exact_ && activations != "fast") {
      refuse("attribute activations is '" + activations + "', but must be fast or exact");
    }
    const int64_t turned = int_attribute(api, info, "transK", 0);
    if (turned != 0 && turned != 1) {
      refuse("attribute transK must be 0 or 1");
    }
    turned_ = turned == 1;
    has_mask_ = has_input(api, info, kMask);
    joined_ = int_attribute(api, info, "joined", 0), heads_ = int_attribute(api, info, "heads", 0);
    if (joined_ < 0 || joined_ > kAllJoined || (joined_ && (heads_ < 1 || heads_ > kMostHeads))) {
      refuse("attribute joined must be from 0 to 15, and heads the number of heads where it is not 0");
    }
    if (is_joined(kK) && !turned_) {
      refuse("attribute transK must be 1 where the heads of k are joined");
    }
    if (OrtStatus* const missing = api->KernelInfoGetAttribute_float(info, "scale", &scale_)) {
      api->ReleaseStatus(missing);
      scale_ = 1.0f;
    }
  }

  void compute(OrtKernelContext* context) {
    const Place place(api_, context);
    std::array<Tensor, kInputs> in;
    for (size_t i = 0; i < (has_mask_ ? kInputs : kMask); ++i) {
      in[i] = given_input(api_, context, i);
      if (!is_aligned(in[i])) {
        refuse(std::string(kInputNames[i]) + " begins at an address that is no multiple of the size of its elements");
      }
    }
    for (size_t i = 0; i < kMask; ++i) {
      if (is_joined(i)) {
        split_heads(in[i], i);
      }
    }
    Attention p{};
    const std::vector<int64_t> lead = read_sizes(in, p);
    if ((joined_ & kJoinedY) && (lead.size() != 2 || lead[1] != heads_)) {
      refuse("there are not " + std::to_string(heads_) + " heads, as its attribute says, in two dimensions before the last two");
    }
    std::vector<int64_t> shape = lead;
    if (joined_ & kJoinedY) {
      shape = {lead[0], p.S, heads_ * p.E};
    } else {
      shape.push_back(p.S);
      shape.push_back(p.E);
    }
    void* const y = output_data(api_, context, 0, shape);
    if (p.heads * p.S * p.E == 0) {
      return;
    }
    if (p.T == 0 || p.D == 0) {
      refuse("k has shape " + text(in[kK].shape) + ": there is nothing to attend to");
    }
    in_float32(place, in, lead, p, y);
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const { throw Refusal("onnxq node '" + name_ + "': " + reason); }

  bool is_joined(size_t input) const { return input < kMask && (joined_ >> input & 1); }

  // [B, T, H · D] becomes [B, H, T, D], whose numbers do not lie in that order.
  void split_heads(Tensor& x, size_t input) const {
    if (x.shape.size() != 3 || x.shape[2] % heads_ != 0) {
      refuse(std::string(kInputNames[input]) + " has shape " + text(x.shape) + ", but must have three dimensions, the last of " +
             std::to_string(heads_) + " heads");
    }
    x.shape = {x.shape[0], heads_, x.shape[1], x.shape[2] / heads_};
  }

  int64_t heads_or_one() const { return heads_ > 0 ? heads_ : 1; }

  // Numbers between a head's rows.
  int64_t row_of(size_t input, int64_t numbers) const { return is_joined(input) ? heads_ * numbers : numbers; }

  // All of `p` that shapes say; the dimensions of y before the last two.
  std::vector<int64_t> read_sizes(const std::array<Tensor, kInputs>& in, Attention& p) const {
    std::vector<int64_t> lead;
    for (size_t i = 0; i < kInputs; ++i) {
      const std::vector<int64_t>& shape = in[i].shape;
      if (i != kMask && shape.size() < 2) {
        refuse(std::string(kInputNames[i]) + " has shape " + text(shape) + ", but must have two dimensions at least");
      }
      const size_t rank = shape.size() < 2 ? 0 : shape.size() - 2;
      lead.insert(lead.begin(), rank > lead.size() ? rank - lead.size() : 0, 1);
      for (size_t d = 0; d < rank; ++d) {
        int64_t& size = lead[lead.size() - rank + d];
        if (size != shape[d] && size != 1 && shape[d] != 1) {
          refuse(std::string(kInputNames[i]) + " has shape " + text(shape) + ", which cannot be broadcast with the others");
        }
        size = size == 1 ? shape[d] : size;
      }
    }
    const auto last = [&](size_t i, size_t back) {
      return in[i].shape.size() < back ? 1 : in[i].shape[in[i].shape.size() - back];
    };
    const int64_t rows = last(kQ, 2), mask_rows = last(kMask, 2), mask_tokens = last(kMask, 1);
    p.T = last(kV, 2), p.D = last(kQ, 1), p.E = last(kV, 1);
    p.S = rows == 1 ? mask_rows : rows;
    const bool fits = last(kK, turned_ ? 2 : 1) == p.T && last(kK, turned_ ? 1 : 2) == p.D;
    if (!fits || (mask_rows != 1 && mask_rows != p.S) || (mask_tokens != 1 && mask_tokens != p.T)) {
      refuse("shapes do not fit together: q " + text(in[kQ].shape) + ", k " + text(in[kK].shape) + ", v " +
             text(in[kV].shape) + (has_mask_ ? ", mask " + text(in[kMask].shape) : ""));
    }
    p.q_row = rows == 1 && p.S != 1 ? 0 : row_of(kQ, p.D);
    p.k_token = turned_ ? row_of(kK, p.D) : 1, p.k_number = turned_ ? 1 : p.T;
    p.v_token = row_of(kV, p.E), p.y_row = joined_ & kJoinedY ? heads_ * p.E : p.E;
    p.mask_row = mask_rows == 1 ? 0 : mask_tokens, p.mask_token = mask_tokens == 1 ? 0 : 1;
    p.scale = scale_, p.exact = exact_;
    p.heads = 1;
    for (const int64_t size : lead) {
      if (size > 0 && p.heads > kMostNumbers / size) {
        refuse("there are more heads than any memory holds");
      }
      p.heads *= size;
    }
    if (p.S > 0 && p.E > 0 && p.heads > kMostNumbers / p.S / p.E) {
      refuse("there are more heads than any memory holds");
    }
    return lead;
  }

  // Where the arrays of each head begin: those of inputs with fewer heads serve several.
  std::vector<Head> heads(const std::array<Tensor, kInputs>& in, const std::array<const float*, kInputs>& data,
                          const std::vector<int64_t>& lead, const Attention& p, float* y) const {
    std::vector<Head> made(static_cast<size_t>(p.heads));
    for (int64_t head = 0; head < p.heads; ++head) {
      std::array<const float*, kInputs> at = data;
      for (size_t i = 0; i < kInputs; ++i) {
        const std::vector<int64_t>& shape = in[i].shape;
        const size_t rank = shape.size() < 2 ? 0 : shape.size() - 2;
        int64_t rest = head, offset = 0;
        int64_t step = shape.size() < 2 ? 0 : (is_joined(i) ? 1 : shape[rank]) * shape[rank + 1];
        for (size_t d = 0; d < rank; ++d) {  // from the last dimension on
          const int64_t size = lead[lead.size() - 1 - d], mine = shape[rank - 1 - d];
          offset += (mine == 1 ? 0 : rest % size) * step;
          rest /= size;
          step *= is_joined(i) && d == 0 ? mine * shape[rank] : mine;
        }
        at[i] = at[i] ? at[i] + offset : nullptr;
      }
      const int64_t of_batch = head / heads_or_one() * heads_or_one(), of_head = head - of_batch;
      float* const mine = joined_ & kJoinedY ? y + (of_batch * p.S + of_head) * p.E : y + head * p.S * p.E;
      made[static_cast<size_t>(head)] = {at[kQ], at[kK], at[kV], at[kMask], mine};
    }
    return made;
  }

  void in_float32(const Place& place, const std::array<Tensor, kInputs>& in, const std::vector<int64_t>& lead, Attention& p,
                  void* y) const {
    const bool converts = in[kQ].type != kFloat;
    const AttentionKernel& kernel = *attention_kernel_for(isa_.c_str(), p);
    const int64_t workspace = kernel.workspace(p), y_size = p.heads * p.S * p.E;
    int64_t bytes = round_up_to_line(workspace);
    for (size_t i = 0; converts && i < kInputs; ++i) {
      bytes += round_up_to_line(4 * in[i].size());
    }
    Scratch scratch(place, bytes + (converts ? round_up_to_line(4 * y_size) : 0));
    void* const shared = scratch.take(workspace);
    std::array<const float*, kInputs> data{};
    for (size_t i = 0; i < (has_mask_ ? kInputs : kMask); ++i) {
      data[i] = static_cast<const float*>(in[i].data);
      if (converts) {
        float* const made = static_cast<float*>(scratch.take(4 * in[i].size()));
        to_float(place, in[i].type, in[i].data, made, in[i].size());
        data[i] = made;
      }
    }
    float* const sums = static_cast<float*>(converts ? scratch.take(4 * y_size) : y);
    const std::vector<Head> all = heads(in, data, lead, p, sums);
    p.head = all.data();
    for (int phase = 0; const int64_t tasks = kernel.tasks(p, phase, threads()); ++phase) {
      place.parallel(tasks, [&](int64_t task) { kernel.run(p, phase, task, tasks, shared); });
    }
    if (converts) {
      from_float(place, in[kQ].type, sums, y, y_size);
    }
  }

  const OrtApi* api_;
  std::string name_, isa_;
  int64_t heads_ = 0, joined_ = 0;
  bool exact_ = false, turned_ = false, has_mask_ = false;
  float scale_ = 1.0f;
};

template <ElementType type>
struct AttentionOp {
  using Kernel = Heads;
  static constexpr const char* name = "Attention";
  static constexpr const char* provider = "CPUExecutionProvider";
  static constexpr std::array<Parameter, 4> inputs = {{{type}, {type}, {type}, {type, kOptional}}};
  static constexpr std::array<Parameter, 1> outputs = {{{type}}};

  // Of the usual kind alone: q and v of the same heads, and k and a mask that cannot have more.
  static void infer(const OrtApi* api, const OrtShapeInferContext* context) {
    Shape y = inferred_input(api, context, kQ);
    const Shape k = inferred_input(api, context, kK), v = inferred_input(api, context, kV);
    const Shape mask = inferred_input(api, context, kMask);
    const size_t rank = y.dims.size();
    const int64_t joined = inferred_attribute(api, context, "joined", 0);
    const size_t most = joined ? rank + 1 : rank;  // a mask's
    const bool is_usual = k.dims.size() == rank && v.dims.size() == rank && mask.dims.size() <= most;
    if (rank < 2 || !is_usual || (joined && joined != kAllJoined)) {
      return;
    }
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (y.dims[d] != v.dims[d] || y.names[d] != v.names[d] || y.dims[d] == 1 || (y.dims[d] < 0 && y.names[d].empty())) {
        return;
      }
    }
    const size_t of_mask = mask.dims.size(), rest = joined ? 3 : 2;  // its dimensions behind those that y has in front
    const auto has_more = [&](const Shape& shape, size_t d, size_t at) {
      return shape.dims[d] != 1 && (shape.dims[d] != y.dims[at] || shape.names[d] != y.names[at]);
    };
    bool more = of_mask >= 2 && has_more(mask, of_mask - 2, rank - 2);
    for (size_t d = 0; d + 2 < rank; ++d) {
      more = more || has_more(k, d, d);
    }
    for (size_t d = 0; d + rest < of_mask; ++d) {
      more = more || has_more(mask, d, d + rank - 2 - (of_mask - rest));  // counted from the last of them
    }
    if (more) {
      return;
    }
    y.dims[rank - 1] = v.dims[rank - 1];
    y.names[rank - 1] = v.names[rank - 1];
    infer_output(api, context, 0, y);
  }
};

constexpr OrtCustomOp kOps[] = {make_op<AttentionOp<kFloat>>(), make_op<AttentionOp<kFloat16>>(),
                                make_op<AttentionOp<kBFloat16>>()};

}  // namespace

constexpr Ops kAttention = {kOps, 3};

}  // namespace onnxq
