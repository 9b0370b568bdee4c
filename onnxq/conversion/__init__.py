"""Quantized models of any origin: to floats, to another target, or their weights into files of other programs."""
