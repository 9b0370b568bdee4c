"""Two models compared layer by layer: which of their values are the same, and where error comes in.

`side` reads one model: which nodes compute, and where what they make can be read as floats. `pairing` says which values
of the two belong together, `forced` builds the model in which each layer reads what the other model has there, and
`by_layer` runs all of it in limited memory.
"""
