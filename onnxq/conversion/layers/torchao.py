"""torchao: its tensors taken apart, and what each was in the metadata of the file.

Source: torchao 0.18's `flatten_tensor_state_dict`; `schemes/torchao.py` reads the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.conversion.layers._whole_numbers import whole_numbers
from onnxq.formats import QuantizedTensor

Parts = tuple[dict[str, NDArray], dict[str, Any]]
_FLOAT32 = {"_type": "torch.dtype", "_data": "float32"}


def parts(name: str, q: QuantizedTensor) -> Parts | None:
    """The tensors of a layer, and what its weight was; None: torchao has no such form."""
    found = whole_numbers(q)
    if found is not None:
        n, k = found.codes.shape
        scales, zeros = (None if x is None else _rows(x, n) for x in (found.scales, found.zeros))
        assert scales is not None
        data: dict[str, Any] = {"block_size": [1, found.group], "dtype": _FLOAT32}
        if found.bits == 8 and found.group == k:
            kind, data = "Int8Tensor", data | {"act_quant_kwargs": None, "reduce_range": False}
        else:
            word = {"_type": "torch.dtype", "_data": f"int{found.bits}"}
            kind, data = "IntxUnpackedToInt8Tensor", data | {"target_dtype": word, "activation_quantization": None}
        zeros = np.zeros(scales.shape, np.int8) if zeros is None else zeros
        return _tensor(name, kind, data, {"qdata": found.codes, "scale": scales, "zero_point": zeros})
    is_rows = q.granularity.block is None and q.granularity.axis in (None, 0)
    if q.format.name == "float8_e4m3" and is_rows and len(q.shape) == 2 and q.scales is not None:
        n, k = q.shape
        data = {"block_size": [1, k], "dtype": _FLOAT32, "mm_config": None, "act_quant_kwargs": None}
        data["kernel_preference"] = {"_type": "KernelPreference", "_data": "AUTO"}
        scales = _rows(q.scales.astype(np.float32).reshape(-1, 1), n)
        return _tensor(name, "Float8Tensor", data, {"qdata": q.codes, "scale": scales})
    return None


def read_as(q: QuantizedTensor) -> QuantizedTensor:
    """A weight that has `parts` as it is read from them: itself."""
    return q


def plain(name: str) -> str:
    """What an array in floats is called: its last word has to say what of a layer it is."""
    return name if "." in name else f"{name}.weight"


def metadata(said: Mapping[str, Any]) -> dict[str, str]:
    """Of a file: what each of its tensors was."""
    found = {name: json.dumps(entry or {"_type": "Tensor"}) for name, entry in said.items()}
    return {"format": "pt", "tensor_names": json.dumps(list(found)), **found}


def config(said: Mapping[str, Any]) -> dict[str, Any]:
    """The files say all there is."""
    return {}


def _rows(x: NDArray, n: int) -> NDArray:
    """Scales of rows, where the tensor had one."""
    return x if len(x) == n else np.repeat(x, n, axis=0)


def _tensor(name: str, kind: str, data: dict[str, Any], tensors: dict[str, NDArray]) -> Parts:
    said = {"_type": kind, "_data": data, "_tensor_data_names": list(tensors)}
    return {f"{name}._weight_{part}": array for part, array in tensors.items()}, said
