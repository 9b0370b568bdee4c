// ONNXQ_PROFILE=1: how long each step took in its quickest run, on standard error when the session ends; another value is
// the path of a file to which the same is added, if there is none yet or it holds nothing else.

#ifndef ONNXQ_REGION_PROFILE_H_
#define ONNXQ_REGION_PROFILE_H_

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace onnxq {

class Profile {
 public:
  Profile() {
    const char* const asked = std::getenv("ONNXQ_PROFILE");
    if (asked && *asked && std::string(asked) != "0") {
      is_on_ = true;
      path_ = std::string(asked) == "1" ? "" : asked;
    }
  }

  bool is_on() const { return is_on_; }

  // Called once, with the lines of the steps.
  void begin(const std::vector<std::string>& lines) {
    lines_ = lines;
    least_ = std::vector<std::atomic<int64_t>>(lines.size());
  }

  template <typename Work>
  void time(size_t step, const Work& work) {
    if (!is_on_) {
      work();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    work();
    const auto took = std::chrono::steady_clock::now() - start;
    const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    int64_t least = least_[step];
    while ((least == 0 || now < least) && !least_[step].compare_exchange_weak(least, now)) {
    }
    runs_ += step == 0;
  }

  void write(const std::string& node, const char* isa) const {
    if (!is_on_ || runs_ == 0) {
      return;
    }
    int64_t all = 0;
    for (const auto& each : least_) {
      all += each;
    }
    std::string text = kHead + without_controls(node) + "', " + isa + ", " + std::to_string(runs_) + " runs, least us of each step, together " +
                       number(all) + "\n";
    for (size_t i = 0; i < lines_.size(); ++i) {
      text += number(least_[i]) + "  " + std::to_string(i) + " " + lines_[i] + "\n";
    }
    std::FILE* const file = path_.empty() || !is_ours(path_) ? nullptr : std::fopen(path_.c_str(), "ab");
    if (!file && !path_.empty()) {
      std::fprintf(stderr, "onnxq: times of steps cannot be added to '%s', which ONNXQ_PROFILE names: it is no file of them\n",
                   without_controls(path_).c_str());
    }
    std::fputs(text.c_str(), file ? file : stderr);
    if (file) {
      std::fclose(file);
    }
  }

 private:
  static constexpr const char* kHead = "onnxq node '";

  // Whether something can be added: to a model, a pipe or a device it would do harm.
  static bool is_ours(const std::string& path) {
    std::error_code error;
    const std::filesystem::file_status found = std::filesystem::status(path, error);
    if (found.type() == std::filesystem::file_type::not_found) {
      return true;
    }
    if (found.type() != std::filesystem::file_type::regular) {
      return false;
    }
    const std::string head = kHead;
    std::string there(head.size(), '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(&there[0], static_cast<std::streamsize>(there.size()));
    return file.gcount() == 0 ? file.eof() : there == head;
  }

  // A file names nodes as it likes; a line here is a line.
  static std::string without_controls(std::string text) {
    for (char& each : text) {
      const unsigned char byte = static_cast<unsigned char>(each);
      each = byte < 32 || byte == 127 ? ' ' : each;
    }
    return text;
  }

  static std::string number(int64_t nanoseconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%9.2f", static_cast<double>(nanoseconds) / 1000.0);
    return text;
  }

  bool is_on_ = false;
  std::string path_;
  std::vector<std::string> lines_;
  std::vector<std::atomic<int64_t>> least_;
  std::atomic<int64_t> runs_{0};
};

}  // namespace onnxq

#endif  // ONNXQ_REGION_PROFILE_H_
