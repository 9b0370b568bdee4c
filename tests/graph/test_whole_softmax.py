"""Softmax of opset 12 over the last axis is one node in opset 13, also where ONNX's converter knows no rank."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from tiny import normal

from onnxq.checking.logits import classes_of
from onnxq.passes.prepare import prepare

CONSTANTS = {
    "w": normal(8, 40),
    "b": normal(40, seed=1),
    "four": np.array([0, 0, 2, -1]),
    "lone": np.array([1, 2, 2, -1]),
    "half": np.array(0.5, np.float32),
}
#: What makes x of a rank that only these operators tell, as `v` is of any shape.
RANKS = {
    "Transpose": ("s", 2, "t = Transpose<perm = [0, 2, 1]>(v)  s = Mul(t, half)"),
    "Reshape": ("s", 3, "t = Reshape(v, four)  s = Relu(t)"),
    "products": (
        "s",
        2,
        "a = Transpose<perm = [0, 2, 1]>(v)  c = Transpose<perm = [0, 1, 2]>(v)  t = MatMul(a, c)  s = Mul(t, half)",
    ),
    "Squeeze": ("s", 2, "t = Reshape(v, lone)  u = Squeeze<axes = [0]>(t)  s = Sigmoid(u)"),
    "Unsqueeze": ("s", 3, "t = Transpose<perm = [0, 2, 1]>(v)  s = Unsqueeze<axes = [0]>(t)"),
    "a part": ("s", 2, "t = Transpose<perm = [0, 2, 1]>(v)  r, s = Split<axis = 1>(t)"),
}


def _model(body: str, outputs: str = "float[] y") -> tiny.onnx.ModelProto:
    used = {name: value for name, value in CONSTANTS.items() if any(f" {name}{end}" in body for end in ",)")}
    return tiny.model(f"g (float[] v) => ({outputs}) {{ {body} }}", used, opset=12)


def _unranked(proto: tiny.onnx.ModelProto) -> tiny.ir.Model:
    """As read from a file, with a rank neither of the input nor of the output."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
    return tiny.read(proto)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("word", RANKS)
def test_over_the_last_axis_it_is_one_node(word: str, op: str) -> None:
    name, axis, made_by = RANKS[word]
    proto = _model(f"{made_by}  y = {op}<axis = {axis}>({name})")
    made = _unranked(proto)
    prepare(made, opset=13)
    assert "Flatten" not in tiny.ops(made)
    assert tiny.find(made, op).attributes["axis"].as_int() in (axis, -1)
    x = normal(2, 2, 4)
    np.testing.assert_allclose(tiny.evaluate(made, v=x)[0], tiny.evaluate(proto, v=x)[0], atol=1e-6)


@pytest.mark.parametrize("axis", [1, 2])
def test_over_several_axes_or_of_an_unknown_rank_it_stays(axis: int) -> None:
    body = RANKS["Transpose"][2] if axis == 1 else "s = Mul(v, half)"
    proto = _model(f"{body}  y = Softmax<axis = {axis}>(s)")
    made = _unranked(proto)
    prepare(made, opset=13)
    assert "Flatten" in tiny.ops(made)
    x = normal(2, 2, 4)
    seen = np.exp(0.5 * x if axis == 2 else x.transpose(0, 2, 1) * 0.5)
    wanted = seen / seen.sum(axis=tuple(range(axis, 3)), keepdims=True)  # ONNX's reference sums over one axis only
    np.testing.assert_allclose(tiny.evaluate(made, v=x)[0], wanted, atol=1e-6)


def test_decisions_of_a_model_are_known_though_its_opset_was_raised() -> None:
    """The rank is known of the output alone, as in recognizers of text whose width is free."""
    proto = _model("t = MatMul(v, w)  s = Add(t, b)  y = Softmax<axis = 2>(s)", "float[n, k, 40] y")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    made = tiny.read(proto)
    prepare(made, opset=13)
    assert classes_of(made)["y"].kind == "probabilities"
    assert [value.name for value in made.graph.outputs] == ["y"]
    x = normal(2, 3, 8)
    np.testing.assert_allclose(tiny.evaluate(made, v=x)[0], tiny.evaluate(proto, v=x)[0], atol=1e-6)


GUARDED = (
    "s = MatMul(x, y)  m = Where(c, zero, low)  a = Add(s, m)  p = Softmax(a)  n = IsNaN(p)  g = Where(n, zero, p)"
)


def _guarded(body: str, **changed: object) -> tuple[tiny.onnx.ModelProto, tiny.ir.Model]:
    constants = {"zero": np.float32(0), "low": np.float32(-3e38), "one": np.float32(1)} | changed
    used = {name: value for name, value in constants.items() if any(f"{name}{end}" in body for end in ",)")}
    inputs = "float[2, 4, 3] x, float[2, 3, 4] y, bool[4, 4] c"
    proto = tiny.model(f"g ({inputs}) => (z) {{ {body}  z = MatMul(g, x) }}", used, opset=17)
    model = tiny.read(proto)
    prepare(model)
    return proto, model


def test_a_guard_of_rows_that_are_hidden_goes_where_none_can_be_without_a_number() -> None:
    proto, made = _guarded(GUARDED)
    assert not {"IsNaN"} & set(tiny.ops(made)) and tiny.ops(made).count("Where") == 1
    feed = {
        "x": normal(2, 4, 3),
        "y": normal(2, 3, 4),
        "c": np.tril(np.ones((4, 4), bool), -1),
    }  # the first row sees none
    np.testing.assert_allclose(tiny.evaluate(made, **feed)[0], tiny.evaluate(proto, **feed)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (GUARDED, {"low": np.float32(-np.inf)}),
        (GUARDED.replace("g = Where(n, zero, p)", "g = Where(n, one, p)"), {}),
        (GUARDED.replace("Softmax(a)", "Sigmoid(a)"), {}),
        (
            GUARDED.replace("m = Where(c, zero, low)", "k = Mul(one, low)  m = Where(c, zero, k)"),
            {"low": np.float32(-np.inf)},
        ),
    ],
    ids=["endless", "another number", "no Softmax", "computed"],
)
def test_other_guards_stay(body: str, changed: dict[str, object]) -> None:
    assert "IsNaN" in tiny.ops(_guarded(body, **changed)[1])
