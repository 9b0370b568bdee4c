"""Step 7: write a model, packing one weight at a time, into a folder from which it is moved into place in the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxq import own_ops
from onnxq.encoding import lazy, memo
from onnxq.errors import BadOutput
from onnxq.files import faults
from onnxq.files.data_files import own_data
from onnxq.files.guard import Guard
from onnxq.files.publish import publish
from onnxq.files.staging import as_sentences, staging, write
from onnxq.model import graph
from onnxq.model.load import load_model, to_proto
from onnxq.model.origin import ORIGIN
from onnxq.output.data_writer import ALIGNMENT, LAYER, Content, DataWriter, ShardSize, by_layer, require_shard_size
from onnxq.output.share_codes import Sharing

__all__ = [
    "ALIGNMENT",
    "check_destination",
    "is_outweighed",
    "make_folder",
    "nbytes_to_write",
    "own_data",
    "publish",
    "save",
    "staging",
    "tensors_to_write",
    "write_text",
]

#: Above this many bytes of tensors they go to a file of their own, which runtimes map instead of reading.
SINGLE_FILE_BYTES = 256 << 20
#: Tensors of at least this many bytes go to the data file, at multiples of `ALIGNMENT`; small ones stay in the model.
EXTERNAL_BYTES = 1 << 10

Progress = Callable[[int], None]


def require_onnx(output: Path) -> None:
    """Refuse at once a name that onnx would take for JSON or text.

    Raises:
        BadOutput: it does not end in .onnx.
    """
    if output.suffix != ".onnx" and not output.is_dir():
        raise BadOutput(f"the output '{output}' must end in .onnx; choose another name with -o")


def check_destination(output: Path, sources: Iterable[Path], force: bool) -> None:
    """Refuse early what could not be written later, where no `Guard` watches over all files of a command.

    Args:
        sources: files that are read and must stay as they are.

    Raises:
        BadOutput: the output is there already (without `force`), is a source or no file, or its folder cannot be
            written to.
    """
    guard = Guard(force)
    guard.reads(*sources)
    guard.writes(output)


def write_text(path: Path, text: str) -> None:
    """Write a small file, or replace one: never is there half of it.

    Raises:
        BadOutput: it cannot be written.
    """
    write(path, text.encode())


def make_folder(path: Path) -> None:
    """Make a folder, and those around it, unless it is there.

    Raises:
        BadOutput: it cannot be made.
    """
    with as_sentences(path):
        path.mkdir(parents=True, exist_ok=True)


def tensors_to_write(model: ir.Model) -> list[ir.Value]:
    """Every initializer, in the order in which they are written."""
    return [value for each in model.graphs() for value in each.initializers.values() if value.const_value is not None]


def nbytes_to_write(model: ir.Model) -> int:
    """Bytes of all initializers, as they will be written."""
    return sum(_nbytes(value) for value in tensors_to_write(model))


def is_outweighed(source: Path, made: ir.Model, sizes: tuple[int, int]) -> bool:
    """Whether a file is larger than that of the model it was made of for what describes nodes alone.

    Args:
        made: what was written.
        sizes: of both files.
    """
    before, after = sizes
    return before < after and nbytes_to_write(made) <= nbytes_to_write(load_model(source))


def save(model: ir.Model, path: Path, progress: Progress = lambda nbytes: None, shard_size: ShardSize = None) -> int:
    """Write `model` to `path`, and its weights beside it (`own_data(path)`) if it is large. Lazy tensors are used up.

    Args:
        path: in a folder in which nobody reads yet: files there are written in place.
        progress: called with the bytes of each tensor after it is written.
        shard_size: bytes of a file beside the model, or `layer`; a model that is smaller is a single file.

    Returns:
        Bytes written.
    """
    require_shard_size(shard_size)
    for old in own_data(path):  # of an earlier attempt
        old.unlink()
    most = min(SINGLE_FILE_BYTES, shard_size) if isinstance(shard_size, int) else SINGLE_FILE_BYTES
    if nbytes_to_write(model) <= most and shard_size != LAYER:
        _write_tensors(model, None, progress, tensors_to_write(model))
        return _save_graph(model, path)
    values = tensors_to_write(model)
    with DataWriter(path.parent, shard_size) as data:
        _write_tensors(model, data, progress, by_layer(values) if shard_size == LAYER else values)
        nbytes = data.finish(path)
    return _save_graph(model, path) + nbytes


def _write_tensors(model: ir.Model, data: DataWriter | None, progress: Progress, values: list[ir.Value]) -> None:
    """Large tensors go to `data`, if there is one; the others are just bytes in the model afterwards."""
    tied: dict[Hashable, list[ir.Value]] = {}
    sharing = Sharing(tensors_to_write(model))
    for value in sharing.in_order(values):
        tensor = value.const_value
        assert tensor is not None
        nbytes, content = _nbytes(value), Content(tensor)
        if not _is_tied(value, content, tied) and not sharing.takes_over(value, tensor, content.hash):
            if data is None or nbytes < EXTERNAL_BYTES:
                value.const_value = _in_memory(content)
            else:
                data.take(value, content)
            lazy.release(tensor)
        progress(nbytes)
    memo.forget()


def _save_graph(model: ir.Model, path: Path) -> int:
    faults.point("save.model")
    onnx.save(to_proto(model), path)
    return path.stat().st_size


def _is_tied(value: ir.Value, content: Content, tied: dict[Hashable, list[ir.Value]]) -> bool:
    """Whether operators of the onnxq domain read the same bytes under another name; then that name takes over.

    They read a table in the same tiles whether they look rows up or multiply by them, and whichever way it lay in the
    float model. Kernels of other domains may count on a constant having one reader.
    """
    if value.graph is None or any(use.node.domain != own_ops.DOMAIN for use in value.uses()) or value.is_graph_output():
        return False
    tensor = content.tensor
    if tensor.dtype is ir.DataType.STRING:
        return False
    key = (id(value.graph), tensor.dtype, tuple(tensor.shape.numpy()), content.hash())
    equal = tied.setdefault(key, [])
    first = next((other for other in equal if _are_of_one_weight(other, value)), None)
    if first is None:
        equal.append(value)
        return False
    value.replace_all_uses_with(first)
    value.graph.initializers.pop(value.name or "")
    return True


def _are_of_one_weight(a: ir.Value, b: ir.Value) -> bool:
    """Whether equal constants may be one: of weights that are equal before training each has its name, but for a table
    and its head. Single numbers, as the factors of scales, are nobody's."""
    if a.const_value is not None and a.const_value.size == 1:
        return True
    first, second = _weight(a), _weight(b)
    is_looked_up = any(use.node.op_type == own_ops.GATHER for use in (*a.uses(), *b.uses()))
    return None in (first, second) or first == second or is_looked_up


def _weight(value: ir.Value) -> str | None:
    """Which one a constant is of, or that it is one itself: floats, and biases of products of codes."""
    tensor, origin = value.const_value, value.meta.get(ORIGIN)
    is_own = tensor is not None and tensor.dtype in (*graph.FLOATS, ir.DataType.INT32) and tensor.size > 1
    return str(origin) if origin else value.name if is_own else None


def _nbytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _in_memory(content: Content) -> ir.TensorProtocol:
    """A tensor that is just its bytes."""
    tensor = content.tensor
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    proto = onnx.TensorProto(
        name=tensor.name or "", data_type=int(tensor.dtype), dims=tensor.shape.numpy(), raw_data=content.raw
    )
    return ir.TensorProtoTensor(proto)
