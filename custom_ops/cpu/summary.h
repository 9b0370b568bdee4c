// What is kept of one activation: the compiled twin of onnxq/summaries/summary.py, equal to it in every bit.

#ifndef ONNXQ_CPU_SUMMARY_H_
#define ONNXQ_CPU_SUMMARY_H_

#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <mutex>
#include <vector>

#include "../abi/ort_abi.h"

namespace onnxq {

// Everything but the arrays; ctypes reads it as it is (onnxq/summaries/native.py).
struct SummaryNumbers {
  int64_t count, zeros, nans, infinities;
  double low, high, total, squares;
  int64_t batches;
  double average_low, average_high;
  int64_t least_rank, most_rank, unlike;
  int64_t exponent, first, bins;  // of the histogram; bins is -1 where none was asked for
  int64_t channels;
};

// Runs task(data, i) for every i below `tasks`, in any order, on any threads.
struct Pool {
  void (*run)(void* self, void (*task)(void* data, size_t i), size_t tasks, void* data);
  void* self;
};

// Any number of threads may call any of this at any time.
class Summary {
 public:
  Summary(bool histogram, const int64_t* axis);

  // Takes in an array of one of the float types. It belongs to the batch that `end_batch` ends.
  void update(const void* data, ort::ElementType type, const std::vector<int64_t>& shape, const Pool& pool);
  // `momentum`: what the batch weighs in the moving averages, above 0 and up to 1; the first counts fully.
  void end_batch(double momentum);

  SummaryNumbers numbers() const;
  // Room for `bins` and `channels` numbers; null: not wanted.
  void arrays(int64_t* counts, double* channel_low, double* channel_high) const;
  // Goes on from what another one, or this one in another process, had seen.
  void restore(const SummaryNumbers& numbers, const int64_t* counts, const double* channel_low,
               const double* channel_high);

 private:
  struct Bins {
    int64_t exponent = 0, first = 0;
    std::vector<int64_t> counts;
  };
  template <typename T>
  void update_as(const T* x, const std::vector<int64_t>& shape, const Pool& pool);
  template <typename T>
  void update_channels(const T* x, const std::vector<int64_t>& shape);
  void grow(double low, double high);
  void add(const Bins& seen);

  mutable std::mutex mutex_;
  SummaryNumbers numbers_;
  Bins bins_;
  double bins_low_, bins_high_;    // of what the histogram has room for
  double batch_low_, batch_high_;  // of the batch that has not ended
  const bool has_histogram_, has_axis_;
  const int64_t axis_;
  std::vector<double> channel_low_, channel_high_;
};

// Summaries by number, shared between the nodes that fill them and whoever reads them. Null if there is none.
std::shared_ptr<Summary> find_summary(int64_t number);

}  // namespace onnxq

#endif  // ONNXQ_CPU_SUMMARY_H_
