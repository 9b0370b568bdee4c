"""What lies outside Python: onnxruntime, the compiled library, child processes, clocks.

The only folder that imports onnxruntime. It knows paths and arrays, nothing of plans or formats.
"""
