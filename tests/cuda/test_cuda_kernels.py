"""Every kernel against float64 numpy, on a GPU where there is one and emulated everywhere."""

from __future__ import annotations

import abi
import numpy as np
import pytest
from abi import BFLOAT16, FORMATS, Weight, pack, random_weight, random_x
from device import Device, DeviceError
from numpy.typing import NDArray

X_TYPES = {"float16": np.dtype(np.float16), "bfloat16": BFLOAT16, "float32": np.dtype(np.float32)}
#: Half a unit in the last place, relative.
EPSILON = {X_TYPES["float16"]: 2.0**-11, X_TYPES["bfloat16"]: 2.0**-8, X_TYPES["float32"]: 2.0**-24}
PATHS = ["gemv", "tensor", "dequantize", "direct"]
every_path = pytest.mark.parametrize("path", PATHS)
every_format = pytest.mark.parametrize("format", FORMATS)
every_type = pytest.mark.parametrize("type", X_TYPES)


def assert_close(y: NDArray, w: Weight, x: NDArray, path: str, bias: NDArray | None = None) -> None:
    """Each element within what rounding can do to it.

    A product of K terms summed in float32 is off by at most K · 2^-24 of the sum of the magnitudes of its terms. x,
    and the levels or whole weights where the kernel rounds them, add their own half units; the result is rounded once
    to its own type (twice where the bias is added to a rounded sum).
    """
    a, b = np.abs(x.astype(np.float64)), np.abs(w.values)
    magnitude = a @ b.T
    wanted = x.astype(np.float64) @ w.values.T
    if bias is not None:
        wanted, magnitude = wanted + bias.astype(np.float64), magnitude + np.abs(bias.astype(np.float64))
    half = EPSILON[BFLOAT16 if x.dtype == np.float32 else x.dtype]
    rounds_x = x.dtype == np.float32 and path != "gemv"
    rounds_w = path == "dequantize" or (path in ("tensor", "direct") and w.format in ("nf4", "fp4"))
    relative = (w.codes.shape[1] + 8) * 2.0**-24 * 2 + half * 1.01 * (rounds_x + rounds_w)
    # The vector kernel sums codes as they lie, up to 31, and takes the zero point away afterwards.
    if path == "gemv" and w.format == "int4":
        relative *= 32
    bound = magnitude * relative + np.abs(wanted) * EPSILON[x.dtype] * 2.01 + 1e-7
    error = np.abs(y.astype(np.float64) - wanted)
    assert np.all(error <= bound), f"{np.max(error / bound):.3g} times the bound at {np.argmax(error / bound)}"


@pytest.mark.pairwise
@every_path
@every_format
@every_type
def test_formats_and_types(device: Device, path: str, format: str, type: str) -> None:
    w = random_weight(48, 160, format, 32)
    for m in (1, 2, 5):
        x = random_x(m, 160, X_TYPES[type], seed=m)
        assert_close(device.matmul(w, x, path=path), w, x, path)


@every_format
@pytest.mark.parametrize("m", [8, 9, 16, 17, 33, 64, 65])
def test_rows_of_x(device: Device, format: str, m: int) -> None:
    w = random_weight(70, 96, format, 32)
    for type in X_TYPES.values():
        x = random_x(m, 96, type)
        assert_close(device.matmul(w, x, path="tensor"), w, x, "tensor")


@every_path
@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 31, 33, 65])
def test_rows_of_w(device: Device, path: str, n: int) -> None:
    w = random_weight(n, 64)
    for m in (1, 4, 11):
        x = random_x(m, 64, X_TYPES["float16"])
        assert_close(device.matmul(w, x, path=path), w, x, path)


@pytest.mark.pairwise
@every_path
@pytest.mark.parametrize("block", [16, 32, 48, 64, 96, 128, 144, 256])
@pytest.mark.parametrize("format", ["int4", "int8", "nf4"])
def test_blocks_and_ragged_k(device: Device, path: str, block: int, format: str) -> None:
    """Whole blocks, a last block that is cut short, and rows of x that do not start at multiples of 16 bytes."""
    for k in (block, 2 * block + 8, 3 * block - 5, 1):
        w = random_weight(36, k, format, block, asymmetric=format != "nf4", seed=k)
        for m in (1, 10):
            x = random_x(m, k, X_TYPES["float16"])
            assert_close(device.matmul(w, x, path=path), w, x, path)
    x = random_x(3, k, X_TYPES["float32"])
    assert_close(device.matmul(w, x, path=path), w, x, path)


@pytest.mark.pairwise
@every_path
@pytest.mark.parametrize("scale", [np.float16, np.float32, np.uint8], ids=["float16", "float32", "e8m0"])
@pytest.mark.parametrize("format", ["int4", "int8", "mxfp4"])
def test_scales_and_zero_points(device: Device, path: str, scale: type, format: str) -> None:
    w = random_weight(40, 200, format, 32, scale=scale, asymmetric=format != "mxfp4")
    for block_type in X_TYPES.values():
        for m in (1, 3, 18):
            x = random_x(m, 200, block_type)
            if scale is np.uint8 and block_type == np.float16:  # 2^2 · 255 · … would leave float16
                x = (x / 64).astype(block_type)
            assert_close(device.matmul(w, x, path=path), w, x, path)


@every_path
@every_type
def test_bias(device: Device, path: str, type: str) -> None:
    for n in (32, 37):
        w, x = random_weight(n, 96), random_x(6, 96, X_TYPES[type])
        bias = np.random.default_rng(5).standard_normal(n).astype(X_TYPES[type]) * X_TYPES[type].type(8)
        assert_close(device.matmul(w, x, path=path, bias=bias), w, x, path, bias)


@every_format
@every_type
def test_whole_numbers_come_out_exactly(device: Device, format: str, type: str) -> None:
    """Small whole activations, scales that are powers of two: no rounding anywhere, so any wrong index shows."""
    n, k, m = 50, 320, 9
    rng = np.random.default_rng(7)
    top = 256 if format == "int8" else 16
    if format in ("nf4", "fp4"):
        exact = np.flatnonzero(abi.levels(format) * 8 % 1 == 0)  # levels that 16 bits hold
    else:
        exact = np.arange(top)
    zeros = rng.integers(0, top, (n, 10)).astype(np.uint8) if format in ("int4", "int8") else None
    codes, scales = rng.choice(exact, (n, k)).astype(np.uint8), (2.0 ** rng.integers(-3, 2, (n, 10))).astype(np.float16)
    w = pack(format, 32, codes, scales, zeros)
    x = (rng.integers(-1, 2, (m, k)) * (rng.random((m, k)) < 0.2)).astype(X_TYPES[type])
    wanted = (x.astype(np.float64) @ w.values.T).astype(X_TYPES[type])
    for path in PATHS:
        assert np.array_equal(device.matmul(w, x, path=path).astype(np.float64), wanted.astype(np.float64)), path


@every_format
@every_type
def test_exact_is_as_good_as_float32(device: Device, format: str, type: str) -> None:
    w = random_weight(40, 256, format, 32)
    for m in (1, 5, 20):
        x = random_x(m, 256, X_TYPES[type])
        x[:, :4] *= x.dtype.type(300)  # outliers
        y = device.matmul(w, x, exact=True).astype(np.float64)
        wanted = x.astype(np.float64) @ w.values.T
        assert np.linalg.norm(y - wanted) <= np.linalg.norm(wanted) * max(2e-6, EPSILON[x.dtype])


@every_format
@every_type
def test_fast_keeps_its_promise_on_outlier_channels(device: Device, format: str, type: str) -> None:
    """docs/nodes.md: a relative error of at most 0.01, also with 12 channels 30 times as large as the others."""
    w = random_weight(48, 512, format, 32)
    for m in (1, 4, 24):
        x = random_x(m, 512, np.dtype(np.float32))
        x[:, ::43] *= 30
        y = device.matmul(w, x.astype(X_TYPES[type])).astype(np.float64)
        wanted = x.astype(X_TYPES[type]).astype(np.float64) @ w.values.T
        assert np.linalg.norm(y - wanted) <= 0.01 * np.linalg.norm(wanted)


def test_activations_beyond_float16_stay_finite(device: Device) -> None:
    w, x = random_weight(32, 64), random_x(3, 64, np.dtype(np.float32)) * np.float32(1e30)
    for path in PATHS:
        assert_close(device.matmul(w, x, path=path) * np.float32(1e-30), w, x * np.float32(1e-30), path)


def test_a_row_that_is_not_finite_spoils_only_itself(device: Device) -> None:
    w, x = random_weight(40, 96), random_x(5, 96, X_TYPES["float16"])
    x[2, 7] = np.inf
    x[4, 50] = np.nan
    for path in PATHS:
        y = device.matmul(w, x, path=path)
        assert_close(y[[0, 1, 3]], w, x[[0, 1, 3]], path)
        assert not np.any(np.isfinite(y[[2, 4]]))


def test_no_rows_write_nothing(device: Device) -> None:
    w = random_weight(32, 64)
    assert device.matmul(w, random_x(0, 64, X_TYPES["float16"])).shape == (0, 32)


@every_type
@pytest.mark.parametrize("format", ["int4", "int8", "nf4", "mxfp4"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather(device: Device, type: str, format: str, index: type) -> None:
    asymmetric = format in ("int4", "int8")
    w = random_weight(37, 75, format, 32, asymmetric=asymmetric, scale=np.uint8 if format == "mxfp4" else np.float16)
    indices = np.array([[0, 36, -1], [5, -37, 16]], index)
    wanted = w.values[indices]
    got = device.gather(w, indices, X_TYPES[type]).astype(np.float64)
    assert np.all(np.abs(got - wanted) <= np.abs(wanted) * EPSILON[X_TYPES[type]] * 2.01)
    outside = device.gather(w, np.array([37, -38, 2], index), X_TYPES[type]).astype(np.float64)
    assert np.all(outside[:2] == 0) and np.any(outside[2] != 0)


def test_errors_are_sentences(device: Device) -> None:
    w, x = random_weight(32, 64), random_x(2, 64, X_TYPES["float16"])
    with pytest.raises(DeviceError, match=r"blocks are multiples of 16 from 16 to 256, not 40\."):
        device.matmul(
            Weight(
                w.format,
                40,
                *(getattr(w, f) for f in ("codes", "scales", "zero_points", "tiles", "scale_tiles", "zero_tiles")),
            ),
            x,
        )
    if device.emulated:  # a GPU's memory starts at such addresses
        moved = np.empty(w.tiles.nbytes + 16, np.uint8)
        start = -moved.ctypes.data % 16 + 1
        odd = moved[start : start + w.tiles.nbytes].reshape(w.tiles.shape)
        odd[...] = w.tiles
        with pytest.raises(DeviceError, match="16 bytes at a time"):
            device.matmul(Weight(w.format, 32, w.codes, w.scales, None, odd, w.scale_tiles, None), x)
