#include "tuning.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "../base/export.h"
#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace onnxq {
namespace {

// Raised when kernels change so that old measurements no longer hold.
constexpr const char* kHead = "onnxq kernels 3";
// Rows of one tile, and of a second one that is filled little: what multiplies them differs. With more, tiles have always won.
struct Range {
  int32_t first, last;
};
constexpr Range kRanges[] = {{2, 16}, {17, 24}};
constexpr int kRangeCount = 2;
constexpr int32_t kMostRows = kRanges[kRangeCount - 1].last;
constexpr int range_of(int64_t M) { return M <= kRanges[0].last ? 0 : 1; }

constexpr double kMuchFaster = 0.9;            // of the time of dot products: several threads wait for memory more than one
constexpr int64_t kMostBytes = 4096;           // of the file

// --- measuring ------------------------------------------------------------------------------------------------------

// A product in some format, on this thread.
class Sample {
 public:
  Sample(const Kernel& kernel, int32_t format) : kernel_(kernel), x_(kMostRows * kK), y_(kMostRows * kN) {
    p_.N = kN, p_.K = kK, p_.block = 32, p_.format = format, p_.threads = 1;
    p_.scale_type = is_dense(format) ? int32_t{kNoScales} : int32_t{kScaleFloat16};
    uint32_t random = 1;
    const auto next = [&random] { return (random = random * 1664525 + 1013904223) >> 16; };
    weight_.resize(static_cast<size_t>(tiles(kN) * tile_bytes(format, kK)));
    for (size_t i = 0; i < weight_.size(); ++i) {  // of bfloat16, small numbers of both signs
      weight_[i] = static_cast<uint8_t>(format == kDenseBfloat16 && i % 2 ? 0x3C | (next() & 0x80) : next());
    }
    scales_.assign(static_cast<size_t>(tiles(kN) * blocks(kK, 32) * kTile), 0x1800);
    for (float& x : x_) {
      x = static_cast<float>(next() & 0xFFFF) / 32768.0f - 1.0f;
    }
    p_.x = x_.data(), p_.weight = weight_.data(), p_.scales = scales_.data(), p_.y = y_.data();
  }

  // Whether tiles multiply M rows in less time: the least of several times each, in turns.
  bool tiles_win(int64_t M) {
    double best[2] = {1e30, 1e30};
    for (int turn = 0; turn < 5; ++turn) {
      for (int tiled = 0; tiled < 2; ++tiled) {
        const double seconds = time(M, tiled ? 1 : INT32_MAX);
        best[tiled] = seconds < best[tiled] ? seconds : best[tiled];
      }
    }
    return best[1] < kMuchFaster * best[0];
  }

 private:
  static constexpr int64_t kN = 1024, kK = 2048;  // a weight that leaves room for little else in the second-level cache

  double time(int64_t M, int32_t tile_rows) {
    p_.M = M, p_.tile_rows = tile_rows;
    const size_t bytes = static_cast<size_t>(kernel_.workspace(p_));
    const std::unique_ptr<void, void (*)(void*)> workspace(
        ::operator new(bytes, std::align_val_t(64)), [](void* memory) { ::operator delete(memory, std::align_val_t(64)); });
    const auto begin = std::chrono::steady_clock::now();
    for (int phase = 0; const int64_t tasks = kernel_.tasks(p_, phase); ++phase) {
      for (int64_t task = 0; task < tasks; ++task) {
        kernel_.run(p_, phase, task, tasks, workspace.get());
      }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const Kernel& kernel_;
  Problem p_ = {};
  std::vector<uint8_t> weight_;
  std::vector<uint16_t> scales_;
  std::vector<float> x_, y_;
};

int32_t measure(const Kernel& kernel, int32_t format, const Range& range) {
  Sample sample(kernel, format);
  int32_t rows = range.last + 1;
  while (rows > range.first && sample.tiles_win(rows - 1)) {
    --rows;
  }
  return rows;
}

// --- keeping --------------------------------------------------------------------------------------------------------

// The processor, in words: two of one kind share what was measured on either.
std::string processor() {
#if defined(__x86_64__)
  unsigned int words[12] = {}, signature[4] = {};
  for (unsigned int i = 0; i < 3; ++i) {
    __get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
  }
  __get_cpuid(1, &signature[0], &signature[1], &signature[2], &signature[3]);
  char name[sizeof words + 1] = {};
  std::memcpy(name, words, sizeof words);
  return std::string(name) + " " + std::to_string(signature[0]);
#else
  return "unknown";
#endif
}

// Empty where there is no place for it.
std::filesystem::path cache_file() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::filesystem::path folder = cache && *cache ? std::filesystem::path(cache)
                                 : home && *home ? std::filesystem::path(home) / ".cache"
                                                 : std::filesystem::path();
  if (!folder.is_absolute()) {  // also as the XDG specification wants it
    return {};
  }
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char each : processor()) {
    hash = (hash ^ static_cast<unsigned char>(each)) * 1099511628211u;
  }
  std::ostringstream name;
  name << "kernels-" << std::hex << hash << ".txt";
  return folder / "onnxq" / name.str();
}

struct Rows {
  int32_t of[kAllFormats][kRangeCount] = {};  // 0: not known
};

// What the file says, or nothing: lines "tile_rows FORMAT FIRST ROWS" behind two that say what it is about. FIRST is that
// of a range, and ROWS one more than its last where tiles win nowhere in it.
Rows read_cache() {
  Rows rows;
  std::error_code error;
  const std::filesystem::path path = cache_file();
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) {
    return rows;
  }
  std::string text(kMostBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), kMostBytes);
  text.resize(static_cast<size_t>(file.gcount()));
  std::istringstream lines(text);
  std::string head, about, word;
  if (!std::getline(lines, head) || head != kHead || !std::getline(lines, about) || about != processor()) {
    return rows;
  }
  for (int64_t format = 0, first = 0, count = 0; lines >> word >> format >> first >> count && word == "tile_rows";) {
    for (int i = 0; i < kRangeCount && format >= 0 && format < kAllFormats; ++i) {
      if (first == kRanges[i].first && count >= first && count <= kRanges[i].last + 1) {
        rows.of[format][i] = static_cast<int32_t>(count);
      }
    }
  }
  return rows;
}

// Written beside it and moved: readers see all of it or nothing. Failing is no error.
void write_cache(const Rows& rows) {
  const std::filesystem::path path = cache_file();
  if (path.empty()) {
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::filesystem::path part = path;
  part += "." + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << kHead << "\n" << processor() << "\n";
  for (int32_t format = 0; format < kAllFormats; ++format) {
    for (int i = 0; i < kRangeCount; ++i) {
      if (rows.of[format][i]) {
        file << "tile_rows " << format << " " << kRanges[i].first << " " << rows.of[format][i] << "\n";
      }
    }
  }
  file.close();
  if (file) {
    std::filesystem::rename(part, path, error);
  }
  if (!file || error) {
    std::filesystem::remove(part, error);
  }
}

// The numbers that onnxq_give_tile_rows was given, or 0.
std::atomic<int32_t> given[kAllFormats][kRangeCount] = {};

// The number in ONNXQ_TILE_ROWS, or 0.
int32_t pinned() {
  const char* text = std::getenv("ONNXQ_TILE_ROWS");
  const long rows = text ? std::strtol(text, nullptr, 10) : 0;
  return rows > 0 && rows < INT32_MAX ? static_cast<int32_t>(rows) : 0;
}

int32_t measured(const Kernel& kernel, int32_t format, int range) {
  static std::atomic<int32_t> known[kAllFormats][kRangeCount] = {};
  if (const int32_t rows = known[format][range].load(std::memory_order_relaxed)) {
    return rows;
  }
  static std::mutex mutex;
  static Rows rows = read_cache();
  const std::lock_guard<std::mutex> lock(mutex);
  int32_t& found = rows.of[format][range];
  if (!found) {
    found = measure(kernel, format, kRanges[range]);
    write_cache(rows);
  }
  known[format][range].store(found, std::memory_order_relaxed);
  return found;
}

}  // namespace

int32_t tile_rows(const Kernel& kernel, const Problem& p) {
  if (!(kernel.needs & kAmxBf16) || p.exact || p.format < 0 || p.format >= kDenseFloat16) {
    return 0;
  }
  static const int32_t fixed = pinned();
  if (fixed || p.M > kMostRows || p.M == 1) {
    return fixed ? fixed : p.M == 1 ? INT32_MAX : 1;
  }
  const int range = range_of(p.M);
  const int32_t rows = given[p.format][range].load(std::memory_order_relaxed);
  return rows ? rows : measured(kernel, p.format, range);
}

}  // namespace onnxq

// What a product of M rows in this format would be given; 0 without such a kernel.
ONNXQ_EXPORT int32_t onnxq_tile_rows(int32_t format, int32_t M) {
  onnxq::Problem p = {};
  p.M = M, p.N = p.K = p.block = 32, p.format = format;
  const onnxq::Kernel* const kernel = onnxq::kernel_for(nullptr, p);
  return kernel ? onnxq::tile_rows(*kernel, p) : 0;
}

// From now on this number is taken for the format and numbers of rows near M, not what is measured here; 0: what is measured.
ONNXQ_EXPORT void onnxq_give_tile_rows(int32_t format, int32_t M, int32_t rows) {
  if (format >= 0 && format < onnxq::kAllFormats && rows >= 0) {
    onnxq::given[format][onnxq::range_of(M)].store(rows, std::memory_order_relaxed);
  }
}
