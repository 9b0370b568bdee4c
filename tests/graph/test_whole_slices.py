"""Slices that cut nothing off, and those that could."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from onnx import TensorProto, helper, numpy_helper

from onnxq.model import graph
from onnxq.passes.spelling.whole_slices import WholeSlices
from onnxq.runtime.session import Session

BEHIND = (1 << 31) - 1


def sliced(shape: Sequence[int | str], *bounds: list[int]) -> ir.Model:
    """Relu of Slice of Neg, of an input so declared."""
    names = ("starts", "ends", "axes", "steps")[: len(bounds)]
    constants = [
        numpy_helper.from_array(np.array(each, np.int64), name) for name, each in zip(names, bounds, strict=True)
    ]
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="neg"),
        helper.make_node("Slice", ["a", *names], ["b"], name="slice"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    of = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in (("x", shape), ("y", None))]
    made = helper.make_model(
        helper.make_graph(nodes, "g", of[:1], of[1:], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return ir.serde.deserialize_model(made)


@pytest.mark.parametrize(
    ("shape", "bounds"),
    [
        ([2, 3, 5], ([0, 0], [2, 3])),
        ([2, 3, 5], ([0, 0], [9, BEHIND], [2, -3], [1, 1])),
        (["n", 3, "w"], ([0, 0, 0], [BEHIND, 3, 1 << 62], [0, 1, 2])),
        (["n", 512, 256], ([0, 0, 0], [10**9] * 3, [0, 2, 1])),
    ],
    ids=str,
)
def test_what_cuts_nothing_off_goes(shape: list[int | str], bounds: tuple[list[int], ...]) -> None:
    model = sliced(shape, *bounds)
    x = (
        np.random.default_rng(0)
        .normal(size=[2 if isinstance(size, str) else size for size in shape])
        .astype(np.float32)
    )
    (expected,) = Session(model.clone(), optimize=False, library=False).run({"x": x})
    assert WholeSlices()(model).modified
    assert [node.op_type for node in graph.nodes(model)] == ["Neg", "Relu"]
    (found,) = Session(model, optimize=False, library=False).run({"x": x})
    assert expected.shape == x.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "bounds"),
    [
        ([2, 3, 5], ([0, 0], [2, 2])),
        ([2, 3, 5], ([0, 1], [2, 3])),
        ([2, 3, 5], ([0], [BEHIND], [1], [2])),
        ([2, 3, 5], ([0], [-1], [1])),
        (["n", 3], ([0], [4])),
        (["n", 3], ([0], [10**9])),
        (["n", "m"], ([0, 0], [10**9, 10**9])),
    ],
    ids=str,
)
def test_what_cuts_or_could_stays(shape: list[int | str], bounds: tuple[list[int], ...]) -> None:
    assert not WholeSlices()(sliced(shape, *bounds)).modified


def test_what_the_exporter_saw_between_nodes_is_not_believed() -> None:
    """Made for one row, and given any number of rows at its ends afterwards."""
    model = sliced(["n", 3], [0], [1], [0])
    for node in graph.nodes(model):
        node.outputs[0].shape = ir.Shape([1, 3])
    assert not WholeSlices()(model).modified


def test_a_body_may_be_given_more_than_it_declares() -> None:
    text = """g (float[2, 3] x, int64 n, bool c) => (float[k, 3] y) {
        y = Loop(n, c, x) <body = b (int64 i, bool on, float[1, 3] a) => (bool more, float[m, 3] z)
            { more = Identity(on)  f = Slice(a, first, one, first)  z = Concat<axis = 0>(a, f) }>
    }"""
    model = tiny.read(tiny.model(text, {"first": np.array([0]), "one": np.array([1])}))
    assert not WholeSlices()(model).modified


def test_bounds_that_are_computed_stay() -> None:
    model = sliced([2, 3], [0], [2])
    ends = next(value for value in model.graph.initializers.values() if value.name == "ends")
    model.graph.initializers.pop("ends")
    model.graph.inputs.append(ends)
    ends.const_value = None
    assert not WholeSlices()(model).modified
