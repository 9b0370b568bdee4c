"""Cases of operators that are not as ONNX has them, or that only few models have (`every.py`)."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from attack.hostile import Hostile, changed, model
from onnx import TensorProto, helper

SPLIT = "g (float[1, 64] x) => (y) { a, b = Split<num_outputs = 1>(x)  y = MatMul(a, w) }"


def texts_that_nothing_reads(proto: onnx.ModelProto) -> None:
    """A constant that is an input with a default, too; legal."""
    words = proto.graph.initializer.add(name="words", data_type=TensorProto.STRING, dims=[2])
    words.string_data.extend([b"a", b"b"])
    proto.graph.input.append(helper.make_tensor_value_info("words", TensorProto.STRING, [2]))


def withdrawn(**attributes: object) -> Callable[[onnx.ModelProto], None]:
    """With an operator in front that ONNX had as an experiment; with attributes, or else without inputs."""

    def change(proto: onnx.ModelProto) -> None:
        proto.opset_import[0].version = 9  # up to which onnxruntime has it
        inputs = ["x"] if attributes else []
        proto.graph.node.insert(0, helper.make_node("ScaledTanh", inputs, ["t"], **attributes))
        proto.graph.node[1].input[0] = "t"

    return change


CASES = {
    "more outputs than parts": Hostile(
        lambda f: model(f, SPLIT, opset=18) and None, "has 2 outputs, but splits into 1", ("inspect", "model.onnx")
    ),
    "input of a body that has no name": Hostile(
        changed(lambda p: setattr(p.graph.input[0], "name", "")), "has no name", ("inspect", "model.onnx")
    ),
    "texts that nothing reads": Hostile(changed(texts_that_nothing_reads), "", code=0),
    "withdrawn operator with an attribute of another type": Hostile(
        changed(withdrawn(alpha=1, beta=1.0)), "is not a legal ONNX model", ("inspect", "model.onnx")
    ),
    "withdrawn operator without inputs": Hostile(
        changed(withdrawn()), "is not a legal ONNX model", ("inspect", "model.onnx")
    ),
}
