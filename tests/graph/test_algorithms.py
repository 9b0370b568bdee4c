"""What each way of choosing codes promises."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from looped import looped
from numpy.typing import NDArray

from onnxq import algorithms, formats
from onnxq.formats import Granularity, QuantizedTensor

every_algorithm = pytest.mark.parametrize("name", sorted(algorithms.DATA_FREE))
CONVOLUTIONS = [
    pytest.param((8, 3, 3, 3), 0, id="8x3x3x3"),
    pytest.param((4, 64, 1, 1), 0, id="4x64x1x1"),
    pytest.param((6, 1, 5, 5), 0, id="6x1x5x5-depthwise"),
    pytest.param((5, 4, 2, 2), 1, id="5x4x2x2-transposed"),
    pytest.param((4, 7, 9), 0, id="4x7x9-1d"),
    pytest.param((10, 33), 0, id="10x33"),
    pytest.param((33, 10), 1, id="33x10-channel1"),
    pytest.param((1, 1, 1, 1), 0, id="1x1x1x1"),
]


def weights(shape: tuple[int, ...], sign: str = "both", seed: int = 0) -> NDArray[np.float32]:
    w = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return {"both": w, "positive": np.abs(w), "negative": -np.abs(w)}[sign]


def errors(q: QuantizedTensor, w: NDArray, axis: int) -> NDArray[np.float64]:
    """Rounding errors in steps, [channels, kernels, weights of a kernel]."""
    assert q.scales is not None
    steps = q.granularity.spread(q.scales.astype(np.float64), w.shape)
    e = np.moveaxis((q.dequantize().astype(np.float64) - w) / steps, axis, 0)
    return e.reshape(e.shape[0], e.shape[1] if e.ndim > 2 else 1, -1)


def assert_at_most(values: NDArray, limit: float) -> None:
    # The quotients w / s that the algorithm adds up are float32 numbers of at most 255: each is off by up to 2^-17.
    assert np.abs(values).max() <= limit + 2**-17 * 64


@every_algorithm
@looped("format", formats.names())
@looped("granularity", [Granularity(), Granularity(0), Granularity(1), Granularity(1, 16)])
def test_shapes_and_format(name: str, format: str, granularity: Granularity) -> None:
    w = weights((5, 20))
    q = algorithms.DATA_FREE[name](w, formats.get(format), granularity)
    assert q.shape == w.shape
    assert q.format is formats.get(format)
    if q.scales is not None:
        assert q.scales.shape == granularity.scale_shape(w.shape)
        assert q.scales.dtype == formats.get(format).scale_type


@every_algorithm
@looped("format", formats.names())
def test_zeros_and_nothing(name: str, format: str) -> None:
    quantize = algorithms.DATA_FREE[name]
    for granularity in (Granularity(), Granularity(0), Granularity(1, 16)):
        assert not quantize(np.zeros((3, 20), np.float32), formats.get(format), granularity).dequantize().any()
        assert quantize(np.zeros((3, 0), np.float32), formats.get(format), granularity).shape == (3, 0)


@looped("format", formats.names())
def test_rtn_is_the_formats_own_encoding(format: str) -> None:
    w = weights((5, 20))
    q = algorithms.rtn.quantize(w, formats.get(format), Granularity(0))
    np.testing.assert_array_equal(q.codes, formats.get(format).encode(w, Granularity(0)).codes)


@pytest.mark.parametrize("format", ["int8", "uint8", "uint4"])
@pytest.mark.parametrize("sign", ["both", "positive", "negative"])
@pytest.mark.parametrize(("shape", "axis"), CONVOLUTIONS)
def test_squant_errors_of_a_channel_add_up_to_half_a_step(
    shape: tuple[int, ...], axis: int, sign: str, format: str
) -> None:
    w = weights(shape, sign)
    q = algorithms.squant.quantize(w, formats.get(format), Granularity(axis))
    assert_at_most(errors(q, w, axis).sum(axis=(1, 2)), 0.5)


@pytest.mark.parametrize("sign", ["both", "positive", "negative"])
@pytest.mark.parametrize(("shape", "axis"), CONVOLUTIONS)
def test_squant_errors_of_a_kernel_add_up_to_one_step(shape: tuple[int, ...], axis: int, sign: str) -> None:
    """Half a step, unless the channel needs one flip of this kernel."""
    for seed in range(5):
        w = weights(shape, sign, seed)
        e = errors(algorithms.squant.quantize(w, formats.get("int8"), Granularity(axis)), w, axis)
        if e.shape[1] > 1:
            assert_at_most(e.sum(axis=2), 1.0)
            half = np.abs(e.sum(axis=2)) <= 0.5
            assert (half.mean(axis=1) >= 0.5).all()


@pytest.mark.parametrize(("shape", "axis"), CONVOLUTIONS)
def test_squant_moves_codes_to_the_other_neighbour_only(shape: tuple[int, ...], axis: int) -> None:
    w = weights(shape)
    q = algorithms.squant.quantize(w, formats.get("int8"), Granularity(axis))
    assert_at_most(errors(q, w, axis), 1.0)
    assert np.abs(q.codes.astype(int)).max() <= 127


def test_squant_with_scales_that_clip_stays_in_range() -> None:
    w = weights((4, 3, 3, 3), "positive")
    format, granularity = formats.get("int8"), Granularity(0)
    scales = format.fit(w, granularity)[0] / np.float32(3)
    q = algorithms.squant.quantize(w, format, granularity, scales)
    clipped = w / granularity.spread(scales, w.shape) >= 127
    assert clipped.any()
    np.testing.assert_array_equal(q.codes[clipped], 127)


@pytest.mark.parametrize("granularity", [Granularity(), Granularity(1, 16)], ids=["tensor", "block"])
def test_squant_without_channels_is_rtn(granularity: Granularity) -> None:
    w, format = weights((8, 48)), formats.get("int8")
    q = algorithms.squant.quantize(w, format, granularity)
    np.testing.assert_array_equal(q.codes, algorithms.rtn.quantize(w, format, granularity).codes)


def squared(q: QuantizedTensor, w: NDArray) -> NDArray[np.float64]:
    """Squared error of each group, in float64."""
    groups, axes = q.granularity.groups((q.dequantize().astype(np.float64) - w) ** 2)
    return groups.sum(axis=axes)


# Of nested scales each depends on all others, so single groups may lose.
@pytest.mark.parametrize("format", [name for name in formats.names() if formats.get(name).base is None])
@looped("shape", [(6, 64), (3, 37), (1, 1)])
@looped("granularity", [Granularity(), Granularity(0), Granularity(1, 32)])
def test_mse_is_never_worse_than_rtn(format: str, shape: tuple[int, ...], granularity: Granularity) -> None:
    w = weights(shape) ** 3
    quantize = algorithms.DATA_FREE
    rtn, mse = (squared(quantize[a](w, formats.get(format), granularity), w) for a in ("rtn", "mse"))
    # Errors are compared after float32 sums of up to 384 squares of float32 differences.
    assert (mse <= rtn * (1 + 400 * np.finfo(np.float32).eps)).all()


@pytest.mark.parametrize("format", ["uint4", "nf4", "fp4"])
def test_mse_pays_on_heavy_tails(format: str) -> None:
    w = weights((64, 64)) ** 3
    rtn, mse = (algorithms.DATA_FREE[a](w, formats.get(format), Granularity(1, 32)) for a in ("rtn", "mse"))
    assert squared(mse, w).sum() < 0.95 * squared(rtn, w).sum()


@looped("format", formats.names())
@looped("op_type", ["Conv", "ConvTranspose", "MatMul", "Gemm", "Gather", "LSTM"])
def test_no_two_algorithms_claim_the_same_weight(op_type: str, format: str) -> None:
    for granularity in (Granularity(), Granularity(0), Granularity(1, 32)):
        modules = [importlib.import_module(f"onnxq.algorithms.{word}") for word in algorithms.DATA_FREE]
        assert sum(module.suits(op_type, formats.get(format), granularity) for module in modules) <= 1


@pytest.mark.parametrize(
    ("op_type", "format", "granularity", "word"),
    [
        ("Conv", "int8", Granularity(0), "squant"),
        ("ConvTranspose", "int8", Granularity(1), "squant"),
        ("MatMul", "int8", Granularity(1), "rtn"),
        ("MatMul", "uint4", Granularity(0, 32), "mse"),
        ("Gather", "nf4", Granularity(1, 64), "mse"),
        ("Conv", "uint8", Granularity(1, 32), "rtn"),
    ],
)
def test_choice(op_type: str, format: str, granularity: Granularity, word: str) -> None:
    assert algorithms.choose(op_type, formats.get(format), granularity) == word
