"""The weights of a quantized model in a file without a graph: GGUF, or codes and scales in safetensors or npz."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq import formats
from onnxq.boundary import bounded
from onnxq.checkpoints.encode_arrays import SUFFIXES, Tensor, write_weights
from onnxq.checkpoints.gguf_file import Value
from onnxq.checkpoints.own_file import NAMES, PRODUCTS
from onnxq.checkpoints.schemes.gguf import OWN
from onnxq.conversion.files import opened
from onnxq.conversion.gguf_forms import distance, in_gguf
from onnxq.conversion.llama.export import as_llama
from onnxq.conversion.llama.rows import Named
from onnxq.conversion.restore import restore_weights
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel, BadRecipe, NothingToDo
from onnxq.formats import QuantizedTensor
from onnxq.job import Environment
from onnxq.model import graph
from onnxq.model.origin import BY_INPUTS, HALVES, LIES, OF_BODY, ORIGIN, RESTORED, WEIGHT_TURNED
from onnxq.model.weights import Weight, find_weights
from onnxq.version import __version__

_CODES = rf"_(nbits|Q\d+G?\d*|quantized|q?weight_quantized|qweight|(rows_)?({'|'.join(formats.names())})\d*)(_\d+)?"
#: What quantizers hang on the name of a weight for its codes, `convert` to that of the floats which it read.
_SUFFIX = re.compile(rf"({_CODES}_float)*{_CODES}$")

#: What exporters call constants that have no name of their own.
_NUMBERED = re.compile(r"onnx::\w+$")
#: What reads constants that layers are found by: others are put in by their own names.
_BY_NODE = ("MatMul", "Gemm", "Gather")


@dataclass(frozen=True)
class Row:
    """What became of one weight: the format that it has in the file (None: a plain array), and how near it is to what
    it was, in dB; None: equal, bit for bit."""

    name: str
    shape: tuple[int, ...]
    format: str | None
    sqnr: float | None


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        rows: of each tensor, in the order of the file.
        said: which architecture a file is of, or why it is of none that other programs run.
        files: the one that was asked for; or several, the last of which names the others.
    """

    rows: list[Row]
    said: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()


@bounded
def export_weights(
    model: str | Path,
    output: str | Path,
    *,
    shard_size: int | None = None,
    environment: Environment | None = None,
) -> Exported:
    """Write all weights of the quantized `model`, made by whatever tool, to `output`; what became of each.

    Weights of products are written as [outputs, inputs]. A GGUF file of a decoder like Llama has the names and metadata
    that llama.cpp runs. Weights that the file has no format for become float16 in GGUF; in `.safetensors` and `.npz`
    every format has its codes and scales (`onnxq decode` and `onnxq import-weights` read them).

    Args:
        output: `.gguf`, `.safetensors` or `.npz`.
        shard_size: bytes of a `.safetensors` file; a longer one becomes several beside it, and an index of them.
        environment: its guard says whether `output` may be replaced.

    Raises:
        BadModel: the model cannot be read, or a weight does not fit the file.
        BadRecipe: another kind of file.
        BadOutput: the output cannot be written.
        NothingToDo: no product or lookup of the model has packed weights.
    """
    path, output, environment = Path(model), Path(output), environment or Environment()
    if shard_size is not None and (output.suffix != ".safetensors" or shard_size < 1):
        raise BadRecipe(f"only .safetensors can be cut into files of some size, one byte or more, not '{output}'")
    if output.suffix not in SUFFIXES:
        raise BadRecipe(f"'{output}' is none of {', '.join(SUFFIXES)}, by which the kind of file is told")
    loaded, _ = opened(path, output, environment)
    restore_weights(loaded)  # what rounds activations is none of the weights
    require_codes(path, loaded)
    tensors, about, said = list(weights(loaded)), dict[str, Value](), tuple[str, ...]()
    if output.suffix == ".gguf":
        about = {"general.architecture": OWN, "general.name": path.stem, PRODUCTS: products(loaded)}
        environment.progress.start("comparing with a Llama")
        try:
            llama = as_llama(path)
            environment.guard.reads(*llama.read)
            tensors, about, said = llama.tensors, llama.metadata, llama.said
            about[NAMES] = json.dumps({name: _name(*source) for name, source in llama.sources.items()})
        except BadModel as error:
            said = (f"not of an architecture that llama.cpp runs: {error}",)
    environment.progress.start("writing")
    rows, matrices = list[Row](), set(products(loaded))
    made = [(name, functools.partial(_made, name, read, output.suffix, rows)) for name, read in tensors]
    guard = environment.guard
    about |= {"onnxq.version": __version__}
    claim = functools.partial(guard.writes_beside, output)
    files = write_weights(output, made, about, replace=guard.force, most=shard_size, products=matrices, claim=claim)
    return Exported(rows, said, tuple(files))


def require_codes(path: Path, model: ir.Model) -> None:
    """See that some weight of a restored model has codes.

    Raises:
        NothingToDo: none has.
    """
    if not any(isinstance(value.const_value, GivenTensor) for value in constants(model)):
        raise NothingToDo(f"'{path}' has no products or lookups on packed weights: there is nothing to export")


def constants(model: ir.Model) -> Iterator[ir.Value]:
    """Those of all graphs."""
    for each in graph.graphs(model):
        yield from each.initializers.values()


def weights(model: ir.Model) -> Iterator[Named]:
    """Names of all constants, each once, and what reads them: those of products by rows of their outputs."""
    for name, tensor, weight in _named(model):
        yield name, functools.partial(_read, tensor, weight is not None and _lies_turned(weight))


def products(model: ir.Model) -> list[str]:
    """Names of the matrices that had codes, which lie as [outputs, inputs] whatever they are written as."""
    had_codes = {name: weight for name, _, weight in _named(model) if weight and weight.value.meta.get(RESTORED)}
    return [name for name, weight in had_codes.items() if weight.node.op_type in ("MatMul", "Gemm")]


def by_inputs(model: ir.Model) -> list[str]:
    """Names of `products` whose constant of that name was [inputs, outputs] before it became codes."""
    noted = (
        name
        for name, _, weight in _named(model)
        if weight and weight.node.metadata_props.get(LIES) == BY_INPUTS and name == _name(weight.value, weight)
    )
    found = {*noted}
    return [name for name in products(model) if name in found]


def _named(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol, Weight | None]]:
    known = {id(w.value): w for w in find_weights(model)}
    names: set[str] = set()
    for value in constants(model):
        weight = known.get(id(value))
        tensor, name = value.const_value, _name(value, weight)
        if tensor is None or tensor.dtype is ir.DataType.STRING or value.meta.get(OF_BODY):
            continue
        if name in names and weight is not None and weight.node.name:  # a table, and the head that is its transpose
            name = _by_node(weight)
        first, number = name, 1
        while name in names:
            number += 1
            name = f"{first}.{number}"
        names.add(name)
        yield name, tensor, weight


def _lies_turned(weight: Weight) -> bool:
    was_codes = bool(weight.value.meta.get(RESTORED))
    return was_codes and len(weight.shape) == 2 and weight.role.contraction == 0


def _read(tensor: ir.TensorProtocol, is_turned: bool) -> Tensor:
    if isinstance(tensor, GivenTensor):
        return (tensor.turned() if is_turned else tensor).given()
    array = tensor.numpy().T if is_turned else tensor.numpy()
    return array if array.dtype.kind != "b" else array.astype(np.int8)


def _name(value: ir.Value, weight: Weight | None) -> str:
    """The constant's name in the model without what quantizers hang on it; its node's, where it was just numbered."""
    name = str(value.meta.get(ORIGIN) or value.name)
    is_half = value.dtype in HALVES and name.endswith(f"_{value.dtype.name.lower()}")
    name = (_SUFFIX.sub("", name) or name) if value.meta.get(RESTORED) or is_half else name
    if value.meta.get(RESTORED) and name.endswith(WEIGHT_TURNED):  # rows are those of outputs then, as in a checkpoint
        name = name.removesuffix(WEIGHT_TURNED) + ".weight"
    is_of_layer = weight is not None and weight.node.op_type in _BY_NODE and _NUMBERED.match(name)
    return _by_node(weight) if weight and is_of_layer and "/" in (weight.node.name or "").strip("/") else name


def _by_node(weight: Weight) -> str:
    path = (weight.node.name or "").strip("/").replace("/", ".")
    return f"{path.removesuffix(f'.{weight.node.op_type}')}.weight"


def _made(name: str, read: Callable[[], Tensor], suffix: str, rows: list[Row]) -> Tensor:
    tensor = read()
    if suffix != ".gguf":
        word = tensor.format.name if isinstance(tensor, QuantizedTensor) else None
        rows.append(Row(name, tensor.shape, word, None))
        return tensor
    made = in_gguf(tensor)
    word = made.format.name if isinstance(made, QuantizedTensor) else None
    rows.append(Row(name, tensor.shape, word, distance(tensor, made)))
    return made
