"""The parts of a folder on their way into the result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from onnxq import own_ops, pipeline
from onnxq.checking.result import Result
from onnxq.errors import BadModel, NothingToDo, OnnxqError
from onnxq.folders import data_files, genai, layouts, options_of_part, placing, shared
from onnxq.folders.contents import Folder, Part
from onnxq.folders.messages import OfPart, but_for_unused, collected_warnings
from onnxq.folders.result import FolderResult, PartResult
from onnxq.job import open_job
from onnxq.plan import Plan
from onnxq.progress import Progress
from onnxq.recipe import Recipe
from onnxq.samples.source import DataSource


@dataclass
class Run:
    """One run of `quantize_folder`.

    Attributes:
        scratch: a folder for quantized parts before they get their place.
        staged: the folder that becomes the result.
        samples: calibration data, by part.
        files: where each part goes, relative to the result.
        options: of `pipeline.quantize`.
        results: of the parts that were quantized; the others are copied, and `notes` says why.
        shared: how many weights are in several parts.
    """

    folder: Folder
    scratch: Path
    staged: Path
    recipe: Recipe
    samples: dict[str, DataSource]
    files: dict[str, Path]
    options: dict[str, Any]
    progress: Progress
    results: dict[str, Result] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    shared: int = 0

    def quantize_parts(self) -> None:
        """
        Raises:
            BadModel, NothingToDo: no part could be quantized.
        """
        parts = self.folder.parts
        models = [root / part.file for part in parts for root in (self.folder.path, self._copies)]
        with collected_warnings(models, lambda: len(self.results)):
            for part in parts:
                self._quantize(part)
        if self.results:
            return
        if all(part.quantized is not None for part in parts):
            raise BadModel(
                f"all parts of {self.folder.path} are quantized already: start from the float models, "
                "or give --requantize to quantize what is still in float"
            )
        why = ", ".join(f"{name}: {note}" for name, note in self.notes.items())
        nothing = NothingToDo(f"{self.folder.path}: no part could be quantized ({why})")
        if self.options.get("strict"):
            nothing.exit_code = BadModel.exit_code
        raise nothing

    def _quantize(self, part: Part) -> None:
        names = [each.name for each in self.folder.parts]
        recipe = options_of_part.recipe_of(part.name, names, self.recipe, part.name in self.samples)
        if options_of_part.is_kept(recipe):
            self.notes[part.name] = "as it was: kept, as asked"
            return
        if part.quantized is not None and not recipe.requantize:
            self.notes[part.name] = f"as it was: quantized already ({part.quantized})"
            return
        try:
            result = self._quantized(part, recipe)
            is_changed = result.plan.changes_anything
        except NothingToDo:
            is_changed = False
        if not is_changed:
            self.notes[part.name] = "as it was: nothing in it could be quantized"
            return
        self.results[part.name] = result
        if self.samples and part.name not in self.samples:
            self.notes[part.name] = "no data for this part"

    def _quantized(self, part: Part, recipe: Recipe, plan: Plan | None = None) -> Result:
        source, output = self._source(part), self._made(part)
        output.parent.mkdir(exist_ok=True)
        data = self.samples.get(part.name)
        progress = OfPart(self.progress, part.name)
        try:
            return pipeline.quantize(
                source,
                output,
                recipe,
                data=data,
                plan=plan,
                force=True,
                progress=progress,
                one_scheme=True,
                **self.options,
            )
        except OnnxqError as error:
            said = str(error).replace(str(source), str(self.folder.source(part)))
            raise type(error)(said if str(source) in str(error) else f"part '{part.name}': {said}") from error

    def _source(self, part: Part) -> Path:
        """Where a part is read: old versions of onnxruntime read no external data through links, of which caches of
        downloads consist, so that they are copied for as long as this runs."""
        files = (part.file, *part.data)
        if not part.data or not any((self.folder.path / file).is_symlink() for file in files):
            return self.folder.source(part)
        for file in files:
            if not (self._copies / file).exists():
                data_files.copy(self.folder.path / file, self._copies / file)
        return self._copies / part.file

    @property
    def _copies(self) -> Path:
        return self.scratch / "sources"

    def _made(self, part: Part) -> Path:
        """Where the quantized part lies before it gets its place, in a folder of its own."""
        return self.scratch / f"part{self.folder.parts.index(part)}" / self.files[part.name].name

    def share_formats(self) -> None:
        """Give weights that several parts hold one format."""
        parts = [part for part in self.folder.parts if part.name in self.results]
        if len(parts) < 2:
            return
        models = {}
        with but_for_unused():
            for part in parts:
                result = self.results[part.name]
                data: DataSource | None = [] if part.name in self.samples else None  # none is read here
                models[part.name] = open_job(self._source(part), result.recipe, result.plan.target, data).model
        weights = shared.shared_weights(models)
        del models
        self.shared = len(weights)
        changed = shared.agree({name: result.plan for name, result in self.results.items()}, weights)
        for part in parts:
            if part.name in changed:
                recipe = self.results[part.name].recipe
                self.results[part.name] = self._quantized(part, recipe, changed[part.name])

    def place_models(self, layout: str) -> None:
        """Put the models where they belong."""
        made = {part.name: self._made(part) for part in self.folder.parts if part.name in self.results}
        placing.place_models(self.folder, self.staged, self.files, made, self._source, layout)

    def tell_clients(self, layout: str, scheme: str) -> list[str]:
        """What the client has to know, in its own files; and for the user, in sentences."""
        own = [file for file in self.files.values() if _has_own_ops(self.staged / file)]
        notes = []
        if self.folder.kind == genai.KIND:
            library = genai.register_library(self.staged, own)
            notes += [f"{genai.CONFIG} names {library}, which lies beside the models"] if library else []
        elif own:
            notes.append("runs as it is; with the library of onnxq.ops_library() registered, its kernels are used")
        if layout == layouts.TRANSFORMERS_JS:
            data = [file for file in self.files.values() if data_files.locations(self.staged / file)]
            layouts.tell_of_data(self.staged, data)
            notes.append(f"transformers.js loads it with dtype '{layouts.dtype_of(scheme)}'")
        return notes

    def result(self, destination: Path, scheme: str, notes: list[str]) -> FolderResult:
        """What was done, with sizes of what lies in the staged folder."""
        parts: list[PartResult] = []
        before: set[Path] = set()
        after: set[Path] = set()
        for part in self.folder.parts:
            file = self.files[part.name]
            old = {self.folder.path / each for each in (part.file, *part.data)}
            model = self.staged / file
            new = {model, *(model.parent / each for each in data_files.locations(model))}
            result = self.results.get(part.name)
            if result is not None:
                result = dataclasses.replace(result, output=destination / file)
            parts.append(PartResult(part.name, file, result, self.notes.get(part.name, ""), _nbytes(old), _nbytes(new)))
            before |= old
            after |= new
        target = next(iter(self.results.values())).plan.target
        copied = tuple(file for file in self.folder.others if file not in self.folder.left_out)
        sizes = (_nbytes(before), _nbytes(after))
        kind, left_out = self.folder.kind, self.folder.left_out
        return FolderResult(
            destination, kind, scheme, target, tuple(parts), copied, left_out, self.shared, *sizes, tuple(notes)
        )


def _has_own_ops(model: Path) -> bool:
    proto = onnx.load(model, load_external_data=False)
    return any(imported.domain == own_ops.DOMAIN for imported in proto.opset_import)


def _nbytes(files: set[Path]) -> int:
    return sum(file.stat().st_size for file in files)
