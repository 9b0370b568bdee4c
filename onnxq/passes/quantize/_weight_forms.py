"""Shared by the passes that give weights a new form: each form of a weight is made once and found again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxq import algorithms, own_ops
from onnxq.encoding.lazy import Encoding, GivenTensor, fits_half_scales
from onnxq.formats import FloatArray, Format, Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN, SOURCE
from onnxq.own_ops import Variant
from onnxq.planning.scales import Scale
from onnxq.summaries.evidence import Evidence, Layer


@dataclasses.dataclass(frozen=True)
class Codes:
    """How codes are chosen.

    Attributes:
        named: by weight, the algorithm that the user named; for all others it is the one that measured best.
        evidence: what data say of layers.
        ranks: by node, that of what is added beside it to make up for the codes of its weight.
        thorough: whether algorithms may take many times as long.
    """

    named: Mapping[str, str] = dataclasses.field(default_factory=dict)
    evidence: Evidence = dataclasses.field(default_factory=dict)
    ranks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    thorough: bool = False


class WeightForms:
    """New initializers, named after the weight they come from and shared by all nodes that want the same.

    They are placed in the graph that owns the weight, so that every subgraph which could read the weight can read
    them, unless their reader's own graph is asked for.

    Args:
        codes: how they are chosen.
    """

    def __init__(self, names: Names, codes: Codes = Codes()) -> None:
        self.names, self._codes = names, codes
        #: By value that was made of another one's numbers, that one's name in the prepared model.
        self._sources: dict[ir.Value, str] = {}
        self._values: dict[Hashable, ir.Value] = {}
        self._encodings: dict[Hashable, Encoding] = {}
        #: Own functions that were called.
        self.called: set[Variant] = set()

    def new_encoding(
        self,
        weight: ir.Value,
        format: Format,
        granularity: Granularity,
        op_type: str,
        *,
        tensor: ir.TensorProtocol | None = None,
        channel: int | None = None,
        by_data: bool = True,
        groups: Granularity | None = None,
    ) -> Encoding:
        """How `weight`, read by an operator `op_type`, will be encoded, by the algorithm that it calls for.

        Args:
            tensor: its numbers in another shape.
            channel: the axis of its outputs there; without, what data say of its layer is of no use there.
            by_data: whether data may choose codes as far from the nearest ones as they like.
            groups: whose scale each block of `granularity` repeats; data do not choose codes there.
        """
        source = self._sources.get(weight, weight.name or "")
        layer = self._codes.evidence.get(source)
        if not by_data or groups is not None or (tensor is not None and channel is None):
            layer = None
        elif layer is not None and channel is not None:
            layer = layer.turned(channel)
        algorithm = self._codes.named.get(source)
        if algorithm is None or (algorithm in algorithms.WITH_DATA and layer is None):
            has_data, thorough = layer is not None, self._codes.thorough
            algorithm = algorithms.choose(op_type, format, groups or granularity, has_data=has_data, thorough=thorough)
        tensor = graph.constant(weight) if tensor is None else tensor
        assert tensor is not None
        layer = layer if algorithm in algorithms.WITH_DATA else None
        made = Encoding(tensor, format, granularity, algorithm=algorithm, layer=layer, groups=groups)
        if isinstance(tensor, GivenTensor):
            return dataclasses.replace(made, given=tensor.given, half_scales=tensor.half_scales)
        return made

    def encoding(
        self,
        weight: ir.Value,
        format: Format,
        granularity: Granularity,
        op_type: str,
        *,
        groups: Granularity | None = None,
        prefer_half: bool = False,
    ) -> Encoding:
        """How `weight`, read by an operator `op_type`, will be encoded.

        The same object for the same request, so that it is computed once.

        Args:
            groups: whose scale each block of `granularity` repeats (`Choice.groups`); None: its own.
            prefer_half: round the scales to float16 if that holds them all.
        """
        encoding = self.new_encoding(weight, format, granularity, op_type, groups=groups)
        key = (id(weight), format.name, granularity, encoding.algorithm, prefer_half, groups)
        if key not in self._encodings:
            if encoding.given is None and prefer_half and fits_half_scales(encoding):
                encoding = dataclasses.replace(encoding, half_scales=True)
            self._encodings[key] = encoding
        return self._encodings[key]

    def rank(self, node: str) -> int:
        """Of what is added beside a node of the prepared model to make up for its weight's codes; 0: nothing is."""
        return self._codes.ranks.get(node, 0)

    def layer(self, weight: ir.Value) -> Layer | None:
        """What data say of the layer of `weight`."""
        return self._codes.evidence.get(self._sources.get(weight, weight.name or ""))

    def value(
        self, weight: ir.Value, suffix: str, key: Hashable, tensor: ir.TensorProtocol, owner: ir.Graph | None = None
    ) -> ir.Value:
        """The initializer `weight.name + suffix` of `owner` made for this `key`, or a new one holding `tensor`."""
        owner = owner or owner_of(weight)
        full = (id(weight), id(owner), suffix, key)
        if full not in self._values:
            self._values[full] = graph.add_constant(owner, self.names.fresh(f"{weight.name}{suffix}"), tensor)
            self._values[full].meta[ORIGIN] = weight.meta.get(ORIGIN, weight.name)
            self._values[full].meta[SOURCE] = weight.meta.get(SOURCE, weight.name)
            self._sources[self._values[full]] = self._sources.get(weight, weight.name or "")
        return self._values[full]

    def once(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """What `make` makes, the first time that this `key` is asked for."""
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]

    def call(
        self, owner: ir.Graph, variant: Variant, inputs: Sequence[ir.Value], wish: str, attributes: graph.Attributes
    ) -> ir.Value:
        """The output of a new call of our own function `variant`, on constants of `owner`, at its head.

        The model needs the bodies of all that were `called`.
        """
        self.called.add(variant)
        name = self.names.fresh(wish)
        node = ir.node(
            variant.op, inputs, attributes, domain=own_ops.DOMAIN, overload=variant.overload, name=f"{name}_unpack"
        )
        node.outputs[0].name = name
        first = next(iter(owner), None)
        if first is None:
            owner.append(node)
        else:
            owner.insert_before(first, node)
        return node.outputs[0]

    def array(self, owner: ir.Graph, wish: str, array: ArrayLike, dtype: ir.DataType | None = None) -> ir.Value:
        """A small initializer holding `array`; equal requests give the same one."""
        tensor = ir.tensor(np.asarray(array), dtype=dtype)
        key = (id(owner), wish, tensor.dtype, tensor.tobytes(), tuple(tensor.shape.numpy()))
        if key not in self._values:
            self._values[key] = graph.add_constant(owner, self.names.fresh(wish), tensor)
        return self._values[key]


def owner_of(item: ir.Value | ir.Node) -> ir.Graph:
    """The graph or subgraph that `item` belongs to."""
    assert isinstance(item.graph, ir.Graph)
    return item.graph


def least_scales(bias: ir.TensorProtocol, x: Scale) -> FloatArray:
    """The smallest weight scales with which the bias still fits int32, with one bit to spare."""
    least = np.abs(bias.numpy().astype(np.float64)) / (x.scale * 2.0**30)
    return np.minimum(least, np.finfo(np.float32).max).astype(np.float32)
