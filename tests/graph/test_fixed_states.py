"""What a Loop or Scan hands on unchanged is read from outside, and everything else is still carried."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from tiny import normal

from onnxq.model import graph
from onnxq.model.weights import find_weights
from onnxq.passes.fixed_states import FixedStates
from onnxq.passes.prepare import prepare

CONSTANTS = {"w": normal(16, 16), "b": normal(16, seed=1), "turns": np.array(3), "go": np.array(True)}
#: While loops as TensorFlow's converter writes them: weight and vector are states.
WHILE = """
    body (int64 i, bool c, float[n, 16] s, float[16, 16] v, float[16] a)
        => (bool d, float[n, 16] t, VSTATE, ASTATE, float[n, 16] z) {
        m = MatMul(s, v)  n1 = Add(m, a)  t = Tanh(n1)  z = Identity(t)  d = Identity(c)  EXTRA
    }"""


def _loop(
    v: str = "float[16, 16] v", a: str = "float[16] a", extra: str = "", more: str = "", outs: str = ""
) -> tiny.onnx.ModelProto:
    body = WHILE.replace("VSTATE", v).replace("ASTATE", a).replace("EXTRA", extra)
    text = f"""g (float[n, 16] x) => (float[n, 16] y, float[k, n, 16] all{outs}) {{
        y, w2, b2, all = Loop<body = {body}>(turns, go, x, w, b) {more}
    }}"""
    return tiny.model(text, CONSTANTS)


def _same(proto: tiny.onnx.ModelProto, made: tiny.ir.Model) -> None:
    x = normal(2, 16)
    for wanted, got in zip(tiny.evaluate(proto, x=x), tiny.evaluate(made, x=x), strict=True):
        np.testing.assert_allclose(wanted, got, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("v", "a", "extra"),
    [("float[16, 16] v", "float[16] a", ""), ("float[16, 16] u", "float[16] e", "u = Identity(v)  e = Identity(a)")],
    ids=["handed on", "by Identity"],
)
def test_weights_that_a_loop_carries_are_weights_of_its_products(v: str, a: str, extra: str) -> None:
    proto = _loop(v, a, extra)
    made = tiny.read(proto)
    prepare(made)
    loop = tiny.find(made, "Loop")
    assert len(loop.inputs) == 3
    assert len(loop.outputs) == 2
    assert {weight.value.name for weight in find_weights(made) if weight.node.op_type == "MatMul"} == {"w"}
    _same(proto, made)


def test_a_state_that_changes_is_carried() -> None:
    proto = _loop("float[16, 16] u", extra="u = Mul(v, v)")
    made = tiny.read(proto)
    assert FixedStates()(made).modified
    loop = tiny.find(made, "Loop")
    assert [value.name for value in loop.inputs if value is not None] == ["turns", "go", "x", "w"]
    _same(proto, made)


def test_states_that_change_places_are_carried() -> None:
    text = """g (float[n, 16] x) => (float[n, 16] y, float[n, 16] z) {
        h = Relu(x)
        y, z = Loop<body = body (int64 i, bool c, float[n, 16] s, float[n, 16] t)
            => (bool d, float[n, 16] t, float[n, 16] s) {
            d = Identity(c)
        }>(turns, go, x, h)
    }"""
    proto = tiny.model(text, {key: CONSTANTS[key] for key in ("turns", "go")})
    made = tiny.read(proto)
    assert not FixedStates()(made).modified
    _same(proto, made)


def test_what_is_read_behind_the_loop_is_what_it_was_at_first() -> None:
    proto = _loop(more="q = MatMul(x, w2)", outs=", float[n, 16] q")
    made = tiny.read(proto)
    FixedStates()(made)
    assert {str(node.inputs[1].name) for node in graph.nodes(made) if node.op_type == "MatMul" and node.inputs[1]} == {
        "w"
    }
    _same(proto, made)


def test_a_state_that_the_model_gives_back_stays() -> None:
    proto = _loop(outs=", float[16, 16] w2")
    made = tiny.read(proto)
    FixedStates()(made)
    assert [value.name for value in made.graph.outputs] == ["y", "all", "w2"]
    assert len(tiny.find(made, "Loop").inputs) == 4
    _same(proto, made)


def test_nested_loops_read_the_graph_around_all_of_them() -> None:
    inner = """inner (int64 j, bool k, float[n, 16] p, float[16, 16] u) => (bool l, float[n, 16] q, float[16, 16] u) {
        q = MatMul(p, u)  l = Identity(k)
    }"""
    text = f"""g (float[n, 16] x) => (float[n, 16] y) {{
        y, w2 = Loop<body = body (int64 i, bool c, float[n, 16] s, float[16, 16] v)
            => (bool d, float[n, 16] t, float[16, 16] v) {{
            t, v2 = Loop<body = {inner}>(turns, go, s, v)  d = Identity(c)
        }}>(turns, go, x, w)
    }}"""
    proto = tiny.model(text, {key: CONSTANTS[key] for key in ("turns", "go", "w")})
    made = tiny.read(proto)
    FixedStates()(made)
    assert [weight.value.name for weight in find_weights(made)] == ["w"]
    _same(proto, made)


def test_a_scan_too() -> None:
    text = """g (float[n, 16] x) => (float[16] y, float[k, 16] all) {
        y, w2, all = Scan<num_scan_inputs = 1, body = body (float[16] s, float[16, 16] v, float[16] r)
            => (float[16] t, float[16, 16] v, float[16] z) {
            m = MatMul(r, v)  t = Add(m, s)  z = Identity(t)
        }>(b, w, x)
    }"""
    proto = tiny.model(text, {key: CONSTANTS[key] for key in ("b", "w")})
    made = tiny.read(proto)
    assert FixedStates()(made).modified
    assert [value.name for value in tiny.find(made, "Scan").inputs if value is not None] == ["b", "x"]
    _same(proto, made)


@pytest.mark.parametrize("lacks", ["body", "states", "inputs", "outputs", "outputs of the body"])
def test_a_broken_loop_is_told_of_by_who_reads_it(lacks: str) -> None:
    proto = _loop()
    (loop,) = proto.graph.node
    if lacks == "body":
        del loop.attribute[:]
    elif lacks == "states":
        del loop.attribute[0].g.input[2:]
    elif lacks == "inputs":
        del loop.input[1:]
    elif lacks == "outputs":
        del loop.output[1:], proto.graph.output[1:]
    else:
        del loop.attribute[0].g.output[1:]
    FixedStates()(tiny.read(proto))
