// Runs every kernel of this machine against the scalar one, for processors on which no Python runs: emulated ones.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/isa.h"

extern "C" int32_t onnxq_matmul(const char* isa, const onnxq::Problem* p, int32_t threads);
extern "C" const char* onnxq_isas();

namespace {

std::mt19937 numbers(1);

struct Case {
  std::vector<uint8_t> weight, zeros;
  std::vector<float> scales, x, bias;
  onnxq::Problem p{};

  Case(int64_t M, int64_t N, int64_t K, int64_t block, int32_t format, bool with_zeros, bool whole) {
    const int64_t Kp = onnxq::padded(K, block), blocks = onnxq::tiles(N) * Kp / block * 16;
    std::normal_distribution<float> normal;
    weight.resize(onnxq::tiles(N) * onnxq::tile_bytes(format, Kp));
    for (auto& byte : weight) byte = static_cast<uint8_t>(numbers());
    zeros.resize(with_zeros ? blocks : 0);
    for (auto& zero : zeros) zero = static_cast<uint8_t>(numbers() % (format == onnxq::kInt8 ? 256 : 16));
    scales.resize(blocks);
    for (auto& scale : scales) scale = whole ? 1.0f : normal(numbers);
    x.resize(M * K);
    for (int64_t i = 0; i < M * K; ++i) {
      const float outlier = numbers() % 100 ? 1.0f : 30.0f;
      // Whole numbers of which one in 16 is 127 lose nothing when they become int8.
      x[i] = whole ? (i % K % 16 ? static_cast<float>(numbers() % 255) - 127.0f : 127.0f) : normal(numbers) * outlier;
    }
    bias.resize(N);
    for (auto& b : bias) b = whole ? static_cast<float>(numbers() % 9) : normal(numbers);
    p.M = M, p.N = N, p.K = K, p.block = block, p.format = format;
    p.x = x.data(), p.weight = weight.data(), p.scales = scales.data(), p.bias = bias.data();
    p.zero_points = with_zeros ? zeros.data() : nullptr;
  }

  // Every buffer has a size of its own on the heap, where emulators and sanitizers see what is touched behind it.
  std::vector<float> run(const char* isa) {
    std::vector<float> y(p.M * p.N, NAN);
    p.y = y.data();
    if (onnxq_matmul(isa, &p, 2)) {
      std::printf("%s does not run\n", isa);
      std::exit(1);
    }
    return y;
  }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2), norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace

int main() {
  int failures = 0;
  std::string isas = onnxq_isas();
  std::printf("%s\n", isas.c_str());
  for (char* isa = std::strtok(isas.data(), " "); isa; isa = std::strtok(nullptr, " ")) {
    for (int32_t format = 0; format < onnxq::kFormats; ++format) {
      for (int64_t i = 0; i < 40; ++i) {
        const int64_t M = i % 7 + 1, N = i * 5 % 37 + 1, block = 16 * (i % 4 + 1), K = i < 20 ? block * (i % 5 + 1) : i * 7 + 1;
        const bool whole = i % 2, zeros = i % 3 == 0 && onnxq::is_affine(format);
        Case c(M, N, K, block, format, zeros, whole);
        for (c.p.exact = 0; c.p.exact < 2; ++c.p.exact) {
          const double error = distance(c.run(isa), c.run("scalar"));
          // Sums of whole numbers are exact; for few k, errors of activations do not average: 1 / 127 of the largest.
          const double allowed = c.p.exact || (whole && format != onnxq::kNf4 && format != onnxq::kFp4) ? 1e-5 : 0.03;
          if (!(error <= allowed)) {
            std::printf("%s format %d M%ld N%ld K%ld block%ld exact %d: %g\n", isa, format, static_cast<long>(M),
                        static_cast<long>(N), static_cast<long>(K), static_cast<long>(block), c.p.exact, error);
            ++failures;
          }
        }
      }
      for (bool outliers : {false, true}) {
        Case c(7, 64, 1024, 32, format, false, false);
        for (auto& x : c.x) x = outliers ? x : x / (std::fabs(x) > 5 ? 30.0f : 1.0f);
        const double error = distance(c.run(isa), c.run("scalar"));
        std::printf("%s format %d %s: %.4f\n", isa, format, outliers ? "outliers" : "normal", error);
        failures += !(error <= 0.01);
      }
    }
  }
  return failures != 0;
}
