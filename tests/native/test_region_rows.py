"""Steps that compute float32 inside: normalizations of rows, Softmax, products of two tensors, sums, attention.

Every ISA gives the same bits. The body computes the same in another order of sums, with another exponential and with
divisions in the place of reciprocals, so what lies next to a tie may become the code beside: never one further away,
and few of them. Sums of codes are exact, and those that nothing divides are equal bit for bit.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from islands import Net, operators, with_regions
from numpy.typing import NDArray
from region_runs import (
    HAS_LIBRARY,
    ISAS,
    InvalidArgument,
    by_definition,
    by_kernels,
    options,
    require_equal,
    said,
    saying,
)
from test_region_hostile import spoiled

import onnxq
from onnxq.errors import BadModel

pytestmark = HAS_LIBRARY
#: Of codes, how many may be those beside: sums in another order differ by 2^-22 or so of numbers of 100 codes.
BESIDE = 0.01


@dataclass
class Rows(Net):
    """A net of stacks of matrices, whose scales are no powers of two where a step rounds float32."""

    def normal(self, shape: tuple[int, ...]) -> str:
        return self.constant(self.rng.normal(size=shape).astype(np.float32))

    def made(self, y: str, like: str) -> str:
        self.shapes[y] = self.shapes[like]
        return y

    def norm(self, x: str, kind: str = "LayerNormalization") -> str:
        size = self.shapes[x][-1]
        vectors = [self.normal((size,)), *([self.normal((size,))] if kind == "LayerNormalization" else [])]
        if kind != "spelled":
            return self.made(self.node(kind, [x, *vectors], axis=-1, epsilon=1e-3), x)
        axes = self.constant(np.array([-1], np.int64))
        centred = self.node("Sub", [x, self.node("ReduceMean", [x, axes], keepdims=1)])
        square = self.node("Pow", [centred, self.constant(np.float32(2))])
        mean = self.node("Add", [self.node("ReduceMean", [square, axes], keepdims=1), self.constant(np.float32(1e-3))])
        made = self.node("Div", [centred, self.node("Sqrt", [mean])])
        return self.made(self.node("Add", [self.node("Mul", [vectors[0], made]), self.normal((size,))]), x)

    def softmax(self, x: str) -> str:
        return self.made(self.node("Softmax", [x], axis=-1), x)

    def plus(self, a: str, b: str) -> str:
        return self.made(self.node("Add", [a, b]), a)

    def codes(self, value: str, scale: float = 0.037) -> str:
        return self.quantized(value, scale, 131)

    def heads(self, x: str, heads: int, axes: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        width = self.shapes.get(x, (heads,))[-1]
        shape = self.constant(np.array([0, 0, heads, width // heads], np.int64))
        return self.node("Transpose", [self.node("Reshape", [x, shape])], perm=list(axes))

    def attention(self, x: str, heads: int, mask: str = "", value_size: int = 0) -> str:
        """Projections of x, and what `weigh_in_codes` writes of their attention."""
        size = self.shapes[x][-1] // heads
        q, k = (self.codes(self.matmul(x, heads * size)) for _ in range(2))
        v = self.codes(self.matmul(x, heads * (value_size or size)), 0.051)
        scores = self.node("MatMul", [self.heads(q, heads), self.heads(k, heads, (0, 2, 3, 1))])
        scores = self.node("Mul", [scores, self.constant(np.float32(0.02))])
        if mask:
            scores = self.node("Add", [scores, mask])
        weights = self.node("Softmax", [scores], axis=-1)
        largest = self.node("ReduceMax", [weights, self.constant(np.array([-1], np.int64))], keepdims=1)
        given = [self.constant(np.float32(1) / np.float32(255)), self.constant(np.uint8(0))]
        codes = self.node("QuantizeLinear", [self.node("Div", [weights, largest]), *given])
        product = self.node("MatMul", [self.node("DequantizeLinear", [codes, *given]), self.heads(v, heads)])
        turned = self.node("Transpose", [self.node("Mul", [product, largest])], perm=[0, 2, 1, 3])
        y = self.node("Reshape", [turned, self.constant(np.array([0, 0, heads * (value_size or size)], np.int64))])
        self.shapes[y] = (*self.shapes[x][:-1], heads * (value_size or size))
        return self.codes(y, 0.023)


def steps_of(model: onnx.ModelProto) -> list[str]:
    return [line.split()[0] for node in model.graph.node if node.op_type == "Region" for line in said(node)]


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


def block(net: Rows, x: str, heads: int) -> str:
    size = net.shapes[x][-1]
    a = net.norm(net.plus(net.matmul(net.attention(x, heads), size), x))
    hidden = net.codes(net.matmul(net.codes(a), 2 * size))
    b = net.matmul(net.codes(net.made(net.node("Gelu", [hidden]), hidden), 0.05), size)
    return net.norm(net.plus(a, b))


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


@pytest.fixture(scope="module")
def honest() -> onnx.ModelProto:
    net = Rows(212, (2, 6, 40))
    net.outputs.append(net.matmul(net.x, 4))
    made = with_regions(net.model())
    del made.functions[:]
    (node,) = made.graph.node
    for name, array in {
        "epsilon": np.float32(1e-3),
        "negative": np.float32(-1),
        "infinite": np.float32(np.inf),
        "three": np.ones(3, np.float32),
    }.items():
        node.input.append(name)
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return made


CODES = "scale=1 zero=2"
NORM, ATTENTION, INSTANCE = "layer_norm x=1 epsilon=", "attention x=1,1,1 factor=", "instance_norm x={} epsilon="
HEADS = "width=8,8 joined=1,1,1,1"
OUT, WRITTEN = "\ndequantize x=2 out=0", "\nwrite x=2 out=0"
REFUSED = {
    f"softmax x=0 {CODES}{OUT}": "no matrix, and no stack of them",  # of an image
    "write x=1 out=0": "makes codes and no float32",
    f"encode x=1 {CODES}{OUT}": "makes codes and no float32",
    f"plus x=1,1{WRITTEN}": "makes codes and no float32",
    f"decode x=1\ntable x=2 table=3 {CODES}\ndequantize x=3 out=0": "makes float32 and no codes",
    f"decode x=1{OUT}": "makes float32 and no codes",
    "decode x=1\nmatmul x=2,2\nwrite x=3 out=0": "makes float32 and no codes",
    f"softmax x=1 scale=1{WRITTEN}": "both 'scale' and 'zero'",
    f"matmul x=1,1{WRITTEN}": "rows of 40 by a matrix for 6",
    f"layer_norm x=1{WRITTEN}": "must say 'epsilon'",
    f"{NORM}NEGATIVE{WRITTEN}": "epsilon that is negative",
    f"{NORM}INFINITE{WRITTEN}": "not finite",
    f"{NORM}EPSILON weight=THREE{WRITTEN}": "3 numbers for 40 channels",
    f"{NORM}EPSILON bias=THREE{WRITTEN}": "3 numbers for 40 channels",
    f"{INSTANCE.format(1)}EPSILON weight=THREE bias=THREE {CODES}{OUT}": "channels of a matrix",
    f"{INSTANCE.format(0)}EPSILON weight=THREE bias=THREE {CODES}{OUT}": "numbers for",
    "decode x=1\nrotary x=2,2,2\nwrite x=3 out=0": "shape is not theirs",
    f"{ATTENTION}EPSILON heads=7 {HEADS} {CODES}{OUT}": "7 heads of 8",
    f"{ATTENTION}EPSILON heads=5 {HEADS} first=8,0,0 {CODES}{OUT}": "5 heads of 8",
    f"{ATTENTION}EPSILON heads=1048576 width=1048576,1048576 joined=1,1,1,1 {CODES}{OUT}": "heads of",
    f"{ATTENTION}EPSILON transposed=1 {CODES}{OUT}": "do not go together",
    f"{ATTENTION}INFINITE {CODES}{OUT}": "not finite",
    f"attention x=1,1,1,1 factor=EPSILON {CODES}{OUT}": "makes codes and no float32",
    f"attention x=1,1 factor=EPSILON {CODES}{OUT}": "with 2 numbers",
    f"read in=1 stack=1{WRITTEN}": "is read, and must be float32|rank",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_steps_that_cannot_be_are_refused(honest: onnx.ModelProto, text: str) -> None:
    (node,) = honest.graph.node
    steps = f"region 1\nquantize in=0 {CODES}\nquantize in=0 {CODES} stack=1\n{text}"
    for name in ("epsilon", "negative", "infinite", "three"):
        steps = steps.replace(name.upper(), str(list(node.input).index(name)))
    with pytest.raises((InvalidArgument, BadModel), match=REFUSED[text]):
        _ran(saying(honest, steps))


def _ran(model: onnx.ModelProto) -> None:
    session = onnxq.session(model.SerializeToString(), options(optimized=False))
    session.run(None, {"x": np.zeros((2, 6, 40), np.float32)})


@pytest.fixture(scope="module")
def transformer() -> onnx.ModelProto:
    net = Rows(215, (2, 9, 32))
    net.outputs.append(block(net, net.x, 4))
    return with_regions(net.model())


ROW_WORDS = (
    "heads=4",
    "width=8,8",
    "width=1,16777216",
    "joined=1,0,1,0",
    "first=8,0,24",
    "centred=0",
    "epsilon=3",
    "factor=2",
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_spoiled_steps_end_no_process(transformer: onnx.ModelProto, data: st.DataObject) -> None:
    """They run, or are refused in a sentence."""
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    changed = spoiled(transformer, draw)
    for attribute in changed.graph.node[0].attribute:
        lines = attribute.s.decode().split("\n")
        at = draw(1, len(lines) - 1)
        lines[at] += " " + ROW_WORDS[draw(0, len(ROW_WORDS) - 1)]
        attribute.s = "\n".join(lines if draw(0, 1) else lines[:at] + lines[at:][::-1]).encode()
    with contextlib.suppress(BadModel, InvalidArgument):
        onnxq.session(changed.SerializeToString(), options(threads=1)).run(
            None, {"x": np.zeros((2, 9, 32), np.float32)}
        )
