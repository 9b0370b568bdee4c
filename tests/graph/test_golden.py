"""Against what other projects' own code made of the same weights: codes bit for bit, scales to the last ulp."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from shared import SHARED

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import affine, codebook
from onnxq.formats.kinds import nested as _nested


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
    np.testing.assert_array_equal(scales_of(q), peer[f"{name}_absmax"])
    np.testing.assert_array_equal(formats.get(name).levels, peer[f"{name}_code"])
    np.testing.assert_array_equal(layouts.matmul_bnb4(q), peer[f"{name}_packed"])
    np.testing.assert_array_equal(q.dequantize(), peer[f"{name}_dequant"].reshape(-1))
    again = layouts.from_matmul_bnb4(q.format, peer[f"{name}_packed"], peer[f"{name}_absmax"], q.codes.size, 64)
    np.testing.assert_array_equal(again.dequantize(), peer[f"{name}_dequant"].reshape(-1))


def test_bitsandbytes_nested() -> None:
    """torch adds the scales up in float32, so its mean is up to an ulp away; everything else follows bit for bit.

    But for a bug of the peer: its processor kernel finds 8-bit codes by a table of 65,536 steps over [-1, 1], so that
    near zero, where the map is finer than that, it does not take the nearest.
    """
    peer = golden("bitsandbytes.npz")
    np.testing.assert_array_equal(_nested.dynamic_map(), peer["nested_code"])
    q = flat("nf4_dq_bnb", peer["weight"])
    assert q.nested is not None
    np.testing.assert_array_equal(layouts.matmul_bnb4(q), peer["nested_packed"])
    differ = q.nested.codes != peer["nested_absmax_u8"]
    assert differ.sum() <= 1
    rest = (peer["nf4_absmax"] - peer["nested_offset"]) / np.repeat(peer["nested_absmax2"], 256)
    ours, theirs = (np.abs(peer["nested_code"][c] - rest)[differ] for c in (q.nested.codes, peer["nested_absmax_u8"]))
    assert (ours < theirs).all()
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2**-15)
    assert_one_ulp(q.nested.offset, peer["nested_offset"])
    # The largest difference from the mean moves as far as the mean: an ulp of the mean, not of the difference.
    np.testing.assert_allclose(q.nested.factors, peer["nested_absmax2"], rtol=0, atol=np.spacing(peer["nested_offset"]))
    nested = _nested.NestedScales(peer["nested_absmax_u8"], peer["nested_absmax2"], peer["nested_offset"])
    scales = nested.dequantize()
    again = layouts.from_matmul_bnb4(formats.get("nf4"), peer["nested_packed"], scales, q.codes.size, 64)
    np.testing.assert_array_equal(again.dequantize(), peer["nested_dequant"].reshape(-1))


def test_torchao() -> None:
    """torchao rounds the NF4 table to four digits, and divides an all-zero block by zero: here that is 0.0, scale 0."""
    peer = golden("torchao_nf4.npz")
    nf4 = formats.get("nf4")
    np.testing.assert_allclose(nf4.levels, peer["nf4"], atol=5e-5)
    w, blocks = peer["weight"].reshape(-1), Granularity(0, 64)
    q = codebook.encode(nf4, w, blocks, None, codebook.plain_tables(peer["nf4"]))
    empty = scales_of(q) == 0
    packed = layouts.matmul_bnb4(q).reshape(-1, 32)
    np.testing.assert_array_equal(packed[~empty], peer["quantized_data"].reshape(-1, 32)[~empty])
    assert empty.any()
    assert not q.dequantize().reshape(-1, 64)[empty].any()
    nested = formats.get("nf4_dq").encode(w, blocks).nested
    assert nested is not None
    np.testing.assert_array_equal(nested.codes, peer["quantized_scalers"])
    assert_one_ulp(nested.offset, peer["scaler_mean"])
    assert_one_ulp(nested.factors, peer["quantization_factor"])
    theirs = _nested.NestedScales(peer["quantized_scalers"], peer["quantization_factor"], peer["scaler_mean"])
    decoded = peer["nf4"][q.codes] * blocks.spread(theirs.dequantize(), w.shape)
    whole = ~np.repeat(empty, 64)
    np.testing.assert_array_equal(decoded[whole], peer["original"].reshape(-1)[whole])


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


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_onnxruntime_nbits_symmetric(bits: int, block: int) -> None:
    """int4's own rule. int8 is -127…127 here: the rule and the bytes are compared with what onnxruntime makes.

    A block of zeros: scale 0 there, 1 here. One tie that the sum with 128 makes in float32, as above.
    """
    peer = golden("onnxruntime_nbits.npz")
    prefix, w, blocks = f"int{bits}_b{block}_sym", peer["weight"], Granularity(0, block)
    qmin, format = -(1 << (bits - 1)), formats.get(f"int{bits}")
    if bits == 4:
        q = format.encode(w, blocks)
    else:
        scales = affine.fit_signed(w, blocks, qmin)
        q = affine.encode(format, w, blocks, scales, None, qmin, -qmin - 1, format.code_type)
    by_row, wanted = layouts.scales_by_row(q).reshape(-1), peer[f"{prefix}_scales"]
    np.testing.assert_array_equal(np.where(wanted == 0, 0, by_row), wanted)
    packed = layouts.matmul_nbits(q)
    differ = unpacked(packed, bits) != unpacked(peer[f"{prefix}_packed"], bits)
    assert differ.sum() <= (bits == 8)
    exact = (w / q.granularity.spread(scales_of(q), q.shape)).T
    np.testing.assert_allclose(np.abs(exact - np.rint(exact))[differ], 0.5, rtol=0, atol=2**-17)
    again = layouts.from_matmul_nbits(format, packed, layouts.scales_by_row(q), None, w.shape[0])
    np.testing.assert_array_equal(again.dequantize(), q.dequantize().T)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "bfloat16"])
def test_gguf(name: str) -> None:
    peer = golden("gguf.npz")
    key = {"bfloat16": "BF16"}.get(name, name.upper())
    q = formats.quantize(peer["weight"], name)
    np.testing.assert_array_equal(layouts.gguf(q), peer[key])
    np.testing.assert_array_equal(q.dequantize(), peer[f"{key}_dequant"])
    assert q.nbytes == peer[key].size
    again = layouts.from_gguf(q.format, peer[key], q.shape)
    assert again.codes.dtype == q.codes.dtype
    np.testing.assert_array_equal(again.codes.view(np.uint8), q.codes.view(np.uint8))
    np.testing.assert_array_equal(again.dequantize(), peer[f"{key}_dequant"])


def unpacked(packed: NDArray, bits: int) -> NDArray:
    """[N, K] codes of MatMulNBits' bytes, the even k in the low nibble."""
    codes = packed if bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1)
    return codes.reshape(len(packed), -1)


def scales_of(q: QuantizedTensor) -> NDArray:
    assert q.scales is not None
    return q.scales


@pytest.mark.parametrize("name", ["uint8", "int8", "uint4", "int4", "int16"])
def test_onnx_quantize_linear(name: str) -> None:
    peer = golden("onnx_qdq.npz")
    scale, zero = peer[f"{name}_scale_zp"]
    format = formats.get(name)
    # The evaluator wraps numbers beyond int32 around, where the specification saturates.
    legal = np.abs(peer["x"] / scale) < 2**31
    x, wanted = peer["x"][legal], peer[name][legal]
    if name in ("int8", "int16"):  # symmetric: the code -128 (-32768) is not used
        lowest = -(1 << (format.bits - 1)) + 1
        wanted = np.maximum(wanted, np.float32(scale) * np.float32(lowest - zero))
    zeros = np.array(zero, format.code_type) if name.startswith("u") else None  # of the signed ones it is 0
    assert zeros is not None or zero == 0
    q = format.encode(x, Granularity(), np.array(scale, np.float32), zeros)
    np.testing.assert_array_equal(q.dequantize(), wanted)
    assert legal.sum() > 500
