"""Files in formats that are onnxruntime's own: adapters, and optimized graphs; and models, as it is to open them.

It imports what `runtime` may.
"""
