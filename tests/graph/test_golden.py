"""Against what other projects' own code made of the same weights: codes bit for bit, scales to the last ulp."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from shared import SHARED

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor, _codebook


def golden(name: str) -> dict[str, NDArray]:
    path = SHARED / "golden" / name
    if not path.is_file():
        pytest.skip(f"no golden/{name} in {SHARED}; ONNXQ_SHARED says where they are")
    with np.load(path) as arrays:
        return dict(arrays)


def assert_one_ulp(got: NDArray, wanted: NDArray) -> None:
    np.testing.assert_array_max_ulp(got.astype(np.float32), wanted.astype(np.float32), maxulp=1)


def flat(name: str, w: NDArray, block: int = 64) -> QuantizedTensor:
    """Blocks counted through the flattened weight."""
    return formats.get(name).encode(w.reshape(-1), Granularity(0, block))


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_bitsandbytes(name: str) -> None:
    peer = golden("bitsandbytes.npz")
    q = flat(name, peer["weight"])
    assert q.scales is not None
    np.testing.assert_array_equal(q.scales, peer[f"{name}_absmax"])
    np.testing.assert_array_equal(formats.get(name).levels, peer[f"{name}_code"])
    # Two of fp4's codes mean zero: bitsandbytes gives small negative weights the second, -0.
    numbers = [
        peer[f"{name}_code"][np.stack([b >> 4, b & 15], -1)] for b in (layouts.matmul_bnb4(q), peer[f"{name}_packed"])
    ]
    np.testing.assert_array_equal(*numbers)
    np.testing.assert_array_equal(q.dequantize(), peer[f"{name}_dequant"].reshape(-1))


def test_bitsandbytes_bytes() -> None:
    peer = golden("bitsandbytes.npz")
    np.testing.assert_array_equal(layouts.matmul_bnb4(flat("nf4", peer["weight"])), peer["nf4_packed"])


def test_torchao() -> None:
    """torchao rounds the NF4 table to four digits, and divides an all-zero block by zero: here that is 0.0, scale 0."""
    peer = golden("torchao_nf4.npz")
    nf4 = formats.get("nf4")
    np.testing.assert_allclose(nf4.levels, peer["nf4"], atol=5e-5)
    q = _codebook.encode(nf4, peer["weight"].reshape(-1), Granularity(0, 64), None, peer["nf4"])
    assert q.scales is not None
    empty = q.scales == 0
    packed = layouts.matmul_bnb4(q).reshape(-1, 32)
    np.testing.assert_array_equal(packed[~empty], peer["quantized_data"].reshape(-1, 32)[~empty])
    assert empty.any()
    assert not q.dequantize().reshape(-1, 64)[empty].any()


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_onnxruntime_nbits(bits: int, block: int) -> None:
    """onnxruntime gives a block of zeros the scale 0, we 1; every code of it is the zero point either way."""
    peer = golden("onnxruntime_nbits.npz")
    q = formats.get(f"uint{bits}").encode(peer["weight"], Granularity(0, block))
    prefix = f"int{bits}_b{block}_asym"
    scales, wanted = layouts.scales_by_row(q).reshape(-1), peer[f"{prefix}_scales"]
    assert_one_ulp(np.where(wanted == 0, 0, scales), wanted)
    np.testing.assert_array_equal(layouts.matmul_nbits_zero_points(q).reshape(-1), peer[f"{prefix}_zero_points"])
    codes, theirs = (unpacked(x, bits) for x in (layouts.matmul_nbits(q), peer[f"{prefix}_packed"]))
    # Ties: we round w / s half to even, onnxruntime w / s + z half away from zero, and the sum in float32 makes ties
    # of numbers up to half a unit of the last place of 255, 2^-17, away from one.
    differ = codes != theirs
    exact = (peer["weight"] / q.granularity.spread(scales_of(q), q.shape)).T
    assert differ.sum() <= 4
    np.testing.assert_allclose(np.abs(exact - np.rint(exact))[differ], 0.5, rtol=0, atol=2**-17)
    np.testing.assert_array_equal(codes[differ] + 1, theirs[differ])


def unpacked(packed: NDArray, bits: int) -> NDArray:
    """[N, K] codes of MatMulNBits' bytes, the even k in the low nibble."""
    codes = packed if bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1)
    return codes.reshape(len(packed), -1)


def scales_of(q: QuantizedTensor) -> NDArray:
    assert q.scales is not None
    return q.scales


@pytest.mark.parametrize("name", ["uint8", "int8", "uint4"])
def test_onnx_quantize_linear(name: str) -> None:
    peer = golden("onnx_qdq.npz")
    scale, zero = peer[f"{name}_scale_zp"]
    dtype = np.int8 if name == "int8" else np.uint8
    # The evaluator wraps numbers beyond int32 around, where the specification saturates.
    legal = np.abs(peer["x"] / scale) < 2**31
    x, wanted = peer["x"][legal], peer[name][legal]
    if name == "int8":  # symmetric: the code -128 is not used
        wanted = np.maximum(wanted, np.float32(scale) * np.float32(-127 - zero))
    q = formats.get(name).encode(x, Granularity(), np.array(scale, np.float32), np.array(zero, dtype))
    np.testing.assert_array_equal(q.dequantize(), wanted)
    assert legal.sum() > 500


def test_gguf_bfloat16() -> None:
    peer = golden("gguf.npz")
    q = formats.get("bfloat16").encode(peer["weight"], Granularity())
    assert q.codes.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(q.codes.view(np.uint8), peer["BF16"])
    np.testing.assert_array_equal(q.dequantize(), peer["BF16_dequant"])
