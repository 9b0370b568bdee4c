"""What decoders are made of: transposed convolutions, and images resized between their pixels. By every kernel the same
numbers as their bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net, operators, with_regions
from onnx import numpy_helper
from region_runs import (
    HAS_LIBRARY,
    ISAS,
    InvalidArgument,
    by_definition,
    by_kernels,
    options,
    require_equal,
    said,
    samples,
    saying,
)

import onnxq
from onnxq.errors import BadModel

pytest.importorskip("onnxruntime")
pytestmark = HAS_LIBRARY

#: As networks have them, and as hardly any has.
TRANSPOSED: dict[str, dict[str, Any]] = {
    "2x2": {"kernel": (2, 2), "strides": [2, 2]},
    "4x4": {"kernel": (4, 4), "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "3x3": {"kernel": (3, 3), "strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    "not strided": {"kernel": (3, 3), "pads": [1, 1, 1, 1]},
    "no pads": {"kernel": (3, 5), "strides": [2, 3]},
    "holes": {"kernel": (1, 2), "strides": [3, 4], "output_padding": [2, 1]},
    "dilated": {"kernel": (3, 3), "strides": [2, 2], "dilations": [3, 2], "pads": [1, 2, 3, 0]},
    "dilated by strides": {"kernel": (3, 2), "strides": [2, 4], "dilations": [4, 6]},
    "large pads": {"kernel": (5, 9), "strides": [3, 2], "pads": [4, 7, 6, 5]},
    "8x8": {"kernel": (16, 16), "strides": [8, 8], "pads": [4, 4, 4, 4]},
}


@pytest.mark.sweep
@pytest.mark.each_value
@pytest.mark.parametrize("channels", [(1, 1), (3, 17), (24, 33), (70, 40)], ids=str)
@pytest.mark.parametrize("kind", TRANSPOSED)
def test_transposed_convolutions(kind: str, channels: tuple[int, int]) -> None:
    """Between two others, whose pads they lie in and they read."""
    net = Net(61, (2, channels[0], 5, 6))
    a = net.conv(net.x, channels[0], (3, 3), pads=[1, 1, 1, 1])
    y = net.conv_transpose(a, channels[1], act="Relu", **TRANSPOSED[kind])
    net.outputs += [net.conv(y, 5, (3, 3), pads=[1, 1, 1, 1]), net.conv(a, 4, (3, 3), pads=[1, 1, 1, 1])]
    made = require_equal(net)
    assert operators(made) == ["Region"]


@pytest.mark.each_value
@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(5, 1, 1), (40, 1, 1), (4, 3, 5), (2, 40, 40)], ids=str)
@pytest.mark.parametrize("kind", ["2x2", "4x4", "dilated", "holes"])
def test_groups_share_their_scales(kind: str, groups: int, inputs: int, outputs: int) -> None:
    net = Net(62, (2, groups * inputs, 4, 7))
    y = net.conv_transpose(net.x, groups * outputs, act="Clip", group=groups, **TRANSPOSED[kind])
    net.outputs += [y, net.conv_transpose(net.x, groups * outputs, bias=False, group=groups, **TRANSPOSED[kind])]
    require_equal(net)


def test_lines() -> None:
    """As decoders of speech have them."""
    net = Net(63, (2, 24, 9), declared=("n", 24, "w"))
    a = net.conv_transpose(net.x, 16, (16,), strides=[8], pads=[4, 4])
    b = net.conv_transpose(a, 8, (5,), "Relu", strides=[3], pads=[1, 1], output_padding=[2])
    net.outputs.append(net.conv_transpose(b, 1, (3,), dilations=[2]))
    made = require_equal(net, (2, 24, 9), (1, 24, 1), (0, 24, 5), (3, 24, 40))
    assert operators(made) == ["Region"]


def test_sizes_from_run_to_run() -> None:
    net = Net(64, (1, 12, 8, 8), declared=("n", 12, "h", "w"))
    a = net.conv(net.x, 12, (3, 3), act="Relu", strides=[2, 2], pads=[1, 1, 1, 1])
    b = net.conv_transpose(a, 12, (3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
    net.outputs += [net.conv(net.concat([b, b]), 7, (3, 3), pads=[1, 1, 1, 1])]
    require_equal(net, *[(n, 12, h, w) for n in (0, 1, 3) for h, w in ((1, 1), (8, 8), (2, 40))])


@pytest.mark.sweep
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_transposed_convolution(data: st.DataObject) -> None:
    integer = st.integers
    size, kernel, strides, dilations = ([data.draw(integer(1, most)) for _ in range(2)] for most in (6, 5, 4, 3))
    padding = [data.draw(integer(0, stride - 1)) for stride in strides]
    reach = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)]
    before = [data.draw(integer(0, r - 1)) for r in reach]
    behind = [data.draw(integer(0, r - 1 - b)) for r, b in zip(reach, before, strict=True)]
    net = Net(data.draw(integer(0, 2**32)), (data.draw(integer(1, 2)), data.draw(integer(1, 40)), *size))
    more = {"strides": strides, "dilations": dilations, "output_padding": padding, "pads": before + behind}
    net.outputs.append(net.conv_transpose(net.x, data.draw(integer(1, 40)), tuple(kernel), **more))
    require_equal(net)


@pytest.mark.parametrize("more", [{"auto_pad": "SAME_UPPER"}, {"output_shape": [12, 12]}], ids=str)
def test_sizes_that_are_asked_for_stay_outside(more: dict[str, Any]) -> None:
    net = Net(65, (1, 6, 6, 6))
    a = net.conv(net.x, 6, (1, 1))
    y = net.conv_transpose(a, 6, (2, 2), strides=[2, 2], **more)
    net.outputs.append(net.conv(y, 6, (1, 1)))
    assert "ConvTranspose" in operators(require_equal(net))


COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@pytest.mark.sweep
@pytest.mark.each_value
@pytest.mark.parametrize("channels", [1, 3, 16, 21, 70])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_pixels_between_others(coordinates: str, channels: int) -> None:
    """Where float32 is exact: by powers of two, or where corners lie at corners."""
    net = Net(66, (2, channels, 5, 9))
    a = net.conv(net.x, channels, (1, 1))
    sizes = [(9, 17), (17, 9), (3, 5), (5, 9), (9, 65)] if coordinates == "align_corners" else [(10, 18), (20, 72)]
    for size in sizes:
        y = net.between(a, size, coordinate_transformation_mode=coordinates)
        net.outputs.append(net.conv(y, 3, (3, 3), pads=[1, 1, 1, 1]))
    net.outputs.append(net.between(a, (1, 1), coordinate_transformation_mode=coordinates))
    net.outputs.append(net.conv(a, 3, (3, 3), pads=[1, 1, 1, 1]))
    made = require_equal(net)
    assert operators(made) == ["Region"]
    assert sum(step.startswith("resize_linear") for step in said(made.graph.node[0])) == len(sizes) + 1


def test_pixels_of_lines() -> None:
    net = Net(67, (2, 24, 12))
    a = net.conv(net.x, 24, (1,))
    ratios = net.constant(np.float32([1, 1, 4]))
    y = net.node("Resize", [a, "", ratios], mode="linear")
    net.shapes[y] = (2, 24, 48)
    net.outputs.append(net.conv(net.quantized(y), 3, (3,)))
    made = require_equal(net)
    assert operators(made) == ["Region"]


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_any_ratio_and_any_scales(coordinates: str) -> None:
    """Codes are those of the body even where float32 rounds: numbers are added in its order."""
    net = Net(68, (2, 24, 7, 9), declared=("n", 24, "h", "w"))
    ratios = net.constant(np.float32([1, 1, 2.7, 0.6]))
    y = net.node("Resize", [net.x, "", ratios], mode="linear", coordinate_transformation_mode=coordinates)
    net.shapes[y] = (2, 24, 18, 5)
    near = net.quantized(y, 2.0**-4)
    net.outputs += [near, net.conv(near, 4, (1, 1))]
    net.rescale(1.07)
    model = net.model()
    made = with_regions(model)
    assert operators(made) == ["Region"]
    for shape in ((2, 24, 7, 9), (1, 24, 2, 40), (3, 24, 31, 2)):
        x = samples(net, shape)
        expected = by_definition(model, x)[0]
        first, *others = (by_kernels(made, isa).run(None, {"x": x})[0] for isa in ISAS)
        for found in others:
            np.testing.assert_array_equal(found, first)
        np.testing.assert_array_equal(first, expected)


@pytest.mark.parametrize(
    "more",
    [{"antialias": 1}, {"exclude_outside": 1}, {"coordinate_transformation_mode": "half_pixel_symmetric"}],
    ids=str,
)
def test_other_interpolations_stay_outside(more: dict[str, Any]) -> None:
    net = Net(69, (1, 6, 6, 6))
    a = net.conv(net.x, 6, (1, 1))
    net.outputs.append(net.conv(net.between(a, (12, 12), **more), 6, (1, 1)))
    made = with_regions(net.model())
    assert "Resize" in operators(made)


HOSTILE = {
    "conv_transpose x=0 weight=3 weight_scale=4": "must say 'scale'",
    "conv_transpose x=0 weight=3 weight_scale=4 scale=1 zero=2 kernel=2,2": "has no use for",
    "conv_transpose x=0 weight=1 weight_scale=4 scale=1 zero=2": "as its weight",
    "conv_transpose x=0 weight=3 weight_scale=4 scale=1 zero=2 group=3": "no transposed convolution of 3 groups",
    "conv_transpose x=0 weight=3 weight_scale=4 scale=1 zero=2 strides=33,32": "strides of more than 1024",
    "conv_transpose x=0 weight=3 weight_scale=4 scale=1 zero=2 strides=0,1": "out of range",
    "conv_transpose x=0 weight=3 weight_scale=4 scale=1 zero=2 output_padding=-1,0": "out of range",
    "conv_transpose x=0 weight=3 weight_scale=4 scale=1 zero=2 pads=1000,0,0,0": "an image of a size that is none",
    "conv_transpose x=0 weight=3 weight_scale=4 scale=1 zero=2 bias=4": "as its bias",
    "conv_transpose x=0 weight=3 weight_scale=1 scale=1 zero=2 dilations=4096,4096": "",
    "resize_linear x=0 sizes=5": "must say 'scale'",
    "resize_linear x=0 scale=1 zero=2": "must say one of",
    "resize_linear x=0 scale=1 zero=2 sizes=5 ratios=1": "must say one of",
    "resize_linear x=0 scale=1 zero=2 sizes=5 nearest=1": "has no use for",
    "resize_linear x=0 scale=1 zero=2 sizes=1": "as its sizes",
    "resize_linear x=0 scale=1 zero=2 sizes=5 coordinates=4": "out of range",
    "resize_linear x=0 scale=1 zero=2 sizes=5": "between images or channels",
    "resize_linear x=0 scale=1 zero=2 ratios=6": "between images or channels",
    "resize_linear x=0 scale=1 zero=2 ratios=1": "by another number of sizes",
}


@pytest.mark.parametrize("step", HOSTILE, ids=range(len(HOSTILE)))
def test_steps_that_cannot_be_right(step: str) -> None:
    reason = HOSTILE[step]
    net = Net(70, (1, 4, 6, 6), declared=("n", 4, "h", "w"))
    net.outputs.append(net.conv(net.x, 4, (3, 3), bias=False))
    model = with_regions(net.model())
    (node,) = model.graph.node
    for array in (np.array([1, 5, 9, 9], np.int64), np.array([1, 1.1, 2, 2], np.float32)):
        node.input.append(f"more{len(node.input)}")
        model.graph.initializer.append(numpy_helper.from_array(array, node.input[-1]))
    step = step.replace("sizes=5", f"sizes={len(node.input) - 2}").replace("ratios=6", f"ratios={len(node.input) - 1}")
    text = f"region 1\nquantize in=0 scale=1 zero=2\n{step}\ndequantize x=1 out=0"
    hostile = saying(model, text)
    del hostile.functions[:]
    x = {"x": np.zeros((1, 4, 6, 6), np.float32)}
    if not reason:  # strange, but right
        onnxq.session(hostile.SerializeToString(), options(optimized=False))
        return
    with pytest.raises((BadModel, InvalidArgument), match="onnxq node 'region'") as error:
        onnxq.session(hostile.SerializeToString(), options(optimized=False)).run(None, x)
    assert reason in str(error.value)


def test_small_weights_that_would_become_large_are_refused() -> None:
    net = Net(71, (1, 1, 6, 6))
    net.outputs.append(net.conv_transpose(net.x, 1, (1, 1), bias=False))
    model = with_regions(net.model())
    outputs = 1 << 20
    for tensor in model.graph.initializer:
        if list(tensor.dims) == [1, 1, 1, 1]:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros((1, outputs, 1, 1), np.int8), tensor.name))
    (steps,) = (a for a in model.graph.node[0].attribute if a.name == "steps")
    steps.s = steps.s.replace(b"strides=1,1", b"strides=32,32")
    del model.functions[:]
    assert isinstance(model, onnx.ModelProto)
    with pytest.raises(BadModel, match="takes more memory than its weights may"):
        onnxq.session(model.SerializeToString())
