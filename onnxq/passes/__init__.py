"""Graph rewrites, one a file, named by what they do. Each is an `onnx_ir.passes.InPlacePass` whose constructor takes
exactly what it reads; `prepare.py` and `rewrite.py` say in which order they run."""
