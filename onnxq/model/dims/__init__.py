"""What is known of the dimensions of values, and of elements of shapes that are computed of these, for inputs of any
size: which of them are numbers, and which are equal.

ONNX's own inference gives names to sizes, and forgets most of them where a shape is computed.
"""
