// Runs every kernel of recurrent layers of this machine against the scalar one, for processors on which no Python runs:
// emulated ones.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "recurrent/kernel.h"

extern "C" int32_t onnxq_recurrent(const char* isa, const onnxq::Recurrent* p, int32_t threads);
extern "C" const char* onnxq_recurrent_kernel_for(const char* isa);
extern "C" const char* onnxq_isas();

namespace {

using namespace onnxq;

std::mt19937 numbers(1);

struct Made {
  std::vector<float> y, h, c;
};

// Every buffer has a size of its own on the heap, where emulators and sanitizers see what is touched behind it.
struct Layer {
  std::vector<uint8_t> weight, recurrence;
  std::vector<float> weight_scales, recurrence_scales, bias, x, h, c;
  std::vector<int32_t> lengths;
  Recurrent p{};

  Layer(int32_t cell, int64_t T, int64_t B, int64_t I, int64_t H, int64_t directions) {
    const int64_t rows = directions * tiles(H) * kTile;
    p.T = T, p.B = B, p.I = I, p.H = H, p.directions = directions, p.cell = cell, p.backward = directions == 2 ? 2 : T % 2;
    weight = bytes(directions * weight_bytes(cell, H, I)), recurrence = bytes(directions * weight_bytes(cell, H, H));
    weight_scales = floats(rows * gates_of(cell), 0.01f), recurrence_scales = floats(rows * gates_of(cell), 0.01f);
    bias = floats(rows * sums_of(cell), 0.2f);
    x = floats(T * B * I, 1), h = floats(directions * B * H, 1), c = floats(directions * B * H, 1);
    for (int64_t b = 0; b < B; ++b) lengths.push_back(static_cast<int32_t>(std::max<int64_t>(0, T - b)));
    p.x = x.data(), p.weight = weight.data(), p.recurrence = recurrence.data(), p.bias = bias.data();
    p.weight_scales = weight_scales.data(), p.recurrence_scales = recurrence_scales.data();
    p.lengths = B > 1 ? lengths.data() : nullptr, p.h = h.data(), p.c = c.data();
    p.clip = H % 3 ? INFINITY : 0.5f;
  }

  static std::vector<uint8_t> bytes(int64_t count) {
    std::vector<uint8_t> made(static_cast<size_t>(count));
    for (auto& byte : made) byte = static_cast<uint8_t>(numbers());
    return made;
  }

  static std::vector<float> floats(int64_t count, float size) {
    std::vector<float> made(static_cast<size_t>(count));
    std::normal_distribution<float> normal(0, size);
    for (auto& number : made) number = normal(numbers);
    return made;
  }

  Made run(const char* isa, int32_t bits, int32_t threads) {
    const size_t states = static_cast<size_t>(p.directions * p.B * p.H);
    Made made{std::vector<float>(states * static_cast<size_t>(p.T), NAN), std::vector<float>(states, NAN),
              std::vector<float>(states, NAN)};
    p.y = made.y.data(), p.last_h = made.h.data(), p.last_c = p.cell == kLstm ? made.c.data() : nullptr, p.bits = bits;
    if (p.cell != kLstm) made.c.clear();
    if (onnxq_recurrent(isa, &p, threads)) {
      std::printf("%s does not run\n", isa);
      std::exit(1);
    }
    return made;
  }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double one = std::fabs(static_cast<double>(a[i]) - b[i]);
    most = one <= most ? most : one;  // NaN is more than anything
  }
  return most;
}

double distance(const Made& a, const Made& b) { return distance(a.y, b.y) + distance(a.h, b.h) + distance(a.c, b.c); }

// NaN of one sequence is NaN from its step on, and nowhere else.
bool keeps_apart(Layer& of, const char* isa) {
  const Made clean = of.run(isa, 15, 1);
  float& spoilt = of.x[static_cast<size_t>(of.p.I - 1)];
  const float before = spoilt;
  spoilt = NAN;
  const Made made = of.run(isa, 15, 1);
  spoilt = before;
  const size_t row = static_cast<size_t>(of.p.H);
  bool is_right = true;
  for (size_t i = 0; i < made.h.size(); ++i) {
    is_right = is_right && (i / row % static_cast<size_t>(of.p.B) == 0 ? std::isnan(made.h[i]) : made.h[i] == clean.h[i]);
  }
  return is_right;
}

}  // namespace

int main() {
  int failures = 0;
  std::string isas = onnxq_isas();
  const int64_t shapes[][5] = {{1, 1, 1, 1, 1},   {2, 1, 3, 17, 2}, {3, 2, 16, 33, 1},  {4, 5, 31, 5, 2},
                               {2, 13, 20, 64, 1}, {7, 3, 9, 20, 2}, {2, 1, 40, 260, 1}, {60, 1, 5, 6, 1}};
  for (char* isa = std::strtok(isas.data(), " "); isa; isa = std::strtok(nullptr, " ")) {
    std::printf("%s: %s\n", isa, onnxq_recurrent_kernel_for(isa));
    for (int32_t cell = 0; cell < kCells; ++cell) {
      for (const auto& s : shapes) {
        Layer of(cell, s[0], s[1], s[2], s[3], s[4]);
        for (int32_t bits : {8, 15}) {
          const Made wanted = of.run("scalar", bits, 1);
          for (int32_t threads : {1, 3}) {
            // Codes next to a tie may round the other way, as the states before differ by roundings.
            const double error = distance(of.run(isa, bits, threads), wanted), allowed = bits == 8 ? 0.1 : 2e-3;
            if (!(error <= allowed)) {
              std::printf("%s cell %d T%ld B%ld I%ld H%ld bits %d: %g\n", isa, cell, static_cast<long>(s[0]),
                          static_cast<long>(s[1]), static_cast<long>(s[2]), static_cast<long>(s[3]), bits, error);
              ++failures;
            }
          }
        }
        of.p.lengths = nullptr;
        if (!keeps_apart(of, isa)) {
          std::printf("%s cell %d: NaN of a sequence is seen by another\n", isa, cell), ++failures;
        }
      }
      Layer one(cell, 1, 3, 70, 40, 1);  // a step takes the same codes everywhere
      const double error = distance(one.run(isa, 15, 1), one.run("scalar", 15, 1));
      std::printf("%s cell %d one step: %.1e\n", isa, cell, error);
      failures += !(error <= 1e-5);
    }
  }
  return failures != 0;
}
