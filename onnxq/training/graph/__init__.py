"""A graph of ONNX, run by torch: every operator is a function in `operators/`, and gradients flow through all of it."""
