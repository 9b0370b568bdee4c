"""Steps that are computed together: sums with the convolution before them, small groups of one convolution, products
with their activation."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net, operators, with_regions
from region_runs import HAS_LIBRARY, ISAS, by_kernels, options, require_equal, said, samples, saying

import onnxq
from onnxq.errors import BadModel

pytest.importorskip("onnxruntime")
pytestmark = HAS_LIBRARY


@pytest.mark.parametrize(("op", "act"), [("Add", ""), ("Add", "Relu"), ("Add", "Clip"), ("Sub", ""), ("Mul", "")])
def test_a_convolution_and_what_is_added_to_it(op: str, act: str) -> None:
    """As either operand; what it adds to may have pads around it, or none."""
    net = Net(41, (2, 20, 7, 9), declared=("n", 20, "h", "w"))
    a = net.conv(net.x, 33, (1, 1))
    b = net.binary(op, net.conv(a, 33, (3, 3), "Relu", pads=[1, 1, 1, 1]), a, act)
    c = net.binary(op, b, net.conv(a, 33, (1, 1)), act)
    d = net.binary(op, net.conv(b, 33, (1, 1)), net.conv(c, 33, (3, 3), pads=[1, 1, 1, 1]))
    net.outputs.append(net.conv(d, 5, (3, 3), pads=[1, 1, 1, 1]))
    made = require_equal(net, *[(n, 20, h, w) for n in (0, 1, 3) for h, w in ((1, 1), (7, 9), (2, 40))])
    assert operators(made) == ["Region"]


@pytest.mark.parametrize("channels", [1, 16, 24, 40, 64])
def test_sums_of_few_and_of_many_channels(channels: int) -> None:
    net = Net(42, (1, 40, 5, 6))
    a = net.conv(net.x, channels, (1, 1))
    net.outputs.append(net.binary("Add", a, net.conv(net.x, channels, (3, 3), pads=[1, 1, 1, 1]), "Relu"))
    require_equal(net)


def test_sums_whose_convolution_others_read_too() -> None:
    net = Net(43, (2, 8, 5, 6))
    a, b = net.conv(net.x, 24, (1, 1)), net.conv(net.x, 24, (3, 3), pads=[1, 1, 1, 1])
    net.outputs += [net.binary("Add", a, b), net.binary("Add", a, a), net.binary("Mul", b, b), b]
    require_equal(net)


def test_sums_of_images_and_one_pixel() -> None:
    """A convolution of another size than the sum is stored."""
    net = Net(44, (2, 24, 4, 8))
    one = net.conv(net.pool("GlobalAveragePool", net.conv(net.x, 24, (1, 1))), 24, (1, 1), "Clip")
    net.outputs.append(net.binary("Mul", net.conv(net.x, 24, (1, 1)), one))
    require_equal(net)


@pytest.mark.parametrize(
    ("groups", "inputs", "outputs"),
    [(3, 5, 7), (4, 4, 4), (6, 1, 2), (7, 2, 1), (8, 8, 8), (12, 3, 5), (2, 40, 40), (2, 24, 3)],
    ids=str,
)
def test_small_groups(groups: int, inputs: int, outputs: int) -> None:
    net = Net(45, (2, groups * inputs, 6, 7))
    for kernel, pads, strides in (((3, 3), [1, 1, 1, 1], [1, 1]), ((1, 1), [0] * 4, [1, 1]), ((2, 3), [1] * 4, [2, 2])):
        net.outputs.append(net.conv(net.x, groups * outputs, kernel, "Relu", group=groups, pads=pads, strides=strides))
    require_equal(net)


def _dense(net: Net, x: str, outputs: int, turned: int, act: str) -> str:
    y = net.gemm(x, outputs, turned)
    net.shapes[y] = (net.shapes[x][0], outputs)
    return net.activated(y, act, 2.0**-1)


@pytest.mark.parametrize("act", ["", "Relu", "Clip"])
@pytest.mark.parametrize("turned", [0, 1])
def test_products_that_codes_are_made_of(turned: int, act: str) -> None:
    """Nothing between them is float."""
    net = Net(46, (3, 37), declared=("n", 37))
    a = _dense(net, net.x, 70, turned, act)
    b = _dense(net, a, 24, turned, act)
    c = net.binary("Add", _dense(net, b, 24, turned, ""), b, "Relu")
    net.outputs += [net.gemm(c, 9, turned), b]
    made = require_equal(net, (3, 37), (1, 37), (0, 37), (40, 37))
    assert operators(made) == ["Region"]
    steps = [step.split()[0] for step in said(made.graph.node[0])]
    assert steps == ["quantize", "product", "product", "product", "add", "gemm", "dequantize"]


def test_a_product_that_is_read_as_float_too_ends_the_region() -> None:
    net = Net(47, (3, 20))
    y = net.gemm(net.x, 20, 1)
    net.shapes[y] = (3, 20)
    net.outputs += [y, net.gemm(net.quantized(y, 1.0), 5, 1)]
    made = require_equal(net)
    assert not any("product" in step for node in made.graph.node if node.op_type == "Region" for step in said(node))


@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize("shape", [(2, 19, 4, 8), (3, 33, 16)], ids=str)
def test_means_of_all_pixels(shape: tuple[int, ...], keeps: int) -> None:
    net = Net(48, shape, declared=("n", shape[1], *"hw"[: len(shape) - 2]))
    ones = (1,) * (len(shape) - 2)
    a = net.conv(net.x, 24, ones)
    axes = net.constant(np.arange(-1, 1 - len(shape), -1))
    y = net.node("ReduceMean", [a, axes], keepdims=keeps)
    net.shapes[y] = (shape[0], 24, *(ones if keeps else ()))
    mean = net.quantized(y)
    net.outputs.append(net.binary("Mul", a, net.conv(mean, 24, ones)) if keeps else net.gemm(mean, 7, 0))
    # Of empty batches onnxruntime's own ReduceMean keeps a dimension that it is told to leave out.
    made = require_equal(net, shape, (1, *shape[1:]), *([(0, *shape[1:])] if keeps else []))
    assert operators(made) == ["Region"]
    assert any(step.startswith("global_average_pool") for step in said(made.graph.node[0]))


def test_means_of_channels_stay_outside() -> None:
    net = Net(49, (2, 8, 4, 4))
    y = net.node("ReduceMean", [net.conv(net.x, 8, (1, 1)), net.constant(np.array([1, 2, 3]))])
    net.shapes[y] = (2, 1, 1, 1)
    net.outputs.append(net.quantized(y))
    assert "ReduceMean" in operators(require_equal(net))


@st.composite
def residual_nets(draw: st.DrawFn) -> Net:
    """Sums and products of convolutions in any order, some of them read twice."""
    integer = st.integers
    channels = draw(integer(1, 40))
    net = Net(draw(integer(0, 2**32)), (draw(integer(0, 2)), channels, draw(integer(1, 9)), draw(integer(1, 9))))
    made = [net.conv(net.x, channels, (1, 1))]
    for _ in range(draw(integer(1, 5))):
        x, group = draw(st.sampled_from(made)), draw(st.sampled_from([1, 1, channels]))
        y = net.conv(x, channels, (3, 3), draw(st.sampled_from(["", "Relu"])), group=group, pads=[1, 1, 1, 1])
        pair = [y, draw(st.sampled_from([*made, y]))]
        if draw(st.booleans()):
            pair.reverse()
        y = net.binary(draw(st.sampled_from(["Add", "Sub", "Mul"])), *pair, draw(st.sampled_from(["", "Relu", "Clip"])))
        made += [y] if draw(st.booleans()) else [y, pair[0]]
    net.outputs += list(dict.fromkeys(made[1:]))
    return net


@settings(max_examples=15, deadline=None)
@given(residual_nets())
def test_any_residual_net(net: Net) -> None:
    require_equal(net)


def test_sums_that_no_integer_holds_are_the_outermost_codes() -> None:
    """In steps as small as these they are beyond int32, which conversions make the smallest number of."""
    net = Net(51, (1, 24, 5, 9))

    def in_small_steps(made: str) -> str:
        scale = next(node.input[1] for node in net.nodes if node.output[0] == made)
        net.constants[scale] = np.float32(2.0**-30)
        return made

    a, b = net.conv(net.x, 64, (1, 1)), net.conv(net.x, 64, (1, 1))
    net.outputs += [in_small_steps(net.conv(net.x, 64, (1, 1))), in_small_steps(net.binary("Add", a, b))]
    require_equal(net)


def test_scales_of_any_kind_give_the_same_on_every_isa() -> None:
    """Sums are divided or multiplied, whichever is right: the joined ones as those that are steps of their own."""
    net = Net(50, (1, 24, 9, 9))
    a, b = net.conv(net.x, 40, (1, 1)), net.conv(net.x, 40, (3, 3), pads=[1, 1, 1, 1])
    joined = net.binary("Add", a, b)
    net.outputs += [joined]
    apart = Net(50, (1, 24, 9, 9))
    a, b = apart.conv(apart.x, 40, (1, 1)), apart.conv(apart.x, 40, (3, 3), pads=[1, 1, 1, 1])
    apart.outputs += [apart.binary("Add", a, b), a, b]
    for each in (net, apart):
        each.rescale(1.07)
    x = samples(net)
    found = []
    for each in (net, apart):
        made = require_regions(each)
        found += [by_kernels(made, isa).run(None, {"x": x})[0] for isa in ISAS]
    for y in found[1:]:
        np.testing.assert_array_equal(y, found[0])


def require_regions(net: Net) -> onnx.ModelProto:
    made = with_regions(net.model())
    assert operators(made) == ["Region"]
    return made


HOSTILE = {
    "product x=0 weight=3 weight_scale=4": "must say 'scale'",
    "product x=0 weight=3 weight_scale=4 scale=1 zero=2 out=0": "has no use for",
    "product x=0 weight=1 weight_scale=4 scale=1 zero=2": "as its weight",
    "global_average_pool x=0 scale=1 zero=2 keeps=2": "out of range",
    "max_pool x=0 kernel=1,1 keeps=0": "has no use for",
}


@pytest.mark.parametrize("step", HOSTILE)
def test_steps_that_cannot_be_right(step: str) -> None:
    net = Net(51, (1, 3, 6, 6))
    net.outputs.append(net.conv(net.x, 4, (3, 3)))
    text = f"region 1\nquantize in=0 scale=1 zero=2\n{step}\ndequantize x=1 out=0"
    with pytest.raises(BadModel) as error:
        onnxq.session(saying(require_regions(net), text).SerializeToString(), options())
    assert HOSTILE[step] in str(error.value)
