"""compressed-tensors: what vLLM and transformers load. Each weight has a group of its own kind in `config.json`.

Source: the compressors and `QuantizationConfig` of the package compressed-tensors 0.20; `schemes/compressed_tensors.py`
reads the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxq.conversion.layers._whole_numbers import WholeNumbers, whole_numbers
from onnxq.formats import QuantizedTensor
from onnxq.formats.kinds.super_blocks import StoredScales

Parts = tuple[dict[str, NDArray], dict[str, Any]]


def parts(name: str, q: QuantizedTensor) -> Parts | None:
    """The tensors of a layer, and the scheme of its weight with its format; None: it has no such form."""
    found = whole_numbers(q)
    if found is not None:
        return _whole(name, found)
    if len(q.shape) != 2 or q.scales is None:
        return None
    if q.format.name == "float8_e4m3" and q.granularity.block is None and q.granularity.axis in (None, 0):
        kind = "tensor" if q.granularity.axis is None else "channel"
        scales = q.scales.astype(np.float32).reshape((1,) if kind == "tensor" else (-1, 1))
        tensors = {f"{name}.weight": q.codes, f"{name}.weight_scale": scales}
        return tensors, _scheme("float-quantized", 8, "float", kind)
    even = q.shape[1] % 2 == 0 and q.granularity.axis == 1
    if q.format.name == "mxfp4" and q.granularity.block == 32 and q.shape[1] % 32 == 0:
        more = {"group_size": 32, "scale_dtype": "torch.uint8"}
        tensors = {f"{name}.weight_packed": _nibbles(q.codes), f"{name}.weight_scale": q.scales.view(np.uint8)}
        return tensors, _scheme("mxfp4-pack-quantized", 4, "float", "group", **more)
    if q.format.name == "nvfp4" and even and q.shape[1] % 16 == 0 and isinstance(q.nested, StoredScales):
        return _nvfp4(name, q, q.nested)
    return None


def read_as(q: QuantizedTensor) -> QuantizedTensor:
    """A weight that has `parts` as it is read from them: scales of nvfp4 are quotients there, in float32."""
    divisor = _divisor(q.nested) if q.format.name == "nvfp4" and isinstance(q.nested, StoredScales) else None
    if divisor is None or not isinstance(q.nested, StoredScales):
        return q
    return dataclasses.replace(q, scales=q.nested.scales.codes.astype(np.float32) / divisor)


def plain(name: str) -> str:
    """What an array in floats is called."""
    return name


def metadata(said: Mapping[str, Any]) -> dict[str, str]:
    """Of a file."""
    return {"format": "pt"}


def config(said: Mapping[str, Any]) -> dict[str, Any]:
    """What `config.json` says: which layers are of which scheme.

    Args:
        said: by layer, what `parts` said; None of those in floats.
    """
    groups: dict[str, dict[str, Any]] = {}
    for layer, scheme in said.items():
        if scheme is not None:
            found = groups.setdefault(json.dumps(scheme, sort_keys=True), {"targets": [], **scheme})
            found["targets"].append(layer)
    kinds = {group["format"] for group in groups.values()}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": next(iter(kinds)) if len(kinds) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": {f"group_{i}": group for i, group in enumerate(groups.values())},
            "ignore": sorted(layer for layer, scheme in said.items() if scheme is None),
        }
    }


def _whole(name: str, found: WholeNumbers) -> Parts:
    n, k = found.codes.shape
    kind = "group" if found.group < k else "channel" if found.scales.size > 1 or n == 1 else "tensor"
    scales, zeros = found.scales, found.zeros
    if kind == "tensor" and (found.bits < 8 or zeros is not None):  # packed codes have scales of rows at least
        kind, scales = "channel", np.repeat(scales, n, axis=0)
        zeros = None if zeros is None else np.repeat(zeros, n, axis=0)
    said = {"group_size": found.group if kind == "group" else None, "symmetric": zeros is None}
    if found.bits == 8 and kind != "group":
        tensors: dict[str, NDArray] = {f"{name}.weight": found.codes, f"{name}.weight_scale": scales}
        if kind == "tensor":
            tensors[f"{name}.weight_scale"] = scales.reshape(1)
        if zeros is not None:
            tensors[f"{name}.weight_zero_point"] = zeros
        return tensors, _scheme("int-quantized", 8, "int", kind, **said)
    tensors = {
        f"{name}.weight_packed": _packed(found.codes, found.bits),
        f"{name}.weight_scale": scales,
        f"{name}.weight_shape": np.array([n, k], np.int64),
    }
    if zeros is not None:
        columns = np.ascontiguousarray(zeros.T)
        tensors[f"{name}.weight_zero_point"] = np.ascontiguousarray(_packed(columns, found.bits).T)
    return tensors, _scheme("pack-quantized", found.bits, "int", kind, **said)


def _packed(codes: NDArray[np.int8], bits: int) -> NDArray[np.int32]:
    """[rows, words]: codes less the lowest one in a stream of bits, the lowest of each word first."""
    raised = (codes.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    rows, count = raised.shape
    stream = np.unpackbits(raised[..., None], axis=2, bitorder="little", count=bits).reshape(rows, count * bits)
    words = -(-count * bits // 32)
    filled = np.pad(stream, ((0, 0), (0, words * 32 - count * bits)))
    return np.packbits(filled, axis=1, bitorder="little").view("<i4")


def _nibbles(codes: NDArray) -> NDArray[np.uint8]:
    low, high = codes[:, ::2].astype(np.uint8), codes[:, 1::2].astype(np.uint8)
    return np.ascontiguousarray(low | high << 4)


def _nvfp4(name: str, q: QuantizedTensor, stored: StoredScales) -> Parts | None:
    divisor = _divisor(stored)
    if divisor is None:
        return None
    tensors = {
        f"{name}.weight_packed": _nibbles(q.codes),
        f"{name}.weight_scale": stored.scales.codes,
        f"{name}.weight_global_scale": np.array([divisor], np.float32),
    }
    more = {"group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
    return tensors, _scheme("nvfp4-pack-quantized", 4, "float", "tensor_group", **more)


def _divisor(stored: StoredScales) -> np.float32 | None:
    """The scale of scales is a divisor there: the one whose quotients are most like our products, but for rounding."""
    short, factors = stored.scales.codes, np.asarray(stored.scales.scales).reshape(-1)
    if factors.size != 1 or not factors[0] or short.dtype != ml_dtypes.float8_e4m3fn:
        return None
    near = np.float32(1) / np.float32(factors[0])
    divisors = (near, *(np.nextafter(near, np.float32(end)) for end in (0, np.inf)))
    wanted, wide = stored.scales.dequantize(), short.astype(np.float32)
    return max(divisors, key=lambda d: int(np.count_nonzero(wide / d == wanted)))


def _scheme(form: str, bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False} | more
    return {"format": form, "weights": weights}
