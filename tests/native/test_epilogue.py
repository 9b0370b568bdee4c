"""What DenseMatMul does to its sums: functions against numpy in float64; the node and its body against each other."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import kernels
import ml_dtypes
import nodes
import numpy as np
import pytest
from guard import guarded
from kernels import address, fast_bound, product, weight
from nodes import BFLOAT16, FLOAT, FLOAT16, activations
from numpy.typing import NDArray

import onnxq
from onnxq import own_ops
from onnxq.own_ops import Variant
from onnxq.runtime import native
from onnxq.runtime import session as runtime

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")


def normal(x: NDArray) -> NDArray[np.float64]:
    """The distribution of normal numbers, without the cancellation of 1 + erf on its far left."""
    return np.vectorize(lambda each: math.erfc(-each / math.sqrt(2)) / 2, otypes=[np.float64])(x)


def sigmoid(x: NDArray) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


FUNCTIONS: dict[str, Callable[[NDArray], NDArray]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * normal(x),
    "gelu_tanh": lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * sigmoid(x),
}
#: Largest slope of any of them: errors of a sum grow by as much.
SLOPE = 1.13
every_function = pytest.mark.parametrize("word", FUNCTIONS)


def finish(word: str, y: NDArray[np.float32], other: NDArray[np.float32] | None = None, *, times: bool = False) -> None:
    found = ctypes.CDLL(str(native.path()))
    size = ctypes.c_int64(y.size)
    assert found.onnxq_finish(word.encode(), address(other), ctypes.c_int32(times), address(y), size) == 0


@every_function
def test_functions(word: str) -> None:
    """Within 2^-20 of |x|: erf is within 1.5e-7 (Abramowitz and Stegun 7.1.26), all else within some units of 2^-24."""
    x = np.concatenate([np.linspace(-30, 30, 20011), np.logspace(-30, 30, 400), -np.logspace(-30, 30, 400)])
    x = x.astype(np.float32)
    y = guarded(x.copy())
    finish(word, y)
    wide = x.astype(np.float64)
    assert np.all(np.abs(y - FUNCTIONS[word](wide)) <= 2.0**-20 * np.abs(wide) + 1e-34)


@every_function
def test_what_is_no_number(word: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf] * 7, np.float32)
    finish(word, x)
    assert np.all(np.isnan(x[::3]))
    assert np.all(x[1::3] == np.inf)
    assert np.all(x[2::3] == -np.inf) if word == "none" else np.all(np.abs(x[2::3]) < 1e-30)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 1000])
def test_sums_and_products(size: int) -> None:
    x, other = activations((size,)), activations((size,), seed=1)
    for word, function in FUNCTIONS.items():
        for times in (False, True):
            y = guarded(x.copy())
            finish(word, y, guarded(other), times=times)
            wanted = function(x.astype(np.float64))
            np.testing.assert_allclose(y, wanted * other if times else wanted + other, rtol=1e-5, atol=1e-5)


def test_an_unknown_word() -> None:
    x = np.zeros(1, np.float32)
    found = ctypes.CDLL(str(native.path()))
    assert found.onnxq_finish(b"swish", None, ctypes.c_int32(0), address(x), ctypes.c_int64(1)) == 1


@pytest.fixture(params=[*kernels.isas(), ""], ids=[*kernels.isas(), "chosen"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ONNXQ_FORCE_ISA", request.param)
    return str(request.param)


def runs(model_bytes: bytes, feed: dict[str, NDArray], *, library: bool = True) -> NDArray:
    made = (
        onnxq.session(model_bytes) if library else ort.InferenceSession(model_bytes, providers=["CPUExecutionProvider"])
    )
    values = {name: runtime._to_value(x) for name, x in feed.items()}
    return np.asarray(runtime._from_value(made.run_with_ort_values(None, values)[0]))


@pytest.mark.pairwise
@pytest.mark.parametrize("format", kernels.DENSE)
@pytest.mark.parametrize("combine", ["", "plus", "times"])
@every_function
def test_nodes(forced: str, word: str, combine: str, format: str) -> None:
    """Every kernel, few rows and many, with and without a bias."""
    w = weight(format, 50, 100, 32)
    attributes = ({} if word == "none" else {"activation": word}) | ({"combine": combine} if combine else {})
    for rows, bias in ((1, None), (5, activations((50,), seed=1)), (40, activations((50,), seed=1)), (130, None)):
        x, other = activations((rows, 100)), activations((rows, 50), seed=2)
        feed = {"x": x} | ({"other": other} if combine else {})
        model = nodes.dense(w, bias=bias, other=other.shape if combine else None, **attributes)
        y = runs(model.SerializeToString(), feed)
        wanted, bound = FUNCTIONS[word](product(x, w, bias)), SLOPE * fast_bound(x, w, bias) + 1e-6
        if combine:
            wanted = wanted + other if combine == "plus" else wanted * other
            bound = bound + 1e-6 * np.abs(wanted) if combine == "plus" else bound * np.abs(other) + 1e-6
        assert np.all(np.abs(y - wanted) <= bound)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(5, 33), (1, 33), (33,), (5, 1), (), (2, 1, 33), (4, 5, 33), (3, 1, 1)], ids=str)
def test_others_are_broadcast(shape: tuple[int, ...], dtype: type) -> None:
    """As Add and Mul do it, in each of the three types."""
    w, x = weight("bfloat16", 33, 70, 32), activations((5, 70)).astype(dtype)
    other = np.asarray(activations((1, *shape), seed=1)[0]).astype(dtype)
    type = {np.float32: FLOAT, np.float16: FLOAT16, ml_dtypes.bfloat16: BFLOAT16}[dtype]
    plain = runs(nodes.dense(w, type=type).SerializeToString(), {"x": x}).astype(np.float64)
    for combine in ("plus", "times"):
        y = runs(nodes.dense(w, type=type, other=shape, combine=combine).SerializeToString(), {"x": x, "other": other})
        wide = other.astype(np.float64)
        wanted = plain + wide if combine == "plus" else plain * wide
        assert (y.dtype, y.shape) == (dtype, wanted.shape)
        # The product was rounded to the type by its own node, and is not here.
        step = {np.float32: 2.0**-22, np.float16: 2.0**-9, ml_dtypes.bfloat16: 2.0**-6}[dtype]
        np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=step, atol=step * float(np.abs(plain).max()))


@pytest.mark.parametrize("shape", [(33,), (1, 33), (260, 1)], ids=str)
def test_others_are_broadcast_behind_an_activation(shape: tuple[int, ...]) -> None:
    """A row for all rows is used where sums are made, by several tasks."""
    w, x, other = weight("bfloat16", 33, 70, 32), activations((260, 70)), activations((1, *shape), seed=1)[0]
    whole = np.broadcast_to(other, (260, 33)).copy()
    made = [nodes.dense(w, other=each.shape, combine="times", activation="gelu") for each in (other, whole)]
    ys = [runs(m.SerializeToString(), {"x": x, "other": each}) for m, each in zip(made, (other, whole), strict=True)]
    np.testing.assert_allclose(*ys, rtol=2.0**-20, atol=1e-7)  # rows are vectors and what is left of them


@pytest.mark.parametrize("format", kernels.DENSE)
@pytest.mark.parametrize("combine", ["", "plus", "times"])
@every_function
def test_bodies_agree(word: str, combine: str, format: str) -> None:
    """Without the library the function body runs, in standard operators."""
    w, bias = weight(format, 40, 64, 32), activations((40,), seed=1)
    for with_bias in (False, True):
        variant = Variant(own_ops.DENSE, format, bias=with_bias, moved="" if word == "none" else word, other=combine)
        attributes = ({} if word == "none" else {"activation": word}) | ({"combine": combine} if combine else {})
        x, other = activations((7, 64)), activations((7, 40), seed=2)
        model = nodes.dense(
            w,
            bias=bias if with_bias else None,
            other=other.shape if combine else None,
            functions=(own_ops.body(variant, 21),),
            activations="fast",
            **attributes,
        )
        feed = {"x": x} | ({"other": other} if combine else {})
        y, body = (runs(model.SerializeToString(), feed, library=library) for library in (True, False))
        assert np.linalg.norm(y - body) <= 0.01 * np.linalg.norm(body)


def test_refusals() -> None:
    w = weight("bfloat16", 20, 64, 32)
    for attributes, words in (
        ({"activation": "swish"}, "activation is 'swish', but must be one of none, relu, gelu, gelu_tanh, silu"),
        ({"combine": "minus"}, "combine is 'minus', but must be plus or times"),
    ):
        with pytest.raises(Exception, match=f"onnxq node 'the/node': attribute {words}"):
            onnxq.session(nodes.dense(w, **attributes).SerializeToString())
    model = nodes.dense(w, other=(2, 3)).SerializeToString()
    with pytest.raises(Exception, match=r"other has shape \[2, 3\], which does not go with \[2, 20\]"):
        runs(model, {"x": activations((2, 64)), "other": activations((2, 3))})
