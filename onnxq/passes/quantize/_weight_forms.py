"""Shared by the passes that give weights a new form: each form of a weight is made once and found again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxq import algorithms, own_ops
from onnxq.encoding.lazy import Encoding, GivenTensor, fits_half_scales
from onnxq.formats import Format, Granularity
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import ORIGIN
from onnxq.own_ops import Variant


class WeightForms:
    """New initializers, named after the weight they come from and shared by all nodes that want the same.

    They are placed in the graph that owns the weight, so that every subgraph which could read the weight can read
    them, unless their reader's own graph is asked for.

    Args:
        algorithm: for every weight; None: for each the one that measured best.
    """

    def __init__(self, names: Names, algorithm: str | None = None) -> None:
        self.names, self._named = names, algorithm
        self._values: dict[Hashable, ir.Value] = {}
        self._encodings: dict[Hashable, Encoding] = {}
        #: Own functions that were called.
        self.called: set[Variant] = set()

    def algorithm(self, op_type: str, format: Format, granularity: Granularity) -> str:
        """How codes are chosen for a weight that an operator `op_type` reads."""
        return self._named or algorithms.choose(op_type, format, granularity)

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
        algorithm = self.algorithm(op_type, format, groups or granularity)
        key = (id(weight), format.name, granularity, algorithm, prefer_half, groups)
        if key not in self._encodings:
            tensor = graph.constant(weight)
            assert tensor is not None
            encoding = Encoding(tensor, format, granularity, algorithm=algorithm, groups=groups)
            if isinstance(tensor, GivenTensor):
                encoding = dataclasses.replace(encoding, given=tensor.given, half_scales=tensor.half_scales)
            elif prefer_half and fits_half_scales(encoding):
                encoding = dataclasses.replace(encoding, half_scales=True)
            self._encodings[key] = encoding
        return self._encodings[key]

    def value(
        self, weight: ir.Value, suffix: str, key: Hashable, tensor: ir.TensorProtocol, owner: ir.Graph | None = None
    ) -> ir.Value:
        """The initializer `weight.name + suffix` of `owner` made for this `key`, or a new one holding `tensor`."""
        owner = owner or owner_of(weight)
        full = (id(weight), id(owner), suffix, key)
        if full not in self._values:
            self._values[full] = graph.add_constant(owner, self.names.fresh(f"{weight.name}{suffix}"), tensor)
            self._values[full].meta[ORIGIN] = weight.meta.get(ORIGIN, weight.name)
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
