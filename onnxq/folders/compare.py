"""Two folders of models, compared part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.boundary import bounded
from onnxq.checking.compare import compare
from onnxq.checking.layers.by_layer import by_layer
from onnxq.checking.layers.result import ByLayer
from onnxq.checking.models import Check
from onnxq.errors import BadModel
from onnxq.folders import options_of_part
from onnxq.folders.contents import Folder, Part, is_variant_of, open_folder
from onnxq.folders.messages import OfPart, about
from onnxq.progress import QUIET, Progress
from onnxq.runtime.session import THREADS
from onnxq.samples.sampling import Sampling


@dataclass(frozen=True)
class PartCheck:
    """A model of both folders.

    Attributes:
        name: what A calls it.
        a, b: the two files.
        sampling: the samples of this part.
        found: of the models as wholes, or layer by layer.
        bytes_before, bytes_after: of A's and B's file with their external data.
    """

    name: str
    a: Path
    b: Path
    sampling: Sampling
    found: Check | ByLayer
    bytes_before: int
    bytes_after: int

    def to_dict(self) -> dict[str, Any]:
        sizes = {"bytes_before": self.bytes_before, "bytes_after": self.bytes_after}
        return {"part": self.name, "a": str(self.a), "b": str(self.b), **sizes, "check": self.found.to_dict()}


@dataclass(frozen=True)
class FolderCheck:
    """What `compare_folders` found.

    Attributes:
        only_a, only_b: parts of one folder without one of that name in the other.
        notes: what a user should know, a sentence each.
    """

    a: Path
    b: Path
    parts: tuple[PartCheck, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "a": str(self.a),
            "b": str(self.b),
            "parts": [part.to_dict() for part in self.parts],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "notes": list(self.notes),
        }


@bounded
def compare_folders(
    a: str | Path,
    b: str | Path,
    sampling: Sampling | None = None,
    *,
    layers: bool = False,
    memory: int | None = None,
    threads: int = THREADS,
    progress: Progress = QUIET,
) -> FolderCheck:
    """Compare each model of the folder at `b` with the one of the same name in the folder at `a`.

    Models that B names by their precision, as transformers.js has it, are those that A has without.

    Args:
        sampling: samples by part, as `quantize_folder` takes them; parts without get made-up inputs.
        layers, memory: compare layer by layer, as `by_layer`.

    Raises:
        BadModel: one of them is no folder of models, they have no part in common, or two models cannot be compared.
        BadData: it cannot be told which part the data are for.
    """
    one, other = open_folder(a), open_folder(b)
    samplings, notes = options_of_part.samplings_of([part.name for part in one.parts], sampling)
    pairs = pairs_of(one, other)
    if not pairs:
        names = [", ".join(part.name for part in folder.parts) for folder in (one, other)]
        raise BadModel(f"no model of '{a}' ({names[0]}) has the name of one in '{b}' ({names[1]})")

    def looked_at(part: Part, partner: Part) -> PartCheck:
        ours, theirs = one.source(part), other.source(partner)
        samples = samplings[part.name]
        told = OfPart(progress, part.name)
        told.start("comparing the two models")
        compared: Callable[[], Check | ByLayer] = (
            (lambda: by_layer(ours, theirs, samples, memory=memory, threads=threads, progress=told))
            if layers
            else (lambda: compare(ours, theirs, samples, threads=threads))
        )
        with about(part.name):
            found = compared()
        return PartCheck(part.name, ours, theirs, samples, found, _nbytes(one, part), _nbytes(other, partner))

    parts = tuple(looked_at(part, partner) for part, partner in pairs)
    taken = {part.name for pair in pairs for part in pair}
    alone = [tuple(part.name for part in folder.parts if part.name not in taken) for folder in (one, other)]
    return FolderCheck(Path(a), Path(b), parts, alone[0], alone[1], tuple(notes))


def pairs_of(a: Folder, b: Folder) -> list[tuple[Part, Part]]:
    """Parts of both folders that belong together.

    1. Those of the same name.
    2. Those of B that are called like one of A and a precision.
    """
    theirs = {part.name: part for part in b.parts}
    found = {part.name: theirs.pop(part.name) for part in a.parts if part.name in theirs}
    for part in a.parts:
        variants = [name for name in theirs if is_variant_of(name, part.name)]
        if part.name not in found and len(variants) == 1:
            found[part.name] = theirs.pop(variants[0])
    return [(part, found[part.name]) for part in a.parts if part.name in found]


def _nbytes(folder: Folder, part: Part) -> int:
    return sum((folder.path / file).stat().st_size for file in (part.file, *part.data))
