"""The weights of a quantized model in a file without a graph: GGUF, or codes and scales in safetensors or npz."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats
from onnxq.boundary import bounded
from onnxq.checkpoints.encode_arrays import SUFFIXES, Tensor, write_weights
from onnxq.checkpoints.gguf_file import ARRAYS, MOST_AXES
from onnxq.conversion.files import opened
from onnxq.conversion.proof import decibels
from onnxq.conversion.restore import restore_products
from onnxq.encoding.lazy import GivenTensor, in_blocks
from onnxq.errors import BadRecipe, NothingToDo
from onnxq.formats import Format, Granularity, QuantizedTensor
from onnxq.job import Environment
from onnxq.layouts import gguf_block
from onnxq.model import graph
from onnxq.model.origin import ORIGIN, RESTORED
from onnxq.model.weights import Weight, find_weights
from onnxq.version import __version__

#: What quantizers hang on the name of a weight for its codes.
_SUFFIX = re.compile(
    rf"_(nbits|Q\d+G?\d*|quantized|q?weight_quantized|qweight|(rows_)?({'|'.join(formats.names())}))(_\d+)?$"
)
#: Of whole numbers, GGUF's formats by bits and whether they are symmetric.
_WHOLE = {(4, True): "q4_0", (8, True): "q8_0", (4, False): "q4_1"}


@dataclass(frozen=True)
class Row:
    """What became of one weight: the format that it has in the file (None: a plain array), and how near it is to what
    it was, in dB; None: equal, bit for bit."""

    name: str
    shape: tuple[int, ...]
    format: str | None
    sqnr: float | None


@bounded
def export_weights(model: str | Path, output: str | Path, *, environment: Environment | None = None) -> list[Row]:
    """Write all weights of the quantized `model`, made by whatever tool, to `output`; what became of each.

    Weights of products are written as [outputs, inputs]. Those that the file has no format for become float16 in GGUF;
    in `.safetensors` and `.npz` every format has its codes and scales (`onnxq decode` reads them).

    Args:
        output: `.gguf`, `.safetensors` or `.npz`.
        environment: its guard says whether `output` may be replaced.

    Raises:
        BadModel: the model cannot be read, or a weight does not fit the file.
        BadRecipe: another kind of file.
        BadOutput: the output cannot be written.
        NothingToDo: no product or lookup of the model has packed weights.
    """
    path, output, environment = Path(model), Path(output), environment or Environment()
    if output.suffix not in SUFFIXES:
        raise BadRecipe(f"'{output}' is none of {', '.join(SUFFIXES)}, by which the kind of file is told")
    loaded, _ = opened(path, output, environment)
    restore_products(loaded, channels=True)
    rows: list[Row] = []
    tensors = [(name, functools.partial(_made, name, read, output.suffix, rows)) for name, read in _weights(loaded)]
    if not any(isinstance(value.const_value, GivenTensor) for value in _constants(loaded)):
        raise NothingToDo(f"'{path}' has no products or lookups on packed weights: there is nothing to export")
    environment.progress.start("writing")
    about = {"general.architecture": "onnx", "general.name": path.stem} if output.suffix == ".gguf" else {}
    write_weights(output, tensors, about | {"onnxq.version": __version__}, replace=environment.guard.force)
    return rows


def _constants(model: ir.Model) -> Iterator[ir.Value]:
    for each in graph.graphs(model):
        yield from each.initializers.values()


def _weights(model: ir.Model) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Names of all constants, each once, and what reads them: those of products by rows of their outputs."""
    turned = {id(w.value): w for w in find_weights(model) if _lies_turned(w)}
    names: set[str] = set()
    for value in _constants(model):
        tensor, name = value.const_value, _name(value)
        if tensor is None or tensor.dtype is ir.DataType.STRING:
            continue
        number = 1
        while name in names:
            number += 1
            name = f"{_name(value)}.{number}"
        names.add(name)
        yield name, functools.partial(_read, tensor, id(value) in turned)


def _lies_turned(weight: Weight) -> bool:
    was_codes = bool(weight.value.meta.get(RESTORED))
    return was_codes and len(weight.shape) == 2 and weight.role.contraction == 0


def _read(tensor: ir.TensorProtocol, is_turned: bool) -> Tensor:
    if isinstance(tensor, GivenTensor):
        return (tensor.turned() if is_turned else tensor).given()
    array = tensor.numpy().T if is_turned else tensor.numpy()
    return array if array.dtype.kind != "b" else array.astype(np.int8)


def _name(value: ir.Value) -> str:
    name = str(value.meta.get(ORIGIN) or value.name)
    return (_SUFFIX.sub("", name) or name) if value.meta.get(RESTORED) else name


def _made(name: str, read: Callable[[], Tensor], suffix: str, rows: list[Row]) -> Tensor:
    tensor = read()
    if suffix != ".gguf":
        word = tensor.format.name if isinstance(tensor, QuantizedTensor) else None
        rows.append(Row(name, tensor.shape, word, None))
        return tensor
    made = _in_gguf(tensor)
    word = made.format.name if isinstance(made, QuantizedTensor) else None
    rows.append(Row(name, tensor.shape, word, _distance(tensor, made)))
    return made


def _in_gguf(tensor: Tensor) -> Tensor:
    """The same in a form that GGUF has: the same codes, if it can be."""
    if not isinstance(tensor, QuantizedTensor):
        known = tensor.dtype in ARRAYS
        array = tensor if known else tensor.astype(np.int64 if tensor.dtype.kind in "iu" else np.float32)
        return array.reshape(-1) if array.ndim > MOST_AXES else array
    format, how = tensor.format, tensor.granularity
    found = _twin(tensor)
    block = gguf_block(found) if found is not None else 0
    is_by_rows = how.axis == len(tensor.shape) - 1 and tensor.shape[-1] % max(1, block) == 0
    if found is not None and found.scale_type is None:
        return tensor
    if found is not None and is_by_rows and how.block is not None and how.block % block == 0:
        return _as(found, in_blocks(tensor, Granularity(how.axis, block)) if how.block != block else tensor)
    dtype = np.dtype(ml_dtypes.bfloat16) if format.name == "bfloat16" else np.dtype(np.float16)
    return tensor.dequantize(dtype)


def _twin(q: QuantizedTensor) -> Format | None:
    """The format of GGUF's that the codes of a weight are of."""
    if q.format.gguf:
        return q.format
    if not q.format.is_integer or q.format.base is not None:
        return None
    word = _WHOLE.get((q.format.bits, q.zero_points is None))
    return None if word is None else formats.get(word)


def _as(found: Format, q: QuantizedTensor) -> QuantizedTensor:
    """The codes of `q` in the format `found`, whose scales, and minima, are of float16."""
    if q.format is found or q.format.name == found.name:
        return q
    assert q.scales is not None
    scales = q.scales.astype(np.float16)
    if q.zero_points is None:
        return QuantizedTensor(found, q.granularity, q.codes, scales)
    minima = -q.zero_points.astype(np.float32) * q.scales.astype(np.float32)
    return QuantizedTensor(found, q.granularity, q.codes, scales, minima.astype(np.float16))


def _distance(before: Tensor, after: Tensor) -> float | None:
    """SQNR in dB; None: equal."""
    a, b = (_floats(tensor).reshape(-1) for tensor in (before, after))
    if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return None
    return decibels(a, b)


def _floats(tensor: Tensor) -> NDArray:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
