"""What callers hand in: any call answers in the promised shapes or refuses in a sentence; none ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import onnxq
from onnxq import algorithms, analysis, fake_quant, formats, layouts
from onnxq.errors import BadModel, BadRecipe
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import fast
from onnxq.runtime import native

W = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
EXAMPLES = 40


@pytest.mark.sweep
def test_no_call_ends_the_process_or_answers_in_another_shape() -> None:
    """In a child, because the crash that it guards against would be that of the tests themselves."""
    script = Path(__file__).with_name("any_call.py")
    command, room = [sys.executable, script, str(EXAMPLES)], str(Path(onnxq.__file__).parents[1])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": room}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.count("passed") == 4


@pytest.mark.sweep
def test_no_public_function_fails_like_a_bug() -> None:
    """Every one of them, found by walking the modules, with parameters by their names: in a child too."""
    script = Path(__file__).with_name("any_public.py")
    room = os.pathsep.join([str(Path(onnxq.__file__).parents[1]), str(script.parent)])
    done = subprocess.run(
        [sys.executable, script, "12"],
        env=os.environ | {"PYTHONPATH": room},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-6000:]}"
    assert done.stdout.count("passed") > 100


@pytest.mark.parametrize("word", formats.names())
def test_a_negative_axis_counts_from_the_back(word: str) -> None:
    for axis in (0, 1):
        for block in (None, 32):
            front = formats.quantize(W, word, Granularity(axis, block))
            back = formats.quantize(W, word, Granularity(axis - 2, block))
            assert back.granularity == front.granularity
            np.testing.assert_array_equal(back.dequantize(), front.dequantize())
            one, other = (analysis.tensor_error(W, word, Granularity(a, block)) for a in (axis, axis - 2))
            assert one == other


@pytest.mark.parametrize("axis", [2, -3, 7])
@pytest.mark.parametrize("block", [None, 64])
def test_an_axis_that_is_not_there_is_refused(axis: int, block: int | None) -> None:
    how = Granularity(axis, block)
    calls = [
        lambda: formats.quantize(W, "nf4", how),
        lambda: formats.get("int4").encode(W, how),
        lambda: algorithms.quantize(W, "uint4", how, "mse"),
        lambda: analysis.tensor_error(W, "int8", how),
        lambda: fake_quant.fit(W, axis=axis, block=block),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"there is no axis {axis} in an array of 2 dimensions"):
            call()


def test_compiled_code_is_not_called_with_what_is_not_there() -> None:
    if native.library() is None:
        pytest.skip("no compiled library")
    factors = np.ones(3, np.float32)
    for axis, block in ((-1, 64), (2, 64), (0, 0), (1, -5)):
        with pytest.raises(ValueError, match="cannot be cut into blocks"):
            native.encode_affine_blocks(W, axis, block, 15, factors)
    with pytest.raises(ValueError, match=r"codes 0…300 are not those of one byte"):
        native.encode_affine_blocks(W, 1, 64, 300, factors)
    with pytest.raises(ValueError, match="factors are a vector of float32"):
        native.encode_affine_blocks(W, 1, 64, 15, np.ones(3))
    nf4 = formats.get("nf4")
    levels, middles, order = nf4.tables  # type: ignore[attr-defined]
    for tables in ((levels, middles[:-1], order), (levels, middles, order.astype(np.int64))):
        with pytest.raises(ValueError, match="16 levels and 15 middles"):
            native.encode_level_blocks(W, 1, 64, *tables, factors)
    assert fast.encode(nf4, W, Granularity(1, 64), (levels, middles[:3], order)) is None
    with pytest.raises(ValueError, match="no matrix"):
        fast.transposed(np.zeros(3, np.uint8))


def test_a_block_longer_than_the_axis_takes_no_more_memory() -> None:
    q, same = (formats.quantize(W, "int4", Granularity(1, block)) for block in (1 << 40, 128))
    np.testing.assert_array_equal(q.codes, same.codes)
    np.testing.assert_array_equal(q.dequantize(), same.dequantize())
    assert formats.get("pow2_int8").encode(W, Granularity(1, 1 << 40)).dequantize().shape == W.shape


def test_nan_is_never_an_error_of_zero() -> None:
    bad = np.array([1, np.nan], np.float32)
    with pytest.raises(ValueError, match=r"array 'got' holds nan at \[1\]"):
        analysis.error_stats([1, 2], bad)
    with pytest.raises(ValueError, match=r"array 'wanted' holds inf at \[0, 1\]"):
        analysis.error_stats([[1, np.inf]], [[1, 2]])
    for call in (
        lambda: analysis.scale_sweep(bad, "int8"),
        lambda: analysis.outlier_impact(bad, "int8", percent=50),
        lambda: analysis.compare_bit_widths(bad),
    ):
        with pytest.raises(BadModel, match=r"holds nan at \[1\]"):
            call()


def test_lists_are_arrays() -> None:
    rows = W[:2].tolist()
    np.testing.assert_array_equal(formats.quantize(rows, "nf4").codes, formats.quantize(W[:2], "nf4").codes)
    assert analysis.tensor_error(rows, "int8") == analysis.tensor_error(W[:2].astype(np.float64), "int8")
    assert analysis.scale_sweep(rows, "int8") == analysis.scale_sweep(W[:2], "int8")
    assert analysis.outlier_impact(rows, "int8", percent=5) == analysis.outlier_impact(W[:2], "int8", percent=5)
    observer = fake_quant.Observer()
    observer.update(rows)
    assert observer.grid().scale == fake_quant.fit(rows, symmetric=False).scale
    for bad in (["a"], [1j], [[1.0], [1.0, 2.0]], [None]):
        with pytest.raises(ValueError, match="weight"):
            formats.quantize(bad, "int8")


def test_bit_widths_count_what_they_take() -> None:
    found = analysis.compare_bit_widths(W, (4, 8))
    assert {width: stats.bits_per_weight for width, stats in found.items()} == {
        width: width + 32 / W.size for width in (4, 8)
    }
    channels = analysis.compare_bit_widths(W, (4,), symmetric=False, axis=0)[4]
    assert channels.bits_per_weight == 4 + 64 * (32 + 4) / W.size
    assert 0.5 < found[4].levels_used <= 15 / 16 and 0.5 < found[8].levels_used < 1
    assert analysis.compare_bit_widths(W, 4) == {4: found[4]}


@pytest.mark.parametrize("word", ["pow2_int4", "pow2_int8", "mxfp4"])
def test_scales_that_are_powers_of_two_stay_such(word: str) -> None:
    assert {point.factor for point in analysis.scale_sweep(W, word)} == set(analysis.sweeps.POWERS)
    with pytest.raises(BadRecipe, match=f"scales of {word} are powers of two, and cannot be 0.9 times"):
        analysis.scale_sweep(W, word, factors=(1.0, 0.9))
    assert analysis.best_scale(analysis.scale_sweep(W, word, factors=(4.0, 1.0))).factor == 1.0
    zeros = analysis.scale_sweep(np.zeros((2, 32)), word, Granularity(1, 32))
    assert all(point.stats.max_abs == 0 for point in zeros)


def test_decoders_refuse_arrays_of_other_sizes() -> None:
    q = formats.quantize(W[:2, :64], "int4", Granularity(1, 64))
    parts = layouts.compact(q)
    back = layouts.from_compact(q.format, q.granularity, q.shape, parts)
    np.testing.assert_array_equal(back.dequantize(), q.dequantize())
    with pytest.raises(ValueError, match=r"scales have the shape \[5\], where \[2, 1\] belongs"):
        layouts.from_compact(q.format, q.granularity, q.shape, parts | {"scales": np.ones(5, np.float32)})
    with pytest.raises(ValueError, match="there are 63 bytes of codes, where 64 belong"):
        layouts.from_compact(q.format, q.granularity, q.shape, parts | {"codes": parts["codes"][1:]})
    with pytest.raises(ValueError, match="the parts scales lack codes"):
        layouts.from_compact(q.format, q.granularity, q.shape, {"scales": parts["scales"]})
    nf4 = formats.quantize(W[:2, :64].reshape(-1), "nf4")
    assert nf4.scales is not None
    with pytest.raises(ValueError, match="there are 64 bytes of codes, where 500 belong"):
        layouts.from_matmul_bnb4(nf4.format, layouts.matmul_bnb4(nf4), nf4.scales, 1000, 64)
    with pytest.raises(ValueError, match="there are 2 scales, where 4 belong"):
        layouts.from_matmul_bnb4(nf4.format, layouts.matmul_bnb4(nf4), nf4.scales, 128, 32)
    q4_0 = formats.quantize(W[:2, :64], "q4_0")
    data = layouts.gguf(q4_0)
    with pytest.raises(ValueError, match="there are 71 bytes of GGUF data, where 72 belong"):
        layouts.from_gguf(q4_0.format, data.reshape(-1)[1:], (2, 64))
    with pytest.raises(ValueError, match=r"whole blocks of 32, not a weight of shape \[2, 63\]"):
        layouts.from_gguf(q4_0.format, data, (2, 63))


def test_a_weight_s_parts_belong_together() -> None:
    int8 = formats.get("int8")
    codes = np.zeros((2, 3), np.int8)
    with pytest.raises(ValueError, match=r"scales have the shape \[3\], where \[2\] belongs"):
        QuantizedTensor(int8, Granularity(0), codes, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="int8 has codes of type int8, not uint8"):
        QuantizedTensor(int8, Granularity(), codes.view(np.uint8), np.ones((), np.float32))
    with pytest.raises(ValueError, match="int8 has scales"):
        QuantizedTensor(int8, Granularity(), codes)
    beyond = QuantizedTensor(formats.get("nf4"), Granularity(), np.full(3, 16, np.uint8), np.ones((), np.float32))
    with pytest.raises(ValueError, match="code 16 indexes none of the 16 levels"):
        beyond.dequantize()
