"""Low-rank adapters of quantized models: which products have one, how they are trained, and the files they lie in.

An adapter of a product x · W is A and B, which add (x · A) · B to it. W stays what it is: its codes are not touched.
"""
