"""Dimensions of images: what windows, Resize, Pad and a change of the order of pixels leave as it was."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.known import Dim, Dims, Sizes, new


def _windows(node: ir.Node, sizes: Sizes) -> Dims | None:
    """Images are as many as before, and where nothing is multiplied channels are."""
    dims = sizes.of(node.inputs[0])
    if dims is None or len(dims) < 3:
        return None
    channels: Dim = dims[1]
    if node.op_type in ("Conv", "ConvTranspose"):
        weight = sizes.of(node.inputs[1])
        axis = 0 if node.op_type == "Conv" else 1
        size = None if weight is None else weight[axis]
        group = graph.attribute_int(node, "group", 1) if axis else 1
        channels = size * group if isinstance(size, int) else new(node, 1)
    ones = "Global" in node.op_type
    return (dims[0], channels, *(1 if ones else new(node, axis) for axis in range(2, len(dims))))


def _resized(node: ir.Node, sizes: Sizes) -> Dims | None:
    """As large as is asked for, and the same where the scale is one."""
    dims, (scales, asked) = sizes.of(node.inputs[0]), [*node.inputs, None, None][2:4]
    crops = graph.attribute_string(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if dims is None or len(node.inputs) < 3 or crops:
        return None
    axes = list(node.attributes.get_ints("axes", list(range(len(dims)))))
    factors, wanted = graph.constant(scales), sizes.elements_of(asked)
    made: list[Dim] = list(dims)
    for axis in axes:
        made[axis] = new(node, axis % len(dims))
    if factors is not None and factors.size == len(axes):
        for axis, factor in zip(axes, factors.numpy().reshape(-1), strict=True):
            made[axis] = dims[axis] if factor == 1 else made[axis]
    elif wanted is not None and len(wanted.sizes) == len(axes) and _stretches(node):
        for axis, size in zip(axes, wanted.sizes, strict=True):
            made[axis] = size
    return tuple(made)


def _stretches(node: ir.Node) -> bool:
    return graph.attribute_string(node, "keep_aspect_ratio_policy", "stretch") == "stretch"


def _padded(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims = sizes.of(node.inputs[0])
    if dims is None or len(node.inputs) < 2:
        return None
    is_given = len(node.inputs) > 3 and node.inputs[3] is not None
    axes = sizes.numbers(node.inputs[3]) if is_given else list(range(len(dims)))
    pads = sizes.numbers(node.inputs[1])
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return None
    made = list(dims)
    for axis, more in zip(axes, map(sum, zip(pads[: len(axes)], pads[len(axes) :], strict=True)), strict=True):
        size = dims[axis]
        made[axis] = size + more if isinstance(size, int) else size if more == 0 else new(node, axis % len(dims))
    return tuple(made)


def _rearranged(node: ir.Node, sizes: Sizes) -> Dims | None:
    """Between channels and pixels."""
    dims, block = sizes.of(node.inputs[0]), graph.attribute_int(node, "blocksize", 1)
    if dims is None or len(dims) != 4 or block < 1:
        return None
    is_deep = node.op_type == "SpaceToDepth"
    made: list[Dim] = [dims[0]]
    for axis, size in enumerate(dims[1:], 1):
        factor, grows = (block * block, is_deep) if axis == 1 else (block, not is_deep)
        made.append(new(node, axis) if not isinstance(size, int) else size * factor if grows else size // factor)
    return tuple(made)


def _sampled(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims, grid = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    return None if dims is None or grid is None or len(grid) != len(dims) else (*dims[:2], *grid[1:-1])


_WINDOWS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
_OF_ALL = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")

#: By operator.
PIXEL_MAKERS: dict[str, Callable[[ir.Node, Sizes], Dims | None]] = {
    **dict.fromkeys((*_WINDOWS, *_OF_ALL), _windows),
    "Resize": _resized,
    "Pad": _padded,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _rearranged),
    "GridSample": _sampled,
}
