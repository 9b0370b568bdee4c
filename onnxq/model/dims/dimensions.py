"""Dimensions of what nodes make."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxq.model import graph
from onnxq.model.dims.elements import axes_of, elements_of
from onnxq.model.dims.known import Dim, Dims, Least, Sizes, new
from onnxq.model.dims.pixels import PIXEL_MAKERS

_ALIKE = frozenset(
    [
        *("Abs", "BatchNormalization", "Cast", "Clip", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "Mish", "Neg"),
        *("Not", "Reciprocal", "Relu", "RMSNormalization", "SimplifiedLayerNormalization", "Sigmoid", "Softmax"),
        *("Softplus", "Sqrt", "Swish", "Tanh", "GroupNormalization"),
        *("Ceil", "Cos", "CumSum", "Floor", "IsNaN", "Round", "ScatterElements", "ScatterND", "Sign", "Sin", "Trilu"),
        *("Atan", "Celu", "DequantizeLinear", "Hardmax", "IsInf", "LogSoftmax", "LpNormalization", "LRN"),
        *("MeanVarianceNormalization", "QuantizeLinear", "Selu", "Shrink", "Softsign", "Tan", "ThresholdedRelu"),
    ]
)
_BROADCAST = frozenset(
    [
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "And", "Or", "Equal", "Greater", "Less", "PRelu"),
        *("GreaterOrEqual", "LessOrEqual", "Mean", "Mod", "Sum", "Xor"),
    ]
)
#: Sizes that no tensor has: what is computed of them does not fit into 64 bits.
ENDLESS = 1 << 48
_REDUCE = (
    *("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
    *("ReduceProd", "ReduceSumSquare"),
)


def sizes_of(model: ir.Model) -> Sizes:
    """What follows from the inputs' declared shapes for all values."""
    sizes = begun(model)
    for node in graph.nodes(model):
        add(node, sizes)
    return sizes


def begun(model: ir.Model) -> Sizes:
    """What the inputs declare."""
    sizes = Sizes(of_one_batch=_of_one_batch(model.graph))
    for subgraph in graph.graphs(model):
        sizes.add_inputs(subgraph, are_required=subgraph is model.graph)
    return sizes


def _of_one_batch(main: ir.Graph) -> frozenset[ir.Value]:
    given = [value for value in main.inputs if not value.is_initializer()]
    first = {None if value.shape is None or not len(value.shape) else value.shape[0] for value in given}
    names = {dim if isinstance(dim, int) or dim is None else dim.value for dim in first}
    return frozenset(given if len(given) == 1 or (len(names) == 1 and None not in names) else ())


def add(node: ir.Node, sizes: Sizes) -> None:
    """Note down what follows for the outputs of a node from what is known of its inputs."""
    if node.domain not in ("", graph.MICROSOFT) or not node.outputs:
        return
    try:
        _add(node, sizes)
    except (IndexError, ZeroDivisionError):
        return  # inputs, axes or dimensions that are not there, of a node that nobody runs


def _add(node: ir.Node, sizes: Sizes) -> None:
    elements = elements_of(node, sizes)
    if elements is not None:
        sizes.elements[node.outputs[0]] = elements
    maker = _MAKERS.get(node.op_type)
    made = None if maker is None or not node.inputs else maker(node, sizes)
    if made is not None and all(0 <= dim < ENDLESS for dim in made if isinstance(dim, int)):
        sizes.dims[node.outputs[0]] = made
    if node.op_type == "Split":
        _split(node, sizes)


def _alike(node: ir.Node, sizes: Sizes) -> Dims | None:
    return sizes.of(node.inputs[0])


def _together(dims: Sequence[Dims], node: ir.Node) -> Dims:
    """Of tensors that are repeated to fit each other."""
    rank = max(map(len, dims))
    made: list[Dim] = []
    for axis in range(rank):
        own = dict.fromkeys(each[axis - rank + len(each)] for each in dims if axis - rank + len(each) >= 0)
        # What is cut off at a size fits that one where it is as long, or repeated.
        others = [dim for dim in own if dim != 1 and not (isinstance(dim, Least) and dim.of in own)]
        numbers = [dim for dim in others if isinstance(dim, int)]
        made.append(numbers[0] if numbers else others[0] if len(others) == 1 else new(node, axis) if others else 1)
    return tuple(made)


def _broadcast(node: ir.Node, sizes: Sizes) -> Dims | None:
    found = [sizes.of(value) for value in node.inputs if value is not None]
    known = [dims for dims in found if dims is not None]
    if not known or len(known) != len(found):
        return None
    made, scores = _together(known, node), sizes.of(_scores(node, sizes))
    if scores is None or len(scores) != len(made):
        return made
    pairs = enumerate(zip(made, scores, strict=True))
    return tuple(own if dim == new(node, axis) and _is_given(own, sizes) else dim for axis, (dim, own) in pairs)


def _scores(node: ir.Node, sizes: Sizes) -> ir.Value | None:
    """The product that a mask is added to, or put in the place of, in front of a Softmax, where all inputs are
    declared as of one number of images. It is the mask that is repeated then, never the scores of one image for masks
    of several, along axes that nothing else is known of and that are an input's (`_is_given`)."""
    if not sizes.of_one_batch:
        return None
    if node.op_type not in ("Add", "Where") or not graph.is_op(graph.only_consumer(node.outputs[0]), "Softmax"):
        return None
    for value in node.inputs[node.op_type == "Where" :]:
        made = graph.producer(value)
        while made is not None and graph.is_op(made, "Mul", "Div") and made.inputs[0] is not None:
            made = made.inputs[0].producer()
        if made is not None and graph.is_op(made, "MatMul") and graph.constant(made.inputs[1]) is None:
            return value
    return None


def _is_given(size: Dim, sizes: Sizes) -> bool:
    """Whether it is as long as the caller makes it. Others may be 1 whatever is given, as of queries that are one row
    of a table: such scores are what is repeated."""
    return isinstance(size, tuple) and size[0] in sizes.of_one_batch


def _matmul(node: ir.Node, sizes: Sizes) -> Dims | None:
    a, b = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    before = _together([a[:-2], b[:-2]], node) if len(a) > 2 or len(b) > 2 else ()
    return (*before, a[-2], b[-1])


def _gemm(node: ir.Node, sizes: Sizes) -> Dims | None:
    a, b = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return (a[graph.attribute_int(node, "transA", 0)], b[1 - graph.attribute_int(node, "transB", 0)])


def _transposed(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims = sizes.of(node.inputs[0])
    perm = [] if dims is None else list(node.attributes.get_ints("perm", list(reversed(range(len(dims))))))
    return None if dims is None or sorted(perm) != list(range(len(dims))) else tuple(dims[axis] for axis in perm)


def _reshaped(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims, asked = sizes.of(node.inputs[0]), sizes.elements_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if asked is None:
        return None
    keeps = not graph.attribute_int(node, "allowzero", 0)
    made: list[Dim] = []
    for axis, size in enumerate(asked.sizes):
        if size == 0 and keeps:
            made.append(dims[axis] if dims is not None and axis < len(dims) else new(node, axis))
        else:
            made.append(size)
    if -1 in made:
        left = None if dims is None or made.count(-1) > 1 else left_of(dims, [size for size in made if size != -1])
        made[made.index(-1)] = new(node, made.index(-1)) if left is None else left
    return tuple(made)


def _expanded(node: ir.Node, sizes: Sizes) -> Dims | None:
    """A tensor is repeated for what is asked for, or what is asked for is less than that."""
    dims, asked = sizes.of(node.inputs[0]), sizes.elements_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None or asked is None or asked.is_scalar or any(isinstance(s, int) and s < 1 for s in asked.sizes):
        return None
    return _together([dims, asked.sizes], node)


def _flattened(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims, axis = sizes.of(node.inputs[0]), graph.attribute_int(node, "axis", 1)
    if dims is None or not -len(dims) <= axis <= len(dims):
        return None
    axis += len(dims) * (axis < 0)
    made = (left_of(part, ()) for part in (dims[:axis], dims[axis:]))
    return tuple(new(node, place) if size is None else size for place, size in enumerate(made))


def _counted(node: ir.Node, sizes: Sizes) -> Dims:
    """As many numbers as a size says, from zero on."""
    start, stop, step = (None if (each := sizes.elements_of(value)) is None else each.sizes for value in node.inputs)
    is_plain = start == (0,) and step == (1,) and stop is not None and len(stop) == 1
    size = stop[0] if is_plain and stop is not None else None
    return (new(node, 0) if size is None or (isinstance(size, int) and size < 0) else size,)


def left_of(whole: Sequence[Dim], parts: Sequence[Dim]) -> Dim | None:
    """The one size that makes `parts` as many elements as `whole`; None if it is not known."""
    names, taken = (Counter(dim for dim in dims if not isinstance(dim, int)) for dims in (whole, parts))
    numbers = [math.prod(dim for dim in dims if isinstance(dim, int)) for dims in (whole, parts)]
    if taken - names or numbers[1] <= 0:
        return None
    rest = list((names - taken).elements())
    if not rest and numbers[0] % numbers[1] == 0:
        return numbers[0] // numbers[1]
    return rest[0] if len(rest) == 1 and numbers[0] == numbers[1] else None


def _gather(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims, index = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    axis = graph.attribute_int(node, "axis", 0)
    if dims is None or index is None or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    return (*dims[:axis], *index, *dims[axis + 1 :])


def _concat(node: ir.Node, sizes: Sizes) -> Dims | None:
    found = [sizes.of(value) for value in node.inputs]
    parts = [dims for dims in found if dims is not None]
    if len(parts) != len(found) or not parts or len({len(dims) for dims in parts}) != 1:
        return None
    axis = graph.attribute_int(node, "axis", 0) % len(parts[0])
    own = [dims[axis] for dims in parts]
    numbers = [size for size in own if isinstance(size, int)]
    made = list(parts[0])
    made[axis] = sum(numbers) if len(numbers) == len(own) else new(node, axis)
    return tuple(made)


def _slice(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims = sizes.of(node.inputs[0])
    if dims is None or len(node.inputs) < 3:
        return None
    given = [sizes.numbers(value) for value in (*node.inputs[1:], None, None)[:4]]
    stop = sizes.elements_of(node.inputs[2])
    axes = given[2] if len(node.inputs) > 3 and node.inputs[3] is not None else list(range(len(given[0] or ())))
    if axes is None or (not axes and given[0] is None) or any(not -len(dims) <= axis < len(dims) for axis in axes):
        return None
    made = list(dims)
    for number, axis in enumerate(each % len(dims) for each in axes):
        size, (starts, stops), steps = made[axis], given[:2], given[3]
        if len(node.inputs) < 5 or node.inputs[4] is None:
            steps = [1] * len(axes)
        if steps is None:
            made[axis] = new(node, axis)
            continue
        if isinstance(size, int) and starts is not None and stops is not None and steps[number] > 0:
            made[axis] = len(range(size)[starts[number] : stops[number] : steps[number]])
            continue
        end = None if stop is None or number >= len(stop.sizes) else stop.sizes[number]
        is_cut = starts is not None and starts[number] == 0 and steps[number] == 1
        if is_cut and isinstance(size, int) and isinstance(end, tuple):
            made[axis] = Least(end, size)
        else:
            made[axis] = new(node, axis)
    return tuple(made)


def _split(node: ir.Node, sizes: Sizes) -> None:
    dims = sizes.of(node.inputs[0])
    axis = graph.attribute_int(node, "axis", 0)
    if dims is None or not -len(dims) <= axis < len(dims):
        return
    axis %= len(dims)
    is_input = len(node.inputs) > 1 and node.inputs[1] is not None
    given = sizes.numbers(node.inputs[1]) if is_input else list(node.attributes.get_ints("split", []))
    size, count = dims[axis], len(node.outputs)
    if not given and not is_input and isinstance(size, int) and size % count == 0:
        given = [size // count] * count
    for number, out in enumerate(node.outputs):
        own: Dim = given[number] if given and len(given) == count else (out, axis)
        sizes.dims[out] = (*dims[:axis], own, *dims[axis + 1 :])


def _reduced(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims = sizes.of(node.inputs[0])
    axes = axes_of(node, sizes)
    if dims is None or not axes or any(not -len(dims) <= axis < len(dims) for axis in axes):
        return None
    gone = {axis % len(dims) for axis in axes}
    if graph.attribute_int(node, "keepdims", 1):
        return tuple(1 if axis in gone else dim for axis, dim in enumerate(dims))
    return tuple(dim for axis, dim in enumerate(dims) if axis not in gone)


def _placed(node: ir.Node, sizes: Sizes) -> Dims | None:
    """Of places of extremes along one axis."""
    dims, axis = sizes.of(node.inputs[0]), graph.attribute_int(node, "axis", 0)
    if dims is None or not -len(dims) <= axis < len(dims):
        return None
    left = (1,) if graph.attribute_int(node, "keepdims", 1) else ()
    return (*dims[: axis % len(dims)], *left, *dims[axis % len(dims) + 1 :])


def _of_indices(node: ir.Node, sizes: Sizes) -> Dims | None:
    return sizes.of(node.inputs[1])


def _tiled(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims, times = sizes.of(node.inputs[0]), sizes.elements_of(node.inputs[1])
    if dims is None or times is None or len(times.sizes) != len(dims):
        return None
    pairs = enumerate(zip(dims, times.sizes, strict=True))
    return tuple(_times(dim, number, node, axis) for axis, (dim, number) in pairs)


def _times(dim: Dim, number: Dim, node: ir.Node, axis: int) -> Dim:
    if isinstance(dim, int) and isinstance(number, int):
        return dim * number
    return dim if number == 1 else number if dim == 1 else new(node, axis)


def _unsqueezed(node: ir.Node, sizes: Sizes) -> Dims | None:
    dims = sizes.of(node.inputs[0])
    axes = axes_of(node, sizes)
    if dims is None or not axes:
        return None
    rank = len(dims) + len(axes) if node.op_type == "Unsqueeze" else len(dims)
    if any(not -rank <= axis < rank for axis in axes):
        return None
    places = {axis % rank for axis in axes}
    if node.op_type == "Squeeze":
        return tuple(dim for axis, dim in enumerate(dims) if axis not in places)
    left = iter(dims)
    return tuple(1 if axis in places else next(left) for axis in range(rank))


_MAKERS: dict[str, Callable[[ir.Node, Sizes], Dims | None]] = {
    **dict.fromkeys(_ALIKE, _alike),
    **dict.fromkeys(_BROADCAST, _broadcast),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transposed,
    "Reshape": _reshaped,
    "Expand": _expanded,
    "Flatten": _flattened,
    "Range": _counted,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "GatherElements": _of_indices,
    "Tile": _tiled,
    **dict.fromkeys(_REDUCE, _reduced),
    **dict.fromkeys(("ArgMax", "ArgMin"), _placed),
    **dict.fromkeys(("Unsqueeze", "Squeeze"), _unsqueezed),
    **PIXEL_MAKERS,
}
