"""Operators that ONNX withdrew: what replaces them gives what onnxruntime gives for them, and the opset is raised."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import shared
import tiny
from onnx import helper

from onnxq.model import graph
from onnxq.passes.opsets.replace_withdrawn import ReplaceWithdrawn
from onnxq.passes.prepare import prepare
from onnxq.runtime import known
from onnxq.runtime.session import Session

#: By operator, attributes of each kind.
CASES = {
    "ImageScaler": [{"scale": 0.5, "bias": [1.0, -2.0, 3.0]}, {"scale": 1.0, "bias": [1.0, -2.0, 3.0]}],
    "Affine": [{"alpha": 0.5, "beta": -3.0}, {"alpha": 1.0, "beta": 0.0}],
    "ScaledTanh": [{"alpha": 1.7, "beta": 0.6}, {"alpha": 1.0, "beta": 1.0}],
    "ParametricSoftplus": [{"alpha": 0.3, "beta": 2.0}],
    "Crop": [{"border": [1, 2, 0, 3]}, {"border": [0, 0, 2, 0]}, {"border": [1, 2, 0, 0], "scale": [4, 3]}],
}
PAIRS = [(op, attributes) for op, each in CASES.items() for attributes in each]


def model(op: str, attributes: dict[str, object], opset: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="before"),
        helper.make_node(op, ["a"], ["y"], name="old", **attributes),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 9, 8])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    made = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


@pytest.mark.parametrize("opset", [7, 9, 11])
@pytest.mark.parametrize(("op", "attributes"), PAIRS)
def test_what_replaces_it_gives_the_same(op: str, attributes: dict[str, object], opset: int) -> None:
    feed = {"x": tiny.normal(2, 3, 9, 8)}
    (wanted,) = Session(ir.from_proto(model(op, attributes, 9))).run(feed)  # from 10 on onnxruntime has none of them
    made = ir.from_proto(model(op, attributes, opset))
    assert ReplaceWithdrawn()(made).modified
    assert not ReplaceWithdrawn()(made).modified
    np.testing.assert_allclose(Session(made).run(feed)[0], wanted, rtol=1e-6, atol=1e-6)
    assert prepare(made) == ""
    assert graph.opset(made) >= known.OLDEST_OPSET
    np.testing.assert_allclose(Session(made).run(feed)[0], wanted, rtol=1e-6, atol=1e-6)


def test_one_in_a_branch_is_replaced_too() -> None:
    old = model("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}, 9)
    then = helper.make_graph(list(old.graph.node), "then", [], [old.graph.output[0]])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "other", [], [])
    other.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    choice = helper.make_node("If", ["c"], ["out"], then_branch=then, else_branch=other)
    c = helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
    whole = helper.make_graph([choice], "g", [old.graph.input[0], c], [out])
    proto = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
    made = ir.from_proto(proto)
    prepare(made)
    for chosen in (True, False):
        feed = {"x": tiny.normal(1, 3, 9, 8), "c": np.array(chosen)}
        (wanted,), (got,) = Session(ir.from_proto(proto)).run(feed), Session(made).run(feed)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_crop_without_sense_stays() -> None:
    made = ir.from_proto(model("Crop", {"border": [1, 2]}, 9))
    assert not ReplaceWithdrawn()(made).modified


def test_a_real_network_of_opset_7_is_raised() -> None:
    path = shared.SHARED / "models" / "style_mosaic.onnx"
    if not path.exists():
        pytest.skip("the shared models are not here")
    made = ir.load(path)
    assert prepare(made) == ""
    assert not {"ImageScaler", "Crop", "Affine"} & set(tiny.ops(made))
