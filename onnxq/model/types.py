"""Types and shapes of a model's values, as far as they can be told without running it.

What is found here informs the plan and never goes into the saved file: inferred shapes that are slightly wrong make
some runtimes refuse a model they would otherwise run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from onnxq.model import graph
from onnxq.model.dims.dimensions import sizes_of
from onnxq.model.dims.known import Dim as Size
from onnxq.model.dims.known import Dims, Least
from onnxq.runtime import supervisor

Dim = int | str | None
#: How names begin that ONNX gives to dimensions of which it knows nothing, and how those end that `types_of` gives.
_INVENTED, _OF_VALUE = "unk__", "_onnxq"
#: Types whose values have no elements to compare, nor a number of them: what is in them is a value of its own.
NOT_TENSORS = (ir.OptionalType, ir.SequenceType, ir.SparseTensorType)
#: Operators that make sequences and the like.
_MAKE_NO_TENSORS = (
    "Optional",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceMap",
    "SplitToSequence",
    "ZipMap",
)
_CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})


@dataclass(frozen=True)
class TypeAndShape:
    """Element type and dimensions of one value; None where unknown, a string for a symbolic dimension.

    Of a value that is no tensor (`is_tensor`) they are those of the tensors in it.
    """

    dtype: ir.DataType | None
    shape: tuple[Dim, ...] | None
    is_tensor: bool = True

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)


UNKNOWN = TypeAndShape(None, None)


class Types(dict[str, TypeAndShape]):
    """`TypeAndShape` by value name; unknown names give `UNKNOWN`."""

    def __missing__(self, name: str) -> TypeAndShape:
        return UNKNOWN

    def of(self, value: ir.Value) -> TypeAndShape:
        return self[value.name or ""]


def infer_types(model: ir.Model, *, guess: bool = False) -> Types:
    """Types and shapes by value name, found by ONNX shape inference on a copy of `model`.

    Args:
        guess: take operators that ONNX does not know (com.microsoft …) to return the type of their first float input,
            and those on codes (QLinearAdd …) that of the codes.
    """
    supervisor.doing("onnx inferred shapes")
    # Not strict: one node that cannot be inferred would leave all others unknown.
    copy = model.clone()
    for node in graph.nodes(copy):
        if node.op_type == "ZipMap":
            node.domain = ""  # where nothing is inferred of it: onnx_ir has no type for what it makes
    copy = ShapeInferencePass(check_type=False, strict_mode=False)(copy).model
    for node in graph.nodes(copy) if guess else ():
        for output in node.outputs:
            if output.dtype is None and not graph.has_body(node):
                dtype = _guessed(node)
                output.type = None if dtype is None else ir.TensorType(dtype)
    found = Types()
    for each in graph.graphs(copy):
        values = [*each.inputs, *each.initializers.values()]
        for value in values + [output for node in each for output in node.outputs]:
            if value.name:
                found[value.name] = _read(value, found)
    return found


def _guessed(node: ir.Node) -> ir.DataType | None:
    dtypes = [None if value is None else _dtype(value) for value in node.inputs]
    is_theirs = node.domain == graph.MICROSOFT
    if is_theirs and node.op_type == "QGemm" and any(dtypes[8:]):  # else its result is floats
        return dtypes[8]
    wanted = _CODES if is_theirs and node.op_type.startswith(("QLinear", "QuantizeLinear")) else graph.FLOATS
    return next((dtype for dtype in dtypes if dtype in wanted), None)


def _dtype(value: ir.Value) -> ir.DataType | None:
    tensor = graph.constant(value)
    return value.dtype if tensor is None else tensor.dtype


def _read(value: ir.Value, found: Types) -> TypeAndShape:
    is_tensor = _is_tensor(value, found)
    if value.shape is None:
        return TypeAndShape(value.dtype, None, is_tensor)
    dims = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return TypeAndShape(value.dtype, dims, is_tensor)


def _is_tensor(value: ir.Value, found: Types) -> bool:
    """onnx_ir takes from inference no more than the type of the elements, which sequences have too."""
    node, index = value.producer(), value.index()
    if graph.is_op(node, "Identity") and node is not None and node.inputs and node.inputs[0] is not None:
        return found.of(node.inputs[0]).is_tensor
    same = [value]
    if graph.is_op(node, "If", "Loop") and node is not None and index is not None:
        same += [out for body in graph.bodies(node) for out in body.outputs[index - len(node.outputs) :][:1]]
    return not any(isinstance(v.type, NOT_TENSORS) or graph.is_op(v.producer(), *_MAKE_NO_TENSORS) for v in same)


def types_of(model: ir.Model) -> Types:
    """Types and shapes, with names for what is not known of inputs, so that equal shapes are known to be: also where
    they are computed, as by a Reshape, or a table of positions that is cut off (`dims/`)."""
    copy = model.clone()
    for value in copy.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is None and isinstance(value.shape, ir.Shape):
                value.shape[axis] = f"{value.name}_{axis}{_OF_VALUE}"
    found, sizes = infer_types(copy), sizes_of(copy)
    return Types(
        found | {value.name: _with_dims(value, dims, found) for value, dims in sizes.dims.items() if value.name}
    )


def _with_dims(value: ir.Value, dims: Dims, types: Types) -> TypeAndShape:
    """What ONNX infers of a value, in the names of the axes that its sizes are known to be those of.

    Numbers that a file declares of what nodes make are those of the exporter's sample: where they follow from an input
    of any size they are no numbers.
    """
    inferred = types.of(value)
    if inferred.shape is not None and len(inferred.shape) != len(dims):
        return inferred
    shape = inferred.shape or (None,) * len(dims)
    own = [isinstance(dim, tuple) and dim[0] is value for dim in dims]
    pairs = zip(shape, dims, own, strict=True)
    made = (size if isinstance(size, int) and is_own else _named(dim, types) for size, dim, is_own in pairs)
    return replace(inferred, shape=tuple(made))


def _named(dim: Size, types: Types) -> Dim:
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Least):
        return None
    value, axis = dim
    shape = types.of(value).shape
    own = shape[axis] if shape is not None and axis < len(shape) else None
    return f"{value.name}_{axis}{_OF_VALUE}" if own is None else own


def is_named(dim: Dim) -> bool:
    """Whether a dimension has a name that a model gave it, so that another name says another size."""
    return isinstance(dim, str) and not dim.startswith(_INVENTED) and not dim.endswith(_OF_VALUE)
