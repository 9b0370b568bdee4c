"""Element types and arrays of ONNX as those of torch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from onnxq.errors import BadModel

_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.BOOL: torch.bool,
    # Types that torch computes little in, in wider ones that hold all their numbers.
    ir.DataType.UINT16: torch.int32,
    ir.DataType.UINT32: torch.int64,
    ir.DataType.UINT64: torch.int64,
    ir.DataType.INT4: torch.int8,
    ir.DataType.UINT4: torch.uint8,
    ir.DataType.INT2: torch.int8,
    ir.DataType.UINT2: torch.uint8,
    ir.DataType.FLOAT8E4M3FN: torch.float32,
    ir.DataType.FLOAT8E5M2: torch.float32,
    ir.DataType.FLOAT4E2M1: torch.float32,
}


def torch_type(kind: ir.DataType) -> torch.dtype:
    """Its type in torch.

    Raises:
        BadModel: there is none.
    """
    found = _TYPES.get(kind)
    if found is None:
        raise BadModel(f"tensors of type {kind.name} cannot be trained with")
    return found


def as_torch(tensor: ir.TensorProtocol) -> torch.Tensor:
    """A copy of a tensor of ONNX.

    Raises:
        BadModel: torch has no such type.
    """
    kind = torch_type(tensor.dtype)
    array = np.asarray(tensor.numpy())
    if array.dtype.kind not in "fiub" or array.dtype.itemsize == 2:  # ml_dtypes' floats and short integers
        array = array.astype(np.float32 if kind.is_floating_point else np.int64)
    return torch.from_numpy(np.array(array, order="C")).to(kind)
