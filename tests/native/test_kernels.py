"""Every kernel this machine has, every format, every shape near a boundary, against numpy in float64.

Kernels are called through the C ABI on arrays that end at an unreadable page.
"""

from __future__ import annotations

import copy
import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import kernels
import numpy as np
import pytest
from guard import guarded
from kernels import ALL, FORMATS, SCALES, exact_bound, fast_bound, product, weight
from numpy.typing import NDArray

from onnxq.runtime import native

pytestmark = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

every_isa = pytest.mark.parametrize("isa", kernels.isas())
every_format = pytest.mark.parametrize("format", ALL)
BLOCKS = (32, 16, 64, 128, 48, 256)

# (M, N, K, block): every M and N from 1 to 17, 1 to 9 blocks, and K that fill no block, not even a line.
SHAPES = [
    *((m, m * 7 % 17 + 1, 32 * (m % 9 + 1), 32) for m in range(1, 18)),
    *((n * 5 % 17 + 1, n, BLOCKS[n % 6] * (n % 3 + 1), BLOCKS[n % 6]) for n in range(1, 18)),
    *((2, 18, 32 * blocks, 32) for blocks in range(1, 10)),
    *((3, 5, k, 32) for k in (1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 33, 63, 65, 100)),
    *((1, 17, k, 128) for k in (1, 127, 129, 200)),
    *((33, 33, 70, 16), (64, 49, 160, 32), (1, 200, 512, 32), (130, 31, 96, 96), (101, 70, 600, 32)),
]
every_shape = pytest.mark.parametrize(
    ("M", "N", "K", "block"), [pytest.param(*s, id="M{}-N{}-K{}-block{}".format(*s)) for s in SHAPES]
)


def activations(M: int, K: int, seed: int = 0) -> NDArray[np.float32]:
    """Normally distributed, some of them 30 times as large."""
    rng = np.random.default_rng([seed, M, K])
    x = rng.standard_normal((M, K))
    x[:, rng.integers(0, K, 1 + K // 300)] *= 30
    return x.astype(np.float32)


@pytest.mark.pairwise
@every_shape
@every_format
@every_isa
def test_shapes(isa: str, format: str, M: int, N: int, K: int, block: int) -> None:
    x = activations(M, K)
    bias = np.linspace(-1, 1, N, dtype=np.float32)
    scale = list(SCALES)[(M + N + K) % 3]
    plain = weight(format, N, K, block, scale=scale)
    rich = weight(format, N, K, block, scale=scale, zeros=format in ("int4", "int8"))
    for w, b in ((plain, None), (rich, bias)):
        wanted = product(x, w, b)
        y = kernels.matmul(isa, x, w, bias=b, exact=True, threads=1 + M % 3, place=guarded)
        assert np.all(np.abs(y - wanted) <= exact_bound(x, w, b))
        y = kernels.matmul(isa, x, w, bias=b, threads=1 + M % 3, place=guarded)
        assert np.all(np.abs(y - wanted) <= fast_bound(x, w, b))


@pytest.mark.parametrize(("M", "K"), [(290, 2100), (600, 1100), (530, 700)])
@pytest.mark.parametrize("format", ["bfloat16", "int4", "int8"])
@pytest.mark.parametrize("isa", [isa for isa in kernels.isas() if isa.startswith("amx")])
def test_more_rows_than_a_cache_holds(isa: str, format: str, M: int, K: int) -> None:
    """x meets a weight in parts, of rows and of k."""
    x, w = activations(M, K), weight(format, 70, K, 32)
    for threads in (1, 2):
        y = kernels.matmul(isa, x, w, threads=threads, place=guarded)
        assert np.all(np.abs(y - product(x, w)) <= fast_bound(x, w))


@pytest.mark.parametrize(("format", "zeros"), [v for v in kernels.VARIANTS if v[0] not in ("nf4", "fp4")])
@every_isa
def test_counting(isa: str, format: str, zeros: bool) -> None:
    """Small whole numbers have exact products and sums: nothing may be lost."""
    M, N, K = 3, 37, 160
    w = copy.deepcopy(weight(format, N, K, 32, scale="e8m0", zeros=zeros, seed=1))
    w.scales[...] = 127 + np.arange(w.scales.size).reshape(w.scales.shape) % 3
    w.codes[:, :K] = (np.arange(N * K).reshape(N, K) * 7) % (256 if format == "int8" else 16)
    x = (np.arange(M * K, dtype=np.float32).reshape(M, K) % 9) - 4
    np.testing.assert_array_equal(kernels.matmul(isa, x, w, exact=True), product(x, w))


@pytest.mark.pairwise
@pytest.mark.parametrize("outliers", [False, True], ids=["normal", "outliers"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@every_format
@every_isa
def test_fast_is_within_one_percent(isa: str, format: str, block: int, scale: str, outliers: bool) -> None:
    """The promise of `activations = fast`, whether rows come one by one or together."""
    K, N = 1024, 48
    w = weight(format, N, K, block, scale=scale)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, K)).astype(np.float32)
    if outliers:
        x[:, rng.choice(K, 12, replace=False)] *= 30
    wanted = product(x, w)
    for rows, first in ((1, 4), (7, 14), (40, 40)):
        y = np.concatenate([kernels.matmul(isa, x[i : i + rows], w) for i in range(0, first, rows)])
        assert np.linalg.norm(y - wanted[:first]) / np.linalg.norm(wanted[:first]) <= 0.01


@every_format
@every_isa
def test_threads_do_not_change_the_result(isa: str, format: str) -> None:
    for M in (1, 5, 33, 150):
        x, w = activations(M, 300), weight(format, 100, 300, 32)
        one = kernels.matmul(isa, x, w)
        for threads in (2, 3, 16):
            np.testing.assert_array_equal(kernels.matmul(isa, x, w, threads=threads), one)


@every_format
@every_isa
def test_rows_do_not_see_each_other(isa: str, format: str) -> None:
    """An infinity, a NaN or a huge number in one row of x leaves the others as they are."""
    x, w = activations(6, 96), weight(format, 20, 96, 32)
    wanted = kernels.matmul(isa, x, w)
    for bad in (np.inf, np.nan, 3e38):
        spoilt = x.copy()
        spoilt[2, 50] = bad
        y = kernels.matmul(isa, spoilt, w)
        np.testing.assert_array_equal(np.delete(y, 2, axis=0), np.delete(wanted, 2, axis=0))


@every_isa
@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
def test_zeros_and_tiny_numbers(isa: str, exact: bool) -> None:
    w = weight("int4", 20, 96, 32)
    assert not np.any(kernels.matmul(isa, np.zeros((3, 96), np.float32), w, exact=exact))
    x = np.full((2, 96), 1e-42, np.float32)  # subnormal: its reciprocal is no float32
    assert np.all(np.abs(kernels.matmul(isa, x, w, exact=exact)) < 1e-38)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("scale", SCALES)
def test_gather(format: str, scale: str) -> None:
    for K, block in ((1, 16), (31, 16), (64, 32), (200, 128)):
        w = weight(format, 35, K, block, scale=scale, zeros=format in ("int4", "int8"))
        rows = np.array([0, 34, 15, 16, 17, 3, 3], np.int64)
        # One rounding of the product; value and scale are float32 already.
        np.testing.assert_allclose(kernels.gather(w, rows, guarded), w.decoded[rows], rtol=2.0**-23)


def test_the_guard_kills() -> None:
    """Else nothing above would show that kernels stay inside their arrays."""
    code = "import ctypes, numpy, guard; a = guard.guarded(numpy.ones(3)); {}ctypes.string_at(a.ctypes.data + 24, 1)"
    here = Path(__file__).parent
    assert subprocess.run([sys.executable, "-c", code.format("")], cwd=here).returncode == -signal.SIGSEGV
    assert subprocess.run([sys.executable, "-c", code.format("0 and ")], cwd=here).returncode == 0


def test_the_struct_is_as_large_as_the_library_says() -> None:
    found = ctypes.CDLL(str(native.path()))
    found.onnxq_problem_size.restype = ctypes.c_int64
    assert found.onnxq_problem_size() == ctypes.sizeof(kernels.Problem)


def test_unknown_kernels_are_not_replaced() -> None:
    made, arrays = kernels.problem(weight("int4", 4, 32, 32), np.ascontiguousarray)
    made.M = 1
    found = ctypes.CDLL(str(native.path()))
    assert found.onnxq_matmul(b"sse9", ctypes.byref(made), ctypes.c_int32(1)) == 1
    assert arrays


def test_scalar_is_always_there() -> None:
    assert kernels.isas()[-1] == "scalar"
