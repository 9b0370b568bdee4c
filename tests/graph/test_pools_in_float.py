"""What onnxruntime makes of a MaxPool between floats and codes: it stays one of floats."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from onnx_ir.passes.common import LiftConstantsToInitializersPass
from tiny import normal

from onnxq.passes.fusing.keep_pools import KeepPoolsInFloat
from onnxq.runtime.session import Session

ort = pytest.importorskip("onnxruntime")
CODES = {"s": np.array(0.05, np.float32), "z": np.array(120, np.uint8)}
WEIGHTS = {"w": normal(16, 3, 3, 3), "v": normal(16, 16, 1, 1)}
POOL = "MaxPool<kernel_shape = [3, 3], strides = [2, 2]>"
FLOAT = "c = Conv(x, w)  r = Relu(c)"
X = normal(1, 3, 21, 21, seed=4)


def of(front: str, behind: str = "", x: str = "float[1, 3, 21, 21]", opset: int = 17) -> onnx.ModelProto:
    body = (
        f"{front}  p = {POOL}(r)  q = QuantizeLinear(p, s, z)  d = DequantizeLinear(q, s, z)  y = Conv(d, v) {behind}"
    )
    return tiny.model(f"g ({x} x) => (y) {{ {body} }}", CODES | WEIGHTS, opset=opset)


def after(proto: onnx.ModelProto) -> tuple[bool, ir.Model]:
    model = tiny.read(proto)
    LiftConstantsToInitializersPass(True, size_limit=0)(model)
    done = KeepPoolsInFloat()(model)
    return done.modified, done.model


def in_front_of_pools(model: ir.Model, folder: object) -> set[str]:
    """The operators that make what pools read, once onnxruntime has moved what it moves."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = f"{folder}/optimized.onnx", 4
    ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    graph = onnx.load(f"{folder}/optimized.onnx").graph
    makers = {out: node.op_type for node in graph.node for out in node.output}
    return {makers[node.input[0]] for node in graph.node if node.op_type == "MaxPool"}


def test_a_pool_behind_a_convolution_in_float_stays_in_float(tmp_path: object) -> None:
    proto = of(FLOAT)
    assert in_front_of_pools(tiny.read(proto), tmp_path) == {"QuantizeLinear"}  # or it is needed no more
    changed, model = after(proto)
    assert changed
    assert in_front_of_pools(model, tmp_path) <= {"Conv", "FusedConv"}
    (wanted,), (got,) = (Session(each, optimize=False).run({"x": X}) for each in (tiny.read(proto), model))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "proto",
    [
        of(f"{FLOAT.replace('r =', 'r0 =')}  a = QuantizeLinear(r0, s, z)  r = DequantizeLinear(a, s, z)"),
        of(FLOAT, "u = Neg(p)"),
        of("r = Identity(x)", x="float[n, c, h, t]"),
        of(FLOAT, opset=12),
    ],
    ids=["of codes", "that others read", "of unknown channels", "before axes"],
)
def test_others_are_left_alone(proto: onnx.ModelProto) -> None:
    assert not after(proto)[0]
