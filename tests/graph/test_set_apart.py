"""What onnxruntime would make of codes and what reads them, and does not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq.errors import BadModel
from onnxq.passes.fusing.set_apart import SetApart
from onnxq.passes.spelling.plain_windows import PlainWindows
from onnxq.runtime.process.trial import signal_that_ends
from onnxq.runtime.session import Session

CODES = {"s": np.array(0.05, np.float32), "z": np.array(120, np.uint8)}


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
    model = tiny.read(proto)
    assert SetApart()(model).modified
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
    assert not SetApart()(
        tiny.read(tiny.model(f"g (float[1, 3, 8, 8] x) => (y) {{ c = Relu(x)  y = {pool}(c) }}"))
    ).modified


MOVES = ["Transpose(d)", "Reshape(d, six)", "Squeeze(t0)", "Slice(d, none, two)", "Unsqueeze(d, none)"]


def branching(move: str) -> ir.Model:
    """What moves codes is read by the bodies of an If."""
    body = f"""q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  t0 = Transpose(d)  t = {move}
        y = If(c) <then_branch = a () => (p) {{ p = Relu(t) }}, else_branch = b () => (r) {{ r = Neg(t) }}>"""
    numbers = {"six": np.array([6, 4]), "none": np.array([0]), "two": np.array([2])}
    return tiny.read(tiny.model(f"g (float[1, 4, 6] x, bool c) => (y) {{ {body} }}", CODES | numbers))


@pytest.mark.parametrize("move", MOVES)
def test_what_moves_codes_into_a_body_is_opened(move: str) -> None:
    model = branching(move)
    crashed = signal_that_ends(lambda: Session(model))  # or it is needed no more
    feed = {"x": normal(1, 4, 6), "c": np.array(True)}
    (wanted,) = Session(model, optimize=False).run(feed)
    assert SetApart()(model).modified
    assert not signal_that_ends(lambda: Session(model))
    np.testing.assert_array_equal(Session(model).run(feed)[0], wanted)
    assert crashed


@pytest.mark.parametrize("dilation", [1, 2])
def test_an_average_pool_with_dilations_is_opened(dilation: int) -> None:
    pool = f"AveragePool<kernel_shape = [2, 2], dilations = [{dilation}, {dilation}]>"
    body = f"q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  a = {pool}(d)  b = QuantizeLinear(a, s, z)"
    model = tiny.read(
        tiny.model(f"g (float[1, 3, 8, 8] x) => (y) {{ {body}  y = DequantizeLinear(b, s, z) }}", CODES, opset=19)
    )
    with pytest.raises(BadModel, match="dilations"):  # or it is needed no more
        Session(model, library=False)
    x = {"x": normal(1, 3, 8, 8)}
    (wanted,) = Session(model, optimize=False, library=False).run(x)
    assert PlainWindows()(model).modified == (dilation == 1)
    assert SetApart()(model).modified == (dilation > 1)
    np.testing.assert_allclose(Session(model, library=False).run(x)[0], wanted, atol=0.051)
