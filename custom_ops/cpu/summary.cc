#include "summary.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "../base/export.h"
#include "../base/convert.h"
#include "scan.h"

namespace onnxq {
namespace {

constexpr int64_t kBins = 4096;
constexpr int kBinsBits = 13;  // of the number 4096
constexpr int kSmallest = -1074;
// Blocks that are worth a task of their own, tasks at most, and numbers too few for tables of their own.
constexpr size_t kBlocksOfTask = 4, kMostTasks = 16;
constexpr size_t kFew = 2048;

// The smallest exponent for which [low, high] needs at most kBins bins, numbered within 53 bits.
int least_exponent(double low, double high) {
  const double largest = std::max(fabs(low), fabs(high));
  int exponent = kSmallest, bits = 0;
  if (largest > 0) {
    frexp(largest, &bits);
    exponent = std::max(bits - 52, kSmallest);
  }
  if (high > low) {
    frexp(high - low, &bits);
    exponent = std::max(exponent, bits - kBinsBits);
  }
  while (bin_of(high, exponent) - bin_of(low, exponent) >= kBins) {
    ++exponent;
  }
  return exponent;
}

template <typename Task>
void run(const Pool& pool, size_t tasks, Task task) {
  pool.run(
      pool.self, [](void* data, size_t i) { (*static_cast<Task*>(data))(i); }, tasks, &task);
}

struct Registry {
  std::mutex mutex;
  std::unordered_map<int64_t, std::shared_ptr<Summary>> all;
  int64_t last = 0;
};

// Never destroyed: sessions may outlive whatever runs at exit.
Registry& registry() {
  static Registry* const made = new Registry;
  return *made;
}

}  // namespace

Summary::Summary(bool histogram, const int64_t* axis)
    : numbers_{},
      bins_low_(HUGE_VAL),
      bins_high_(-HUGE_VAL),
      batch_low_(HUGE_VAL),
      batch_high_(-HUGE_VAL),
      has_histogram_(histogram),
      has_axis_(axis != nullptr),
      axis_(axis ? *axis : 0) {
  numbers_.low = HUGE_VAL;
  numbers_.high = -HUGE_VAL;
  numbers_.least_rank = numbers_.most_rank = -1;
}

void Summary::update(const void* data, ort::ElementType type, const std::vector<int64_t>& shape, const Pool& pool) {
  size_t n = 1;
  for (const int64_t dim : shape) {
    n *= static_cast<size_t>(dim);
  }
  if (type == ort::kFloat) {
    update_as(static_cast<const float*>(data), shape, pool);
  } else if (type == ort::kDouble) {
    update_as(static_cast<const double*>(data), shape, pool);
  } else {
    const auto widen = type == ort::kFloat16 ? from_half : from_bfloat16;
    std::vector<float> wide(n);
    widen(static_cast<const uint16_t*>(data), wide.data(), static_cast<int64_t>(n));
    update_as(wide.data(), shape, pool);
  }
}

template <typename T>
void Summary::update_as(const T* x, const std::vector<int64_t>& shape, const Pool& pool) {
  size_t n = 1;
  for (const int64_t dim : shape) {
    n *= static_cast<size_t>(dim);
  }
  const size_t blocks = (n + kBlock - 1) / kBlock;
  const size_t tasks = std::min(kMostTasks, (blocks + kBlocksOfTask - 1) / kBlocksOfTask);
  const auto size_of = [&](size_t block) { return std::min(kBlock, n - block * kBlock); };
  std::vector<Scan> scans(blocks);
  run(pool, tasks, [&](size_t task) {
    for (size_t block = task * blocks / tasks; block < (task + 1) * blocks / tasks; ++block) {
      scans[block] = scan(x + block * kBlock, size_of(block), has_histogram_);
    }
  });
  Scan all{HUGE_VAL, -HUGE_VAL, 0, 0, 0, 0, 0};
  for (const Scan& one : scans) {
    all.low = std::min(all.low, one.low);
    all.high = std::max(all.high, one.high);
    all.total += one.total;
    all.squares += one.squares;
    all.zeros += one.zeros;
    all.nans += one.nans;
    all.infinities += one.infinities;
  }
  Bins seen;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t rank = static_cast<int64_t>(shape.size());
    numbers_.least_rank = numbers_.least_rank < 0 ? rank : std::min(numbers_.least_rank, rank);
    numbers_.most_rank = std::max(numbers_.most_rank, rank);
    if (has_axis_ && n) {
      update_channels(x, shape);
    }
    numbers_.count += static_cast<int64_t>(n);
    numbers_.nans += all.nans;
    numbers_.infinities += all.infinities;
    if (!(all.low <= all.high)) {
      return;
    }
    numbers_.low = std::min(numbers_.low, all.low);
    numbers_.high = std::max(numbers_.high, all.high);
    batch_low_ = std::min(batch_low_, all.low);
    batch_high_ = std::max(batch_high_, all.high);
    if (!has_histogram_) {
      return;
    }
    numbers_.zeros += all.zeros;
    numbers_.total += all.total;
    numbers_.squares += all.squares;
    grow(all.low, all.high);
    seen.exponent = bins_.exponent;
    seen.first = bins_.first;
    if (n <= kFew) {
      for (size_t i = 0; i < n; ++i) {
        if (isfinite(x[i])) {
          bins_.counts[bin_of(x[i], static_cast<int>(seen.exponent)) - seen.first] += 1;
        }
      }
      return;
    }
    seen.counts.resize(bins_.counts.size());
  }
  // Counted without the lock: others may go on, and may even make the histogram grow.
  const size_t stride = seen.counts.size();
  const int64_t limit = int64_t{1} << 30;
  const bool is_small = seen.first > -limit && seen.first + static_cast<int64_t>(stride) < limit &&
                        seen.exponent > -127 && seen.exponent < 127;
  std::vector<uint32_t> tables(tasks * kTables * stride);
  run(pool, tasks, [&](size_t task) {
    uint32_t* const own = tables.data() + task * kTables * stride;
    for (size_t block = task * blocks / tasks; block < (task + 1) * blocks / tasks; ++block) {
      const Scan& one = scans[block];
      const Counting how{static_cast<int>(seen.exponent), seen.first, !one.nans && !one.infinities, is_small};
      count(x + block * kBlock, size_of(block), how, own, stride);
    }
  });
  for (size_t table = 0; table < tasks * kTables; ++table) {
    for (size_t i = 0; i < stride; ++i) {
      seen.counts[i] += tables[table * stride + i];
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  add(seen);
}

template <typename T>
void Summary::update_channels(const T* x, const std::vector<int64_t>& shape) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  const int64_t axis = axis_ < 0 ? axis_ + rank : axis_;
  if (axis < 0 || axis >= rank || (!channel_low_.empty() && channel_low_.size() != static_cast<size_t>(shape[axis]))) {
    ++numbers_.unlike;
    return;
  }
  if (channel_low_.empty()) {
    channel_low_.assign(shape[axis], HUGE_VAL);
    channel_high_.assign(shape[axis], -HUGE_VAL);
  }
  int64_t outer = 1, inner = 1;
  for (int64_t i = 0; i < rank; ++i) {
    (i < axis ? outer : inner) *= i == axis ? 1 : shape[i];
  }
  for (int64_t i = 0; i < outer; ++i) {
    for (size_t channel = 0; channel < channel_low_.size(); ++channel) {
      T low = std::numeric_limits<T>::infinity(), high = -low;
      for (int64_t j = 0; j < inner; ++j, ++x) {
        if (isfinite(*x)) {
          low = std::min(low, *x);
          high = std::max(high, *x);
        }
      }
      channel_low_[channel] = std::min(channel_low_[channel], low + 0.0);
      channel_high_[channel] = std::max(channel_high_[channel], high + 0.0);
    }
  }
}

void Summary::grow(double low, double high) {
  if (bins_low_ <= low && high <= bins_high_) {
    return;
  }
  bins_low_ = std::min(bins_low_, low);
  bins_high_ = std::max(bins_high_, high);
  Bins old;
  std::swap(old, bins_);
  const int exponent = least_exponent(bins_low_, bins_high_);
  bins_.exponent = exponent;
  bins_.first = bin_of(bins_low_, exponent);
  bins_.counts.resize(bin_of(bins_high_, exponent) - bins_.first + 1);
  add(old);
}

// Bins of a larger width are unions of those of a smaller one.
void Summary::add(const Bins& seen) {
  const int64_t shift = std::min<int64_t>(bins_.exponent - seen.exponent, 63);
  for (size_t i = 0; i < seen.counts.size(); ++i) {
    bins_.counts[((seen.first + static_cast<int64_t>(i)) >> shift) - bins_.first] += seen.counts[i];
  }
}

void Summary::end_batch(double momentum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (batch_low_ <= batch_high_) {
    const double share = numbers_.batches ? momentum : 1.0;
    numbers_.average_low += share * (batch_low_ - numbers_.average_low);
    numbers_.average_high += share * (batch_high_ - numbers_.average_high);
    ++numbers_.batches;
  }
  batch_low_ = HUGE_VAL;
  batch_high_ = -HUGE_VAL;
}

SummaryNumbers Summary::numbers() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  SummaryNumbers seen = numbers_;
  seen.exponent = bins_.exponent;
  seen.first = bins_.first;
  seen.bins = has_histogram_ ? static_cast<int64_t>(bins_.counts.size()) : -1;
  seen.channels = static_cast<int64_t>(channel_low_.size());
  return seen;
}

void Summary::arrays(int64_t* counts, double* channel_low, double* channel_high) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::copy(bins_.counts.begin(), bins_.counts.end(), counts);
  std::copy(channel_low_.begin(), channel_low_.end(), channel_low);
  std::copy(channel_high_.begin(), channel_high_.end(), channel_high);
}

void Summary::restore(const SummaryNumbers& numbers, const int64_t* counts, const double* channel_low,
                      const double* channel_high) {
  const std::lock_guard<std::mutex> lock(mutex_);
  numbers_ = numbers;
  bins_.exponent = numbers.exponent;
  bins_.first = numbers.first;
  bins_.counts.assign(counts, counts + std::max<int64_t>(numbers.bins, 0));
  bins_low_ = bins_.counts.empty() ? HUGE_VAL : numbers.low;
  bins_high_ = bins_.counts.empty() ? -HUGE_VAL : numbers.high;
  channel_low_.assign(channel_low, channel_low + numbers.channels);
  channel_high_.assign(channel_high, channel_high + numbers.channels);
}

std::shared_ptr<Summary> find_summary(int64_t number) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().all.find(number);
  return found == registry().all.end() ? nullptr : found->second;
}

}  // namespace onnxq

using namespace onnxq;

// A new summary's number, from 1. `axis`: null, or of the channels whose extremes are kept.
ONNXQ_EXPORT int64_t onnxq_summary_new(int32_t histogram, const int64_t* axis) {
  auto made = std::make_shared<Summary>(histogram != 0, axis);
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().all.emplace(++registry().last, std::move(made));
  return registry().last;
}

// Sessions that fill it keep it until they are gone.
ONNXQ_EXPORT void onnxq_summary_free(int64_t number) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().all.erase(number);
}

// What the operator does, for callers that have an array and no session.
ONNXQ_EXPORT void onnxq_summary_update(int64_t number, const void* data, int32_t type, const int64_t* shape,
                                       int64_t rank) {
  const Pool alone{[](void*, void (*task)(void*, size_t), size_t tasks, void* data) {
                     for (size_t i = 0; i < tasks; ++i) {
                       task(data, i);
                     }
                   },
                   nullptr};
  find_summary(number)->update(data, static_cast<ort::ElementType>(type), {shape, shape + rank}, alone);
}

ONNXQ_EXPORT void onnxq_summary_end_batch(int64_t number, double momentum) {
  find_summary(number)->end_batch(momentum);
}

ONNXQ_EXPORT void onnxq_summary_numbers(int64_t number, SummaryNumbers* out) { *out = find_summary(number)->numbers(); }

ONNXQ_EXPORT void onnxq_summary_arrays(int64_t number, int64_t* counts, double* channel_low, double* channel_high) {
  find_summary(number)->arrays(counts, channel_low, channel_high);
}

ONNXQ_EXPORT void onnxq_summary_restore(int64_t number, const SummaryNumbers* numbers, const int64_t* counts,
                                        const double* channel_low, const double* channel_high) {
  find_summary(number)->restore(*numbers, counts, channel_low, channel_high);
}
