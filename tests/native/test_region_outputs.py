"""What onnxruntime moves up to a region from behind it finds outputs whose type is known."""

from __future__ import annotations

import copy

import numbers_net
import numpy as np
import onnx
import pytest
from islands import Net, operators, with_regions
from region_runs import HAS_LIBRARY, by_definition, options, samples

import onnxq

pytest.importorskip("onnxruntime")
pytestmark = HAS_LIBRARY


def quantized_behind_a_reshape(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with its first output in one row, rounded to codes: onnxruntime moves the QuantizeLinear up to the node
    that makes it, and gives what that makes another name, of which the file says nothing."""
    made = copy.deepcopy(model)
    (name, *_) = (output.name for output in made.graph.output)
    constants = {"one_row": np.array([1, -1]), "rounds_by": np.float32(0.25), "rounds_from": np.uint8(128)}
    made.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(x), key) for key, x in constants.items())
    scale = ["rounds_by", "rounds_from"]
    made.graph.node.extend(
        [
            onnx.helper.make_node("Reshape", [name, "one_row"], ["row"]),
            onnx.helper.make_node("QuantizeLinear", ["row", *scale], ["row_codes"]),
            onnx.helper.make_node("DequantizeLinear", ["row_codes", *scale], ["row_rounded"]),
        ]
    )
    del made.graph.output[:]
    made.graph.output.append(onnx.helper.make_tensor_value_info("row_rounded", onnx.TensorProto.FLOAT, None))
    return made


def test_codes_are_made_again_behind_a_region() -> None:
    net = Net(48, (1, 8, 6, 6))
    net.outputs.append(net.conv(net.x, 4, (3, 3)))
    model = quantized_behind_a_reshape(net.model())
    made = quantized_behind_a_reshape(with_regions(net.model()))
    assert operators(made).count("Region") == 1
    x = samples(net)
    np.testing.assert_array_equal(
        onnxq.session(made.SerializeToString(), options()).run(None, {"x": x}), by_definition(model, x)
    )


def test_codes_are_made_behind_numbers() -> None:
    net = numbers_net.Net(49, (1, 8, 6, 6))
    net.outputs.append(net.conv("x", (4, 8, 3, 3)))
    made = quantized_behind_a_reshape(numbers_net.with_regions(net.model()))
    x = net.samples()
    by_body = by_definition(quantized_behind_a_reshape(net.model()), x)
    by_kernel = onnxq.session(made.SerializeToString(), options()).run(None, {"x": x})
    assert np.abs(by_kernel[0] - by_body[0]).max() <= 0.25  # one code
