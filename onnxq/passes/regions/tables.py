"""Functions of a code as tables, computed by the runtime that would compute the function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.passes.regions.group import Group
from onnxq.runtime.session import Session

CODES = 256


def tables_of(groups: Sequence[Group], opset: int) -> dict[Group, NDArray]:
    """By group, the codes that its chain makes of 0…255: [256], or [channels, 256]."""
    graph_ = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="tables")
    feed: dict[str, NDArray] = {}
    for number, group in enumerate(groups):
        _add(graph_, number, group)
        feed[f"x_{number}"] = _all_codes(group)
    session = Session(ir.Model(graph_, ir_version=8), optimize=False, library=False)
    found: dict[Group, NDArray] = {}
    for group, y in zip(groups, session.run(feed), strict=True):
        by_channel = np.ascontiguousarray(y.reshape(CODES, -1).T)
        found[group] = by_channel if by_channel.shape[0] > 1 else by_channel[0]
    return found


def _all_codes(group: Group) -> NDArray:
    """Every code, as DequantizeLinear makes it float: [256, channels, 1, …]."""
    chain, (source,) = group.chain, group.sources
    assert chain is not None and isinstance(source, ir.Node)
    scale, zero = (graph.constant(value) for value in source.inputs[1:])
    assert scale is not None and zero is not None
    x = (np.arange(CODES, dtype=np.float32) - zero.numpy().astype(np.float32)) * scale.numpy()
    ones = [1] * ((chain.rank or 2) - 2)
    return np.ascontiguousarray(np.broadcast_to(x.reshape(CODES, 1, *ones), (CODES, chain.channels, *ones)))


def _add(into: ir.Graph, number: int, group: Group) -> None:
    """The chain and its QuantizeLinear."""
    chain = group.chain
    assert chain is not None
    x = _all_codes(group)
    start = ir.Value(name=f"x_{number}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(x.shape))
    into.inputs.append(start)
    copies: dict[ir.Value, ir.Value] = {chain.root: start}
    for place, node in enumerate(group.nodes):
        read: list[ir.Value | None] = []
        for index, value in enumerate(node.inputs):
            tensor = graph.constant(value)
            if value is not None and tensor is not None and value not in copies:
                constant = ir.tensor(tensor.numpy())
                copies[value] = graph.add_constant(into, f"c_{number}_{place}_{index}", constant)
            read.append(None if value is None else copies[value])
        copy = ir.node(node.op_type, read, num_outputs=1, name=f"n_{number}_{place}")
        for attribute in node.attributes.values():
            copy.attributes[attribute.name] = ir.Attr(attribute.name, attribute.type, attribute.value)
        copy.outputs[0].name = f"v_{number}_{place}"
        copies[node.outputs[0]] = copy.outputs[0]
        into.append(copy)
    out = copies[group.last.outputs[0]]
    out.type, out.shape = ir.TensorType(ir.DataType.UINT8), ir.Shape(x.shape)
    into.outputs.append(out)
