"""BatchNormalization and other per-channel scales and shifts behind a convolution go into its weight and bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.origin import inherit_type

Channel = NDArray[np.float64]


class FoldBatchNorm(ir.passes.InPlacePass):
    """Fold y = scale · conv(x) + shift into the convolution, for Conv and ConvTranspose with constant weights.

    1. BatchNormalization in inference form: scale = γ / √(var + ε), shift = β − mean · scale.
    2. Mul or Add of a constant that is one number for each channel.
    3. Again, until nothing that reads the convolution alone is left to fold.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names = Names(model)
        folded = 0
        for node in list(graph.nodes(model)):
            while graph.is_op(node, "Conv", "ConvTranspose") and _fold_next(node, names):
                folded += 1
        return ir.passes.PassResult(model, modified=folded > 0)


def _fold_next(conv: ir.Node, names: Names) -> bool:
    weight = graph.constant(conv.inputs[1])
    follower = graph.only_consumer(conv.outputs[0])
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    if weight is None or follower is None or follower.graph is not conv.graph or len(weight.shape) < 3:
        return False
    if bias is not None and graph.constant(bias) is None:
        return False
    transposed = conv.op_type == "ConvTranspose"
    groups = graph.attribute_int(conv, "group", 1)
    channels = outputs_of(conv, weight.shape.numpy())
    if channels is None:
        return False
    affine = _affine(follower, conv.outputs[0], channels, len(weight.shape))
    if affine is None:
        return False
    scale, shift = affine
    # ConvTranspose's weight is [C, M/group, …]: its output channels lie in axis 1, group after group.
    assert conv.graph is not None
    owner = conv.graph
    assert isinstance(owner, ir.Graph)
    if not np.array_equal(scale, np.ones_like(scale)):
        scaled = graph.lazily(
            weight, lambda w: w.astype(np.float64) * along_outputs(scale, w.shape, groups, transposed)
        )
        folded = graph.add_constant(owner, names.fresh(f"{conv.name}_folded_weight"), scaled)
        inherit_type(folded, conv.inputs[1])
        conv.replace_input_with(1, folded)
    old = graph.constant(bias)
    new = (0 if old is None else old.numpy().astype(np.float64)) * scale + shift
    tensor = ir.tensor(new.astype(weight.dtype.numpy()))
    conv.resize_inputs(3)
    conv.replace_input_with(2, graph.add_constant(owner, names.fresh(f"{conv.name}_bias"), tensor))
    follower.outputs[0].replace_all_uses_with(conv.outputs[0], replace_graph_outputs=True)
    conv.outputs[0].name = _take_name(follower.outputs[0])
    owner.remove(follower, safe=True)
    return True


def _take_name(value: ir.Value) -> str | None:
    name, value.name = value.name, None
    return name


def outputs_of(node: ir.Node, shape: Sequence[int]) -> int | None:
    """How many channels come out of a Conv, ConvTranspose or Gemm with transB whose weight has this shape; None: it has
    groups that there cannot be."""
    groups = graph.attribute_int(node, "group", 1)
    if len(shape) < 2 or groups < 1 or shape[0] % groups:
        return None
    return shape[1] * groups if node.op_type == "ConvTranspose" else shape[0]


def along_outputs(scale: Channel, shape: tuple[int, ...], groups: int, transposed: bool) -> NDArray:
    """One number for each output channel, in a shape that multiplies a kernel of `shape`."""
    if not transposed:
        return scale.reshape(-1, *[1] * (len(shape) - 1))
    of_group = scale.reshape(groups, 1, shape[1])
    return np.repeat(of_group, shape[0] // groups, axis=1).reshape(shape[0], shape[1], *[1] * (len(shape) - 2))


def _affine(node: ir.Node, x: ir.Value, channels: int, rank: int) -> tuple[Channel, Channel] | None:
    """(scale, shift) for each channel if `node` maps `x` so."""
    ones, zeros = np.ones(channels), np.zeros(channels)
    if graph.is_op(node, "BatchNormalization") and node.inputs[0] is x:
        return _batchnorm(node, channels)
    if graph.is_op(node, "Mul", "Add"):
        other = node.inputs[1] if node.inputs[0] is x else node.inputs[0]
        each = _per_channel(graph.constant(other), channels, rank)
        if each is not None:
            return (each, zeros) if node.op_type == "Mul" else (ones, each)
    return None


def _batchnorm(node: ir.Node, channels: int) -> tuple[Channel, Channel] | None:
    if graph.attribute_int(node, "training_mode", 0) or any(output.uses() for output in node.outputs[1:]):
        return None
    parameters = [graph.constant(value) for value in node.inputs[1:5]]
    if any(tensor is None or tensor.size != channels for tensor in parameters):
        return None
    gamma, beta, mean, var = (t.numpy().astype(np.float64) for t in parameters if t is not None)
    scale = gamma / np.sqrt(var + graph.attribute_float(node, "epsilon", 1e-5))
    return scale, beta - mean * scale


def _per_channel(tensor: ir.TensorProtocol | None, channels: int, rank: int) -> Channel | None:
    """The numbers of a constant that broadcasts along axis 1 of a value of `rank` dimensions, one for each channel."""
    if tensor is None or tensor.dtype not in graph.FLOATS:
        return None
    shape = tuple(tensor.shape.numpy())
    if tensor.size == 1 and len(shape) <= rank:
        return np.full(channels, float(tensor.numpy().reshape(())))
    if len(shape) < rank - 1 or len(shape) > rank:
        return None
    if (1,) * (rank - len(shape)) + shape != (1, channels) + (1,) * (rank - 2):
        return None
    return tensor.numpy().astype(np.float64).reshape(-1)
