"""Normalizations that regions have a step for: of the channels of images, and of rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.model import graph


def has_constants(node: ir.Node) -> bool:
    """Whether an InstanceNormalization has a constant factor and summand for each channel, all of them finite."""
    tensors = [graph.constant(value) for value in node.inputs[1:3]]
    sizes = {tensor.size for tensor in tensors if tensor is not None and tensor.dtype is ir.DataType.FLOAT}
    is_plain = len(tensors) == 2 and None not in tensors and len(sizes) == 1 and 0 not in sizes
    return is_plain and all(np.isfinite(tensor.numpy()).all() for tensor in tensors if tensor is not None)
