// What the shared library shows to others: C names, everything else is hidden.

#ifndef ONNXQ_EXPORT_H_
#define ONNXQ_EXPORT_H_

#if defined(_WIN32)
#define ONNXQ_EXPORT extern "C" __declspec(dllexport)
#else
#define ONNXQ_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#endif  // ONNXQ_EXPORT_H_
