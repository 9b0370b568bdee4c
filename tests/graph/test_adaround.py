"""AdaRound and importance: laws on matrices that the tests make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from onnxq import formats
from onnxq.algorithms import WITH_DATA, adaround, gptq, importance, mse
from onnxq.algorithms._columns import Columns
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.summaries.seen_rows import LayerOfRows

#: (shape of the weight, axis of its outputs, granularity).
FORMS = [
    pytest.param((96, 24), 1, Granularity(0, 32), id="KN-blocks"),
    pytest.param((24, 90), 0, Granularity(1, 32), id="NK-short-block"),
    pytest.param((12, 8, 3, 3), 0, Granularity(0), id="convolution"),
]


def inputs(rows: int, k: int, seed: int = 0, groups: int = 1) -> NDArray[np.float32]:
    r = np.random.default_rng(seed)
    mixed = r.standard_normal((rows, groups, k)) @ np.random.default_rng(99).standard_normal((k, k))
    return (mixed * np.random.default_rng(98).gamma(1, 1, k)).astype(np.float32)


def layer(x: NDArray, channel: int) -> LayerOfRows:
    return LayerOfRows.of(x, channel)


def error(q: QuantizedTensor, w: NDArray, x: NDArray, channel: int) -> float:
    d = np.moveaxis(q.dequantize().astype(np.float64) - w, channel, -1).reshape(-1, w.shape[channel])
    return float(np.square(x[:, 0] @ d).sum())


@pytest.mark.parametrize("word", ["int4", "uint4", "int8", "int3", "q4_1"])
@pytest.mark.parametrize(("shape", "channel", "granularity"), FORMS)
def test_rounding_that_is_learned_is_not_worse_than_gptq(
    word: str, shape: tuple[int, ...], channel: int, granularity: Granularity
) -> None:
    w = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x = inputs(400, w.size // shape[channel])
    seen = layer(x, channel)
    found, others = (WITH_DATA[each](w, formats.get(word), granularity, layer=seen) for each in ("adaround", "gptq"))
    assert found.shape == shape and found.format is formats.get(word)
    assert error(found, w, x, channel) < 1.01 * error(others, w, x, channel)  # by damped sums it is never more
    assert seen.chosen["adaround"] > 0
    assert error(found, w, x, channel) < 0.7 * error(mse.quantize(w, formats.get(word), granularity), w, x, channel)


@pytest.mark.parametrize("word", ["int4", "int8"])
def test_what_is_learned_is_nearer_than_the_nearest_codes(word: str) -> None:
    w, x = np.random.default_rng(2).standard_normal((24, 96)).astype(np.float32), inputs(500, 96)
    start = mse.quantize(w, formats.get(word), Granularity(1, 32))
    columns = Columns.of(w, start, 0)
    gram = gptq._prepared(layer(x, 0)).of_group(0, columns.inputs).damped
    errors = [
        float(np.einsum("kn,kl,ln->", each.values - each.w, gram, each.values - each.w))
        for each in (columns, adaround._learned(columns, gram))
    ]
    assert errors[1] < 0.85 * errors[0]


def test_every_weight_goes_up_or_down_and_stays_in_range() -> None:
    w, x = np.random.default_rng(3).standard_normal((24, 96)).astype(np.float32), inputs(500, 96)
    for word, limits in (("int4", (-8, 7)), ("uint4", (0, 15)), ("uint2", (0, 3))):
        assert adaround._limits(formats.get(word)) == limits
        scales, zeros = formats.get(word).fit(w, Granularity(1, 32))
        q = formats.get(word).encode(w, Granularity(1, 32), scales * np.float32(0.7), zeros)  # so that some clip
        columns = Columns.of(w, q, 0)
        learned = adaround._learned(columns, gptq._prepared(layer(x, 0)).of_group(0, columns.inputs).damped)
        assert learned.codes.min() >= limits[0] and learned.codes.max() <= limits[1]
        step = np.abs(learned.scales[learned.group])
        inside = (columns.codes > limits[0]) & (columns.codes < limits[1])
        assert (np.abs(learned.values - w.T)[inside] <= step[inside] * 1.001).all()
        assert (np.abs(learned.values - w.T)[inside] > step[inside] / 2).any()


@pytest.mark.parametrize("name", ["adaround", "importance"])
def test_weights_that_have_codes_of_their_own_keep_them(name: str) -> None:
    r = np.random.default_rng(4)
    codes = r.integers(-8, 8, (24, 96)).astype(np.float32)
    codes[:, ::32] = -8  # so that the format's own scale is 0.5
    found = WITH_DATA[name](codes / 2, formats.get("int4"), Granularity(1, 32), layer=layer(inputs(300, 96), 0))
    np.testing.assert_array_equal(found.dequantize(), codes / 2)


def test_scales_that_are_given_are_kept() -> None:
    w = np.random.default_rng(5).standard_normal((96, 12)).astype(np.float32)
    scales = np.full((3, 12), 0.4, np.float32)
    for name in ("adaround", "importance"):
        found = WITH_DATA[name](w, formats.get("int4"), Granularity(0, 32), scales, layer=layer(inputs(300, 96), 1))
        np.testing.assert_array_equal(found.scales, scales)


def test_rows_held_back_decide_output_by_output() -> None:
    class Held(LayerOfRows):
        def held_back(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            return inputs(2000, 96, seed=7), inputs(2000, 96, seed=7)

    w = np.random.default_rng(6).standard_normal((96, 40)).astype(np.float32)
    few = Held.of(inputs(60, 96), 1)
    found = adaround.quantize(w, formats.get("int4"), Granularity(0, 32), layer=few)
    other = gptq.quantize(w, formats.get("int4"), Granularity(0, 32), layer=few)
    x = inputs(2000, 96, seed=7)[:, 0]
    errors = [np.square(x @ (q.dequantize() - w)).sum(axis=0) for q in (found, other)]
    assert (errors[0] <= errors[1] * 1.0001).all()
    assert (errors[0] < errors[1] * 0.999).any() and 0 < few.chosen["adaround"] < 40


@pytest.mark.parametrize("word", ["int4", "uint4", "nf4", "q4_0", "mxfp4", "q4_1"])
@pytest.mark.parametrize(("shape", "channel", "granularity"), FORMS)
def test_scales_by_importance_are_never_worse_than_rtn_in_what_they_look_at(
    word: str, shape: tuple[int, ...], channel: int, granularity: Granularity
) -> None:
    w = np.random.default_rng(7).standard_normal(shape).astype(np.float32) ** 3
    seen = layer(inputs(400, w.size // shape[channel]), channel)
    weights = importance.importance(seen, shape)
    assert weights.shape == shape and weights.mean() == pytest.approx(1, rel=1e-4)
    found = importance.quantize(w, formats.get(word), granularity, layer=seen)
    plain = formats.get(word).encode(w, granularity)
    errors = [mse.squared_errors(w, q, weights) for q in (found, plain)]
    assert (errors[0] <= errors[1] * (1 + 400 * np.finfo(np.float32).eps)).all()
    assert errors[0].sum() < 0.98 * errors[1].sum()


def test_importance_is_that_of_the_group_of_a_convolution() -> None:
    x = inputs(50, 36, groups=2)
    weights = importance.importance(layer(x, 0), (8, 4, 3, 3)).reshape(8, 36)
    for output in range(8):
        squares = np.square(x[:, output // 4].astype(np.float64)).sum(axis=0)
        np.testing.assert_allclose(weights[output] / weights[output].sum(), squares / squares.sum(), rtol=1e-3)


SCRIPT = """
import numpy as np, sys
sys.path[:0] = sys.argv[1:]
from test_adaround import inputs, layer
from onnxq import formats
from onnxq.algorithms import adaround
w = np.random.default_rng(0).standard_normal((24, 192)).astype(np.float32)
q = adaround.quantize(w, formats.get("int4"), formats.Granularity(1, 32), layer=layer(inputs(300, 192), 0))
print(q.codes.astype(int).tobytes().hex()[:2000], hash(q.codes.tobytes() + q.scales.tobytes()))
"""


def test_codes_are_the_same_on_any_number_of_threads() -> None:
    here = str(Path(__file__).parent)
    found = set()
    for threads in ("1", "2"):
        env = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, here, str(Path(here).parents[1])],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
