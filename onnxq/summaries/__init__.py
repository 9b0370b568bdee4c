"""What was seen of an activation, and the ranges that follow; arithmetic only, the same numpy and compiled.

Imports no model and no runtime, only the compiled library.
"""
