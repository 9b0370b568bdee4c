"""InstanceNormalization in bf16 regions: that of the body, rounded as bfloat16 is; refused where steps are wrong."""

from __future__ import annotations

import kernels
import numpy as np
import onnx
import pytest
from numbers_net import Net, steps, with_regions
from numpy.typing import NDArray
from region_runs import by_definition, by_kernels, options

import onnxq
from onnxq.errors import BadModel
from onnxq.runtime import native

pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.skipif("avx512_bf16" not in kernels.isas(), reason="without bfloat16 the bodies run"),
]

ISAS = [isa for isa in kernels.isas() if isa in ("amx", "avx512_bf16", "scalar")]
#: Half of the step between neighbours, and what a sum in another order may change beside it.
ROUNDED = 1.02 * 2.0**-8


def normalized(net: Net, x: str, channels: int, epsilon: float = 1e-5) -> str:
    weight, bias = (net.constant(net.rng.standard_normal(channels).astype(np.float32)) for _ in range(2))
    return net.node("InstanceNormalization", [x, weight, bias], epsilon=epsilon)


def in_doubles(x: NDArray, weight: NDArray, bias: NDArray, epsilon: float) -> NDArray:
    """By the definition. x: [N, C, …]."""
    pixels = tuple(range(2, x.ndim))
    along = (1, -1) + (1,) * len(pixels)
    x = x.astype(np.float64)
    above = x - x.mean(pixels, keepdims=True)
    deviation = np.sqrt((above**2).mean(pixels, keepdims=True) + epsilon)
    return above / deviation * weight.reshape(along) + bias.reshape(along)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "shape", [(2, 40, 7, 5), (1, 3, 40, 61), (3, 64, 1, 1), (1, 33, 1, 9), (2, 5, 17), (0, 8, 3, 3)], ids=str
)
def test_channels_of_each_image(shape: tuple[int, ...], isa: str) -> None:
    """Numbers that are whole are so in bfloat16 too: the step differs from the definition by one rounding."""
    net = Net(1, shape, declared=("n", shape[1], *"hw"[: len(shape) - 2]))
    x = net.same()
    net.outputs += [normalized(net, x, shape[1], 1e-3), net.conv(x, (4, shape[1], *[1] * (len(shape) - 2)))]
    model = net.model()
    weight, bias = (onnx.numpy_helper.to_array(each) for each in model.graph.initializer[:2])
    made = with_regions(model)
    assert sum(line.startswith("instance_norm") for line in steps(made)) == 1
    sample = net.samples(shape)
    y = by_kernels(made, isa).run(None, {"x": sample})[0]
    y0 = in_doubles(sample, weight, bias, 1e-3)
    assert y.shape == shape
    # A sum of which little is left is as good as what it was made of.
    terms = np.abs(y0 - bias.reshape(1, -1, *[1] * (len(shape) - 2))) + np.abs(bias).max()
    assert np.all(np.abs(y - y0) <= ROUNDED * np.abs(y0) + 1e-5 * terms)


@pytest.mark.parametrize("isa", ISAS)
def test_means_much_larger_than_deviations(isa: str) -> None:
    """Numbers from 1000 to 1004: squares of a million, of which float32 would leave the deviation nothing."""
    net = Net(2, (1, 24, 64, 64))
    x = net.same()
    net.outputs += [normalized(net, x, 24), net.conv(x, (4, 24, 1, 1))]
    model = net.model()
    weight, bias = (onnx.numpy_helper.to_array(each) for each in model.graph.initializer[:2])
    sample = 1000 + 4 * net.rng.integers(0, 2, (1, 24, 64, 64)).astype(np.float32)
    y = by_kernels(with_regions(model), isa).run(None, {"x": sample})[0]
    y0 = in_doubles(sample, weight, bias, 1e-5)
    np.testing.assert_allclose(y, y0, rtol=ROUNDED, atol=1e-3)


def test_all_kernels_make_the_same() -> None:
    net = Net(3, (2, 70, 9, 11))
    x = net.same()
    net.outputs += [net.node("Relu", [normalized(net, x, 70)]), net.conv(x, (4, 70, 1, 1))]
    made, sample = with_regions(net.model()), net.samples()
    first, *others = (by_kernels(made, isa).run(None, {"x": sample})[0] for isa in ISAS)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu", "Clip", "Sigmoid"])
def test_networks_of_images(op: str) -> None:
    """Convolution, normalization and activation, twice, and their sum: one region, whose body is the float network."""
    net = Net(4, (2, 24, 12, 13), declared=("n", 24, "h", "w"))
    y = net.conv("x", (24, 24, 3, 3), bias=False, scale=0.05, pads=[1, 1, 1, 1])
    first = net.node(op, [normalized(net, y, 24)])
    second = normalized(net, net.conv(first, (24, 24, 3, 3), bias=False, scale=0.05, pads=[1, 1, 1, 1]), 24)
    net.outputs.append(net.node("Add", [first, second]))
    model = net.model()
    made = with_regions(model)
    assert [node.op_type for node in made.graph.node if node.op_type in ("Bf16Region", "InstanceNormalization")] == [
        "Bf16Region"
    ]
    assert [line.split()[0] for line in steps(made)].count("affine") == 0  # activations are part of what they follow
    sample = net.samples()
    (y0,) = by_definition(model, sample)
    np.testing.assert_array_equal(by_definition(made, sample)[0], y0)
    for isa in ISAS:
        (y,) = by_kernels(made, isa).run(None, {"x": sample})
        assert np.sqrt(np.mean((y - y0) ** 2) / np.mean(y0**2)) < 0.02


@pytest.mark.parametrize(
    ("broken", "epsilon"), [("computed", 1e-5), ("epsilon", -1.0), ("epsilon", np.inf), ("epsilon", np.nan)]
)
def test_what_is_no_step_stays_outside(broken: str, epsilon: float) -> None:
    net = Net(5, (1, 8, 5, 5))
    x = net.conv("x", (8, 8, 1, 1))
    bias = net.constant(np.zeros(8, np.float32))
    weight = bias
    if broken == "computed":
        net.constants.append(onnx.numpy_helper.from_array(np.array([0, 2, 3]), "axes"))
        weight = net.node("ReduceMean", [x, "axes"], keepdims=0)
    net.outputs.append(net.node("InstanceNormalization", [x, weight, bias], epsilon=epsilon))
    assert not any(line.startswith("instance_norm") for line in steps(with_regions(net.model())))


HOSTILE = {
    "instance_norm x=0 weight=1 bias=2": "must say 'epsilon'",
    "instance_norm x=0 weight=1 bias=2 epsilon=0": "reads input 0",
    "instance_norm x=0 weight=1 bias=2 epsilon=1": "number",
    "instance_norm x=0 weight=1 bias=1 epsilon=3 group=0": "out of range",
    "instance_norm x=0 weight=1 bias=1 epsilon=3 scale=1": "has no use for",
    "instance_norm x=0,0 weight=1 bias=1 epsilon=3": "with 2 numbers",
}


@pytest.mark.parametrize("step", HOSTILE)
def test_steps_that_cannot_be_right(step: str) -> None:
    with pytest.raises(BadModel, match=HOSTILE[step]):
        onnxq.session(_saying(step).SerializeToString(), options())


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("instance_norm x=0 weight=4 bias=4 epsilon=3", "weight"),
        ("instance_norm x=0 weight=1 bias=1 epsilon=3 group=3", "groups of different sizes"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(step: str, said: str) -> None:
    """Where they are seen: when the session is made, or when shapes are known."""
    with pytest.raises(Exception, match=said):
        onnxq.session(_saying(step).SerializeToString(), options()).run(None, {"x": np.zeros((1, 8, 5, 5), np.float32)})


def _saying(step: str) -> onnx.ModelProto:
    """A region whose input 1 and 2 are vectors for 8 channels, 3 a number and 4 a vector for 7."""
    constants = [np.ones(8), np.ones(8), np.array(1e-5), np.ones(7)]
    names = [f"c{i}" for i in range(4)]
    text = f"bf16 region 1\nread in=0\n{step}\nwrite x=1 out=0"
    node = onnx.helper.make_node("Bf16Region", ["x", *names], ["y"], domain="onnxq", steps=text)
    sizes = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, 5, 5]) for name in "xy"]
    graph = onnx.helper.make_graph(
        [node],
        "net",
        sizes[:1],
        sizes[1:],
        [
            onnx.numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in zip(names, constants, strict=True)
        ],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("onnxq", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
