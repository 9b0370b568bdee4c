"""The kernels of the onnxq domain against onnxruntime's own, on this machine: `python -m onnxq.bench_kernels`."""
