"""Scales channels between layers: what a model computes stays, and its weights and activations suit few bits better."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.channel_places import ChannelPlace, Scaled
from onnxq.model.graph import Names
from onnxq.model.origin import renew


def scale_channels(model: ir.Model, factors: Mapping[ChannelPlace, NDArray[np.float32]]) -> ir.Model:
    """A copy of `model`, which computes the same, with other channels inside.

    The weights that read each place are multiplied by the factors of its channels, and the constants that make it are
    divided by them.

    Args:
        factors: [channels] each, larger than 0.
    """
    made = model.clone()
    names, nodes = Names(made), {node.name: node for node in graph.nodes(made)}
    for place, each in factors.items():
        for scaled in place.makers:
            _scale(nodes[scaled.node], scaled, np.float32(1) / each, names)
        for reader in place.readers:
            _scale(nodes[reader.scaled.node], reader.scaled, each, names)
    return made


def _scale(node: ir.Node, scaled: Scaled, factors: NDArray, names: Names) -> None:
    old = node.inputs[scaled.index]
    tensor = graph.constant(old)
    assert old is not None and tensor is not None
    repeated, axis, rank = np.repeat(factors, scaled.repeats), scaled.axis, len(tensor.shape)
    along = repeated.reshape([-1 if i == axis else 1 for i in range(rank)])
    renew(old, [(node, scaled.index)], graph.lazily(tensor, lambda w: w * along), "_scaled", names)
