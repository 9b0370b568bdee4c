"""The compiled library does what numpy does, bit for bit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from looped import looped
from numpy.typing import NDArray

from onnxq import formats
from onnxq.algorithms import DATA_FREE
from onnxq.formats import FloatArray, Granularity, QuantizedTensor
from onnxq.runtime import native

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    library = native.library()

pytestmark = pytest.mark.skipif(library is None, reason="the compiled library was not built")

NATIVE = [name for name in formats.names() if name in ("uint4", "uint8") or formats.get(name).levels is not None]
every_format = pytest.mark.parametrize("name", NATIVE)
every_algorithm = pytest.mark.parametrize("algorithm", ["rtn", "mse"])
SHAPES = [
    *(((n, 16 * blocks), 1, 16) for n in (1, 2, 17) for blocks in (1, 3)),
    *(((3, k), 1, 16) for k in (1, 2, 15, 17, 31, 33)),
    *(((k, 5), 0, 32) for k in (1, 31, 32, 33, 64)),
    *(((2, k, 3), 1, 8) for k in (1, 8, 19)),
    ((70,), 0, 64),
    ((4, 130), 1, 128),
    ((5, 7), 1, 1),
    ((9, 6), 0, 3),
]
shapes = looped("shape, axis, block", SHAPES)
SPECIAL = {
    "zeros": np.zeros((4, 32), np.float32),
    "negative zeros": np.full((4, 32), -0.0, np.float32),
    "constant": np.full((4, 32), 0.37, np.float32),
    "negative": -np.linspace(1, 2, 128, dtype=np.float32).reshape(4, 32),
    "subnormal": np.linspace(-1e-40, 1e-40, 128, dtype=np.float32).reshape(4, 32),
    "around tiny": np.linspace(-1, 3, 128, dtype=np.float32).reshape(4, 32) * np.finfo(np.float32).tiny * 16,
    "huge": np.linspace(-3.4e38, 3.4e38, 128, dtype=np.float32).reshape(4, 32),
    "outlier": np.r_[np.full(127, 1e-3), 1e3].astype(np.float32).reshape(4, 32),
    "ties": (np.arange(128, dtype=np.float32).reshape(4, 32) % 31) / 2,
}


def both(
    w: FloatArray, name: str, algorithm: str, granularity: Granularity, monkeypatch: pytest.MonkeyPatch
) -> tuple[QuantizedTensor, QuantizedTensor]:
    """What the library and what numpy make of `w`."""
    quantize = DATA_FREE[algorithm]
    fast = quantize(w, formats.get(name), granularity)
    with monkeypatch.context() as without:
        without.setattr(native, "library", lambda: None)
        slow = quantize(w, formats.get(name), granularity)
    return fast, slow


def bits(array: NDArray | None) -> NDArray | None:
    return array if array is None or array.dtype != np.float32 else array.view(np.uint32)


def assert_same(fast: QuantizedTensor, slow: QuantizedTensor) -> None:
    np.testing.assert_array_equal(fast.codes, slow.codes)
    np.testing.assert_array_equal(bits(fast.scales), bits(slow.scales))
    np.testing.assert_array_equal(fast.zero_points, slow.zero_points)
    assert fast.codes.dtype == slow.codes.dtype


@shapes
@every_format
@every_algorithm
def test_shapes(
    algorithm: str, name: str, shape: tuple[int, ...], axis: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    assert_same(*both(w, name, algorithm, Granularity(axis, block), monkeypatch))


@looped("axis", [0, 1])
@looped("what", SPECIAL)
@every_format
@every_algorithm
def test_special_numbers(algorithm: str, name: str, what: str, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        assert_same(*both(SPECIAL[what], name, algorithm, Granularity(axis, 16), monkeypatch))


@every_format
@every_algorithm
def test_many_numbers_of_many_sizes(algorithm: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((256, 160)) * 10.0 ** rng.uniform(-30, 30, (256, 1))).astype(np.float32)
    assert_same(*both(w, name, algorithm, Granularity(1, 32), monkeypatch))


@every_format
def test_weights_that_are_not_in_order_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(4).standard_normal((40, 48)).astype(np.float32)
    for view in (w.T, w[::2], w[:, ::-3]):
        assert_same(*both(view, name, "mse", Granularity(1, 16), monkeypatch))


@every_format
@every_algorithm
def test_any_number_of_threads(algorithm: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(5).standard_normal((300, 100)).astype(np.float32)
    many, _ = both(w, name, algorithm, Granularity(1, 32), monkeypatch)
    for count in (1, 7, 1000):
        monkeypatch.setattr(native, "threads", lambda count=count: count)
        few, _ = both(w, name, algorithm, Granularity(1, 32), monkeypatch)
        assert_same(few, many)
