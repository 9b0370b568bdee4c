"""Any call of a public function of formats, layouts, analysis, fake_quant and algorithms: run by test_arguments.py.

In a process of its own, because what is looked for ends the process. A call either answers in the shapes that are
promised, or says in one sentence what is wrong with it.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq import algorithms, analysis, fake_quant, formats, layouts
from onnxq.errors import Bug, OnnxqError
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.model.weights import Role

WORDS = [*formats.names(), "uniform3"]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int64, np.bool_, ">f4"]
ODD = [None, "text", [[1.0, 2.0], [3.0]], [["a"]], 1 + 2j, object(), [1, 2, 3], 3.5, []]
axes = st.none() | st.integers(-4, 4)
blocks = st.none() | st.sampled_from([0, -1, 1, 2, 3, 16, 32, 64, 1 << 40])
sizes = st.sampled_from([0, 1, 2, 3, 16, 31, 32, 33, 64, 70])
shapes = st.lists(sizes, min_size=0, max_size=3).filter(lambda shape: int(np.prod(shape)) <= 70 * 70)


@st.composite
def arrays(draw: st.DrawFn, *, odd: bool = True) -> Any:
    """Arrays of any shape, type, order and content, and what is none."""
    if odd and draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(ODD))
    shape, seed = draw(shapes), draw(st.integers(0, 9))
    x = np.random.default_rng(seed).standard_normal(shape) * draw(st.sampled_from([0.0, 1e-42, 1.0, 1e30, 1e300]))
    if x.size and draw(st.integers(0, 3)) == 0:
        x.reshape(-1)[draw(st.integers(0, x.size - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    x = x.astype(draw(st.sampled_from(DTYPES)))
    if x.ndim and draw(st.booleans()):
        x = draw(st.sampled_from([x.T, x[::-1], np.asfortranarray(x), x[:0]]))
    return x.tolist() if x.dtype != ml_dtypes.bfloat16 and draw(st.integers(0, 5)) == 0 else x


def answer(call: Callable[[], Any]) -> Any:
    """What it returns, or None where it refused in a sentence."""
    try:
        return call()
    except (OnnxqError, ValueError) as error:
        if isinstance(error, Bug) or not str(error).strip():
            raise AssertionError(repr(error)) from error
        return None


def granularity(axis: int | None, block: int | None) -> Granularity | None:
    return answer(lambda: Granularity(axis, block))


def right(q: QuantizedTensor, shape: tuple[int, ...]) -> None:
    assert q.codes.shape == shape
    assert q.scales is None or q.scales.shape == q.granularity.scale_shape(shape)
    assert q.granularity.axis is None or q.granularity.axis >= 0
    floats = answer(q.dequantize)  # of minima that the caller left out, it says so
    assert floats is not None or q.zero_points is None
    assert floats is None or floats.shape == shape


@given(arrays(), st.sampled_from(WORDS), axes, blocks, st.sampled_from([*algorithms.DATA_FREE, "best"]))
def weights(w: Any, word: str, axis: int | None, block: int | None, algorithm: str) -> None:
    how = granularity(axis, block)
    for call in (
        lambda: formats.quantize(w, word),
        lambda: formats.quantize(w, word, how),
        lambda: algorithms.quantize(w, word, how, algorithm),
    ):
        q = answer(call)
        if q is not None:
            right(q, np.shape(w))
    stats = answer(lambda: analysis.tensor_error(w, word, how, algorithm))
    assert stats is None or (stats.count == np.size(w) and np.isfinite([stats.mse, stats.sqnr, stats.cosine]).all())
    for point in answer(lambda: analysis.scale_sweep(w, word, how, factors=(0.5, 1.0, 2.0))) or ():
        assert np.isfinite(point.stats.mse)
    impact = answer(lambda: analysis.outlier_impact(w, word, how, percent=10))
    assert impact is None or np.isfinite(impact.cost)


@given(arrays(), arrays(), st.one_of(st.integers(-1, 20), st.lists(st.integers(1, 17), max_size=3)), axes)
def errors(a: Any, b: Any, bits: Any, axis: int | None) -> None:
    stats = answer(lambda: analysis.error_stats(a, b))
    if stats is not None and not np.isfinite([stats.mse, stats.cosine, stats.max_abs]).all():
        assert max(np.max(np.abs(x), initial=0) for x in (a, b)) > 1e100
    found = answer(lambda: analysis.compare_bit_widths(a, bits, symmetric=bool(axis), axis=axis)) or {}
    assert all(np.isfinite(each.mse) and each.bits_per_weight >= width for width, each in found.items() if np.size(a))
    answer(lambda: analysis.compare_granularities(a, "int8", Role(0, axis or 0, 1)))


@given(arrays(), arrays(), st.integers(0, 18), st.booleans(), axes, blocks)
def grids(x: Any, other: Any, bits: int, symmetric: bool, axis: int | None, block: int | None) -> None:
    grid = answer(lambda: fake_quant.fit(x, bits, symmetric=symmetric, axis=axis, block=block))
    answer(lambda: fake_quant.initial_scale(x, bits, axis))
    observer = answer(lambda: fake_quant.Observer("minmax", bits, symmetric=symmetric, axis=axis))
    if observer is not None:
        answer(lambda: observer.update(x))
        answer(lambda: observer.update(other))
        answer(observer.grid)
    if grid is None:
        return
    for y in (x, other):
        shape = np.shape(y) if not isinstance(y, list) or y != ODD[2] else ()
        for call in (fake_quant.forward, fake_quant.inside, fake_quant.codes):
            made = answer(lambda call=call, y=y: call(y, grid))
            assert made is None or made.shape == shape
        got = answer(lambda y=y: fake_quant.backward_lsq(y, x, grid))
        assert got is None or (got[0].shape == np.shape(x) and got[1].shape == grid.scale.shape)


def packed(q: QuantizedTensor) -> dict[str, NDArray]:
    """All that layouts make of a weight, by the function's name."""
    names = "matmul_nbits matmul_nbits_zero_points gather_block matmul_bnb4 halves gguf onnxq_tiles onnxq_scales"
    more = "onnxq_zero_points bit_fields linear4bit compact scales_by_row zero_points_by_row"
    found = {}
    for name in f"{names} {more}".split():
        made = answer(lambda name=name: getattr(layouts, name)(q))
        if made is not None:
            found[name] = made
    return found


def other_sizes(array: NDArray, seed: int) -> NDArray:
    """The same with some element or axis more or less, or of another type."""
    kinds = [
        lambda a: a,
        lambda a: a[:-1],
        lambda a: np.concatenate([a, a[:1]]),
        lambda a: a.reshape(-1)[: a.size // 2],
        lambda a: a.astype(np.float32),
        lambda a: a[..., None],
        lambda a: np.zeros(0, a.dtype),
        lambda a: a.T,
        lambda a: np.ascontiguousarray(a)[::-1],
    ]
    array = np.atleast_1d(array)
    return kinds[seed % len(kinds)](array)  # type: ignore[no-untyped-call]


@given(
    st.sampled_from([(2, 64), (3, 32), (1, 96), (16, 32), (3, 33), (0, 32), (5,), (2, 3, 32)]),
    st.sampled_from(WORDS),
    st.sampled_from([None, 8, 16, 32, 64]),
    st.lists(st.integers(0, 8), min_size=4, max_size=4),
    st.sampled_from([0, 1, 31, 32, 33, 64, 1000, -1]),
)
def bytes_back(shape: tuple[int, ...], word: str, block: int | None, how: list[int], size: int) -> None:
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    axis = None if block is None else len(shape) - 1
    q = answer(lambda: formats.quantize(w, word, Granularity(axis, block)))
    if q is None:
        return
    parts = packed(q)
    scales = np.ones(1, np.float32) if q.scales is None else q.scales
    zeros = np.zeros(1, np.uint8) if q.zero_points is None else q.zero_points

    def odd(name: str, turn: int) -> Any:
        return other_sizes(parts.get(name, q.codes), how[turn])

    for shape_told in (shape, (size,), (2, size)):
        cut = {
            name: other_sizes(a, next(turns))
            for turns in [itertools.cycle(how)]
            for name, a in parts.get("compact", {}).items()
        }
        for call in (
            lambda cut=cut, told=shape_told: layouts.from_compact(q.format, q.granularity, told, cut),
            lambda told=shape_told: layouts.from_gguf(q.format, odd("gguf", 0), told),
        ):
            made = answer(call)
            if made is not None:
                right(made, shape_told)
    made = answer(
        lambda: layouts.from_matmul_bnb4(q.format, odd("matmul_bnb4", 0), other_sizes(scales, how[1]), size, 64)
    )
    if made is not None:
        right(made, (size,))
    made = answer(
        lambda: layouts.from_matmul_nbits(
            q.format, odd("matmul_nbits", 0), other_sizes(scales, how[1]), other_sizes(zeros, how[2]), size
        )
    )
    if made is not None:
        right(made, (len(odd("matmul_nbits", 0)), size))
    made = answer(
        lambda: layouts.from_onnxq_tiles(
            q.format, odd("onnxq_tiles", 0), odd("onnxq_scales", 1), None, n=shape[0], k=size, block=block or 16
        )
    )
    if made is not None:
        right(made, (shape[0], size))
    answer(lambda: layouts.from_linear4bit(other_sizes(zeros, how[0]), other_sizes(scales, how[1])))
    made = answer(lambda: layouts.from_low_first(odd("matmul_nbits", 3), how[2], size))
    assert made is None or made.shape[-1] == size
    answer(lambda: layouts.unpack_codes(odd("matmul_bnb4", 1), how[0], shape, q.format.code_type))


if __name__ == "__main__":
    warnings.simplefilter("error")
    np.seterr(all="ignore")
    for check in (weights, errors, grids, bytes_back):
        settings(max_examples=int(sys.argv[1]), deadline=None, database=None, suppress_health_check=list(HealthCheck))(
            check
        )()
        print(check.hypothesis.inner_test.__name__, "passed")
