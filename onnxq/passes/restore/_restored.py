"""Shared by the passes that restore float weights: what is known of a stored weight, and the initializer it becomes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats
from onnxq.encoding.lazy import GivenTensor, transposed
from onnxq.errors import BadModel
from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN, RESTORED
from onnxq.model.types import Types, infer_types
from onnxq.passes import Pass

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """A weight in codes, as a model holds it.

    Attributes:
        shape: of the weight.
        read: makes it.
        half_scales: whether its scales are of float16.
        order: of its axes, which of those that are stored each one was; (): as they are stored.
    """

    format: Format
    granularity: Granularity
    shape: tuple[int, ...]
    read: Callable[[], QuantizedTensor]
    half_scales: bool = False
    order: tuple[int, ...] = ()

    def transposed(self, order: Sequence[int]) -> Stored:
        """The same weight with its axes in another order.

        Args:
            order: for each axis of the result the one that it was.
        """
        how = self.granularity.within(len(self.shape))
        moved = how if how.axis is None else Granularity(list(order).index(how.axis), how.block)

        before, shape = self.order or range(len(order)), tuple(self.shape[axis] for axis in order)
        moves = tuple(before[axis] for axis in order)
        given = self.read
        return dataclasses.replace(
            self, granularity=moved, shape=shape, read=lambda: transposed(given(), order), order=moves
        )


class RestorePass(Pass):
    """A pass that reads one spelling of codes; those that cannot be read stay as they are."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        restored = Restored(model)
        count = sum(_told(self.restore, node)(node, restored) for node in list(graph.nodes(model)) if node.graph)
        return ir.passes.PassResult(model, modified=count > 0)

    def restore(self, node: ir.Node, restored: Restored) -> bool:
        """Whether `node` was of this spelling, and computes with float weights now."""
        raise NotImplementedError


class Restored:
    """Float initializers of a model in the place of codes, one for all nodes that read the same ones alike."""

    def __init__(self, model: ir.Model) -> None:
        self.names = Names(model)
        self._model = model
        self._made: dict[Hashable, ir.Value] = {}

    @functools.cached_property
    def _types(self) -> Types:
        """Of the model's values; most spellings say themselves in which type they compute."""
        return infer_types(self._model, guess=True)

    def float_type(self, node: ir.Node) -> ir.DataType:
        """In which a product computes: that of what it multiplies, where that is known, else float32."""
        for value in (node.inputs[0], node.outputs[0]):
            dtype = None if value is None else self._types.of(value).dtype or value.dtype
            if dtype in graph.FLOATS:
                return dtype
        return ir.DataType.FLOAT

    def weight(
        self, node: ir.Node, source: ir.Value, stored: Stored, dtype: ir.DataType, *others: Hashable
    ) -> ir.Value:
        """The float weight that `node` is to read in the place of the codes in `source`, and what belongs to them.

        Args:
            others: what else it depends on that `node` does not read itself.
        """
        beside = tuple(id(value) for value in node.inputs if graph.constant(value) is not None)
        key = (id(source), beside, others, dtype, stored.format, stored.granularity, stored.shape, stored.order)
        if key not in self._made:
            read, form = _told(stored.read, node), (stored.format, stored.granularity)
            given = GivenTensor(read, stored.shape, dtype, half_scales=stored.half_scales, form=form)
            self._made[key] = self.constant(source, given)
        return self._made[key]

    def floats(
        self,
        node: ir.Node,
        source: ir.Value,
        read: Callable[[], NDArray],
        shape: tuple[int, ...],
        dtype: ir.DataType,
    ) -> ir.Value:
        """The float weight that `node` is to read, of codes that no format of ours has."""
        told = _told(read, node)

        def evaluate() -> ir.TensorProtocol:
            return ir.tensor(np.ascontiguousarray(told().astype(dtype.numpy(), copy=False)))

        return self.constant(source, ir.LazyTensor(evaluate, dtype=dtype, shape=ir.Shape(shape)))

    def constant(self, source: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """A new initializer that stands for what `source` was stored for, where that lies."""
        owner = source.graph
        assert isinstance(owner, ir.Graph)
        made = graph.add_constant(owner, self.names.fresh(f"{source.name}_float"), tensor)
        made.meta[ORIGIN] = source.meta.get(ORIGIN, source.name)
        made.meta[RESTORED] = True
        return made

    def product(
        self,
        node: ir.Node,
        w: ir.Value,
        bias: ir.Value | None,
        finish: Callable[[ir.Value], ir.Value] = lambda y: y,
    ) -> None:
        """A MatMul of the first input of `node` by `w`, and an Add of the bias if there is one, in the node's place.

        Args:
            finish: makes what the readers of `node` read of that, in nodes before it.
        """
        name, node.name = node.name or "", self.names.fresh(f"{node.name}_quantized")
        y = graph.add_node(node, "MatMul", [node.inputs[0], w], name, self.names.fresh(f"{name}_out"))
        if bias is not None:
            added = self.names.fresh(f"{name}_bias")
            y = graph.add_node(node, "Add", [y, bias], added, added)
        replace(node, finish(y))

    def lookup(self, node: ir.Node, table: ir.Value, indices: ir.Value | None) -> None:
        """A Gather of rows of `table` in the place of `node`."""
        name, node.name = node.name or "", self.names.fresh(f"{node.name}_quantized")
        out = self.names.fresh(f"{name}_out")
        replace(node, graph.add_node(node, "Gather", [table, indices], name, out, {"axis": 0}))


def replace(node: ir.Node, y: ir.Value) -> None:
    """Let everyone who read the only output of `node` read `y`, and remove the node."""
    graph.replace_value(node.outputs[0], y)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def replace_layer(
    node: ir.Node,
    op: str,
    domain: str,
    inputs: Sequence[ir.Value | None],
    without: Collection[str],
    restored: Restored,
) -> ir.Node:
    """A node with these inputs, and the outputs and the other attributes of `node`, in its place."""
    name, node.name = node.name or "", restored.names.fresh(f"{node.name}_quantized")
    kept = [attribute for attribute in node.attributes.values() if attribute.name not in without]
    last = max(index for index, value in enumerate(inputs) if value is not None)
    made = ir.Node(domain, op, inputs[: last + 1], kept, num_outputs=len(node.outputs), name=name)
    node.prepend(made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name = restored.names.fresh(f"{name}_out") if old.name else ""
        if old.name:
            graph.replace_value(old, new)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return made


def read_instead(node: ir.Node, x: ir.Value, restored: Restored) -> None:
    """Let the readers of the only output of `node`, the caller of the model included, read `x`."""
    y = node.outputs[0]
    if not y.is_graph_output():
        y.replace_all_uses_with(x)
        return
    for use in y.uses():
        use.node.replace_input_with(use.idx, x)
    if x.is_graph_input() or x.is_initializer() or x.is_graph_output() or x.graph is not node.graph:
        name = restored.names.fresh(f"{node.name}_same")
        x = graph.add_node(node, "Identity", [x], name, restored.names.fresh(f"{name}_out"))
    graph.replace_value(y, x)


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """What a node reads there, if anything."""
    return node.inputs[index] if index < len(node.inputs) else None


def constants_of(node: ir.Node, *indices: int) -> list[ir.TensorProtocol | None] | None:
    """The constants that a node reads there, None where it reads nothing; None if any is computed, or given later."""
    values = [input_of(node, index) for index in indices]
    tensors = [graph.constant(value) for value in values]
    is_known = all(value is None or tensor is not None for value, tensor in zip(values, tensors, strict=True))
    return tensors if is_known else None


def before_cast(value: ir.Value | None) -> ir.Value | None:
    """What a value is cast from; itself, if it is no Cast's."""
    node = graph.producer(value)
    return node.inputs[0] if node is not None and graph.is_op(node, "Cast") else value


def array_of(tensor: ir.TensorProtocol | None) -> NDArray | None:
    """The numbers of a tensor, if there is one."""
    return None if tensor is None else tensor.numpy()


def plain(codes: NDArray) -> NDArray:
    """Of types of 2 and 4 bits, which numpy has from elsewhere, the same numbers in a byte each."""
    return (
        codes if codes.dtype.kind in "iu" else codes.astype(np.int8 if codes.dtype.name.startswith("i") else np.uint8)
    )


def whole_format(bits: int, zeros: NDArray | None, *, is_signed: bool) -> Format:
    """The format for codes that are whole numbers: a signed one where all zero points are the middle of the codes.

    Args:
        zeros: zero points, of the kind that the codes are of; None: all zero.
        is_signed: whether the codes are.
    """
    middle = 0 if is_signed else 1 << (bits - 1)
    is_symmetric = middle == 0 if zeros is None else bool((zeros.astype(np.int32) == middle).all())
    return formats.get(f"{'int' if is_symmetric else 'uint'}{bits}")


def whole(
    format: Format, codes: NDArray, scales: NDArray, zeros: NDArray | None, how: Granularity, *, is_signed: bool
) -> QuantizedTensor:
    """A weight in the format that `whole_format` chose for its codes.

    Args:
        codes, zeros: as they are stored.
        scales: in the shape that `how` gives them.
    """
    half = 1 << (format.bits - 1)
    up = (0 if format.code_type.kind == "i" else half) - (0 if is_signed else half)
    moved = (codes.astype(np.int32) + up).astype(format.code_type)
    if format.offset_type is None:
        return QuantizedTensor(format, how, moved, scales)
    offsets = np.zeros(scales.shape, np.int32) if zeros is None else zeros.astype(np.int32).reshape(scales.shape)
    return QuantizedTensor(format, how, moved, scales, (offsets + up).astype(format.code_type))


def _told(read: Callable[P, T], node: ir.Node) -> Callable[P, T]:
    """The same; of sizes that do not belong together it is said whose they are."""
    name, op = node.name, node.op_type

    def told(*arguments: P.args, **others: P.kwargs) -> T:
        try:
            return read(*arguments, **others)
        except (ValueError, IndexError) as error:
            raise BadModel(f"node '{name}' ({op}) cannot be read: {error}") from None

    return told
