"""Double quantization with factors of any number of scales, tables of the user, and single numbers in a format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shared import SHARED

from onnxq import algorithms, formats, layouts
from onnxq.cli import main
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import Granularity

W = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
PEER = SHARED / "golden" / "torchao_nf4.npz"
HOW = Granularity(1, 32)


def linear(scales: NDArray, block: int) -> tuple[NDArray, NDArray, np.float32]:
    """(codes, factors, mean) as torchao's `NF4Tensor.double_quantize_scalers` has it, a block at a time."""
    mean = np.float32(np.mean(scales, dtype=np.float64))
    codes, factors = [], []
    for i in range(0, len(scales), block):
        rest = scales[i : i + block] - mean
        factors.append(np.float32(256) / (2 * np.abs(rest).max()))
        codes += [np.clip(np.rint(x * factors[-1]), -128, 127) for x in rest]
    return np.array(codes, np.int8), np.array(factors, np.float32), mean


@pytest.mark.parametrize("word", ["int4_dq", "int8_dq", "nf4_dq"])
@pytest.mark.parametrize("block", [None, 1, 7, 64, 256, 65536])
def test_scales_in_8_bits_are_those_of_the_formula(word: str, block: int | None) -> None:
    base = formats.quantize(W, word.removesuffix("_dq"), HOW)
    q = formats.quantize(W, word if block is None else f"{word}{block}", HOW)
    assert base.scales is not None and q.nested is not None and q.scales is not None
    codes, factors, mean = linear(base.scales.reshape(-1), block or 256)
    np.testing.assert_array_equal(q.codes, base.codes)
    np.testing.assert_array_equal(q.nested.codes, codes)
    np.testing.assert_array_equal(q.nested.factors, factors)
    assert q.nested.offset == mean
    steps = np.repeat(factors, block or 256)[: len(codes)]
    np.testing.assert_array_equal(q.scales.reshape(-1), codes.astype(np.float32) / steps + mean)
    values = base.codes if base.format.levels is None else base.format.levels[base.codes]
    np.testing.assert_array_equal(q.dequantize(), values.astype(np.float32) * np.repeat(q.scales, 32, axis=1))
    assert q.nbytes == -(-W.size * base.format.bits // 8) + len(codes) + 4 * len(factors) + 4
    back = layouts.from_compact(q.format, q.granularity, q.shape, layouts.compact(q))
    np.testing.assert_array_equal(back.dequantize(), q.dequantize())


@pytest.mark.parametrize("word", ["nf4_dq0", "nf4_dq65537", "int4_dq99999999999999999999"])
def test_factors_of_no_scales_are_refused(word: str) -> None:
    with pytest.raises(BadRecipe, match=r"takes 1 to 65536 scales a factor, as in (nf4|int4)_dq1"):
        formats.get(word)


def test_the_maps_are_those_of_their_definition() -> None:
    """Fractions (i + ½) of [0.1, 1] for each power of ten; equal steps. Rounding apart: golden files hold the bits."""
    for signed in (True, False):
        fractions = []
        for exponent in range(7):
            count = 2 ** (exponent + (not signed))
            middles = 0.1 + 0.9 * (np.arange(count) + 0.5) / count
            fractions += list(middles * 10.0 ** (exponent - 6))
        wanted = np.sort([0, 1, *fractions, *([-x for x in fractions] if signed else [])])
        np.testing.assert_allclose(formats.dynamic_map(signed), wanted, rtol=3e-7)
    np.testing.assert_allclose(formats.linear_map(False), np.arange(256) / 255, rtol=1e-6)
    steps = np.arange(-127, 128) / 127
    np.testing.assert_allclose(formats.linear_map(), [*steps[:127], 0, *steps[127:]], rtol=1e-6, atol=1e-8)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 300), st.integers(1, 400), st.sampled_from([0.0, 1e-38, 1.0, 1e30]), st.booleans())
def test_nested_scales_come_back_within_their_error(size: int, block: int, factor: float, dynamic: bool) -> None:
    scales = (np.random.default_rng(size).uniform(-1, 2, size) * factor).astype(np.float32)
    made = (formats.nest_dynamic if dynamic else formats.nest_linear)(scales, block)
    assert made.factors.shape == (-(-size // block),)
    found = formats.unnest(made, Granularity(0, 1), (size,))
    slack = 8 * np.finfo(np.float32).eps * np.max(np.abs(scales), initial=0) + 1e-42
    assert (np.abs(found.astype(np.float64) - scales) <= made.error + slack).all()


@pytest.mark.parametrize("scales", [[[1.0]], [np.nan], [3e38, -3e38, -3e38], ["a"], 3.0])
def test_what_cannot_be_nested(scales: Any) -> None:
    for nest in (formats.nest_linear, formats.nest_dynamic):
        with pytest.raises(ValueError, match="scales"):
            nest(scales)
        with pytest.raises(ValueError, match="block"):
            nest([1.0, 2.0], 0)


#: torchao's table: nf4 rounded to four digits.
FOUR = [-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0]
FOUR += [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1]


@pytest.mark.skipif(not PEER.is_file(), reason=f"no {PEER}; ONNXQ_SHARED says where it is")
def test_torchao_to_the_bit() -> None:
    """Codes, scales in 8 bits and weights of torchao's own `NF4Tensor`, but for its blocks of zeros, which are NaN."""
    with np.load(PEER) as peer:
        np.testing.assert_array_equal(np.float32(FOUR), peer["nf4"])
        w = peer["weight"].reshape(-1)
        q = formats.quantize(w, "nf4_dq", levels=FOUR)
        whole = np.repeat(np.abs(w.reshape(-1, 64)).max(axis=1) > 0, 64)
        np.testing.assert_array_equal(
            layouts.matmul_bnb4(q)[whole[::2]], peer["quantized_data"].reshape(-1)[whole[::2]]
        )
        assert q.nested is not None
        np.testing.assert_array_equal(q.nested.codes, peer["quantized_scalers"])
        np.testing.assert_allclose(q.dequantize()[whole], peer["original"].reshape(-1)[whole], rtol=1e-6, atol=1e-7)


@st.composite
def tables(draw: st.DrawFn) -> NDArray[np.float32]:
    count = draw(st.sampled_from([2, 3, 5, 8, 15, 16, 17, 200, 256]))
    x = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(count)
    return (x / (np.abs(x).max() if draw(st.booleans()) else 1)).astype(np.float32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables(), st.sampled_from(["nf4", "fp4", "nf4_dq", "nf4_dq_bnb"]), st.sampled_from([None, 5, 32]))
def test_own_levels_are_the_nearest_ones(table: NDArray, word: str, block: int | None) -> None:
    how = Granularity() if block is None else Granularity(1, block)
    w = W[:4, :33]
    q = formats.quantize(w, word, how, levels=table)
    exact = formats.quantize(w, "nf4", how, levels=table).scales
    assert exact is not None and q.scales is not None
    blocks = [w] if block is None else np.array_split(w, range(block, 33, block), axis=1)
    largest = [np.abs(b).max(axis=None if block is None else 1) for b in blocks]
    np.testing.assert_allclose(np.moveaxis(exact, -1, 0) if block else exact[None], largest / np.abs(table).max(), 1e-6)
    steps = how.spread(exact, w.shape).astype(np.float64)
    gaps = np.abs(w[..., None] / steps[..., None] - table)
    chosen = np.take_along_axis(gaps, q.codes[..., None].astype(int), axis=-1)[..., 0]
    assert (chosen <= gaps.min(axis=-1) + 1e-6 * np.abs(table).max()).all()
    np.testing.assert_array_equal(q.dequantize(), table[q.codes] * how.spread(q.scales, w.shape))
    assert q.format.bits == max(1, int(np.ceil(np.log2(len(table))))) and q.codes.max() < len(table)
    back = layouts.from_compact(formats.get(word, table), q.granularity, q.shape, layouts.compact(q))
    np.testing.assert_array_equal(back.dequantize(), q.dequantize())
    best = algorithms.quantize(w, word, how, "mse", levels=table)
    if "dq" not in word:
        assert np.square(best.dequantize() - w).sum() <= np.square(q.dequantize() - w).sum() * (1 + 1e-6)


@pytest.mark.parametrize(
    ("word", "levels", "sentence"),
    [
        ("int4", FOUR, "int4 takes no levels: choose nf4"),
        ("mxfp4", FOUR, "mxfp4 takes no levels"),
        ("nf4", [1.0], "levels are 2 to 256 finite numbers"),
        ("nf4", np.arange(257), "levels are 2 to 256 finite numbers"),
        ("nf4", [0, np.nan], "levels are 2 to 256"),
        ("nf4", [0, 0], "not all of them zero"),
        ("nf4", [[1, 2]], "levels are 2 to 256"),
        ("nf4", ["a", "b"], "table of levels is an array of"),
        ("nf4", [1, 1e300], "levels are 2 to 256"),
    ],
)
def test_what_is_no_table(word: str, levels: Any, sentence: str) -> None:
    with pytest.raises(BadRecipe, match=sentence):
        formats.quantize(W, word, levels=levels)


def test_levels_of_any_size_of_numbers() -> None:
    for factor in (1e-30, 1e30):
        table = np.float32(FOUR) * np.float32(factor)
        q = formats.quantize(W, "nf4", levels=table)
        np.testing.assert_allclose(q.dequantize(), formats.quantize(W, "nf4", levels=FOUR).dequantize(), 1e-5, 1e-6)
    with pytest.raises(BadModel, match="have no scale in float32"):
        formats.quantize(W * np.float32(1e30), "nf4", levels=np.float32(FOUR) * np.float32(1e-30))


def test_the_words_of_levels(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", W)
    np.save(tmp_path / "table.npy", np.float32(FOUR))
    run = CliRunner().invoke
    wanted = formats.quantize(W, "nf4_dq128", levels=FOUR).dequantize()
    for i, levels in enumerate((",".join(map(str, FOUR)), str(tmp_path / "table.npy"))):
        coded, back = str(tmp_path / f"q{i}.safetensors"), str(tmp_path / f"b{i}.npy")
        words = ["encode", str(tmp_path / "w.npy"), "-w", "nf4_dq128", f"--levels={levels}", "-o", coded]
        done = run(main, words)
        assert done.exit_code == 0 and "nf4_dq128 of own levels" in done.output, done.output
        assert run(main, ["decode", coded, "-o", back]).exit_code == 0
        np.testing.assert_array_equal(np.load(back), wanted)
    assert "invalid --levels '1,x'" in run(main, [*words[:4], "--levels", "1,x", "-o", "q.npz"]).output
    refused = run(main, [*words[:3], "nf4", "--levels", "0,1", "-o", str(tmp_path / "q.gguf")])
    assert refused.exit_code == 1 and "GGUF has no nf4 of own levels" in refused.output


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, "float32"])
def test_dequantized_to_other_types(dtype: Any) -> None:
    for word in formats.names():
        q = formats.quantize(W, word)
        floats = q.dequantize(dtype)
        assert floats.dtype == dtype
        np.testing.assert_array_equal(floats, q.dequantize().astype(dtype))
    large = formats.quantize(W * np.float32(1e6), "nf4")
    with pytest.raises(BadModel, match=r"a weight of magnitude .* does not fit float16; choose a wider type"):
        large.dequantize(np.float16)
    for bad in (np.int8, "text", None.__class__, ml_dtypes.float8_e4m3fn):
        with pytest.raises(ValueError, match="a weight is float16, bfloat16, float32 or float64, not"):
            large.dequantize(bad)


@pytest.mark.parametrize("word", [*formats.names(), "uniform3"])
def test_nearest_codes_and_what_they_stand_for(word: str) -> None:
    """Against all the numbers that the format has, which `values` lists."""
    format = formats.get(word)
    if format.bits > 8:
        x = np.float32([-3.25, 0, 1.5, 2])
        got = formats.values(formats.nearest(x, word), word)
        np.testing.assert_array_equal(got, np.rint(np.maximum(x, 0)) if word == "uint16" else got)
        assert np.abs(got - np.clip(x, got.min(), got.max())).max() <= 0.5
        return
    if format.code_type.kind in "iu":
        low = -(1 << (format.bits - 1)) if format.code_type.kind == "i" else 0
        every = np.arange(low, low + (1 << format.bits))
        if format.lowest is not None:
            low, every = format.lowest, every[every >= format.lowest]
        with pytest.raises(ValueError, match=r"codes of .* are integers from"):
            formats.values([low - 1], word)
        with pytest.raises(ValueError, match=r"codes of .* are integers from"):
            formats.values([0.5], word)
    else:
        every = np.arange(256, dtype=np.uint8).view(format.code_type)
        every = every[np.isfinite(every.astype(np.float32))]
    numbers = np.sort(formats.values(every, word))
    if word in ("int8", "int8_dq", "q8_0", "pow2_int4", "pow2_int8"):
        numbers = numbers[1:]  # the lowest code is not used
    x = np.random.default_rng(0).uniform(1.2 * numbers[0] - 1, 1.2 * numbers[-1] + 1, (7, 11)).astype(np.float32)
    codes = formats.nearest(x, word)
    assert codes.shape == x.shape and codes.dtype == format.code_type
    distance = np.abs(x.astype(np.float64)[..., None] - numbers).min(axis=-1)
    np.testing.assert_allclose(np.abs(formats.values(codes, word) - x.astype(np.float64)), distance, 1e-5, 1e-6)


def test_nearest_with_own_levels() -> None:
    table = [3, -1, 7.5]
    np.testing.assert_array_equal(formats.nearest([[2.9, -9], [100, 1.1]], "nf4", table), [[0, 1], [2, 0]])
    np.testing.assert_array_equal(formats.values([2, 0, 1], "nf4", table), [7.5, 3, -1])
    with pytest.raises(ValueError, match="codes of nf4 of own levels are integers from 0 to 2"):
        formats.values([3], "nf4", table)
    with pytest.raises(BadModel, match="holds nan"):
        formats.nearest([np.nan], "nf4")
