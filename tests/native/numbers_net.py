"""Small graphs of float operators whose weights are stored in bfloat16, as `store_weights` writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper

from onnxq.model.types import types_of
from onnxq.passes.regions.bf16.make_bf16_regions import MakeBf16Regions


def rounded(x: NDArray) -> NDArray:
    """To the nearest number of bfloat16."""
    return np.asarray(x.astype(ml_dtypes.bfloat16).astype(np.float32))


@dataclass
class Net:
    """Weights and inputs are small whole numbers, so that float32 computes sums of products exactly, in any order."""

    seed: int
    x_shape: tuple[int, ...]
    declared: tuple[str | int, ...] = ()
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def samples(self, shape: tuple[int, ...] | None = None) -> NDArray:
        return self.rng.integers(-8, 9, shape or self.x_shape).astype(np.float32)

    def constant(self, array: NDArray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, TensorProto.FLOAT, array.shape, array.ravel()))
        return name

    def stored(self, array: NDArray) -> str:
        name = f"c{len(self.constants)}"
        raw = array.astype(ml_dtypes.bfloat16).tobytes()
        self.constants.append(helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, raw, raw=True))
        return self.node("Cast", [name], to=TensorProto.FLOAT)

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"n{len(self.nodes)}", **attributes))
        return output

    def same(self) -> str:
        """x again, inside of the region of all that reads it."""
        return self.node("MaxPool", ["x"], kernel_shape=[1] * (len(self.x_shape) - 2))

    def conv(self, x: str, shape: tuple[int, ...], bias: bool = True, scale: float = 1.0, **attributes: Any) -> str:
        """A convolution by a weight of this shape."""
        weight = self.stored(self.rng.integers(-8, 9, shape) * scale)
        given = [self.constant(self.rng.integers(-99, 99, shape[0]).astype(np.float32))] if bias else []
        return self.node("Conv", [x, weight, *given], **attributes)

    def conv_transpose(self, x: str, shape: tuple[int, ...], **attributes: Any) -> str:
        """A transposed convolution by a weight of this shape: inputs, outputs of a group, sizes."""
        weight = self.stored(self.rng.integers(-8, 9, shape))
        bias = self.rng.integers(-99, 99, shape[1] * attributes.get("group", 1)).astype(np.float32)
        return self.node("ConvTranspose", [x, weight, self.constant(bias)], **attributes)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(self.declared or self.x_shape))],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs],
            self.constants,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return onnx.shape_inference.infer_shapes(made)


def with_regions(model: onnx.ModelProto, *but: str) -> onnx.ModelProto:
    """The same with regions; `but`: names of convolutions that stay in float."""
    found = ir.serde.deserialize_model(model)
    MakeBf16Regions(types_of(found), frozenset(node.name or "" for node in found.graph) - {*but})(found)
    return ir.serde.serialize_model(found)


def steps(model: onnx.ModelProto) -> list[str]:
    """What its regions say, without first lines."""
    regions = [node for node in model.graph.node if node.op_type == "Bf16Region"]
    texts = [a.s.decode() for node in regions for a in node.attribute if a.name == "steps"]
    return [line for text in texts for line in text.split("\n")[1:]]
