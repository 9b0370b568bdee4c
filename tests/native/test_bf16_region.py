"""bf16 regions: numbers of their bodies, rounded as bfloat16 rounds, by every kernel; refused where steps are wrong."""

from __future__ import annotations

import copy
import itertools

import kernels
import numpy as np
import onnx
import onnx.reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbers_net import Net, rounded, steps, with_regions
from numpy.typing import NDArray
from region_runs import by_definition, by_kernels

from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument
pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.skipif("avx512_bf16" not in kernels.isas(), reason="without bfloat16 the bodies run"),
]

ISAS = [isa for isa in kernels.isas() if isa in ("amx", "avx512_bf16", "scalar")]
#: bfloat16 has 8 significant bits: what is rounded to the nearest changes by 2^-8 of itself at most.
UNIT = 2.0**-8


def require_rounded(net: Net, *shapes: tuple[int, ...], roundings: int = 0) -> onnx.ModelProto:
    """Of one step, whose sums are exact: the numbers of the body, rounded once.

    Args:
        roundings: those that a number went through, where the body's are not exact: activations that divide or take
            powers are as good as 2^-20, and so may round to the other neighbour; those of onnxruntime as 10^-6.
    """
    model = net.model()
    made = with_regions(model)
    assert steps(made)
    sessions = [by_kernels(made, isa) for isa in ISAS]
    for shape in shapes or (net.x_shape,):
        x = net.samples(shape)
        expected = by_definition(model, x)
        for y, y0 in zip(by_definition(made, x), expected, strict=True):
            np.testing.assert_array_equal(y, y0)
        for session in sessions:
            for y, y0 in zip(session.run(None, {"x": x}), expected, strict=True):
                assert y.shape == y0.shape
                if roundings:
                    np.testing.assert_allclose(y, y0, rtol=UNIT * roundings * 1.01, atol=2e-6)
                else:
                    np.testing.assert_array_equal(y, rounded(y0))
    return made


CONVS = {
    "1x1": ((1, 1), {}),
    "3x3": ((3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "wide-stride": ((2, 3), {"strides": [3, 2]}),
    "dilated": ((3, 3), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    "uneven-pads": ((2, 4), {"pads": [0, 1, 1, 2]}),
    "5x5": ((5, 5), {"pads": [2, 2, 2, 2]}),
    "pads-larger": ((2, 1), {"pads": [2, 1, 2, 1]}),
    "same-upper": ((3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "same-lower": ((3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
}


@pytest.mark.parametrize("kind", CONVS)
def test_convolutions(kind: str) -> None:
    """Channels that are a multiple of nothing, a group, several groups, and one for each channel."""
    kernel, attributes = CONVS[kind]
    for channels, outputs, group in ((1, 1, 1), (3, 17, 1), (24, 33, 1), (70, 40, 1), (10, 15, 5), (70, 70, 70)):
        net = Net(1, (2, channels, 9, 12))
        y = net.conv("x", (outputs, channels // group, *kernel), group=group, **attributes)
        net.outputs.append(net.node("Relu", [y]))
        require_rounded(net)


@pytest.mark.parametrize("size", [(1, 1), (1, 17), (33, 1), (16, 16), (7, 40)], ids=str)
def test_sizes_of_images_and_batches(size: tuple[int, int]) -> None:
    net = Net(2, (1, 32, *size), declared=("n", 32, "h", "w"))
    net.outputs.append(net.conv("x", (48, 32, 3, 3), pads=[1, 1, 1, 1], bias=False))
    net.outputs.append(net.conv("x", (32, 1, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2], group=32))
    require_rounded(net, (1, 32, *size), (3, 32, *size), (0, 32, *size))


@pytest.mark.parametrize("shape", [(1, 1, 400, 331), (1, 4, 181, 182), (1, 37, 70, 61), (2, 300, 31, 30)], ids=str)
def test_planes_that_are_rounded_in_several_pieces(shape: tuple[int, ...]) -> None:
    net = Net(19, shape)
    net.outputs.append(net.conv("x", (shape[1], 1, 1, 1), group=shape[1]))
    require_rounded(net)


def test_one_dimension() -> None:
    net = Net(3, (2, 5, 40))
    x = net.same()
    net.outputs.append(net.conv(x, (16, 5, 5), pads=[2, 2], strides=[2]))
    net.outputs.append(net.node("MaxPool", [x], kernel_shape=[2], strides=[2]))
    net.outputs.append(net.node("Concat", [net.conv(x, (5, 1, 3), pads=[1, 1], group=5), x], axis=1))
    require_rounded(net)


def test_images_of_one_column() -> None:
    """Their pixels are computed together as those of one row, and what is added to them too."""
    net = Net(4, (1, 24, 30, 1), declared=("n", 24, "h", 1))
    x = net.same()
    net.outputs += [
        net.node("Relu", [net.conv(x, (40, 24, 3, 1), pads=[1, 0, 1, 0], strides=[2, 1])]),
        net.node("Add", [net.conv(x, (24, 24, 5, 1), pads=[2, 0, 2, 0]), x]),
    ]
    require_rounded(net, *[(n, 24, h, 1) for n in (1, 3) for h in (1, 2, 3, 17, 31, 64, 95)])


ACTIVATIONS = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.25},
    "HardSigmoid": {"alpha": 0.25, "beta": 0.5},
    "Sigmoid": {},
    "Tanh": {},
    "HardSwish": {},
}


@pytest.mark.parametrize("op", [*ACTIVATIONS, "Clip", "SiLU", "Gated"])
def test_activations(op: str) -> None:
    """Behind a convolution, a depthwise one and alone."""
    net = Net(4, (1, 40, 5, 7))
    x = net.same()
    made = [net.conv(x, (33, 40, 1, 1), scale=2.0**-7), net.conv(x, (40, 1, 3, 3), scale=2.0**-5, group=40)]
    kind = 0
    for y in [*made, net.node("Add", [x, net.constant(np.ones((40, 1, 1), np.float32))])]:
        if op == "Clip":
            z = net.node("Clip", [y, net.constant(np.float32(-3)), net.constant(np.float32(6))])
        elif op == "SiLU":
            z = net.node("Mul", [net.node("Sigmoid", [y]), y])
        elif op == "Gated":
            z = net.node("Mul", [y, net.node("HardSigmoid", [y], alpha=1 / 6, beta=0.5)])
        else:
            z = net.node(op, [y], **ACTIVATIONS[op])
        net.outputs.append(z)
        kind += 1
    said = steps(require_rounded(net, roundings=int(op not in ("Relu", "LeakyRelu", "Clip", "HardSigmoid"))))
    assert sum("act=" in line for line in said) == kind


@pytest.mark.parametrize("other", [(2, 20, 6, 7), (2, 20, 1, 1), (1, 1, 6, 7), (2, 1, 6, 7), (1, 1, 1, 1)], ids=str)
def test_sums_and_products(other: tuple[int, ...]) -> None:
    net = Net(5, (2, 20, 6, 7))
    x = net.same()
    axes = np.array([i for i in range(4) if other[i] == 1], np.int64)
    net.constants.append(onnx.numpy_helper.from_array(axes, "axes"))
    small = net.node("ReduceMax", ["x", "axes"]) if len(axes) else x
    net.outputs += [net.node(op, pair) for op in ("Add", "Mul") for pair in ([x, small], [small, x])]
    net.outputs.append(net.conv(x, (4, 20, 1, 1)))  # without which there is no region
    net.outputs.append(net.node("Concat", [x, net.outputs[0]], axis=1))
    require_rounded(net)


def test_constants_by_channel() -> None:
    net = Net(6, (2, 20, 6, 7))
    x = net.same()
    each, one = net.constant(net.rng.integers(1, 9, (20, 1, 1)).astype(np.float32)), net.constant(np.float32(4))
    for a, b in ((x, each), (each, x), (x, one)):
        net.outputs += [net.node(op, [a, b]) for op in ("Add", "Sub", "Mul")]
    net.outputs.append(net.node("Div", [x, one]))
    parameters = [net.constant(np.full(20, value, np.float32)) for value in (2, 3, 5, 4)]
    net.outputs.append(net.node("BatchNormalization", [x, *parameters], epsilon=0.0))
    net.outputs.append(net.conv(x, (4, 20, 1, 1)))
    made = require_rounded(net)
    assert sum(line.startswith("affine") for line in steps(made)) == 11


@pytest.mark.parametrize("depthwise", [False, True])
def test_what_is_added_to_a_convolution_is_added_before_it_is_rounded(depthwise: bool) -> None:
    net = Net(7, (2, 40, 6, 7), declared=("n", 40, "h", "w"))
    shape, group = ((40, 1, 3, 3), 40) if depthwise else ((40, 40, 3, 3), 1)
    y = net.conv("x", shape, group=group, pads=[1, 1, 1, 1])
    net.outputs.append(net.node("Relu", [net.node("Add", ["x", y])]))
    made = require_rounded(net)
    assert [line.split()[:2] for line in steps(made)][1] == ["conv", "x=0,0"]


def test_a_sum_whose_sizes_may_differ_is_a_step_of_its_own() -> None:
    """An operand of one pixel is repeated."""
    net = Net(8, (2, 8, 6, 7), declared=("n", 8, "h", "w"))
    y = net.conv("x", (8, 8, 6, 7))
    net.outputs.append(net.node("Add", ["x", y]))
    made = require_rounded(net, roundings=2)
    assert any(line.startswith("add") for line in steps(made))


@pytest.mark.parametrize("ceil", [0, 1])
def test_pools(ceil: int) -> None:
    net = Net(9, (2, 70, 9, 8))
    x = net.same()
    net.outputs.append(net.conv(x, (4, 70, 1, 1)))
    for pads in ([0, 0, 0, 0], [1, 0, 1, 1]):
        pool = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": pads, "ceil_mode": ceil}
        net.outputs.append(net.node("MaxPool", [x], **pool))
    for counts in (0, 1):
        net.outputs.append(
            net.node("AveragePool", [x], kernel_shape=[2, 2], pads=[0, 1, 1, 1], count_include_pad=counts)
        )
    net.outputs.append(net.node("GlobalAveragePool", [x]))
    require_rounded(net, roundings=1)


def test_pools_of_images_smaller_than_a_window() -> None:
    net = Net(19, (1, 20, 1, 9))
    x = net.same()
    net.outputs.append(net.conv(x, (4, 20, 1, 1)))
    for op in ("MaxPool", "AveragePool"):
        net.outputs.append(net.node(op, [x], kernel_shape=[2, 2], strides=[2, 2]))
    require_rounded(net, roundings=1)


def test_small_weights_in_float32_are_rounded_where_that_may_be() -> None:
    net = Net(14, (2, 2, 6, 7))
    y = net.node("Conv", [net.conv("x", (8, 2, 1, 1), bias=False), net.constant(net.samples((8, 1, 3, 3)))], group=8)
    net.outputs.append(y)
    name = net.nodes[-1].name
    assert sum(line.startswith("conv") for line in steps(with_regions(net.model(), name))) == 1
    assert sum(line.startswith("conv") for line in steps(with_regions(net.model()))) == 2
    require_rounded(net)


def test_flattened_images() -> None:
    net = Net(10, (3, 7, 5, 4))
    net.outputs.append(net.node("Flatten", [net.conv("x", (9, 7, 2, 2))]))
    made = require_rounded(net)
    assert steps(made)[-2].startswith("flatten")


def test_what_only_a_concat_reads_is_made_in_its_place() -> None:
    """Beside what others read too, and what is there twice."""
    net = Net(11, (2, 33, 6, 5), declared=("n", 33, "h", "w"))
    x = net.same()
    a, b = net.conv(x, (17, 33, 1, 1)), net.conv(x, (33, 1, 3, 3), group=33, pads=[1, 1, 1, 1])
    c = net.node("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    d = net.conv(x, (8, 33, 1, 1))
    joined = net.node("Concat", [a, b, c, d, x, d], axis=1)
    net.outputs += [joined, net.node("MaxPool", [joined], kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    require_rounded(net, (2, 33, 6, 5), (1, 33, 1, 1), (0, 33, 3, 3))


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Any graph of steps, none of which makes what it reads larger or smaller by much."""
    integer = st.integers
    channels, height, width = draw(integer(1, 40)), draw(integer(1, 12)), draw(integer(1, 12))
    net = Net(draw(integer(0, 2**32)), (draw(integer(1, 2)), channels, height, width))
    sizes = {"x": channels}

    def conv(x: str, outputs: int, group: int = 1) -> str:
        kernel = draw(st.sampled_from([(1, 1), (3, 3), (1, 5)]))
        pads = [kernel[0] // 2, kernel[1] // 2] * 2
        shape = (outputs, sizes[x] // group, *kernel)
        y = net.conv(x, shape, scale=1 / (5 * np.prod(shape[1:]) ** 0.5), bias=False, group=group, pads=pads)
        sizes[y] = outputs
        return y

    made = [conv("x", channels)]
    for _ in range(draw(integer(1, 6))):
        x = draw(st.sampled_from(made))
        fitting = [y for y in made if sizes[y] == sizes[x]]
        kind = draw(st.sampled_from(["conv", "depthwise", "add", "concat", "max", "act", "affine"]))
        if kind in ("conv", "depthwise"):
            outputs, group = (sizes[x], sizes[x]) if kind == "depthwise" else (draw(integer(1, 70)), 1)
            made.append(conv(x, outputs, group))
            continue
        if kind == "add":
            y = net.node("Add", [x, draw(st.sampled_from(fitting))])
        elif kind == "concat":
            y = net.node("Concat", [x, draw(st.sampled_from(fitting))], axis=1)
        elif kind == "max":
            y = net.node("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif kind == "act":
            y = net.node(draw(st.sampled_from([*ACTIVATIONS])), [x])
        else:
            y = net.node("Mul", [x, net.constant(np.full((sizes[x], 1, 1), 0.7, np.float32))])
        sizes[y] = sizes[x] * (2 if kind == "concat" else 1)
        made.append(y)
    read = {name for node in net.nodes for name in node.input}
    net.outputs += [y for y in made if y not in read or y == made[-1]]
    return net


def in_doubles(model: onnx.ModelProto, x: NDArray) -> list[NDArray]:
    """By the definitions, in float64, of the same weights."""
    return [np.asarray(y) for y in onnx.reference.ReferenceEvaluator(_widened(model)).run(None, {"x": x.astype(float)})]


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    changed = copy.deepcopy(model)
    for tensor in changed.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(float), tensor.name))
    for value in (*changed.graph.input, *changed.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in changed.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast":
                attribute.i = onnx.TensorProto.DOUBLE
    del changed.graph.value_info[:]
    return changed


@settings(max_examples=25, deadline=None)
@given(nets())
def test_any_graph_of_steps(net: Net) -> None:
    """Of at most eight steps, each of which rounds by 2^-8 and passes on errors no larger than those of what it reads,
    whose numbers are of the order of one."""
    model = net.model()
    made = with_regions(model)
    x = net.samples()
    for isa in ISAS:
        for y, y0 in zip(by_kernels(made, isa).run(None, {"x": x}), by_definition(model, x), strict=True):
            assert y.shape == y0.shape
            scale = float(np.sqrt(np.mean(y0.astype(float) ** 2))) + 1
            assert float(np.sqrt(np.mean((y.astype(float) - y0) ** 2))) < 8 * UNIT * scale


def test_errors_grow_as_rounding_does() -> None:
    """Against float64: behind n convolutions and activations about √n roundings, and never less than behind one."""
    net = Net(12, (1, 24, 10, 10))
    y = "x"
    for _ in range(6):
        y = net.node("Relu", [net.conv(y, (24, 24, 3, 3), bias=False, scale=0.02, pads=[1, 1, 1, 1])])
        net.outputs.append(y)
    model = net.model()
    x = net.samples()
    expected = in_doubles(model, x)
    for isa in ISAS:
        found = by_kernels(with_regions(model), isa).run(None, {"x": x})
        errors = [np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)) for a, b in zip(found, expected, strict=True)]
        assert errors[0] < UNIT / 2  # evenly spread over the step between neighbours: 2^-8 / √12 · about 1.5
        for n, (before, error) in enumerate(itertools.pairwise(errors), 2):
            assert before * 0.7 < error < UNIT * np.sqrt(n)
