"""Queries, keys and values of one product, however exporters take them apart: the same numbers in four dimensions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq.passes.prepare import prepare
from onnxq.runtime.session import Session

PARTS = {
    "Split": "q, k, v = Split<axis = 0>(t, ones)  a = Squeeze(q, zero)  b = Squeeze(k, zero)  c = Squeeze(v, zero)",
    "Slice": "q = Slice(t, zero, one, zero)  a = Squeeze(q, zero)  k = Slice(t, one, two, zero)  b = Squeeze(k, zero)  "
    "v = Slice(t, two, three, zero)  c = Squeeze(v, zero)",
    "Gather": "a = Gather<axis = 0>(t, i0)  b = Gather<axis = 0>(t, i1)  c = Gather<axis = 0>(t, last)",
}
CONSTANTS = {
    "w": normal(24, 36, seed=1),
    "ones": np.ones(3, np.int64),
    **{name: np.array([i]) for i, name in enumerate(("zero", "one", "two", "three"))},
    **{name: np.array(i) for name, i in (("i0", 0), ("i1", 1), ("last", -1))},
    "static": np.array([2, 5, 3, 4, 3]),
    "kept": np.array([0, 0, 3, 4, 3]),
    "left": np.array([-1, 5, 3, 4, 3]),
    "mixed": np.array([5, 2, 3, 4, 3]),
}
SPLIT = "m = MatMul(x, w)  r = Reshape(m, kept)"
TURN = "t = Transpose<perm = [2, 0, 3, 1, 4]>(r)"
ATTENTION = "kt = Transpose<perm = [0, 1, 3, 2]>(b)  s = MatMul(a, kt)  p = Softmax<axis = 3>(s)  y = MatMul(p, c)"


def prepared(body: str, declared: str = "2, 5, 24", opset: int = 17) -> tuple[tiny.onnx.ModelProto, ir.Model]:
    used = {name: each for name, each in CONSTANTS.items() if any(f" {name}{end}" in body for end in ",)")}
    proto = tiny.model(f"g (float[{declared}] x) => (y) {{ {body} }}", used, opset=opset)
    model = tiny.read(proto)
    prepare(model)
    return proto, model


def require_same(proto: tiny.onnx.ModelProto, model: ir.Model, *shapes: tuple[int, ...]) -> None:
    for shape in shapes or ((2, 5, 24),):
        x = normal(*shape, seed=3)
        wanted, got = tiny.evaluate(proto, x=x)[0], Session(model).run({"x": x})[0]
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", ["static", "kept", "left"])
@pytest.mark.parametrize("parts", PARTS)
def test_parts_are_told_apart_before_heads(parts: str, shape: str) -> None:
    body = f"{SPLIT.replace('kept', shape)}  {TURN}  {PARTS[parts]}"
    proto, model = prepared(f"{body}  {ATTENTION}", "n, 5, 24" if shape != "static" else "2, 5, 24")
    found = [node.op_type for node in model.graph]
    assert found.count("Split") == 1 and not {"Squeeze", "Slice", "Gather"} & set(found)
    turns = [tuple(node.attributes.get_ints("perm", [])) for node in model.graph if node.op_type == "Transpose"]
    assert turns.count((0, 2, 1, 3)) == 3
    require_same(proto, model, *([(2, 5, 24)] if shape == "static" else [(1, 5, 24), (3, 5, 24)]))


def test_rows_first_need_no_turn() -> None:
    body = f"{SPLIT}  a = Gather<axis = 2>(r, i0)  b = Gather<axis = 2>(r, last)  y = Add(a, b)"
    proto, model = prepared(body)
    assert [node.op_type for node in model.graph] == ["MatMul", "Split", "Reshape", "Reshape", "Add"]
    require_same(proto, model)


@pytest.mark.parametrize(
    "body",
    [
        f"{SPLIT.replace('kept', 'mixed')}  {TURN}  {PARTS['Gather']}  {ATTENTION}",
        f"{SPLIT}  {TURN}  a = Gather<axis = 0>(t, i0)  s = ReduceSum<keepdims = 0>(t, zero)  y = Add(a, s)",
        f"{SPLIT}  {TURN}  y = Gather<axis = 0>(t, ones)",
    ],
    ids=["other rows", "read whole", "several parts"],
)
def test_what_is_something_else_stays(body: str) -> None:
    proto, model = prepared(body)
    assert any(node.op_type == "Reshape" and node.inputs[1].name in ("mixed", "kept") for node in model.graph)
    require_same(proto, model)


def test_models_whose_split_is_older_stay() -> None:
    proto, model = prepared(f"{SPLIT}  {TURN}  {PARTS['Gather']}  {ATTENTION}", opset=11)
    assert not any(node.op_type == "Split" for node in model.graph)
    require_same(proto, model)


TURNED = "t = Transpose<perm = [0, 2, 1]>(m)"
TURNS = {
    "constants": (
        "[2, 3, 5, 4]",
        "m = Reshape(x, rows)  t = Transpose<perm = [0, 2, 1]>(m)  y = Reshape(t, turned)",
        True,
    ),
    "another size": (
        "[2, 3, 5, 4]",
        "m = Reshape(x, rows)  t = Transpose<perm = [0, 2, 1]>(m)  y = Reshape(t, other)",
        False,
    ),
    "rows of all heads": (
        "[2, 3, 5, 4]",
        "m = Reshape(x, mixed)  t = Transpose<perm = [0, 2, 1]>(m)  y = Reshape(t, turned)",
        False,
    ),
    "all heads, and as many rows as there are": (
        "[2, 3, 5, 4]",
        "m = Reshape(x, heads)  t = Transpose<perm = [0, 2, 1]>(m)  y = Reshape(t, turned)",
        True,
    ),
    "its own sizes": (
        "[n, 3, k, 4]",
        "s = Shape(x)  n = Gather(s, i0)  k = Gather(s, i2)  n1 = Unsqueeze(n, zero)  k1 = Unsqueeze(k, zero)  "
        "a = Concat<axis = 0>(minus, k1, four)  m = Reshape(x, a)  t = Transpose<perm = [0, 2, 1]>(m)  "
        "b = Concat<axis = 0>(n1, three, four, k1)  y = Reshape(t, b)",
        True,
    ),
}


@pytest.mark.parametrize("case", TURNS)
def test_matrices_are_turned_where_they_lie(case: str) -> None:
    declared, body, goes = TURNS[case]
    constants = {
        "rows": np.array([-1, 5, 4]),
        "mixed": np.array([2, -1, 4]),
        "heads": np.array([6, -1, 4]),
        "turned": np.array([2, 3, 4, 5]),
        "other": np.array([3, 2, 4, 5]),
        **{name: np.array([i]) for name, i in (("zero", 0), ("minus", -1), ("three", 3), ("four", 4))},
        **{name: np.array(i) for name, i in (("i0", 0), ("i2", 2))},
    }
    used = {name: each for name, each in constants.items() if any(f"{name}{end}" in body for end in ",)")}
    proto = tiny.model(f"g (float{declared} x) => (y) {{ {body} }}", used, opset=17)
    model = tiny.read(proto)
    prepare(model)
    assert [node.op_type for node in model.graph] == (["Transpose"] if goes else ["Reshape", "Transpose", "Reshape"])
    require_same(proto, model, (2, 3, 5, 4))


def test_sizes_that_replace_minus_ones_are_known() -> None:
    """torch's `expand(-1, …)`: one row for all images, in front of those of each."""
    body = """s = Shape(t)  n = Gather(s, i0)  n1 = Unsqueeze(n, zero)  a = Concat<axis = 0>(n1, minus, minus)
              ones = ConstantOfShape<value = int64[1] {1}>(three)  off = Mul(ones, minus)  e = Equal(a, off)
              w = Where(e, ones, a)  c = Expand(row, w)  y0 = Concat<axis = 1>(c, t)
              z = Shape(y0)  z0 = Gather(z, i0)  z1 = Unsqueeze(z0, zero)  to = Concat<axis = 0>(z1, minus)
              y = Reshape(y0, to)"""
    constants = {
        "row": normal(1, 1, 6),
        **{name: np.array([i]) for name, i in (("zero", 0), ("minus", -1), ("three", 3))},
        "i0": np.array(0),
    }
    proto = tiny.model(f"g (float[n, 4, 6] x) => (y) {{ t = Relu(x)  {body} }}", constants, opset=17)
    model = tiny.read(proto)
    prepare(model)
    shape = next(node.inputs[1] for node in model.graph if node.op_type == "Reshape")
    assert shape.const_value is not None and shape.const_value.numpy().tolist() == [0, -1]
    require_same(proto, model, (1, 4, 6), (3, 4, 6))
