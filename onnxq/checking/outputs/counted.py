"""Outputs whose shapes the inputs' numbers decide: as many rows as something was found."""

from __future__ import annotations

import onnx_ir as ir

from onnxq import own_ops
from onnxq.model import graph

#: Operators whose outputs are as long as something that they count, or that a loop does.
_COUNTING = {"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit", "If", "Loop", "Scan"}
_COUNTING |= {"BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}
#: Inputs that say how long outputs are.
_SIZES = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "TopK", "Squeeze", "Unsqueeze", "OneHot", "Split"), (1,)),
    **dict.fromkeys(("Upsample", "AffineGrid", "CenterCropPad", "SplitToSequence", "DFT"), (1,)),
    **dict.fromkeys(("Slice", "Resize", "Pad", "Col2Im", "STFT", "MaxUnpool"), (1, 2, 3, 4)),
    **dict.fromkeys(("Range", "ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0, 1, 2)),
}
_KNOWN = {"", graph.MICROSOFT, own_ops.DOMAIN}


def counted(model: ir.Model) -> set[str]:
    """Outputs whose shapes may depend on the numbers in the inputs, and not on the shapes of these alone."""
    moving = {value for value in model.graph.inputs if value.const_value is None}
    sized: set[ir.Value] = set()
    for node in model.graph:
        inputs = [value for value in node.inputs if value is not None]
        is_sized = any(value in sized for value in inputs)
        if node.op_type in ("Shape", "Size"):
            moving.update(node.outputs if is_sized else ())
            continue
        sizes = (node.inputs[i] for i in _SIZES.get(node.op_type, ()) if i < len(node.inputs))
        if is_sized or node.op_type in _COUNTING or node.domain not in _KNOWN or any(v in moving for v in sizes):
            sized.update(node.outputs)
            moving.update(node.outputs)
        elif any(value in moving for value in inputs):
            moving.update(node.outputs)
    return {value.name or "" for value in model.graph.outputs if value in sized}
