"""Steps of bf16 regions that move numbers: those of the body, rounded once, by every kernel."""

from __future__ import annotations

from typing import Any

import kernels
import numpy as np
import onnx
import pytest
from numbers_net import Net, steps, with_regions
from region_runs import InvalidArgument, options, saying
from test_bf16_region import require_rounded

import onnxq
from onnxq.errors import BadModel
from onnxq.runtime import native

pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.skipif("avx512_bf16" not in kernels.isas(), reason="without bfloat16 the bodies run"),
]


def ints(net: Net, *values: int) -> str:
    name = f"i{len(net.constants)}"
    net.constants.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
    return name


#: By word, operator, constant inputs, attributes and the word of the step.
MOVES: dict[str, tuple[str, list[list[int] | None], dict[str, Any], str]] = {
    "channels": ("Slice", [[1], [20], [1]], {}, "slice"),
    "pixels": ("Slice", [[1, -2], [2**40, 0], [2, 3], [2, -1]], {}, "slice"),
    "images": ("Slice", [[-1], [-9], [0], [-1]], {}, "slice"),
    "zeros": ("Pad", [[0, 1, 2, 0, 0, 3, 1, 2]], {}, "pad"),
    "reflect": ("Pad", [[0, 0, 2, 1, 0, 0, 1, 2]], {"mode": "reflect"}, "pad"),
    "edge": ("Pad", [[0, 0, 2, 1, 0, 0, -1, 2]], {"mode": "edge"}, "pad"),
    "blocks": ("DepthToSpace", [], {"blocksize": 2}, "depth_to_space"),
    "blocks by column": ("DepthToSpace", [], {"blocksize": 2, "mode": "CRD"}, "depth_to_space"),
    "to depth": ("SpaceToDepth", [], {"blocksize": 2}, "space_to_depth"),
}


def joined(net: Net, x: str, op: str, constants: list[list[int] | None], attributes: dict[str, Any]) -> str:
    return net.node(op, [x, *[ints(net, *each) for each in constants if each is not None]], **attributes)


@pytest.mark.parametrize("word", MOVES)
def test_moves(word: str) -> None:
    """Into a convolution with pads, and out."""
    op, constants, attributes, step = MOVES[word]
    net = Net(31, (2, 24, 6, 8), declared=("n", 24, "h", "w"))
    x = net.same()
    net.outputs.append(net.conv(x, (3, 24, 1, 1)))
    net.outputs.append(joined(net, x, op, constants, attributes))
    channels = {"channels": 19, "zeros": 28, "to depth": 96}.get(word, 6 if op == "DepthToSpace" else 24)
    y = net.conv(joined(net, x, op, constants, attributes), (8, channels, 3, 3), pads=[1, 1, 1, 1])
    net.outputs.append(y)
    made = require_rounded(net, (2, 24, 6, 8), (1, 24, 4, 6), (0, 24, 6, 8))
    assert sum(line.startswith(step) for line in steps(made)) == 2


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_nearest_pixels(coordinates: str) -> None:
    net = Net(32, (2, 5, 4, 6))
    x = net.same()
    scales = net.constant(np.array([1, 1, 2, 1.5], np.float32))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    net.outputs.append(net.node("Resize", [x, "", scales], **attributes))
    net.outputs.append(net.node("Resize", [x, "", "", ints(net, 2, 5, 9, 3)], **attributes))
    net.outputs.append(net.conv(x, (4, 5, 1, 1)))
    made = require_rounded(net)
    assert sum(line.startswith("resize") for line in steps(made)) == 2


def test_parts_of_channels_and_what_joins_them() -> None:
    """Not all parts are read, and not all by steps of the region."""
    net = Net(33, (2, 30, 5, 4), declared=("n", 30, "h", "w"))
    x = net.same()
    sizes = ints(net, 7, 13, 10)
    names = ["part0", "part1", "part2"]
    net.nodes.append(onnx.helper.make_node("Split", [x, sizes], names, name="split", axis=1))
    a = net.node("Concat", [net.conv("part0", (9, 7, 1, 1)), "part1", "part0"], axis=1)
    net.outputs += [net.conv(a, (4, 29, 3, 3), scale=2.0**-4), "part1"]
    # Codes of what is summed are rounded first: exact where they are small.
    made = with_regions(net.model())
    assert sum(line.startswith("slice") for line in steps(made)) == 2
    x0 = net.samples()
    session = onnxq.session(made.SerializeToString(), options())
    np.testing.assert_array_equal(session.run(["part1"], {"x": x0})[0], x0[:, 7:20])


def test_lines_are_moved_too() -> None:
    net = Net(34, (2, 6, 20))
    x = net.same()
    net.outputs.append(net.conv(x, (4, 6, 3), pads=[1, 1]))
    net.outputs.append(net.node("Slice", [x, ints(net, 3), ints(net, 17), ints(net, 2), ints(net, 5)]))
    net.outputs.append(net.node("Pad", [x, ints(net, 0, 0, 3, 0, 1, 2)], mode="constant"))
    made = require_rounded(net)
    assert {line.split()[0] for line in steps(made)} >= {"slice", "pad"}


@pytest.mark.parametrize("keeps", [0, 1])
def test_means_of_all_pixels(keeps: int) -> None:
    net = Net(35, (3, 40, 4, 8), declared=("n", 40, "h", "w"))
    x = net.same()
    net.outputs.append(net.conv(x, (4, 40, 1, 1)))
    net.outputs.append(net.node("ReduceMean", [x, ints(net, -1, 2)], keepdims=keeps))
    # Empty batches, whose negative axes onnxruntime's own ReduceMean forgets, have no body to be compared with.
    made = require_rounded(net, (3, 40, 4, 8), (1, 40, 1, 2), roundings=1)
    assert any(line.startswith("global_average_pool") for line in steps(made))


@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(3, 5, 7), (8, 4, 4), (6, 1, 2), (2, 20, 24)], ids=str)
def test_small_groups(groups: int, inputs: int, outputs: int) -> None:
    net = Net(36, (2, groups * inputs, 6, 7))
    net.outputs.append(net.conv("x", (groups * outputs, inputs, 3, 3), group=groups, pads=[1, 1, 1, 1]))
    net.outputs.append(net.conv("x", (groups * outputs, inputs, 1, 2), group=groups, strides=[2, 2]))
    require_rounded(net)


HOSTILE = {
    "slice x=0 starts=0,0,0,0 stops=9,9,9,9": "must say 'steps'",
    "resize x=0": "must say one of 'sizes' and 'ratios'",
    "resize x=0 ratios=0": "reads input 0 as its ratios",
    "depth_to_space x=0 block=0": "out of range",
}


@pytest.mark.parametrize("step", HOSTILE)
def test_steps_that_cannot_be_right(step: str) -> None:
    net = Net(37, (1, 3, 6, 6))
    net.outputs.append(net.conv("x", (4, 3, 3, 3)))
    text = f"bf16 region 1\nread in=0\n{step}\nwrite x=1 out=0"
    with pytest.raises(BadModel) as error:
        onnxq.session(saying(with_regions(net.model()), text).SerializeToString(), options())
    assert HOSTILE[step] in str(error.value)


def test_moves_that_do_not_fit_are_refused() -> None:
    net = Net(38, (1, 3, 6, 6), declared=("n", 3, "h", "w"))
    net.outputs.append(net.conv("x", (4, 3, 3, 3)))
    text = "bf16 region 1\nread in=0\npad x=0 before=0,0,9,0 behind=0,0,0,0 mode=1\nwrite x=1 out=0"
    session = onnxq.session(saying(with_regions(net.model()), text).SerializeToString(), options())
    with pytest.raises(InvalidArgument, match="pads by more than its input allows"):
        session.run(None, {"x": np.zeros((1, 3, 6, 6), np.float32)})


TRANSPOSED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "2x2": ((20, 33, 2, 2), {"strides": [2, 2]}),
    "4x4": ((20, 9, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "3x3": ((20, 40, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    "holes": ((20, 8, 1, 2), {"strides": [3, 4], "output_padding": [2, 1]}),
    "dilated": ((20, 10, 3, 3), {"strides": [2, 2], "dilations": [3, 2], "pads": [1, 2, 3, 0]}),
    "groups": ((20, 3, 4, 4), {"strides": [2, 2], "group": 5}),
    "of each channel": ((20, 1, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 20}),
}


@pytest.mark.parametrize("kind", TRANSPOSED)
def test_transposed_convolutions(kind: str) -> None:
    """With an activation, and in the place that a Concat has for it."""
    shape, attributes = TRANSPOSED[kind]
    net = Net(37, (2, 20, 5, 6), declared=("n", 20, "h", "w"))
    x = net.same()
    a = net.node("Relu", [net.conv_transpose(x, shape, **attributes)])
    b = net.conv_transpose(x, shape, **attributes)
    net.outputs += [net.conv(x, (4, 20, 3, 3), pads=[2, 2, 2, 2]), net.node("Concat", [a, b], axis=1)]
    made = require_rounded(net, (2, 20, 5, 6), (1, 20, 1, 9), (0, 20, 5, 6))
    assert sum(line.startswith("conv_transpose") for line in steps(made)) == 2


def test_few_outputs_stay_float() -> None:
    net = Net(41, (2, 20, 5, 6))
    x = net.same()
    net.outputs += [net.conv(x, (4, 20, 1, 1)), net.conv_transpose(x, (20, 7, 2, 2), strides=[2, 2])]
    assert "ConvTranspose" in [node.op_type for node in with_regions(net.model()).graph.node]


def test_transposed_lines() -> None:
    net = Net(38, (2, 6, 20))
    net.outputs.append(net.conv_transpose("x", (6, 9, 16), strides=[8], pads=[4, 4]))
    made = require_rounded(net)
    assert any(line.startswith("conv_transpose") for line in steps(made))


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_pixels_between_others(coordinates: str) -> None:
    """Of whole numbers by powers of two: float32 is exact."""
    net = Net(39, (2, 21, 5, 9))
    x = net.same()
    sizes = (9, 17) if coordinates == "align_corners" else (20, 18)
    attributes = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    y = net.node("Resize", [x, "", "", ints(net, 2, 21, *sizes)], **attributes)
    net.outputs += [net.conv(x, (4, 21, 1, 1)), y, net.node("Concat", [y, y], axis=1)]
    made = require_rounded(net)
    assert sum(line.startswith("resize_linear") for line in steps(made)) == 1


def test_any_ratio() -> None:
    net = Net(40, (2, 21, 5, 9), declared=("n", 21, "h", "w"))
    x = net.same()
    y = net.node("Resize", [x, "", net.constant(np.array([1, 1, 2.7, 0.6], np.float32))], mode="linear")
    net.outputs += [net.conv(x, (4, 21, 1, 1)), y]
    require_rounded(net, (2, 21, 5, 9), (1, 21, 2, 30), roundings=1)
