"""Two models compared layer by layer: which of their values are the same, and where error comes in.

`pairing` says which values belong together, `taps` how a value is read as floats, `forced` builds the model in which each
layer reads what the other model has there, `by_layer` runs all of it in limited memory.
"""
