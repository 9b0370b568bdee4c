"""The weights of a quantized model as a checkpoint of another project: a folder of safetensors with `config.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.boundary import bounded
from onnxq.checkpoints.encode_arrays import Tensor
from onnxq.checkpoints.own_file import NAMES, PRODUCTS
from onnxq.checkpoints.shards import Shards
from onnxq.conversion import files, layers
from onnxq.conversion.export_weights import Exported, Row, by_inputs, products, require_codes, weights
from onnxq.conversion.gguf_forms import distance
from onnxq.conversion.llama.transformers import as_checkpoint
from onnxq.conversion.restore import restore_weights
from onnxq.errors import BadModel, BadRecipe
from onnxq.files import staging
from onnxq.formats import QuantizedTensor
from onnxq.job import Environment
from onnxq.output import place, write
from onnxq.version import __version__

#: The projects.
KINDS = layers.kinds()
CONFIG = "config.json"


@bounded
def export_folder(
    model: str | Path,
    to: str,
    output: str | Path | None = None,
    *,
    shard_size: int | None = None,
    environment: Environment | None = None,
) -> Exported:
    """Write all weights of the quantized `model`, made by whatever tool, as a checkpoint of the project `to`.

    Weights that it has no form for are written as the float32 numbers that they stand for.

    Args:
        to: one of `KINDS`.
        output: a folder.  [default: the model's name with `to` in it]
        shard_size: bytes of a file; what is longer becomes several, with an index.
        environment: its guard says whether a folder that onnxq wrote before may be replaced.

    Raises:
        BadModel: the model cannot be read, or two weights would have one name.
        BadRecipe: another project, or a size that is none.
        BadOutput: the folder cannot be written.
        NothingToDo: no product or lookup of the model has packed weights.
    """
    if to not in KINDS:
        raise BadRecipe(f"unknown kind of checkpoint '{to}'; choose one of {', '.join(KINDS)}")
    if shard_size is not None and shard_size < 1:
        raise BadRecipe(f"a file of {shard_size} bytes holds nothing; example: 2GB")
    path, environment = Path(model), environment or Environment()
    folder, guard = Path(output) if output is not None else Path(f"{path.stem}.{to}"), environment.guard
    loaded, _ = files.read(path, environment)
    seen = place.check_destination(folder, [path], guard.force)
    guard.replaces(folder)
    restore_weights(loaded)
    require_codes(path, loaded)
    project = layers.get(to)
    environment.progress.start("comparing with a Llama")
    about: dict[str, Any] = {}
    try:
        named, about, origin = as_checkpoint(path)
    except BadModel as error:
        named, origin = list(weights(loaded)), f"not a Llama of transformers, names are the model's: {error}"
    done = _Written(project) if about else _Written(project, {*products(loaded)}, {*by_inputs(loaded)})
    with staging.staging(folder) as around, staging.as_sentences(folder):
        staged = around / "folder"
        staged.mkdir()
        environment.progress.start("writing")
        rows, names = _filled(staged, done, named, shard_size)
        if config := about | project.config(done.schemes):
            write.write_text(staged / CONFIG, json.dumps(config, indent=2) + "\n")
            names.append(CONFIG)
        report = {"output": "", "version": __version__, "checkpoint": to, "tensors": len(rows)}
        place.write_report(staged, json.dumps(report))
        place.publish(staged, folder, seen, guard)
    return Exported(rows, (origin,), tuple(folder / name for name in names))


def _filled(
    staged: Path, done: _Written, named: Iterable[tuple[str, Callable[[], Tensor]]], shard_size: int | None
) -> tuple[list[Row], list[str]]:
    """Writes the files of the weights: what became of each, and the names of the files."""
    shards, rows = Shards(staged, done.metadata, shard_size), list[Row]()
    for name, read in named:
        tensor = read()
        tensors, said = done.group(name, tensor)
        shards.add(tensors, said)
        rows.append(done.row(name, tensor, tensors))
    return rows, [file.name for file in shards.close("model")]


@dataclass
class _Written:
    """What of a folder is written, and what its files say of it.

    Attributes:
        project: whose layout it has.
        products: names of matrices that were codes, [outputs, inputs].
        turned: those of them whose constants of that name are [inputs, outputs], as floats are again.
        schemes: by layer, what the project says of its weight; None of floats.
        names: of constants by those in the files, where these are others.
        floats: in the files, of the floats that lie as [outputs, inputs].
    """

    project: ModuleType
    products: Set[str] = frozenset()
    turned: Set[str] = frozenset()
    schemes: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    floats: set[str] = field(default_factory=set)

    def group(self, name: str, tensor: Tensor) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """The tensors of a weight, and what its file says of them."""
        layer = name.removesuffix(".weight")
        found = self.project.parts(layer, tensor) if isinstance(tensor, QuantizedTensor) else None
        if found is not None:
            tensors, said = found
            self.schemes[layer] = said
            return tensors, {f"{layer}.weight": said}
        full = self.project.plain(name)
        array = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        if isinstance(tensor, QuantizedTensor):
            self.schemes[layer] = None
        if name in self.turned:
            array = array.T
        elif name in self.products:
            self.floats.add(full)
        elif full != name:
            self.names[full] = name
        return {full: array}, {full: None}

    def row(self, name: str, tensor: Tensor, tensors: Mapping[str, NDArray]) -> Row:
        """What is told of a weight that was written as these `tensors`."""
        is_float = isinstance(tensor, QuantizedTensor) and all(x.dtype == np.float32 for x in tensors.values())
        word = tensor.format.name if isinstance(tensor, QuantizedTensor) and not is_float else None
        read_as = tensor if word is None else self.project.read_as(tensor)
        near = None if read_as is tensor else distance(tensor, read_as)
        return Row(name, tuple(tensor.shape), word, near)

    def metadata(self, said: Mapping[str, Any]) -> dict[str, str]:
        """Of a file: what the project says, and what lets onnxq read it again as it was."""
        names = {full: name for full, name in self.names.items() if full in said}
        own = {PRODUCTS: [name for name in said if name in self.floats], NAMES: names}
        return self.project.metadata(said) | {key: json.dumps(value) for key, value in own.items() if value}
