// float16, bfloat16 and float64 to float32 and back, whole arrays at a time.

#ifndef ONNXQ_BASE_CONVERT_H_
#define ONNXQ_BASE_CONVERT_H_

#include <cstdint>

namespace onnxq {

void from_half(const uint16_t* from, float* to, int64_t size);
void from_bfloat16(const uint16_t* from, float* to, int64_t size);
void from_double(const double* from, float* to, int64_t size);

// To the nearest, ties to even; what is too large becomes infinite.
void to_half(const float* from, uint16_t* to, int64_t size);
void to_bfloat16(const float* from, uint16_t* to, int64_t size);

}  // namespace onnxq

#endif  // ONNXQ_BASE_CONVERT_H_
