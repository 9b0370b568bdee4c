"""What a small file with a region may take of memory: thousands of steps may read one weight."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from islands import Net, with_regions
from onnx import numpy_helper

import onnxq
from onnxq.errors import BadModel
from onnxq.passes.regions import make_regions
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")


def repeated(net: Net, times: int, **words: str) -> onnx.ModelProto:
    """The one convolution of `net`, one behind the other, with these words in the place of its own."""
    model = with_regions(net.model())
    (node,) = (node for node in model.graph.node if node.op_type == "Region")
    (steps,) = (attribute for attribute in node.attribute if attribute.name == "steps")
    first, quantize, conv, dequantize = steps.s.decode().split("\n")
    said = dict(word.split("=") for word in conv.split(" ")[1:]) | words
    lines = [" ".join(["conv", *(f"{k}={v}" for k, v in (said | {"x": str(i)}).items())]) for i in range(times)]
    last = dequantize.replace("x=1", f"x={times}")
    steps.s = "\n".join([first, quantize, *lines, last]).encode()
    return model


def test_steps_may_share_a_weight_as_far_as_memory_goes() -> None:
    """As packed, it takes thousands of times its bytes here."""
    net = Net(1, (1, 1, 1, 9000))
    net.outputs.append(net.conv(net.x, 1, (1, 4096), bias=False, dilations=[1, 2]))
    assert onnxq.session(repeated(net, 2).SerializeToString())
    with pytest.raises(BadModel, match="takes more memory than its weights may"):
        onnxq.session(repeated(net, 80).SerializeToString())


def test_chained_steps_of_one_weight_compute_as_separate_ones() -> None:
    """Their zero points and scales are their own."""
    net = Net(2, (2, 40, 6, 5))
    net.outputs.append(net.conv(net.x, 40, (3, 3), pads=[1, 1, 1, 1]))
    once = with_regions(net.model())
    twice = repeated(net, 2)
    x = np.random.default_rng(0).normal(0, 3, (2, 40, 6, 5)).astype(np.float32)
    first = onnxq.session(once.SerializeToString())
    (y,) = first.run(None, {"x": x})
    # What the second step reads are codes of the first one's scale: a region that begins with them says the same.
    node = next(node for node in once.graph.node if node.op_type == "Region")
    steps = next(attribute for attribute in node.attribute if attribute.name == "steps")
    lines = steps.s.decode().split("\n")
    of_output = [word for word in lines[2].split(" ") if word.startswith(("scale=", "zero="))]
    lines[1] = " ".join(["quantize in=0", *of_output])
    steps.s = "\n".join(lines).encode()
    (expected,) = onnxq.session(once.SerializeToString()).run(None, {"x": y})
    np.testing.assert_array_equal(onnxq.session(twice.SerializeToString()).run(None, {"x": x})[0], expected)


def test_groups_that_would_be_mostly_padding_are_refused() -> None:
    net = Net(3, (1, 4, 1, 3))
    net.outputs.append(net.conv(net.x, 8, (1, 3), bias=False, group=4))
    groups = (1 << 20) + 7  # a prime: no few of them can be computed together
    model = repeated(net, 1, group=str(groups))
    for tensor in model.graph.initializer:
        if list(tensor.dims) == [8, 1, 1, 3]:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros((2 * groups, 1, 1, 3), np.int8), tensor.name))
        elif list(tensor.dims) == [8] and tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), tensor.name))
    with pytest.raises(BadModel, match="groups are too small for their number"):
        onnxq.session(model.SerializeToString())


def test_islands_of_a_long_model_are_found_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time took minutes of a model with a few hundred; what lies between them is float."""
    rounds = []
    find = make_regions.find_islands
    monkeypatch.setattr(make_regions, "find_islands", lambda *given: rounds.append(find(*given)) or rounds[-1])
    net = Net(5, (1, 4, 3, 3))
    v = net.x
    for _ in range(40):
        v = net.conv(v, 4, (1, 1), bias=False)
        apart = net.node("Round", [v])
        net.shapes[apart] = net.shapes[v]
        v = net.quantized(apart)
    net.outputs.append(v)
    model = net.model()
    made = with_regions(model)
    assert [len(found) for found in rounds] == [40, 0]
    x = {"x": np.random.default_rng(0).normal(0, 3, net.x_shape).astype(np.float32)}
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = ort.InferenceSession(model.SerializeToString(), options).run(None, x)
    np.testing.assert_array_equal(onnxq.session(made.SerializeToString(), options).run(None, x)[0], wanted[0])
