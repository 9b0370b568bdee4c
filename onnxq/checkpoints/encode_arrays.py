"""Arrays without a model: weights in files of numpy, safetensors or GGUF, encoded and decoded.

In `.npz` and `.safetensors` a weight NAME becomes what `layouts.compact` makes of it (NAME.codes, NAME.scales …), and
`onnxq.json` (in safetensors the metadata `onnxq`) says of each in which format, shape and granularity. In `.npz` arrays
of bfloat16 are their bits, as `onnxq.types.json` says. In `.gguf` a weight becomes a tensor of ggml's.
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq import algorithms, formats, layouts
from onnxq.analysis import granularities
from onnxq.checkpoints import own_file
from onnxq.checkpoints.gguf_file import Gguf, Value, write_gguf
from onnxq.checkpoints.own_file import KEY, TABLE, TYPES
from onnxq.checkpoints.shards import Claimed, Shards, move_all, require_one_form
from onnxq.checkpoints.tensors import FOREIGN, Safetensors, bits_of, open_checkpoint, safetensors_type
from onnxq.errors import BadData, BadModel, BadOutput, BadRecipe, NothingToDo, first_line, without_halves
from onnxq.files import array_limits, limits, staging
from onnxq.formats import E8M0, Granularity, QuantizedTensor
from onnxq.model.weights import Role
from onnxq.quality import decibel

SUFFIXES = (".gguf", ".safetensors", ".npz")
#: What arrays are read from.
ARRAYS = (".npy", ".npz", ".safetensors")
Tensor = QuantizedTensor | NDArray


@dataclass(frozen=True)
class Row:
    """What became of one array: its format (None: kept as it is), bits per weight, and SQNR in dB."""

    name: str
    shape: tuple[int, ...]
    format: str | None
    bits: float
    sqnr: float | None


def open_arrays(path: str | Path) -> Mapping[str, NDArray]:
    """The arrays of a `.npy` (called by the file's name), `.npz` or `.safetensors` file, each read when asked for.

    Args:
        path: told apart by what the name ends in.

    Raises:
        BadData: no such file, none of these, or damaged.
    """
    path = Path(path)
    if path.suffix != ".npy":
        return open_checkpoint(path)
    try:
        with limits.open_file(path, BadData) as file:
            array_limits.header(file, path.stat().st_size)
        return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False)}
    except (OSError, ValueError) as error:
        raise BadData(f"'{path}' cannot be read as npy: {first_line(error)}") from None


def holds_arrays(path: Path) -> bool:
    """Whether a path is a file that `open_arrays` reads by its name, or a folder that has some."""
    return path.suffix in ARRAYS if not path.is_dir() else bool(_files(path))


def float_arrays(path: str | Path) -> dict[str, NDArray]:
    """The floating-point arrays of a file, or of all files in a folder, by name: `name`, or `file/name`.

    Args:
        path: of a file or a folder.

    Raises:
        BadData: no such file, none of these, or damaged.
        NothingToDo: there are none.
    """
    path = Path(path)
    if not path.is_dir():
        found = {name: array for name, array in open_arrays(path).items() if _is_float(array)}
    else:
        found = {}
        for file in _files(path):
            for name, array in open_arrays(file).items():
                if _is_float(array):
                    found[file.name if file.suffix == ".npy" else f"{file.name}/{name}"] = array
    if not found:
        raise NothingToDo(f"{path} holds no arrays of floating-point numbers")
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in ARRAYS and file.is_file())


def granularity_of(word: str | None, rank: int) -> Granularity | None:
    """`tensor`, `channel` (the first axis) or `block32` (of any size, along the last axis); None: the format's own.

    Args:
        rank: dimensions of the array.

    Raises:
        BadRecipe: another word.
    """
    return None if word is None else granularities.parse(word, Role(0, channel=0, contraction=rank - 1))


def encode_arrays(
    arrays: Mapping[str, NDArray],
    output: str | Path,
    word: str,
    *,
    granularity: str | None = None,
    algorithm: str = "rtn",
    levels: Sequence[float] | None = None,
    metadata: Mapping[str, str] | None = None,
    replace: bool = False,
) -> list[Row]:
    """Encode `arrays` in the format `word` into the file `output`, one at a time; what became of each.

    Vectors and arrays of integers are kept as they are, unless there is nothing else.

    Args:
        output: `.gguf`, `.safetensors` or `.npz`.
        granularity: as `granularity_of` takes it.
        algorithm: `rtn` is the format's own rule: the bytes of a `.gguf` file are those that ggml makes.
        levels: in the place of the format's own table, as `formats.get` takes them; kept in the file.
        metadata: texts for `.gguf` and `.safetensors`.
        replace: whether a file that is there is replaced.

    Raises:
        BadRecipe: a word that is not known, or another kind of file.
        BadModel: a weight is not finite, or does not fit the format or the file.
        BadOutput: it cannot be written.
    """
    output = Path(output)
    format = formats.get(word, levels)
    algorithms.get(algorithm), granularity_of(granularity, 1)
    if output.suffix not in SUFFIXES:
        raise BadRecipe(f"'{output}' is none of {', '.join(SUFFIXES)}, by which the kind of file is told")
    matrices = [name for name, x in arrays.items() if x.ndim > 1 and _is_float(x)] or list(arrays)
    rows: list[Row] = []

    def made(name: str) -> Tensor:
        x = arrays[name]
        if name not in matrices:
            rows.append(Row(name, x.shape, None, 8.0 * x.itemsize, None))
            return np.asarray(x)
        q = algorithms.quantize(x, word, granularity_of(granularity, x.ndim), algorithm, name=name, levels=levels)
        wanted = np.asarray(x, np.float64)
        noise, signal = float(np.square(q.dequantize() - wanted).sum()), float(np.square(wanted).sum())
        # GGUF packs some formats closer than whole bits.
        nbytes = layouts.gguf_nbytes(format, x.size) if output.suffix == ".gguf" and format.gguf else q.nbytes
        sqnr = decibel(signal, noise) if noise else None
        rows.append(Row(name, x.shape, format.name, 8 * nbytes / max(1, x.size), sqnr))
        return q

    tensors = [(name, functools.partial(made, name)) for name in arrays]
    if output.suffix == ".gguf":
        write_gguf(output, tensors, metadata, replace=replace)
    else:
        how = {"format": word} if levels is None else {"format": word, "levels": [float(level) for level in levels]}
        _write_parts(output, tensors, dict(metadata or {}), replace, how)
    return rows


def decode_file(path: str | Path) -> Iterator[tuple[str, Callable[[], NDArray]]]:
    """Names and float32 arrays of a file that `encode_arrays` wrote, or of any `.gguf`; what was kept is as it was.

    Args:
        path: of a .gguf, .safetensors or .npz file.

    Raises:
        BadData: none of these, or damaged.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        file = Gguf(path)
        for name in file:
            yield name, functools.partial(_floats, file, name)
        return
    stored = open_checkpoint(path)
    for name, entry in _table(path, stored).items():
        yield name, functools.partial(_decoded, path, stored, name, entry)


def _floats(file: Gguf, name: str) -> NDArray:
    tensor = file[name]
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor


def write_weights(
    output: str | Path,
    tensors: Sequence[tuple[str, Callable[[], Tensor]]],
    metadata: Mapping[str, Value] | None = None,
    *,
    replace: bool = False,
    most: int | None = None,
    products: Collection[str] = (),
    claim: Callable[[Path], None] = lambda path: None,
) -> list[Path]:
    """Write weights that are encoded already, and plain arrays, one at a time; the files, the last of which names all.

    Args:
        output: `.gguf`, `.safetensors` or `.npz`.
        tensors: names and what makes them; for GGUF in a format that it has.
        metadata: for `.gguf` what `write_gguf` takes, for `.safetensors` texts.
        replace: whether a file that is there is replaced.
        most: bytes of tensors in a `.safetensors` file; what is longer becomes several, with an index.
        products: which arrays are matrices [outputs, inputs], for the table in `.safetensors` and `.npz`.
        claim: of each of several files, before any is moved: raises if it must not be written.

    Raises:
        BadRecipe: another kind of file.
        BadModel: a weight does not fit the file.
        BadOutput: it cannot be written.
    """
    output = Path(output)
    if output.suffix not in SUFFIXES:
        raise BadRecipe(f"'{output}' is none of {', '.join(SUFFIXES)}, by which the kind of file is told")
    if output.suffix == ".gguf":
        write_gguf(output, tensors, metadata, replace=replace)
        return [output]
    said = {key: str(value) for key, value in (metadata or {}).items()}
    return _write_parts(output, tensors, said, replace, most=most, products=products, claim=claim)


def write_arrays(output: str | Path, arrays: Iterator[tuple[str, Callable[[], NDArray]]], *, replace: bool) -> int:
    """Write plain arrays to `.npy` (one of them), `.npz` or `.safetensors`; how many there were.

    Args:
        output: what the name ends in says the format of the file.
        replace: a file that is there.

    Raises:
        BadRecipe: another kind of file, or several arrays for `.npy`.
        BadOutput: it cannot be written, or a name is none that a file can hold.
    """
    output, found = Path(output), list(arrays)
    for name, _ in found:
        if name != without_halves(name):
            raise BadOutput(f"'{without_halves(name)}' cannot be the name of a tensor: it is no Unicode text")
    if output.suffix == ".npy" and len(found) == 1:
        with staging.whole(output, replace=replace) as staged, staged.open("xb") as file:
            np.save(file, found[0][1]())
    elif output.suffix in (".npz", ".safetensors"):
        _write_parts(output, found, None, replace)
    else:
        raise BadRecipe(f"'{output}' cannot hold {len(found)} arrays: .npz and .safetensors do, .npy a single one")
    return len(found)


def _table(path: Path, stored: Mapping[str, NDArray]) -> dict[str, Any]:
    """What is said of each weight, by name."""
    table = own_file.table_of(stored, stored.metadata if isinstance(stored, Safetensors) else {})
    if table is None:
        raise BadData(f"'{path}' was not written by 'onnxq encode': it does not say in which formats its weights are")
    return table


def _decoded(path: Path, stored: Mapping[str, NDArray], name: str, entry: Any) -> NDArray:
    try:
        is_kept = entry is None or entry == own_file.PRODUCT
        return stored[name] if is_kept else own_file.weight_of(name, entry, stored).dequantize()
    except KeyError:
        raise BadData(f"'{path}' is damaged: it has no tensor '{name}', which its table speaks of") from None
    except BadData as error:
        raise BadData(f"'{path}' is damaged: {first_line(error)}") from None


def _write_parts(
    output: Path,
    tensors: Sequence[tuple[str, Callable[[], Tensor]]],
    metadata: dict[str, str] | None,
    replace: bool,
    format: Mapping[str, Any] | None = None,
    most: int | None = None,
    products: Collection[str] = (),
    claim: Callable[[Path], None] = lambda path: None,
) -> list[Path]:
    """Arrays, and what `layouts.compact` makes of weights, one at a time; without metadata plain arrays.

    Args:
        format: what is said of each weight about its format; None: the format's word.
        most: bytes of a file of several; None: there is one.
        products: arrays of which the table says that they are matrices of products.
        claim: of each of several files, before any is moved: raises if it must not be written.
    """

    def groups() -> Iterator[tuple[dict[str, NDArray], dict[str, Any]]]:
        for name, make in tensors:
            tensor = make()
            if not isinstance(tensor, QuantizedTensor):
                yield {name: tensor}, {name: own_file.PRODUCT if name in products else None}
                continue
            how, compact = tensor.granularity, layouts.compact(tensor)
            said = {**(format or {"format": tensor.format.name}), "shape": list(tensor.shape), "axis": how.axis}
            said |= {"block": how.block, "parts": list(compact)}
            parts = {f"{name}.{part}": x.view(np.uint8) if x.dtype == E8M0 else x for part, x in compact.items()}
            yield parts, {name: said}

    if output.suffix == ".npz":
        with staging.whole(output, replace=replace) as staged:
            _npz(staged, groups(), is_plain=metadata is None)
        return [output]

    def filled(folder: Path) -> Shards:
        shards = Shards(folder, lambda table: {**(metadata or {}), KEY: json.dumps(table)}, most, (TABLE,))
        for arrays, said in groups():
            shards.add(arrays, said)
        return shards

    if most is None:
        require_one_form(output, is_one=True)
        with staging.whole(output, replace=replace) as staged:
            filled(staged.parent).close(output.stem)[0].rename(staged)
        return [output]
    with staging.staging(output) as folder, staging.as_sentences(output):
        return move_all(filled(folder).close(output.stem), output, replace=replace, claim=claim)


def _npz(staged: Path, groups: Iterator[tuple[dict[str, NDArray], dict[str, Any]]], *, is_plain: bool) -> None:
    table: dict[str, Any] = {}
    types: dict[str, str] = {}
    names = Claimed((TABLE, TYPES))
    with zipfile.ZipFile(staged, "x") as archive:
        for arrays, said in groups:
            table |= said
            for name, array in arrays.items():
                names.claim(name)
                if array.dtype in FOREIGN.values() and not is_plain:
                    types[name] = safetensors_type(array.dtype)
                    array = array.view(bits_of(array.dtype))
                if array.dtype.kind == "V":
                    raise BadModel(f"'{name}' is of type {array.dtype}, which only .safetensors holds")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
        told = {} if is_plain else {TABLE: table} | ({TYPES: types} if types else {})
        for name, text in ((name, json.dumps(said)) for name, said in told.items()):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, np.frombuffer(text.encode(), np.uint8))


def _is_float(x: NDArray) -> bool:
    return x.dtype.kind == "f" or (x.dtype.kind == "V" and x.dtype.names is None)
