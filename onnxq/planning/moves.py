"""Operators that move codes and leave them what they are, and the Resize that makes some between them, in the words of
a region's steps (docs/regions.md).

Tensors of regions have two to four dimensions: rows and channels, or images, channels and one or two more. Steps say
sizes for images, channels, rows and columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.model import graph
from onnxq.planning.chains import Chain

RANKS = (2, 3, 4)
#: By rank, where each dimension lies among images, channels, rows and columns. Rows of a matrix are columns there.
_PLACES: dict[int, tuple[int, ...]] = {2: (3, 1), 3: (0, 1, 3), 4: (0, 1, 2, 3)}
#: The same where the tensor is a stack of matrices, whose last dimension lies where channels do.
_STACKED: dict[int, tuple[int, ...]] = {2: (3, 1), 3: (0, 3, 1), 4: (0, 2, 3, 1)}
#: Words that say numbers for images, channels, rows and columns.
_SPREAD = ("starts", "stops", "steps", "before", "behind")
#: The largest number of a step, which means: to the end.
_MOST = 1 << 24


@dataclass(frozen=True)
class Move:
    """A step for one output of a node.

    Attributes:
        does: the step's word.
        words: what else it says: numbers, or constants.
        rank: of what it makes.
        makes_codes: whether it makes others than those that are there, so that it says what these mean.
    """

    does: str
    words: dict[str, int | list[int] | ir.Value]
    rank: int
    makes_codes: bool = False


def place_of(axis: int, rank: int | None, is_stack: bool = False) -> int | None:
    """Of a dimension, its number among images, channels, rows and columns."""
    places = (_STACKED if is_stack else _PLACES).get(rank or 0)
    return places[axis] if places is not None and -len(places) <= axis < len(places) else None


def is_move(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _MAKERS


def is_over_pixels(node: ir.Node, rank: int | None) -> bool:
    """Whether a reduction of a tensor with `rank` dimensions leaves one number of each image and channel."""
    axes = _ints(node.inputs[1]) if len(node.inputs) > 1 else list(node.attributes.get_ints("axes", []))
    if rank not in (3, 4) or not axes or any(not -rank <= axis < rank for axis in axes):
        return False
    return sorted(axis % rank for axis in axes) == list(range(2, rank))


def moves_of(node: ir.Node, rank: int | None) -> list[Move] | None:
    """A step for each output, where its input has `rank` dimensions; None if regions have none for it."""
    if rank not in _PLACES or not is_move(node):
        return None
    return _MAKERS[node.op_type](node, rank)


def in_stack(move: Move, rank: int | None) -> Move | None:
    """The same of a stack of matrices; None if regions have no such step."""
    if not set(move.words) & set(_SPREAD):
        return None if move.does in ("resize", "resize_linear", "depth_to_space", "space_to_depth") else move
    words = dict(move.words)
    for name in _SPREAD:
        given = words.get(name)
        if isinstance(given, list):
            moved = list(given)
            for old, new in zip(_PLACES[rank or 2], _STACKED[rank or 2], strict=True):
                moved[new] = given[old]
            words[name] = moved
    return dataclasses.replace(move, words=words)


def order_of(chain: Chain, rank: int | None) -> Move | None:
    """The step for a chain of changes of shape and order: one Reshape at most before and behind one Transpose."""
    if rank not in _PLACES:
        return None
    first = chain.nodes[0]
    if len(chain.nodes) == 1 and first.op_type == "Flatten" and graph.attribute_int(first, "axis", 1) == 1:
        return Move("flatten", {}, 2)
    found: list[tuple[str, list[int]]] = []
    now = rank
    for node in chain.nodes:
        made = _order(node, now)
        if made is None:
            return None
        now = len(made[1])
        if made[0] == "shape" and found and found[-1][0] == "shape" and 0 not in made[1]:
            found.pop()
        found.append(made)
    words = [word for word, _ in found]
    names = {("shape",): ("shape",), ("perm",): ("perm",), ("shape", "perm"): ("split", "perm")}
    names |= {("perm", "shape"): ("perm", "shape"), ("shape", "perm", "shape"): ("split", "perm", "shape")}
    spelled = names.get(tuple(words))
    if spelled is None or now not in _PLACES or any(len(dims) > 8 for _, dims in found):
        return None
    return Move("arrange", {word: dims for word, (_, dims) in zip(spelled, found, strict=True)}, now)


def _ints(value: ir.Value | None) -> list[int] | None:
    tensor = graph.constant(value)
    return None if tensor is None else [int(each) for each in tensor.numpy().ravel()]


def _order(node: ir.Node, rank: int) -> tuple[str, list[int]] | None:
    """One node of a chain: dimensions as Reshape takes them, or an order."""
    if node.op_type == "Transpose":
        return "perm", list(node.attributes.get_ints("perm", list(reversed(range(rank)))))
    if node.op_type == "Flatten":
        return ("shape", [0, -1]) if graph.attribute_int(node, "axis", 1) == 1 else None
    given = _ints(node.inputs[1]) if len(node.inputs) > 1 else list(node.attributes.get_ints("axes", []))
    if node.op_type == "Reshape":
        fits = given is not None and graph.attribute_int(node, "allowzero", 0) == 0
        return ("shape", given) if fits and given is not None and max(given, default=0) < _MOST else None
    if not given:
        return None
    made = rank + len(given) if node.op_type == "Unsqueeze" else rank
    axes = sorted(axis % made for axis in given)
    if axes != list(range(made - len(axes), made)):  # of others, sizes would have to be known
        return None
    kept = [0] * (made - len(axes))
    return "shape", kept + [1] * len(axes) if node.op_type == "Unsqueeze" else kept


def _blocks(node: ir.Node, rank: int) -> list[Move] | None:
    mode = graph.attribute_string(node, "mode", "DCR")
    if rank != 4 or mode not in ("DCR", "CRD"):
        return None
    word = "space_to_depth" if node.op_type == "SpaceToDepth" else "depth_to_space"
    size = graph.attribute_int(node, "blocksize", 1)
    way = {"to_depth": 1} if word == "space_to_depth" else {"mode": 1} if mode == "CRD" else {}
    return [Move(word, {"block": size, **way}, 4)] if size <= 64 else None


def _spread(values: dict[int, int], rank: int, default: int) -> list[int]:
    """By dimension, as n, c, y, x."""
    found = [default] * 4
    for axis, value in values.items():
        found[_PLACES[rank][axis]] = max(-_MOST, min(_MOST, value))
    return found


def _slice(node: ir.Node, rank: int) -> list[Move] | None:
    if "starts" in node.attributes:  # of older operators
        given = [list(node.attributes.get_ints(name, [])) for name in ("starts", "ends", "axes")]
        starts, stops, axes = given[0], given[1], given[2] or list(range(len(given[0])))
        steps = [1] * len(starts)
    else:
        inputs = [*node.inputs[1:], None, None]
        read = [_ints(value) for value in inputs[:4]]
        if any(value is not None and ints is None for value, ints in zip(inputs, read, strict=False)):
            return None
        if read[0] is None or read[1] is None:
            return None
        starts, stops = read[0], read[1]
        axes, steps = read[2] or list(range(len(starts))), read[3] or [1] * len(starts)
    if 0 in steps or any(not -rank <= axis < rank for axis in axes):
        return None
    axes = [axis % rank for axis in axes]
    spread = [
        _spread(dict(zip(axes, found, strict=True)), rank, default)
        for found, default in ((starts, 0), (stops, _MOST), (steps, 1))
    ]
    return [Move("slice", {"starts": spread[0], "stops": spread[1], "steps": spread[2]}, rank)]


def _split(node: ir.Node, rank: int) -> list[Move] | None:
    sizes = _ints(node.inputs[1]) if len(node.inputs) > 1 else list(node.attributes.get_ints("split", []))
    axis = graph.attribute_int(node, "axis", 0) % rank
    if not sizes or len(sizes) != len(node.outputs):  # equal parts of a size that is not known
        return None
    ends = np.cumsum(sizes).tolist()
    made = []
    for size, end in zip(sizes, ends, strict=True):
        words: dict[str, int | list[int] | ir.Value] = {
            "starts": _spread({axis: end - size}, rank, 0),
            "stops": _spread({axis: end}, rank, _MOST),
            "steps": [1] * 4,
        }
        made.append(Move("slice", words, rank))
    return made


def _pad(node: ir.Node, rank: int) -> list[Move] | None:
    mode = {"constant": 0, "reflect": 1, "edge": 2}.get(graph.attribute_string(node, "mode", "constant"))
    pads = _ints(node.inputs[1]) if len(node.inputs) > 1 else list(node.attributes.get_ints("pads", []))
    filled = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    is_given = len(node.inputs) > 2 and node.inputs[2] is not None
    if is_given and (filled is None or np.any(filled.numpy())):
        return None
    if graph.attribute_float(node, "value", 0.0) or (len(node.inputs) > 3 and node.inputs[3] is not None):
        return None
    if mode is None or pads is None or len(pads) != 2 * rank:
        return None
    words: dict[str, int | list[int] | ir.Value] = {
        "before": _spread(dict(enumerate(pads[:rank])), rank, 0),
        "behind": _spread(dict(enumerate(pads[rank:])), rank, 0),
    }
    return [Move("pad", {**words, **({"mode": mode} if mode else {})}, rank)]


def _resize(node: ir.Node, rank: int) -> list[Move] | None:
    """To the nearest pixels, or between pixels. Upsample, which became Resize where the opset was raised, has its
    scales there too."""
    names = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    coordinates = graph.attribute_string(node, "coordinate_transformation_mode", "half_pixel")
    nearest = graph.attribute_string(node, "nearest_mode", "round_prefer_floor")
    rounds = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    others = (
        graph.attribute_string(node, "keep_aspect_ratio_policy", "stretch") != "stretch" or "axes" in node.attributes
    )
    if others or coordinates not in names or nearest not in rounds or len(node.inputs) < 3:
        return None
    mode = graph.attribute_string(node, "mode", "nearest")
    words: dict[str, int | list[int] | ir.Value] = {"coordinates": names.index(coordinates)}
    if mode == "nearest":
        words["nearest"] = rounds.index(nearest)
    elif mode != "linear" or any(graph.attribute_int(node, name, 0) for name in ("antialias", "exclude_outside")):
        return None
    given = [*node.inputs, None][2:4]
    for word, value, dtype in zip(("ratios", "sizes"), given, (ir.DataType.FLOAT, ir.DataType.INT64), strict=True):
        tensor = graph.constant(value)
        if value is not None and tensor is None:
            return None
        if value is not None and tensor is not None and tensor.size:
            if tensor.dtype is not dtype or tensor.size != rank:
                return None
            if mode == "nearest":
                return [Move("resize", {word: value, **words}, rank)]
            return [Move("resize_linear", {word: value, **words}, rank, True)] if _is_image(word, tensor) else None
    return None


def _is_image(word: str, tensor: ir.TensorProtocol) -> bool:
    """Whether only pixels are interpolated between, as far as can be known; of lines onnxruntime would interpolate
    between channels too, where these sizes say so."""
    if word == "sizes":
        return tensor.size == 4
    return tensor.size in (3, 4) and bool(np.all(tensor.numpy()[:2] == 1))


_MAKERS: dict[str, Callable[[ir.Node, int], list[Move] | None]] = {
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Resize": _resize,
}
