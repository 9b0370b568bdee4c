// What ThreadSanitizer cannot see: threads that onnxruntime, which is not built with it, starts and waits for.

#ifndef ONNXQ_TSAN_H_
#define ONNXQ_TSAN_H_

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace onnxq {

// What this thread did before is seen by those that call `taken_over` on the same address afterwards.
inline void handed_over([[maybe_unused]] void* address) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(address);
#endif
}

inline void taken_over([[maybe_unused]] void* address) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(address);
#endif
}

}  // namespace onnxq

#endif  // ONNXQ_TSAN_H_
