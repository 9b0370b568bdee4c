"""HardSigmoid is one node again, and computes what Add, Clip, Mul and Div did."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq.passes.prepare import prepare
from onnxq.runtime.session import Session

CONSTANTS = {
    "three": np.array(3, np.float32),
    "half": np.array([0.5], np.float32),
    "zero": np.array(0, np.float32),
    "one": np.array(1, np.float32),
    "six": np.array(6, np.float32),
    "sixth": np.array(1 / 6, np.float32),
    "vector": np.full(5, 3, np.float32),
    "none": np.array(np.inf, np.float32),
    "least": np.array(1e-40, np.float32),  # one over it is beyond float32
    "most": np.array(3e38, np.float32),
}
SWISH = {"HardSigmoid": 1, "Mul": 1}
SPELT = {
    "a sigmoid by Div": ("a = Add(x, three)  c = Clip(a, zero, six)  y = Div(c, six)", {"HardSigmoid": 1}),
    "a sigmoid by Mul": ("a = Add(three, x)  c = Clip(a, zero, six)  y = Mul(sixth, c)", {"HardSigmoid": 1}),
    "of another slope": ("a = Add(x, half)  c = Clip(a, zero, one)  y = Div(c, one)", {"HardSigmoid": 1}),
    "a swish by Div": ("a = Add(x, three)  c = Clip(a, zero, six)  m = Mul(x, c)  y = Div(m, six)", SWISH),
    "a swish by Mul": ("a = Add(x, three)  c = Clip(a, zero, six)  m = Mul(c, x)  y = Mul(m, sixth)", SWISH),
    "its product": ("a = Add(x, three)  c = Clip(a, zero, six)  d = Div(c, six)  y = Mul(x, d)", SWISH),
}
OTHERS = {
    "a slope beyond all numbers": "a = Add(x, three)  c = Clip(a, zero, least)  y = Div(c, least)",
    "a slope of few digits": "a = Add(x, three)  c = Clip(a, zero, most)  y = Div(c, most)",
    "an attribute of another time": 'a = Add(x, three)  c = Clip<min = "0", max = "6">(a, zero, six)  y = Div(c, six)',
    "two numbers": "a = Add(x, three)  c = Clip(a, zero, six)  y = Div(c, three)",
    "another least": "a = Add(x, three)  c = Clip(a, one, six)  y = Div(c, six)",
    "no upper bound": "a = Add(x, three)  c = Clip(a, zero)  y = Div(c, six)",
    "an endless one": "a = Add(x, three)  c = Clip(a, zero, none)  y = Div(c, none)",
    "a vector": "a = Add(x, vector)  c = Clip(a, zero, six)  y = Div(c, six)",
    "six over it": "a = Add(x, three)  c = Clip(a, zero, six)  y = Div(six, c)",
    "times another": "t = Tanh(x)  a = Add(x, three)  c = Clip(a, zero, six)  m = Mul(t, c)  y = Div(m, six)",
    "of two values": "t = Tanh(x)  a = Add(x, t)  c = Clip(a, zero, six)  y = Div(c, six)",
    "read in between": "a = Add(x, three)  c = Clip(a, zero, six)  d = Div(c, six)  y = Mul(c, d)",
}


def made(body: str, opset: int = 13) -> tuple[tiny.onnx.ModelProto, ir.Model, Counter[str]]:
    used = {name: value for name, value in CONSTANTS.items() if any(f"{name}{end}" in body for end in ",)")}
    proto = tiny.model(f"g (float[n, 5] x) => (float[n, 5] y) {{ {body} }}", used, opset=opset)
    model = tiny.read(proto)
    prepare(model)
    return proto, model, Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize("name", SPELT)
def test_what_an_exporter_wrote_in_pieces_is_one_node(name: str) -> None:
    body, wanted = SPELT[name]
    proto, model, found = made(body)
    assert found == wanted
    x = {"x": np.concatenate([normal(40, 5) * 6, np.array([[-3, 3, 0, -3.0001, 3.0001]], np.float32)])}
    np.testing.assert_allclose(Session(model).run(x)[0], Session(ir.from_proto(proto)).run(x)[0], atol=4e-6, rtol=2e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_stays(name: str) -> None:
    assert "HardSigmoid" not in made(OTHERS[name])[2]


def test_bounds_that_are_attributes() -> None:
    """As before opset 11."""
    body = "a = Add(x, three)  c = Clip<min = 0.0, max = 6.0>(a)  m = Mul(x, c)  y = Div(m, six)"
    assert made(body, opset=9)[2] == SWISH


def test_what_the_caller_reads_keeps_its_name_and_what_others_read_stays() -> None:
    body = "a = Add(x, three)  c = Clip(a, zero, six)  m = Mul(x, c)  y = Div(m, six)  z = Abs(a)"
    used = {name: CONSTANTS[name] for name in ("three", "zero", "six")}
    model = tiny.read(tiny.model(f"g (float[n, 5] x) => (float[n, 5] y, float[n, 5] z) {{ {body} }}", used))
    prepare(model)
    assert Counter(node.op_type for node in model.graph)["Clip"] == 1
    _, model, _ = made(SPELT["a swish by Div"][0])
    assert [value.name for value in model.graph.outputs] == ["y"]


@pytest.mark.parametrize("spelt", ["a = Add(x, {})  c = Clip(a, zero, six)  y = Div(c, {})"])
@pytest.mark.parametrize(("b", "h"), [("v", "six"), ("three", "v"), ("three", "six")])
@pytest.mark.parametrize(("shape", "known"), [("", True), ("[n]", True), ("[3]", False)])
def test_a_vector_of_one_does_not_lose_its_dimension(spelt: str, b: str, h: str, shape: str, known: bool) -> None:
    """A number plus a vector is a vector. What is known of a value between is found out."""
    used = {name: CONSTANTS[name] for name in ("three", "zero", "six")} | {"v": np.array([6], np.float32)}
    body = ("" if known else "x = Relu(w)  ") + spelt.format(b, h)
    proto = tiny.model(f"g (float{shape} {'x' if known else 'w'}) => (float[k] y) {{ {body} }}", used)
    if shape == "" and "v" not in (b, h):
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = tiny.read(proto)
    prepare(model)
    found = Counter(node.op_type for node in model.graph)
    assert found["HardSigmoid"] == (shape != "" or "v" not in (b, h))
    x = {"x" if known else "w": np.asarray(normal(3) * 6 if shape else 1.0, np.float32)}
    wanted, got = Session(ir.from_proto(proto)).run(x)[0], Session(model).run(x)[0]
    assert wanted.shape == got.shape
    np.testing.assert_allclose(got, wanted, atol=1e-6)
