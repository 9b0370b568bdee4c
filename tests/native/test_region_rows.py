"""Steps that compute float32 inside: normalizations of rows, Softmax, products of two tensors, sums, attention.

Every ISA gives the same bits. The body computes the same in another order of sums, with another exponential and with
divisions in the place of reciprocals, so what lies next to a tie may become the code beside: never one further away,
and few of them. Sums of codes are exact, and those that nothing divides are equal bit for bit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from islands import Net, operators, with_regions
from numpy.typing import NDArray
from region_runs import (
    HAS_LIBRARY,
    ISAS,
    by_definition,
    by_kernels,
    options,
    require_equal,
    steps_of,
)
from row_nets import Rows, block

import onnxq

pytestmark = HAS_LIBRARY
#: Of codes, how many may be those beside: sums in another order differ by 2^-22 or so of numbers of 100 codes.
BESIDE = 0.01


def samples(net: Net, shape: tuple[int, ...]) -> NDArray:
    return net.rng.normal(0, 2, shape).astype(np.float32)


def require_close(net: Net, steps: set[str], *shapes: tuple[int, ...], step: float = 0.0) -> onnx.ModelProto:
    """The same bits by every kernel, and the definition's numbers within a step of codes, or float32's rounding."""
    model = net.model()
    made = with_regions(model)
    assert steps <= set(steps_of(made)), steps_of(made)
    sessions = [by_kernels(made, isa) for isa in ISAS]
    for shape in shapes or (net.x_shape,):
        x = samples(net, shape)
        expected, first = by_definition(model, x), sessions[0].run(None, {"x": x})
        for y, y0 in zip(by_definition(made, x), expected, strict=True):
            np.testing.assert_array_equal(y, y0)  # the body is what it was
        for session in sessions[1:]:
            for y, y0 in zip(session.run(None, {"x": x}), first, strict=True):
                np.testing.assert_array_equal(y, y0)
        for y, y0 in zip(first, expected, strict=True):
            assert y.shape == y0.shape
            if step and y.size:
                differs = np.abs(y - y0) > step * 1e-3
                assert np.abs(y - y0).max() <= step * 1.01
                assert differs.mean() <= BESIDE + 1 / y.size
            elif y.size:
                np.testing.assert_allclose(y, y0, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(y0).max())))
    return made


SIZES = [1, 3, 16, 48, 65, 130]


@pytest.mark.parametrize("kind", ["LayerNormalization", "spelled"])
@pytest.mark.parametrize("size", SIZES)
def test_normalizations(size: int, kind: str) -> None:
    """Of what a product makes, as float32 and as codes."""
    net = Rows(201, (2, 7, 24), declared=("n", "t", 24))
    made = net.norm(net.matmul(net.x, size), kind)
    net.outputs += [made, net.matmul(net.codes(made), 4)]
    shapes = ((2, 7, 24), (1, 1, 24), (0, 3, 24), (2, 0, 24))
    require_close(net, {"sums", "layer_norm", "encode"}, *shapes, step=0)


def test_codes_of_a_normalization_are_those_beside_at_most() -> None:
    net = Rows(202, (3, 40, 33))
    net.outputs.append(net.codes(net.norm(net.matmul(net.x, 70)), 0.031))
    require_close(net, {"layer_norm"}, step=0.031)


@pytest.mark.parametrize("size", SIZES)
def test_softmax_of_codes(size: int) -> None:
    net = Rows(203, (2, 3, 5, 24))
    logits = net.codes(net.matmul(net.x, size))
    net.outputs.append(net.quantized(net.softmax(logits), 1 / 255, 0))
    require_close(net, {"product", "softmax"}, step=1 / 255)


@pytest.mark.parametrize("size", SIZES)
def test_numbers_that_outputs_are_multiplied_with(size: int) -> None:
    """Of sums that others are added to, read by others, or written; negative ones and zeros too."""
    net = Rows(205, (2, 5, 24), declared=("n", "t", 24))
    scaled = []
    for word in "abc":
        net.constants[word] = net.rng.normal(0, 3, size).astype(np.float32) * (net.rng.random(size) > 0.2)
        y = net.matmul(net.x, size)
        scaled.append(net.node("Mul", [y, word] if word == "a" else [word, y]))
        net.shapes[scaled[-1]] = net.shapes[y]
    net.outputs += [net.node("Add", scaled[:2]), scaled[2]]
    made = require_close(net, {"sums", "plus", "gemm"}, (2, 5, 24), (1, 1, 24), (0, 3, 24))
    assert [node.op_type for node in made.graph.node].count("Mul") == 0


@pytest.mark.parametrize("size", SIZES)
def test_softmax_of_float32(size: int) -> None:
    net = Rows(204, (2, 5, 24))
    net.outputs.append(net.softmax(net.matmul(net.x, size)))
    require_close(net, {"sums", "softmax", "write"})


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 33, 64), (1, 70, 65)], ids=str)
def test_products_of_two_tensors_are_exact(shape: tuple[int, ...]) -> None:
    """Scales are powers of two."""
    net = Net(205, shape)
    a, b = (net.quantized(net.matmul(net.x, 40), 2.0**-1) for _ in range(2))
    turned = net.moved("Transpose", b, (shape[0], 40, shape[1]), perm=[0, 2, 1])
    scores = net.node("MatMul", [a, turned])
    net.shapes[scores] = (shape[0], shape[1], shape[1])
    net.outputs.append(net.node("MatMul", [net.quantized(scores, 2.0**2), b]))
    assert steps_of(require_equal(net)).count("matmul") == 2


def test_residuals_are_added_in_float32() -> None:
    """Of what other steps make, of codes and of what comes from outside."""
    net = Rows(206, (2, 6, 24), declared=("n", "t", 24))
    inner = net.norm(net.matmul(net.x, 24))
    again = net.plus(net.matmul(net.codes(inner), 24), inner)
    net.outputs += [again, net.plus("x", net.matmul(net.x, 24)), net.matmul(net.codes(again), 5)]
    require_close(net, {"plus", "read", "write", "encode"}, (2, 6, 24), (1, 1, 24), (3, 0, 24))


def mask_of(net: Rows, shape: tuple[int, ...], hidden: float) -> str:
    mask = np.where(net.rng.random(shape) < 0.3, hidden, 0).astype(np.float32)
    mask[..., 0] = 0  # one that is seen
    # Computed of the input, as exporters' masks are.
    nothing = net.node("Mul", [net.node("ReduceMax", ["x"], keepdims=0), net.constant(np.float32(0))])
    return net.node("Add", [net.constant(mask), nothing])


@pytest.mark.each_value
@pytest.mark.parametrize("mask", [(), (1, 1, 1, 9), (2, 1, 9, 9), (1, 3, 9, 9), (9, 9)], ids=str)
@pytest.mark.parametrize(("heads", "size"), [(3, 8), (1, 33), (2, 70)])
def test_attention(heads: int, size: int, mask: tuple[int, ...]) -> None:
    net = Rows(207, (2, 9, heads * size))
    added = mask_of(net, mask, -3e38) if mask and mask[:2] != (1, 3) else ""
    if mask[:2] == (1, 3):
        added = mask_of(net, (1, heads, 9, 9), -1e4)
    net.outputs.append(net.attention(net.x, heads, added))
    made = require_close(net, {"attention"}, step=0.023)
    assert "Softmax" not in operators(made)


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 200])
def test_attention_to_any_number_of_tokens(tokens: int) -> None:
    net = Rows(208, (2, tokens, 32), declared=("n", "t", 32))
    net.outputs.append(net.attention(net.x, 2, value_size=40))
    require_close(net, {"attention"}, (2, tokens, 32), (1, tokens, 32), (0, tokens, 32), step=0.023)


def test_a_block_of_a_transformer_is_one_region() -> None:
    net = Rows(209, (2, 9, 32), declared=("n", "t", 32))
    net.outputs.append(block(net, net.x, 4))
    model, made = net.model(), with_regions(net.model())
    assert operators(made) == ["Region"]
    assert {"attention", "layer_norm", "plus", "table"} <= set(steps_of(made))
    for shape in ((2, 9, 32), (1, 40, 32), (1, 1, 32), (0, 5, 32)):
        require_alike(model, made, samples(net, shape))


def require_alike(model: onnx.ModelProto, made: onnx.ModelProto, x: NDArray) -> None:
    """The same bits on every ISA. A code that is the one beside is carried on by the steps behind it and changes all of
    a row a little, so numbers are compared with the definition's as a whole: 40 dB at least, int8 itself has 35."""
    (first,), (expected,) = by_kernels(made, ISAS[0]).run(None, {"x": x}), by_definition(model, x)
    for isa in ISAS[1:]:
        np.testing.assert_array_equal(by_kernels(made, isa).run(None, {"x": x})[0], first)
    assert first.shape == expected.shape
    assert np.square(first - expected).sum() <= 1e-4 * np.square(expected).sum() + 1e-6


@pytest.mark.parametrize("act", ["", "Relu"])
@pytest.mark.parametrize("shape", [(2, 8, 9, 12), (1, 20, 1, 1), (3, 37, 50)], ids=str)
def test_normalizations_of_channels(shape: tuple[int, ...], act: str) -> None:
    """Of codes, whose sums and sums of squares are integers."""
    net = Rows(213, shape, declared=("n", *shape[1:]))
    a = net.conv(net.x, 24, (1,) * (len(shape) - 2))
    y = net.node("InstanceNormalization", [a, net.normal((24,)), net.normal((24,))], epsilon=1e-2)
    net.shapes[y] = net.shapes[a]
    net.outputs.append(net.activated(y, act, 0.031))
    require_close(net, {"instance_norm"}, shape, (0, *shape[1:]), step=0.031)


@pytest.mark.parametrize("epsilon", [-1.0, np.inf, np.nan])
def test_a_normalization_of_no_use_stays_outside(epsilon: float) -> None:
    net = Rows(214, (2, 8, 9, 12))
    a = net.conv(net.x, 24, (1, 1))
    y = net.node("InstanceNormalization", [a, net.normal((24,)), net.normal((24,))], epsilon=epsilon)
    net.shapes[y] = net.shapes[a]
    net.outputs.append(net.activated(y, "", 0.031))
    assert "instance_norm" not in steps_of(with_regions(net.model()))


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("size", [2, 16, 34, 66])
def test_turned_rows(size: int, alike: bool) -> None:
    """Of heads that a product makes, by angles of as many rows as there are, or with one sine for all."""
    net = Rows(214, (2, 9, 24))
    heads = net.constant(np.array([0, 0, 3, size], np.int64))
    made = net.matmul(net.x, 3 * size)
    x = net.node("Transpose", [net.node("Reshape", [made, heads])], perm=[0, 2, 1, 3])
    begin, half, end, axis, tokens = (net.constant(np.array([i], np.int64)) for i in (0, size // 2, size, 3, 9))
    rows = net.constant(np.array([0], np.int64))
    ends = (tokens, net.constant(np.array([1], np.int64)) if alike else tokens)
    cos, sin = (net.node("Slice", [net.normal((30, size)), begin, last, rows]) for last in ends)
    first, second = net.node("Slice", [x, begin, half, axis]), net.node("Slice", [x, half, end, axis])
    turned = net.node("Concat", [net.node("Neg", [second]), first], axis=3)
    y = net.node("Add", [net.node("Mul", [x, cos]), net.node("Mul", [turned, sin])])
    net.shapes[y] = (2, 3, 9, size)
    net.outputs += [net.matmul(net.codes(y, 0.5), 8), y]
    require_close(net, {"sums", "arrange", "rotary", "encode"}, (2, 9, 24))


@st.composite
def transformers(draw: st.DrawFn) -> Rows:
    """Any chain of blocks and single steps of rows."""
    integer = st.integers
    heads = draw(integer(1, 3))
    shape = (draw(integer(1, 3)), draw(integer(1, 70)), heads * draw(integer(1, 24)))
    net = Rows(draw(integer(0, 2**16)), shape)
    x = net.x
    for _ in range(draw(integer(1, 3))):
        kind = draw(st.sampled_from(["attention", "norm", "rms", "softmax", "plus", "product"]))
        if kind == "attention":
            x = net.attention(x, heads)
            net.shapes[x] = shape
        elif kind in ("norm", "rms"):
            made = net.norm(net.matmul(x, shape[-1]), "LayerNormalization" if kind == "norm" else "spelled")
            x = net.codes(made)
        elif kind == "softmax":
            x = net.codes(net.softmax(net.matmul(x, shape[-1])), 1 / 255)
        elif kind == "plus":
            x = net.codes(net.plus(net.matmul(x, shape[-1]), "x"), 0.3)
        else:
            x = net.codes(net.matmul(x, shape[-1]), 0.5)
        net.shapes[x] = shape
    net.outputs.append(net.matmul(x, draw(integer(1, 40))))
    return net


@settings(max_examples=15, deadline=None)
@given(transformers())
def test_any_chain_of_rows(net: Rows) -> None:
    model = net.model()
    made = with_regions(model)
    assert "Region" in operators(made)
    require_alike(model, made, samples(net, net.x_shape))


def test_threads_and_sessions_at_once_change_nothing() -> None:
    net = Rows(210, (2, 70, 64))
    net.outputs.append(block(net, net.x, 2))
    made = with_regions(net.model()).SerializeToString()
    x = samples(net, net.x_shape)
    sessions = [onnxq.session(made, options(threads)) for threads in (1, 2, 5)]
    (expected,) = sessions[0].run(None, {"x": x})
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(lambda i: sessions[i % 3].run(None, {"x": x})[0], range(24)):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_numbers_that_are_none_end_nothing(value: float) -> None:
    """Rows that hold none make the same as without them."""
    net = Rows(211, (2, 9, 32))
    net.outputs.append(net.norm(net.plus(net.matmul(net.x, 32), "x")))
    made = with_regions(net.model())
    x = samples(net, net.x_shape)
    clean = [by_kernels(made, isa).run(None, {"x": x})[0] for isa in ISAS]
    x[0, 3, 5] = value
    for isa, y0 in zip(ISAS, clean, strict=True):
        (y,) = by_kernels(made, isa).run(None, {"x": x})
        keep = np.ones((2, 9), bool)
        keep[0, 3] = False
        np.testing.assert_array_equal(y[keep], y0[keep])
