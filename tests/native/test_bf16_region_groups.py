"""GroupNormalization in bf16 regions, as exporters spell it: one step, and nothing that only looks like one."""

from __future__ import annotations

import kernels
import numpy as np
import onnx
import pytest
from numbers_net import Net, steps, with_regions
from region_runs import by_definition, by_kernels

from onnxq.runtime import native

pytestmark = [
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
    pytest.mark.skipif("avx512_bf16" not in kernels.isas(), reason="without bfloat16 the bodies run"),
]

ISAS = [isa for isa in kernels.isas() if isa in ("amx", "avx512_bf16", "scalar")]


def ints(net: Net, *values: int) -> str:
    name = f"i{len(net.constants)}"
    net.constants.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
    return name


def grouped(net: Net, x: str, shape: tuple[int, ...], groups: int, *, back: str = "", scaled: bool = True) -> str:
    """back: the name of the shape that it gets back; that of x where there is none."""
    weight, bias = (net.constant(net.rng.uniform(0.5, 2, groups).astype(np.float32)) for _ in range(2))
    parts = net.node("Reshape", [x, ints(net, 0, groups, -1)])
    normal = net.node("InstanceNormalization", [parts, weight, bias], epsilon=1e-3)
    y = net.node("Reshape", [normal, back or net.node("Shape", [x])])
    if not scaled:
        return y
    each = [net.constant(net.rng.uniform(0.5, 2, (shape[1], *[1] * (len(shape) - 2))).astype(np.float32)) for _ in "ab"]
    return net.node("Add", [each[1], net.node("Mul", [y, each[0]])])


@pytest.mark.parametrize("spelt", ["its shape", "constants", "no factors"])
@pytest.mark.parametrize(("shape", "groups"), [((2, 24, 7, 5), 8), ((1, 40, 33), 1), ((3, 32, 4, 4), 32)], ids=str)
def test_groups_of_each_image(shape: tuple[int, ...], groups: int, spelt: str) -> None:
    declared = shape if spelt == "constants" else ("n", shape[1], *"hw"[: len(shape) - 2])
    net = Net(1, shape, declared=declared)
    ones = [1] * (len(shape) - 2)
    x = net.node("Relu", [net.conv("x", (shape[1], shape[1], *ones), scale=0.1)])
    back = ints(net, *shape) if spelt == "constants" else ""
    y = net.node("Sigmoid", [grouped(net, x, shape, groups, back=back, scaled=spelt != "no factors")])
    net.outputs.append(net.conv(y, (4, shape[1], *ones), scale=0.1))
    model = net.model()
    made = with_regions(model)
    assert [line.split()[0] for line in steps(made)] == ["read", "conv", "instance_norm", "conv", "write"]
    assert not {"Shape", "Reshape"} & {node.op_type for node in made.graph.node}
    sample = net.samples()
    (y0,) = by_definition(model, sample)
    np.testing.assert_array_equal(by_definition(made, sample)[0], y0)
    for isa in ISAS:
        (y,) = by_kernels(made, isa).run(None, {"x": sample})
        assert np.sqrt(np.mean((y - y0) ** 2) / np.mean(y0**2)) < 0.01


@pytest.mark.parametrize("other", ["another shape", "read in between", "parts of pixels", "turned"])
def test_what_only_looks_like_it_stays(other: str) -> None:
    net = Net(2, (2, 8, 6, 6), declared=(2, 8, 6, 6))
    x = net.node("Relu", [net.conv("x", (8, 8, 1, 1), scale=0.1)])
    if other == "another shape":
        y = grouped(net, x, (2, 8), 4, back=ints(net, 2, 4, 12, 6), scaled=False)
    elif other == "turned":
        y = grouped(net, x, (2, 8), 4, back=ints(net, 8, 2, 6, 6), scaled=False)
    else:
        y = grouped(net, x, (2, 8, 6, 6), 4 if other == "read in between" else 16)
    if other == "read in between":
        reshaped = next(node for node in net.nodes if node.op_type == "InstanceNormalization").output[0]
        net.outputs.append(reshaped)
    net.outputs.append(y)
    model = net.model()
    made = with_regions(model)
    assert not any(line.startswith("instance_norm") for line in steps(made))
    sample = net.samples()
    for got, wanted in zip(by_definition(made, sample), by_definition(model, sample), strict=True):
        np.testing.assert_array_equal(got, wanted)
