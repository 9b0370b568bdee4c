"""Regions: the same numbers as their bodies, by every kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net, operators, with_regions
from region_runs import HAS_LIBRARY, ISAS, by_definition, by_kernels, options, require_equal, said, samples

import onnxq

pytestmark = HAS_LIBRARY

CONVS = {
    "1x1": {"kernel": (1, 1)},
    "3x3": {"kernel": (3, 3), "pads": [1, 1, 1, 1]},
    "strided": {"kernel": (3, 3), "pads": [1, 1, 1, 1], "strides": [2, 2]},
    "wide-stride": {"kernel": (2, 3), "strides": [3, 2]},
    "dilated": {"kernel": (3, 3), "pads": [2, 3, 2, 3], "dilations": [2, 3]},
    "uneven-pads": {"kernel": (2, 4), "pads": [0, 1, 1, 2]},
    "5x5": {"kernel": (5, 5), "pads": [2, 2, 2, 2]},
    "strided-1x1": {"kernel": (1, 1), "strides": [2, 2]},
}


@pytest.mark.each_value
@pytest.mark.parametrize("channels", [(1, 1), (3, 17), (24, 33), (70, 40)], ids=str)
@pytest.mark.parametrize("kind", CONVS)
def test_convolutions(kind: str, channels: tuple[int, int]) -> None:
    net = Net(1, (2, channels[0], 9, 12))
    net.outputs.append(net.conv(net.x, channels[1], act="Relu", **CONVS[kind]))
    require_equal(net)


@pytest.mark.parametrize("groups", [5])
@pytest.mark.parametrize("kind", CONVS)
def test_grouped_convolutions(kind: str, groups: int) -> None:
    net = Net(2, (1, 6 * groups, 9, 12))
    net.outputs.append(net.conv(net.x, 3 * groups, group=groups, act="Clip", **CONVS[kind]))
    require_equal(net)


@pytest.mark.each_value
@pytest.mark.parametrize("channels", [2, 64, 100])
@pytest.mark.parametrize("kind", CONVS)
def test_depthwise_convolutions(kind: str, channels: int) -> None:
    net = Net(3, (2, channels, 9, 12))
    net.outputs.append(net.conv(net.x, channels, group=channels, act="Relu", **CONVS[kind]))
    require_equal(net)


@pytest.mark.parametrize("kernel", [(5, 3), (9, 1), (6, 5)], ids=str)
def test_depthwise_windows_of_more_than_four_rows(kernel: tuple[int, int]) -> None:
    net = Net(18, (2, 70, 13, 12))
    for more in ({}, {"strides": [2, 2]}, {"dilations": [1, 2]}):
        net.outputs.append(net.conv(net.x, 70, kernel, group=70, pads=[2, 2, 2, 2], **more))
    require_equal(net)


@pytest.mark.parametrize("channels", [1, 24, 40])
def test_pads_larger_than_windows(channels: int) -> None:
    """Rows of the output are longer than rows of the input with the pads that they share."""
    net = Net(17, (2, channels, 9, 12))
    for kernel, pads in (((1, 1), [1, 2, 1, 2]), ((2, 1), [2, 1, 2, 1]), ((3, 3), [4, 5, 3, 6])):
        net.outputs.append(net.conv(net.x, 33, kernel, pads=pads))
        net.outputs.append(net.conv(net.x, channels, kernel, pads=pads, group=channels))
    require_equal(net)


@pytest.mark.each_value
@pytest.mark.parametrize("size", [(1, 1), (1, 17), (33, 1), (2, 2), (16, 16), (7, 40)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_sizes_of_images(size: tuple[int, int], stride: int) -> None:
    net = Net(4, (1, 32, *size))
    y = net.conv(net.x, 48, (3, 3), pads=[1, 1, 1, 1], strides=[stride, stride], bias=False)
    net.outputs.append(net.conv(y, 48, (1, 1)))
    require_equal(net)


@pytest.mark.parametrize("shape", [(1, 1, 500, 531), (1, 3, 300, 301), (1, 37, 90, 91), (2, 300, 41, 40)], ids=str)
def test_planes_that_are_converted_in_several_pieces(shape: tuple[int, ...]) -> None:
    net = Net(19, shape)
    net.outputs.append(net.conv(net.x, shape[1], (1, 1), group=shape[1]))
    require_equal(net)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_pads_that_depend_on_the_size(auto_pad: str) -> None:
    net = Net(5, (1, 8, 10, 13), declared=("n", 8, "h", "w"))
    net.outputs.append(net.conv(net.x, 8, (3, 4), auto_pad=auto_pad, strides=[2, 3]))
    require_equal(net, (1, 8, 10, 13), (2, 8, 11, 9), (1, 8, 4, 4))


def test_one_dimension() -> None:
    net = Net(6, (2, 5, 40))
    a = net.conv(net.x, 16, (5,), act="Relu", pads=[2, 2], strides=[2])
    b = net.conv(a, 16, (3,), group=16, pads=[1, 1])
    net.outputs += [net.pool("MaxPool", b, kernel_shape=[2], strides=[2]), net.concat([a, b])]
    require_equal(net)


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("other", [(2, 20, 1, 1), (1, 1, 6, 7), (2, 20, 6, 1), (1, 1, 1, 1)], ids=str)
def test_operands_that_are_repeated(op: str, other: tuple[int, ...]) -> None:
    net = Net(7, (2, 20, 6, 7))
    a = net.conv(net.x, 20, (1, 1))
    small = net.node("ReduceMax", ["x", net.constant(np.array([i for i in range(4) if other[i] == 1], np.int64))])
    net.shapes[small] = net.x_shape
    b = net.quantized(small)
    net.outputs += [net.binary(op, a, b, "Relu"), net.binary(op, b, a)]
    require_equal(net)


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 1]], ids=str)
def test_pools(ceil: int, pads: list[int]) -> None:
    net = Net(8, (2, 70, 9, 8))
    a = net.conv(net.x, 70, (1, 1))
    net.outputs.append(net.pool("MaxPool", a, kernel_shape=[3, 2], strides=[2, 2], pads=pads, ceil_mode=ceil))
    for counts in (0, 1):  # powers of two: by other counts float32 rounds, as kernels of onnxruntime like
        y = net.pool("AveragePool", a, kernel_shape=[2, 2], strides=[2, 1], count_include_pad=counts)
        net.outputs.append(y)
    require_equal(net)


@pytest.mark.parametrize("ceil", [0, 1])
def test_pools_of_images_smaller_than_a_window(ceil: int) -> None:
    net = Net(18, (1, 20, 8, 8), declared=("n", 20, "h", "w"))
    a = net.conv(net.x, 20, (1, 1))
    for counts in (0, 1):
        net.outputs.append(
            net.pool("AveragePool", a, kernel_shape=[2, 2], strides=[2, 2], count_include_pad=counts, ceil_mode=ceil)
        )
    net.outputs.append(net.pool("MaxPool", a, kernel_shape=[3, 2], strides=[3, 2], ceil_mode=ceil))
    require_equal(net, (1, 20, 1, 9), (2, 20, 9, 1), (1, 20, 1, 1))


def test_products_at_the_end() -> None:
    for turned in (0, 1):
        net = Net(9, (3, 7, 4, 4), declared=("n", 7, "h", "w"))
        a = net.conv(net.x, 33, (3, 3), act="Relu")
        pooled = net.flatten(net.pool("GlobalAveragePool", a))
        net.outputs.append(net.gemm(pooled, 19, turned))
        made = require_equal(net, (3, 7, 4, 4), (0, 7, 4, 4), (1, 7, 6, 6))
        assert operators(made) == ["Region"]


def test_flattened_images() -> None:
    net = Net(10, (3, 7, 5, 4))
    net.outputs.append(net.gemm(net.flatten(net.conv(net.x, 9, (2, 2), act="Relu")), 40, 1))
    require_equal(net)


def test_batches_and_sizes_from_run_to_run() -> None:
    net = Net(11, (1, 12, 8, 8), declared=("n", 12, "h", "w"))
    a = net.conv(net.x, 12, (3, 3), act="Relu", pads=[1, 1, 1, 1])
    net.outputs.append(net.binary("Add", net.conv(a, 12, (3, 3), pads=[1, 1, 1, 1]), a))
    shapes = [(n, 12, h, w) for n in (0, 1, 5) for h, w in ((1, 1), (8, 8), (3, 30))]
    require_equal(net, *shapes, *[(1, 12, 2, w) for w in range(1, 20)])


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Any graph of steps: each reads what was made before, and what nobody reads is returned."""
    integer = st.integers
    shape = (draw(integer(1, 2)), draw(integer(1, 40)), draw(integer(1, 12)), draw(integer(1, 12)))
    net = Net(draw(integer(0, 2**32)), shape)
    made = [net.conv(net.x, draw(integer(1, 40)), (1, 1))]
    for _ in range(draw(integer(1, 6))):
        x = draw(st.sampled_from(made))
        n, channels, height, width = net.shapes[x]
        act = draw(st.sampled_from(["", "Relu", "Clip"]))
        kinds = ["conv", "depthwise", "transposed", "between", "binary", "concat", "max", "average"]
        kind = draw(st.sampled_from(kinds))
        if kind in ("conv", "depthwise"):
            kernel = (draw(integer(1, 4)), draw(integer(1, 4)))
            low = [draw(integer(0, k - 1)) for k in kernel]
            pads = [*low, *[k - 1 - p for k, p in zip(kernel, low, strict=True)]]
            strides = draw(st.sampled_from([[1, 1], [1, 1], [2, 2], [1, 3]]))
            outputs, group = (channels, channels) if kind == "depthwise" else (draw(integer(1, 70)), 1)
            made.append(net.conv(x, outputs, kernel, act, pads=pads, strides=strides, group=group))
        elif kind == "transposed" and height * width < 200:
            strides = [draw(integer(1, 3)), draw(integer(1, 3))]
            more = {"strides": strides, "output_padding": [draw(integer(0, stride - 1)) for stride in strides]}
            kernel = (draw(integer(1, 4)), draw(integer(1, 4)))
            made.append(net.conv_transpose(x, draw(integer(1, 40)), kernel, act, **more))
        elif kind == "between" and height * width < 200:
            # By powers of two, between which float32 is exact.
            coordinates = draw(st.sampled_from(["half_pixel", "asymmetric"]))
            sizes = (2 * height, 4 * width)
            made.append(net.between(x, sizes, coordinate_transformation_mode=coordinates))
        elif kind in ("binary", "concat"):
            fitting = [y for y in made if net.shapes[y] == net.shapes[x]]
            y = draw(st.sampled_from(fitting))
            if kind == "concat":
                made.append(net.concat([x, y, x]))
            else:
                made.append(net.binary(draw(st.sampled_from(["Add", "Mul"])), x, y, act))
        elif kind == "max":
            y = net.pool("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
            net.shapes[y] = (n, channels, height, width)
            made.append(y)
        elif height > 1 and width > 1:
            y = net.pool("AveragePool", x, kernel_shape=[2, 2])
            net.shapes[y] = (n, channels, height - 1, width - 1)
            made.append(y)
    read = {name for node in net.nodes for name in node.input}
    net.outputs += [y for y in made if y not in read or y == made[-1]]
    return net


@settings(max_examples=25, deadline=None)
@given(nets())
def test_any_graph_of_steps(net: Net) -> None:
    require_equal(net)


def test_other_scales_round_as_integers_do() -> None:
    """With scales that are no powers of two, sums in float32 depend on their order; those of int32 do not."""
    net = Net(12, (1, 30, 11, 11))
    net.outputs.append(net.conv(net.x, 50, (3, 3), pads=[1, 1, 1, 1]))
    weights = {node.input[1] for node in net.nodes if net.constants.get(node.input[0], net.x_shape) is not net.x_shape}
    biases = {
        n.input[1] for n in net.nodes if n.input[0] in net.constants and net.constants[n.input[0]].dtype == np.int32
    }
    for name, array in net.constants.items():
        if array.dtype == np.float32 and name not in weights - biases:
            net.constants[name] = array * np.float32(1.07)
    model = net.model()
    made = with_regions(model)
    x = samples(net)
    expected = by_definition(model, x)[0]
    (region,) = (node for node in made.graph.node if node.op_type == "Region")
    step = net.constants[region.input[int(said(region)[1].partition(" scale=")[2].split()[0])]]
    first, *others = (by_kernels(made, isa).run(None, {"x": x})[0] for isa in ISAS)
    for y in others:
        np.testing.assert_array_equal(y, first)
    assert np.abs(first - expected).max() <= step * 1.01
    assert np.mean(first != expected) < 0.002


def test_a_bias_of_another_scale_stays_outside() -> None:
    """It would be added to sums that it does not fit."""
    net = Net(16, (1, 3, 6, 6))
    net.outputs.append(net.conv(net.x, 4, (3, 3)))
    scale = next(
        n.input[1] for n in net.nodes if n.input[0] in net.constants and net.constants[n.input[0]].dtype == np.int32
    )
    net.constants[scale] = net.constants[scale] * 2
    assert "Region" not in operators(with_regions(net.model()))


def test_many_threads_and_sessions_at_once() -> None:
    net = Net(13, (2, 40, 20, 20), declared=("n", 40, "h", "w"))
    a = net.conv(net.x, 40, (3, 3), act="Relu", pads=[1, 1, 1, 1])
    net.outputs.append(net.binary("Add", a, net.conv(a, 40, (1, 1))))
    model = net.model()
    made = with_regions(model)
    inputs = [samples(net, (1 + i % 3, 40, 18 + i % 5, 20)) for i in range(8)]
    expected = [by_definition(model, x)[0] for x in inputs]
    session = onnxq.session(made.SerializeToString(), options(threads=4))

    def run(i: int) -> None:
        for k in range(i, i + 6):
            mine = session if i % 2 else onnxq.session(made.SerializeToString(), options(threads=2))
            np.testing.assert_array_equal(mine.run(None, {"x": inputs[k % 8]})[0], expected[k % 8])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))
