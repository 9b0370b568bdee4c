// One source for every x86-64: the loader picks the clone for the processor it runs on.

#ifndef ONNXQ_CLONES_H_
#define ONNXQ_CLONES_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(ONNXQ_NO_CLONES)
#define ONNXQ_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define ONNXQ_CLONES
#endif

// What clones call has to become part of each of them.
#if defined(__GNUC__)
#define ONNXQ_INLINE inline __attribute__((always_inline))
#else
#define ONNXQ_INLINE inline
#endif

#endif  // ONNXQ_CLONES_H_
