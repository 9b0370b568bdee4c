"""Checks every tensor of a model before its numbers are read.

Data must be there, as many as the shape says, and external ones in a regular file in the model's folder,
links followed.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from onnxq.errors import BadModel
from onnxq.files import limits

#: The field of a TensorProto that holds numbers of a type, and how many of its entries make one number.
_FIELDS: dict[int, tuple[str, int]] = {
    onnx.TensorProto.FLOAT: ("float_data", 1),
    onnx.TensorProto.COMPLEX64: ("float_data", 2),
    onnx.TensorProto.DOUBLE: ("double_data", 1),
    onnx.TensorProto.COMPLEX128: ("double_data", 2),
    onnx.TensorProto.INT64: ("int64_data", 1),
    onnx.TensorProto.UINT32: ("uint64_data", 1),
    onnx.TensorProto.UINT64: ("uint64_data", 1),
    onnx.TensorProto.STRING: ("string_data", 1),
}
_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
#: How onnxruntime spells that a tensor lies in memory, at the address that `offset` says (tensorprotoutils.h). Versions
#: before 1.23 follow it in files as well.
_IN_MEMORY = ("*/_ORT_MEM_ADDR_/*", "*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*")


class TensorDoor:
    """Checks the tensors of the model at `path`, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A model may be a link into a store of files, its data another one into the same store.
        self._folders = {Path(os.path.realpath(path.parent)), Path(os.path.realpath(path)).parent}
        self._sizes: dict[str, int] = {}
        self._external = 0

    def check(self, tensor: onnx.TensorProto, where: str) -> None:
        """Refuse a tensor that cannot be read as its shape and type say.

        Args:
            where: whose it is, in words, for one without a name.
        """
        name = f"weight '{tensor.name}'" if tensor.name else f"a tensor of {where}"
        try:
            dtype = ir.DataType(tensor.data_type)
            bits = 0 if dtype.is_string() else round(8 * dtype.itemsize)
        except (ValueError, TypeError):
            raise self._bad(f"{name} has element type {tensor.data_type}, which ONNX does not know") from None
        if any(not 0 <= dim <= limits.DIMENSION for dim in tensor.dims) or len(tensor.dims) > 64:
            raise self._bad(f"{name} has an impossible shape: {list(tensor.dims)[:8]}")
        if tensor.HasField("segment"):
            raise self._bad(f"{name} is a segment of a tensor, which onnxq cannot read")
        elements = math.prod(tensor.dims)
        nbytes = (elements * bits + 7) // 8
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if not bits:
                raise self._bad(f"{name} holds text outside the model, which ONNX does not allow")
            self._check_external(tensor, name, nbytes)
        else:
            self._check_own(tensor, name, elements, bits, nbytes)

    def _check_own(self, tensor: onnx.TensorProto, name: str, elements: int, bits: int, nbytes: int) -> None:
        if tensor.external_data:
            raise self._bad(f"{name} has both a place outside the model and data inside")
        filled = [field for field in _DATA if len(getattr(tensor, field))]
        if tensor.HasField("raw_data") and tensor.raw_data:
            have, want, unit, fits = len(tensor.raw_data), nbytes, "bytes", not filled and bits > 0
        else:
            field, per_element = _FIELDS.get(tensor.data_type, ("int32_data", 1))
            packed = elements if bits >= 8 or not bits else nbytes  # several numbers of 4 or 2 bits in one entry
            have, want = len(getattr(tensor, field)), packed * per_element
            unit, fits = "numbers", filled in ([], [field])
        if not fits or have != want:
            raise self._bad(
                f"{name} does not hold what its type and shape {list(tensor.dims)} say: {have} {unit}, not {want}"
                if fits
                else f"{name} holds its numbers in a form that is not of its type"
            )

    def _check_external(self, tensor: onnx.TensorProto, name: str, nbytes: int) -> None:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if len(entries) != len(tensor.external_data):  # who reads the file after us may take the other one
            raise self._bad(f"{name} says two things of where it lies outside the model")
        location = entries.get("location", "")
        is_path = isinstance(location, str) and location and "\0" not in location and len(location) <= 4096
        if not is_path or location in _IN_MEMORY:
            raise self._bad(f"{name} lies outside the model, but in no file that could be found")
        offset, length = (self._number(entries.get(key, ""), name, key) for key in ("offset", "length"))
        where = self.path.parent / location
        real = Path(os.path.realpath(where))  # `Path.resolve` fails where links go round in a circle
        inside = not os.path.isabs(location) and any(real.is_relative_to(folder) for folder in self._folders)
        if not inside:
            raise self._bad(f"{name} lies in '{where}', outside the model's folder; move it there")
        if not os.path.lexists(where):
            raise BadModel(f"'{self.path}' needs the data file '{where}', which is not there; put it beside the model")
        if str(where) not in self._sizes:
            self._sizes[str(where)] = limits.require_file(where)
        if entries.get("length") and length != nbytes:
            raise self._bad(f"{name} has {nbytes} bytes by its type and shape, {length} by its place in '{where}'")
        end, size = offset + nbytes, self._sizes[str(where)]
        if size < end:
            raise BadModel(f"'{where}' is cut short: {name} ends at byte {end}, the file has {size}")
        self._external += nbytes
        if self._external > limits.OVERLAP * sum(self._sizes.values()) + limits.OVERLAP_BYTES:
            raise self._bad(f"its weights take {limits.in_words(self._external)}, many times what '{where}' holds")

    def _number(self, text: str, name: str, key: str) -> int:
        if not text:
            return 0
        is_number = isinstance(text, str) and text.isascii() and text.isdecimal()
        if not is_number or len(text) > 19 or int(text) >= 1 << 63:
            raise self._bad(f"{name} lies outside the model, but its {key} '{text}' is no number of bytes")
        return int(text)

    def dense(self, sparse: onnx.SparseTensorProto, where: str) -> onnx.TensorProto:
        """The sparse tensor as an ordinary one: onnx_ir knows no others."""
        for tensor in (sparse.values, sparse.indices):
            self.check(tensor, where)
        name = sparse.values.name or where
        dims = tuple(sparse.dims)
        if any(not 0 <= dim <= limits.DIMENSION for dim in dims) or math.prod(dims) > limits.DENSE_ELEMENTS:
            raise self._bad(f"the sparse tensor '{name}' has a shape too large to be filled in: {list(dims)[:8]}")
        if sparse.indices.data_type != onnx.TensorProto.INT64 or sparse.values.data_type == onnx.TensorProto.STRING:
            raise self._bad(f"the sparse tensor '{name}' is not one of numbers and their places")
        folder = str(self.path.parent)
        try:
            values, indices = (onnx.numpy_helper.to_array(each, folder) for each in (sparse.values, sparse.indices))
        except (ValueError, TypeError, OSError):
            raise self._bad(f"the sparse tensor '{name}' does not hold what its types and shapes say") from None
        places = indices[:, None] if indices.ndim == 1 else indices
        sizes = (math.prod(dims),) if indices.ndim == 1 else dims
        if values.ndim != 1 or places.shape != (len(values), len(sizes)):
            raise self._bad(f"the sparse tensor '{name}' has {values.shape} numbers in {indices.shape} places")
        if places.size and ((places < 0).any() or (places >= np.array(sizes)).any()):
            raise self._bad(f"the sparse tensor '{name}' has numbers outside its shape {list(dims)}")
        filled = np.zeros(sizes, values.dtype)
        filled[tuple(places.T)] = values
        return onnx.numpy_helper.from_array(filled.reshape(dims), sparse.values.name)

    def _bad(self, sentence: str) -> BadModel:
        return BadModel(f"'{self.path}': {sentence}")
