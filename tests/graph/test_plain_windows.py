"""Transposed convolutions that say how large their output is; dilations of ones: test_set_apart.py."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.model import graph
from onnxq.passes.spelling.plain_windows import PlainWindows
from onnxq.runtime.session import Session


def transposed(shape: list[int], declared: list[int | str] | None = None, **attributes: object) -> ir.Model:
    """Of an image of 7 by 9, or as `declared`, by a kernel of 3 by 4."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3, 2, 3, 4)).astype(np.float32)
    bias = np.array([1, -2], np.float32)
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], name="n", output_shape=shape, strides=[2, 3], **attributes
    )
    graph_ = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, declared or [2, 3, 7, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    made = helper.make_model(graph_, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ir.serde.deserialize_model(made)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", [[15, 28], [14, 27], [13, 25], [12, 20], [16, 30]], ids=str)
def test_pads_make_the_same(shape: list[int], auto_pad: str) -> None:
    more = {} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    model = transposed(shape, **more)
    x = np.random.default_rng(1).normal(size=(2, 3, 7, 9)).astype(np.float32)
    (expected,) = Session(model.clone(), optimize=False, library=False).run({"x": x})
    assert PlainWindows()(model).modified
    (node,) = graph.nodes(model)
    assert "output_shape" not in node.attributes and "auto_pad" not in node.attributes
    (found,) = Session(model, optimize=False, library=False).run({"x": x})
    assert list(expected.shape[2:]) == shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "declared"), [([40, 28], None), ([15, 31], None), ([15, 28], [2, 3, "h", "w"])], ids=str
)
def test_what_pads_cannot_say_stays(shape: list[int], declared: list[int | str] | None) -> None:
    """An output that is longer by a stride or more, and one of an image of any size."""
    assert not PlainWindows()(transposed(shape, declared)).modified
