"""Step 7: write a model, packing one weight at a time, into a folder from which it is moved into place in the end."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from onnxq import bodies, encoding
from onnxq.errors import BadOutput
from onnxq.share_codes import Written, share

#: Above this many bytes of tensors they go to a file of their own, which runtimes map instead of reading.
SINGLE_FILE_BYTES = 256 << 20
#: Tensors of at least this many bytes go to the data file, at multiples of `ALIGNMENT`; small ones stay in the model.
EXTERNAL_BYTES = 1 << 10
ALIGNMENT = 64

Progress = Callable[[int], None]


def check_destination(output: Path, sources: Iterable[Path], force: bool) -> None:
    """Refuse early what could not be written later.

    Args:
        sources: files that are read and must stay as they are.

    Raises:
        BadOutput: the output is there already (without `force`), is a source or no file, or its folder cannot be
            written to.
    """
    with _as_sentences(output):
        _check_folder(output)
        for path in (output, data_path(output)):
            _check_sources(path, sources)
            if path.exists() and not path.is_file():  # moving a file there would replace a device
                raise BadOutput(f"{path} is not a file; choose another name with -o")
            if path.exists() and not force:
                raise BadOutput(f"{path} exists; give --force to replace it, or another name with -o")


def write_text(path: Path, text: str, sources: Iterable[Path] = ()) -> None:
    """Write a small file: a plan, a report, ranges.

    Raises:
        BadOutput: it is one of `sources`, or cannot be written.
    """
    check_text(path, sources)
    with _as_sentences(path):
        path.write_text(text, encoding="utf-8")


def check_text(path: Path, sources: Iterable[Path] = ()) -> None:
    """Refuse early what `write_text` would refuse later."""
    with _as_sentences(path):
        _check_sources(path, sources)
        _check_folder(path)


def make_folder(path: Path) -> None:
    """Make a folder, and those around it, unless it is there.

    Raises:
        BadOutput: it cannot be made.
    """
    with _as_sentences(path):
        path.mkdir(parents=True, exist_ok=True)


def _check_sources(path: Path, sources: Iterable[Path]) -> None:
    if any(path.resolve() == source.resolve() or _is_same_file(path, source) for source in sources):
        raise BadOutput(f"{path} is read, so it cannot be the output; choose another name with -o")


def _is_same_file(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)


def _check_folder(path: Path) -> None:
    if path.is_dir():
        raise BadOutput(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise BadOutput(f"the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise BadOutput(f"the folder {path.parent} cannot be written to; choose another place")


def data_path(output: Path) -> Path:
    """Where the weights of `output` go if they do not fit into it."""
    return output.with_name(output.name + ".data")


@contextlib.contextmanager
def staging(output: Path) -> Iterator[Path]:
    """A folder beside `output` to write into; gone afterwards, with whatever is still in it.

    Raises:
        BadOutput: the disk is full, or the folder cannot be written to.
    """
    with _as_sentences(output):
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        with _as_sentences(output):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(staged: Path, output: Path) -> None:
    """Move the staged files into place, data first, so that a model is never there without its data."""
    with _as_sentences(output):
        data = data_path(staged)
        if data.exists():
            os.replace(data, data_path(output))
        elif data_path(output).exists():
            data_path(output).unlink()  # of the model that is being replaced
        os.replace(staged, output)


@contextlib.contextmanager
def _as_sentences(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise BadOutput(
                f"no space left on the disk of {output.parent}; free some or choose another place"
            ) from None
        raise BadOutput(f"{output} cannot be written: {error.strerror or error}") from None


def tensors_to_write(model: ir.Model) -> list[ir.Value]:
    """Every initializer, in the order in which they are written."""
    return [value for each in model.graphs() for value in each.initializers.values() if value.const_value is not None]


def nbytes_to_write(model: ir.Model) -> int:
    """Bytes of all initializers, as they will be written."""
    return sum(_nbytes(value) for value in tensors_to_write(model))


def save(model: ir.Model, path: Path, progress: Progress = lambda nbytes: None) -> int:
    """Write `model` to `path` (and to `data_path(path)`, if it is large). The model's lazy tensors are used up.

    Args:
        progress: called with the bytes of each tensor after it is written.

    Returns:
        Bytes written.
    """
    values = tensors_to_write(model)
    external = nbytes_to_write(model) > SINGLE_FILE_BYTES
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(open(data_path(path), "wb")) if external else None
        written: dict[bytes, tuple[int, int]] = {}
        tied: dict[Hashable, ir.Value] = {}
        shared: Written = {}
        for value in values:
            tensor = value.const_value
            assert tensor is not None
            nbytes = _nbytes(value)
            if _is_tied(value, tensor, tied) or share(value, tensor, shared):
                progress(nbytes)
                continue
            if data is None or nbytes < EXTERNAL_BYTES:
                value.const_value = _in_memory(tensor)
            else:
                offset, length = _append(data, tensor, written)
                value.const_value = ir.ExternalTensor(
                    data_path(path).name,
                    offset,
                    length,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=value.name or "",
                )
            encoding.release(tensor)
            progress(nbytes)
    encoding.forget()
    onnx.save(ir.to_proto(model), path)
    return path.stat().st_size + (data_path(path).stat().st_size if external else 0)


def _is_tied(value: ir.Value, tensor: ir.TensorProtocol, tied: dict[Hashable, ir.Value]) -> bool:
    """Whether operators of the onnxq domain read the same bytes under another name; then that name takes over.

    They read a table in the same tiles whether they look rows up or multiply by them, and whichever way it lay in the
    float model. Kernels of other domains may count on a constant having one reader.
    """
    if value.graph is None or any(use.node.domain != bodies.DOMAIN for use in value.uses()) or value.is_graph_output():
        return False
    digest = hashlib.blake2b(tensor.tobytes(), digest_size=20).digest()
    first = tied.setdefault((id(value.graph), tensor.dtype, tuple(tensor.shape.numpy()), digest), value)
    if first is value:
        return False
    value.replace_all_uses_with(first)
    value.graph.initializers.pop(value.name or "")
    return True


def _nbytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _append(data: BinaryIO, tensor: ir.TensorProtocol, written: dict[bytes, tuple[int, int]]) -> tuple[int, int]:
    """Offset and length of the tensor's bytes in `data`. Tied weights come out as equal bytes: they are stored once."""
    if isinstance(tensor, ir.ExternalTensor):  # copied by the operating system, not through our memory
        raw, key = None, f"{tensor.path} {tensor.offset} {tensor.nbytes}".encode()
    else:
        raw = tensor.tobytes()
        key = hashlib.blake2b(raw, digest_size=20).digest()
    if key not in written:
        data.write(b"\0" * (-data.tell() % ALIGNMENT))
        start = data.tell()
        if raw is None:
            tensor.tofile(data)  # type: ignore[attr-defined]
        else:
            data.write(raw)
        written[key] = (start, data.tell() - start)
    return written[key]


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor that is just its bytes."""
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    raw = tensor.tobytes()
    proto = onnx.TensorProto(
        name=tensor.name or "", data_type=int(tensor.dtype), dims=tensor.shape.numpy(), raw_data=raw
    )
    return ir.TensorProtoTensor(proto)
