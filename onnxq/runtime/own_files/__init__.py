"""Files in formats that are onnxruntime's own: adapters, and optimized graphs. It imports what `runtime` may."""
