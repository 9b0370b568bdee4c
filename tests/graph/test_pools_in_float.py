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


@pytest.mark.parametrize(
    "between",
    [
        "a = AveragePool<KERNEL, count_include_pad = 1>(d)",
        "a = AveragePool<KERNEL, pads = [1, 1, 1, 1], count_include_pad = 1>(d)",
        "e = Pad(d, pads)  a = AveragePool<KERNEL>(e)",
        "t = Transpose<perm = [0, 1, 3, 2]>(d)  e = Pad(t, pads)  a = AveragePool<KERNEL>(e)",
    ],
    ids=["pads that count", "pads on all sides", "a Pad", "a Pad behind what moves codes"],
)
def test_an_average_pool_that_rounds_up_is_not_one_of_codes(between: str) -> None:
    between = between.replace("KERNEL", "kernel_shape = [3, 3], strides = [3, 3], ceil_mode = 1")
    ends = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)", "b = QuantizeLinear(a, s, z)"
    body = f"{ends[0]}  {between}  {ends[1]}  y = DequantizeLinear(b, s, z)"
    pads = {"pads": np.array([0, 0, 1, 1, 0, 0, 0, 0])}
    proto = tiny.model(f"g (float[n, 3, h, v] x) => (float[n, 3, e, f] y) {{ {body} }}", CODES | pads)
    changed, model = after(proto)
    assert changed
    harm = 0.0
    for sizes in ((6, 9), (7, 7), (9, 8)):
        x = 8 * normal(1, 3, *sizes, seed=4)
        plain, fused, kept = (
            Session(each, optimize=optimize, library=False).run({"x": x})[0]
            for each, optimize in ((tiny.read(proto), False), (tiny.read(proto), True), (model, True))
        )
        np.testing.assert_allclose(kept, plain, atol=0.051)  # one code, where sums of floats are on its edge
        harm = max(harm, float(np.abs(fused - plain).max()))
    assert harm > 0.14  # or it is needed no more


def test_an_average_pool_between_floats_is_left_alone() -> None:
    pool = "AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>"
    assert not after(tiny.model(f"g (float[1, 3, 8, 8] x) => (y) {{ c = Relu(x)  y = {pool}(c) }}", {}))[0]
