"""GPTQ and what it is given: laws on matrices, and a transcription of the paper's own formula beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sweeps import swept

from onnxq import formats
from onnxq.algorithms import gptq, mse
from onnxq.algorithms._columns import Columns
from onnxq.algorithms._rounding import FACTORS, round_all
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.summaries.evidence import Layer, add_input
from onnxq.summaries.gram import Gram

#: Formats with scales.
SCALED = sorted(name for name in formats.names() if formats.get(name).scale_type is not None)
#: (shape of the weight, axis of its outputs, granularity).
FORMS = [
    pytest.param((96, 24), 1, Granularity(0, 32), id="KN-blocks"),
    pytest.param((24, 96), 0, Granularity(1, 32), id="NK-blocks"),
    pytest.param((24, 90), 0, Granularity(1, 32), id="NK-short-block"),
    pytest.param((24, 96), 0, Granularity(0), id="channels"),
    pytest.param((24, 96), 0, Granularity(), id="tensor"),
    pytest.param((12, 8, 3, 3), 0, Granularity(0), id="convolution"),
    pytest.param((12, 8, 3, 3), 0, Granularity(1, 4), id="convolution-blocks"),
]


def inputs(rows: int, k: int, seed: int = 0, groups: int = 1) -> NDArray[np.float32]:
    """[rows, groups, k] as activations are: some numbers far larger than others, all of them related."""
    r = np.random.default_rng(seed)
    mixed = r.standard_normal((rows, groups, k)) @ r.standard_normal((k, k)) * r.gamma(1, 1, k)
    return mixed.astype(np.float32)


def layer(folder: Path, x: NDArray, channel: int) -> Layer:
    gram = Gram.empty(*x.shape[1:])
    gram.update(x)
    number = len(list(folder.iterdir()))
    add_input(folder / f"{number}.npz", number, gram, [x])
    return Layer(channel, x.shape[1], folder / f"{number}.npz", (number,))


def error(q: QuantizedTensor, w: NDArray, x: NDArray, channel: int) -> float:
    """Of the outputs, on the rows `x`."""
    d = np.moveaxis(q.dequantize().astype(np.float64) - w, channel, -1).reshape(-1, w.shape[channel])
    per_group = d.shape[1] // x.shape[1]
    parts = (x[:, g] @ d[:, g * per_group : (g + 1) * per_group] for g in range(x.shape[1]))
    return float(sum(np.square(part).sum() for part in parts))


#: Each format in one of the forms; the sweep takes the rest.
WORDS_IN_FORMS = [
    (swept if (i + j) % 6 else pytest.param)(word, *form.values, id=f"{form.id}-{word}")
    for i, word in enumerate(SCALED)
    for j, form in enumerate(FORMS)
]


@pytest.mark.parametrize(("word", "shape", "channel", "granularity"), WORDS_IN_FORMS)
def test_outputs_are_nearer_than_without_data(
    word: str, shape: tuple[int, ...], channel: int, granularity: Granularity, tmp_path: Path
) -> None:
    w = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x = inputs(400, w.size // shape[channel])
    found = gptq.quantize(w, formats.get(word), granularity, layer=layer(tmp_path, x, channel))
    without = mse.quantize(w, formats.get(word), granularity)
    assert found.shape == shape and found.format is formats.get(word)
    assert error(found, w, x, channel) < 0.7 * error(without, w, x, channel)


def paper(w: NDArray, q: QuantizedTensor, x: NDArray) -> NDArray:
    """[N, K] values: Algorithm 1 of the paper with act-order, in float64, column by column, scales as in `q`."""
    n, k = w.shape
    h = (x.T @ x).astype(np.float64)
    h += gptq.DAMPING * np.mean(np.diag(h)) * np.eye(k)
    order = np.argsort(-np.diag(h), kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    rest, values = w[:, order].astype(np.float64), np.empty((n, k))
    scales = q.granularity.spread(q.scales, w.shape)
    for i, column in enumerate(order):
        made = q.format.encode(rest[:, i : i + 1].astype(np.float32), Granularity(0), scales[:, column])
        values[:, column] = made.dequantize()[:, 0]
        rest[:, i:] -= np.outer((rest[:, i] - values[:, column]) / upper[i, i], upper[i, i:])
    return values


@pytest.mark.parametrize("word", ["int4", "int3", "nf4"])
def test_rounding_is_the_papers(word: str, tmp_path: Path) -> None:
    w = np.random.default_rng(2).standard_normal((16, 160)).astype(np.float32)
    x = inputs(500, 160)
    start = mse.quantize(w, formats.get(word), Granularity(1, 32))
    columns = Columns.of(w, start, 0)
    gram = gptq._prepared(layer(tmp_path, x, 0)).of_group(0, columns.inputs)
    round_all(columns, gram.order, gram.lower)
    wanted = paper(w, start, x[:, 0])
    assert np.mean(np.isclose(columns.values.T, wanted, rtol=1e-4, atol=1e-6)) > 0.995  # a near tie may fall elsewhere


@pytest.mark.parametrize("word", ["int3", "uint2", "nf4"])
def test_scales_are_those_of_the_least_error_of_the_outputs(word: str, tmp_path: Path) -> None:
    w = np.random.default_rng(5).standard_normal((32, 40)).astype(np.float32)
    start = Columns.of(w, mse.quantize(w, formats.get(word), Granularity(0, 32)), 1)
    gram = gptq._prepared(layer(tmp_path, inputs(200, 32), 1), start.by_input).of_group(0, start.inputs)

    def left(columns: Columns, kept: np.dtype | None) -> NDArray:
        round_all(columns, gram.order, gram.lower, kept)
        d = (columns.values - w).astype(np.float64)
        return np.einsum("kn,kl,ln->n", d, gram.damped.astype(np.float64), d)

    each = []
    for factor in FACTORS:
        columns = start.part(slice(None))
        columns.scales *= np.float32(factor)
        each.append(left(columns, None))
    found, best = left(start.part(slice(None)), np.dtype(np.float32)), np.min(each, axis=0)
    assert (found <= best * (1 + 1e-3)).all()
    assert found.sum() < 0.9 * each[0].sum()
    if formats.get(word).offset_type is None:
        np.testing.assert_allclose(found, best, rtol=1e-3)
    else:  # zero points are tried too
        assert (found < 0.99 * best).any()


def test_scales_are_tried_only_where_there_are_rows_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(8).standard_normal((64, 24)).astype(np.float32)
    known, how, tried = formats.get("int3"), Granularity(0, 32), []
    real = gptq.round_all
    monkeypatch.setattr(gptq, "round_all", lambda *given: (tried.append(given[-1] is not None), real(*given)))
    for rows in (128, 256):
        gptq.quantize(w, known, how, layer=layer(tmp_path, inputs(rows, 64), 1))
    assert tried == [False, True]


@pytest.mark.parametrize("outputs", [1, 7, 24])
def test_outputs_are_worked_on_in_slices_without_a_difference(
    outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = np.random.default_rng(6).standard_normal((64, 24)).astype(np.float32)
    known, how, seen = formats.get("uint2"), Granularity(0, 32), layer(tmp_path, inputs(300, 64), 1)
    whole = gptq.quantize(w, known, how, layer=seen)
    monkeypatch.setattr(gptq, "OUTPUTS", outputs)
    parts = gptq.quantize(w, known, how, layer=seen)
    np.testing.assert_allclose(parts.dequantize(), whole.dequantize(), rtol=1e-4)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["int4", "uint2", "nf4", "q4_0", "q4_1"]), st.sampled_from([8, 32, 200])
)
def test_descent_never_makes_it_worse(
    tmp_path_factory: pytest.TempPathFactory, seed: int, word: str, block: int
) -> None:
    w = np.random.default_rng(seed).standard_normal((6, 70)).astype(np.float32)
    x = inputs(90, 70, seed)
    gram = gptq._prepared(layer(tmp_path_factory.mktemp("layer"), x, 0)).of_group(0, np.arange(70))
    columns = Columns.of(w, mse.quantize(w, formats.get(word), Granularity(1, block)), 0)

    def damped_error() -> NDArray:
        d = (columns.values - columns.w).astype(np.float64)
        return np.einsum("kn,kl,ln->n", d, gram.damped.astype(np.float64), d)

    before = damped_error()
    gptq._descend(columns, gram.damped, np.dtype(np.float32), tries=block <= gptq.LONGEST)
    assert (damped_error() <= before * (1 + 1e-4)).all()


def test_where_no_input_stands_for_another_codes_are_the_nearest(tmp_path: Path) -> None:
    w = np.random.default_rng(3).standard_normal((64, 12)).astype(np.float32)
    x = np.eye(64, dtype=np.float32)[:, None]
    scales = np.full((2, 12), 0.5, np.float32)
    found = gptq.quantize(w, formats.get("int4"), Granularity(0, 32), scales, layer=layer(tmp_path, x, 1))
    np.testing.assert_array_equal(found.codes, formats.get("int4").encode(w, Granularity(0, 32), scales).codes)


def test_scales_that_are_given_are_kept_and_half_ones_are_halves(tmp_path: Path) -> None:
    w = np.random.default_rng(4).standard_normal((96, 12)).astype(np.float32)
    known, x, how = formats.get("int4"), inputs(300, 96), Granularity(0, 32)
    scales = np.full((3, 12), 0.4, np.float32)
    found = gptq.quantize(w, known, how, scales, layer=layer(tmp_path, x, 1))
    np.testing.assert_array_equal(found.scales, scales)
    half = gptq.quantize(w, known, how, layer=layer(tmp_path, x, 1), half_scales=True).scales
    assert half is not None
    np.testing.assert_array_equal(half, half.astype(np.float16).astype(np.float32))


def test_groups_of_a_convolution_are_layers_of_their_own(tmp_path: Path) -> None:
    w = np.random.default_rng(5).standard_normal((8, 4, 3, 3)).astype(np.float32)
    x = inputs(300, 36, groups=2)
    found = gptq.quantize(w, formats.get("int4"), Granularity(0), layer=layer(tmp_path, x, 0))
    for group, outputs in enumerate((slice(0, 4), slice(4, 8))):
        part = layer(tmp_path, x[:, group : group + 1], 0)
        alone = gptq.quantize(w[outputs], formats.get("int4"), Granularity(0), layer=part)
        np.testing.assert_allclose(found.dequantize()[outputs], alone.dequantize(), rtol=1e-5, atol=1e-6)


def test_outputs_that_held_back_rows_speak_against_keep_codes_without_data(tmp_path: Path) -> None:
    w = np.random.default_rng(6).standard_normal((64, 12)).astype(np.float32)
    gram = Gram.empty(1, 64)
    gram.update(inputs(8, 64))  # far too few
    add_input(tmp_path / "few.npz", 0, gram, [inputs(2000, 64, seed=9)])
    few = Layer(1, 1, tmp_path / "few.npz", (0,))
    found = gptq.quantize(w, formats.get("int4"), Granularity(0, 32), layer=few)
    without = mse.quantize(w, formats.get("int4"), Granularity(0, 32))
    x = few.held_back()[0][:, 0]
    errors = [np.square(x @ (q.dequantize() - w)).sum(axis=0) for q in (found, without)]
    assert (errors[0] <= errors[1]).all()
    assert few.chosen["mse"] > 0 and few.chosen["mse"] + few.chosen["gptq"] == 12


@pytest.mark.parametrize("granularity", [Granularity(0), Granularity(1, 8)], ids=str)
def test_scales_that_several_outputs_share_get_codes_without_data(granularity: Granularity, tmp_path: Path) -> None:
    w = np.random.default_rng(7).standard_normal((64, 12)).astype(np.float32)
    found = gptq.quantize(w, formats.get("int4"), granularity, layer=layer(tmp_path, inputs(99, 64), 1))
    np.testing.assert_array_equal(found.codes, mse.quantize(w, formats.get("int4"), granularity).codes)


def test_numbers_that_are_not_finite_are_left_out_of_a_gram_matrix() -> None:
    x = inputs(20, 5)
    spoiled = x.copy()
    spoiled[3, 0, 2], spoiled[7, 0, 0] = np.nan, np.inf
    one, other = Gram.empty(1, 5), Gram.empty(1, 5)
    one.update(spoiled)
    other.update(np.delete(x, [3, 7], axis=0))
    np.testing.assert_array_equal(one.sums, other.sums)
    assert one.rows == other.rows == 18


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e18, 1e25])
def test_inputs_of_any_size_give_codes(size: float, tmp_path: Path) -> None:
    w = np.random.default_rng(3).standard_normal((64, 12)).astype(np.float32)
    x, how = inputs(300, 64), Granularity(0, 32)
    with np.errstate(over="ignore", invalid="ignore"):
        small = layer(tmp_path, x * np.float32(size), 1)
    q, without = gptq.quantize(w, formats.get("int4"), how, layer=small), mse.quantize(w, formats.get("int4"), how)
    assert np.isfinite(q.dequantize()).all()
    if 1e-12 <= size <= 1e12:
        assert error(q, w, x, 1) < 0.7 * error(without, w, x, 1)
    else:  # squares of such numbers are not numbers any more
        np.testing.assert_allclose(q.dequantize(), without.dequantize(), atol=1)


def test_equal_inputs_are_solved_for(tmp_path: Path) -> None:
    w = np.random.default_rng(3).standard_normal((600, 4)).astype(np.float32)
    x = np.repeat(inputs(50, 1), 600, axis=2) * np.float32(1e3)
    found = gptq.quantize(w, formats.get("int4"), Granularity(0, 32), layer=layer(tmp_path, x, 1))
    without = mse.quantize(w, formats.get("int4"), Granularity(0, 32))
    assert error(found, w, x, 1) < 0.05 * error(without, w, x, 1)


def test_gram_matrices_add_up() -> None:
    whole, first, second = Gram.empty(3, 5), Gram.empty(3, 5), Gram.empty(3, 5)
    x = inputs(20, 5, groups=3)
    whole.update(x)
    first.update(x[:7])
    second.update(x[7:])
    np.testing.assert_allclose(first.merged(second).sums, whole.sums, rtol=1e-5, atol=1e-3)
    with pytest.raises(ValueError, match="different layers"):
        whole.merged(Gram.empty(1, 5))


def test_inputs_without_a_trace_in_the_data_do_no_harm(tmp_path: Path) -> None:
    w = np.random.default_rng(8).standard_normal((64, 12)).astype(np.float32)
    x = inputs(200, 64)
    x[:, :, 10:30] = 0
    q = gptq.quantize(w, formats.get("int4"), Granularity(0, 32), layer=layer(tmp_path, x, 1))
    assert np.isfinite(q.dequantize()).all()
    assert np.abs(q.dequantize() - w)[10:30].max() < 1.0
    nothing = gptq.quantize(w, formats.get("int4"), Granularity(0, 32), layer=layer(tmp_path, 0 * x, 1))
    np.testing.assert_allclose(
        nothing.dequantize(), mse.quantize(w, formats.get("int4"), Granularity(0, 32)).dequantize(), atol=1
    )
