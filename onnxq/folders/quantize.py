"""The whole story of a folder: each part through `pipeline.quantize`, one format for what they share, one rename."""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxq import bodies, pipeline, save
from onnxq.data import DataSource
from onnxq.errors import BadModel, NothingToDo, OnnxqError
from onnxq.find_ranges import Effort
from onnxq.folders import contents, data_files, genai, layouts, place, shared, wishes
from onnxq.folders.contents import Folder, Part
from onnxq.folders.messages import OfPart, collected_warnings
from onnxq.folders.result import FolderResult, PartResult
from onnxq.idle import IdleWish
from onnxq.images import Preprocessing
from onnxq.pipeline import Result
from onnxq.plan import Plan
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe
from onnxq.runtime import THREADS


def quantize_folder(
    folder: str | Path,
    output: str | Path | None = None,
    recipe: Recipe | str = "auto",
    *,
    target: str = "ort-cpu",
    data: wishes.FolderData | None = None,
    preprocessing: Preprocessing | None = None,
    limit: int | None = pipeline.LIMIT,
    seed: int | None = None,
    effort: Effort = Effort(),  # noqa: B008
    layout: str = layouts.KEEP_NAMES,
    variants: bool = False,
    force: bool = False,
    check: bool = True,
    threads: int = THREADS,
    progress: Progress = QUIET,
) -> FolderResult:
    """Quantize every model of a folder and write a complete folder, which the same programs load.

    Args:
        output: by default the folder's name with the scheme in it, in the current folder.
        recipe: for all parts; a rule whose pattern is `PART/NODES` is for that part, `PART/*` with `keep` copies it.
        data: samples by part, or a folder with an entry named like each part that has some; the other parts do without.
        layout: `same` keeps all names, `transformers.js` names models by their precision, as it looks for them.
        variants: copy other precisions of the models too, instead of leaving them out.
        force: replace `output` if onnxq wrote it.

    The other arguments are those of `pipeline.quantize`.

    Raises:
        OnnxqError: one of its kinds (`errors.py`); nothing is left behind then.
    """
    found = contents.open_folder(folder, variants=variants)
    layouts.require_layout(layout, found)
    wanted = Recipe(recipe) if isinstance(recipe, str) else recipe
    names = [part.name for part in found.parts]
    samples, unused = wishes.data_of(names, data)
    scheme = wanted.resolve(has_data=bool(samples)).scheme
    destination = Path(output) if output is not None else Path(f"{found.path.resolve().name}.{scheme}")
    place.check_destination(destination, found.path, force)
    options = {"target": target, "preprocessing": preprocessing, "limit": limit, "seed": seed, "effort": effort}
    options |= {"check": check, "threads": threads}
    with save.staging(destination) as scratch:
        staged = scratch / destination.name
        staged.mkdir()
        files = {part.name: layouts.file_of(part, layout, scheme) for part in found.parts}
        run = _Run(found, staged, wanted, samples, files, options, progress)
        with collected_warnings(found.path, [found.source(part) for part in found.parts]):
            for part in found.parts:
                run.quantize(part)
        run.require_something()
        count = run.share_formats()
        run.place_data(layout)
        run.copy_others()
        notes = [f"{name} in {data} belongs to no part" for name in unused] + run.finish(layout, scheme)
        result = run.result(destination, scheme, notes, count)
        place.write_report(staged, result.to_json())
        place.publish(staged, destination)
    return result


@dataclass
class _Run:
    """The parts on their way into the staging folder `staged`.

    Attributes:
        samples: calibration data, by part.
        files: where each part goes, relative to the result.
        results: of the parts that were quantized; the others are copied, and `notes` says why.
    """

    folder: Folder
    staged: Path
    recipe: Recipe
    samples: dict[str, DataSource]
    files: dict[str, Path]
    options: dict
    progress: Progress
    results: dict[str, Result] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def target_of(self, part: Part) -> Path:
        return self.staged / self.files[part.name]

    def recipe_of(self, part: Part) -> Recipe:
        names = [each.name for each in self.folder.parts]
        return wishes.recipe_of(part.name, names, self.recipe, part.name in self.samples)

    def quantize(self, part: Part) -> None:
        recipe = self.recipe_of(part)
        self.target_of(part).parent.mkdir(parents=True, exist_ok=True)
        if wishes.is_kept(recipe):
            self.notes[part.name] = "as it was: kept, as asked"
        elif part.quantized is not None and not recipe.requantize:
            self.notes[part.name] = f"as it was: quantized already ({part.quantized})"
        else:
            if self.samples and part.name not in self.samples:
                self.notes[part.name] = "no data for this part"
            try:
                self.results[part.name] = self._quantized(part, recipe)
            except NothingToDo as error:
                self.notes[part.name] = f"as it was: {str(error).replace(str(self.folder.source(part)), 'it')}"

    def _quantized(self, part: Part, recipe: Recipe, plan: Plan | None = None) -> Result:
        source = self.folder.source(part)
        try:
            return pipeline.quantize(
                source,
                self.target_of(part),
                recipe,
                data=self.samples.get(part.name),
                plan=plan,
                force=True,
                progress=OfPart(self.progress, part.name),
                **self.options,
            )
        except OnnxqError as error:
            if str(source) in str(error):
                raise
            raise type(error)(f"part '{part.name}': {error}") from error

    def require_something(self) -> None:
        if self.results:
            return
        if all(part.quantized is not None for part in self.folder.parts):
            raise BadModel(
                f"all parts of {self.folder.path} are quantized already: start from the float models, "
                "or give --requantize to quantize what is still in float"
            )
        why = ", ".join(f"{name}: {note}" for name, note in self.notes.items())
        raise NothingToDo(f"{self.folder.path}: no part could be quantized ({why})")

    def share_formats(self) -> int:
        """Give weights that several parts hold one format; how many there are."""
        if len(self.results) < 2:
            return 0
        quantized = [part for part in self.folder.parts if part.name in self.results]
        models = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IdleWish)  # said once already
            for part in quantized:
                recipe = self.results[part.name].recipe
                job = pipeline.open_job(
                    self.folder.source(part), recipe, self.options["target"], self.samples.get(part.name)
                )
                models[part.name] = job.model
        weights = shared.shared_weights(models)
        plans = {name: result.plan for name, result in self.results.items()}
        del models
        changed = shared.agree(plans, weights)
        for part in quantized:
            if part.name in changed:
                recipe = self.results[part.name].recipe
                self.results[part.name] = self._quantized(part, recipe, changed[part.name])
        return len(weights)

    def place_data(self, layout: str) -> None:
        """Put external data where they were, in one file again where parts shared one; copy parts that stay."""
        groups: dict[Path | None, list[Part]] = {}
        for part in self.folder.parts:
            data = layouts.data_of(part, self.files[part.name], layout)
            large = save.data_path(self.target_of(part)).exists()
            if data is None and large and layout == layouts.TRANSFORMERS_JS:
                data = self.files[part.name].with_name(f"{self.files[part.name].name}_data")
            groups.setdefault(data, []).append(part)
        for data, parts in groups.items():
            stays = [part for part in parts if part.name not in self.results]
            if data is not None and (len(stays) < len(parts) or layout != layouts.KEEP_NAMES):
                there = save.data_path(self.target_of(parts[0]))
                if len(parts) == 1 and there == self.staged / data and there.exists():
                    continue
                models = [(self._where(part), self.target_of(part)) for part in parts]
                data_files.write_together(models, self.staged / data)
                continue
            for part in stays:
                _copy(self.folder.source(part), self.target_of(part))
                for file in part.data:
                    _copy(self.folder.path / file, self.staged / file)

    def copy_others(self) -> None:
        """Everything that goes with the models."""
        for file in self.folder.others:
            if (self.staged / file).exists():
                self.folder.left_out[file] = "the result has a file of its own by this name"
            else:
                _copy(self.folder.path / file, self.staged / file)

    def _where(self, part: Part) -> Path:
        return self.target_of(part) if part.name in self.results else self.folder.source(part)

    def finish(self, layout: str, scheme: str) -> list[str]:
        """What the client has to be told, in its files or in notes."""
        own = [self.files[part.name] for part in self.folder.parts if _has_own_ops(self.target_of(part))]
        notes = []
        if self.folder.kind == genai.KIND:
            library = genai.register_library(self.staged, own)
            notes += [f"{genai.CONFIG} names {library}, which lies beside the models"] if library else []
        elif own:
            notes.append("runs as it is; with the library of onnxq.ops_library() registered, its kernels are used")
        if layout == layouts.TRANSFORMERS_JS:
            data = [file for file in self.files.values() if (self.staged / f"{file}_data").exists()]
            layouts.tell_of_data(self.staged, data)
            notes.append(f"transformers.js loads it with dtype '{layouts.dtype_of(scheme)}'")
        return notes

    def result(self, destination: Path, scheme: str, notes: list[str], count: int) -> FolderResult:
        parts, before, after = [], set(), set()
        for part in self.folder.parts:
            old = {self.folder.path / file for file in (part.file, *part.data)}
            new = {self.target_of(part), *_data_beside(self.target_of(part))}
            result = self.results.get(part.name)
            if result is not None:
                result = dataclasses.replace(result, output=destination / self.files[part.name])
            note = self.notes.get(part.name, "")
            parts.append(PartResult(part.name, self.files[part.name], result, note, _nbytes(old), _nbytes(new)))
            before |= old
            after |= new
        return FolderResult(
            destination,
            self.folder.kind,
            scheme,
            self.options["target"],
            tuple(parts),
            tuple(file for file in self.folder.others if file not in self.folder.left_out),
            self.folder.left_out,
            count,
            _nbytes(before),
            _nbytes(after),
            tuple(notes),
        )


def _has_own_ops(model: Path) -> bool:
    proto = onnx.load(model, load_external_data=False)
    return any(imported.domain == bodies.DOMAIN for imported in proto.opset_import)


def _data_beside(model: Path) -> set[Path]:
    proto = onnx.load(model, load_external_data=False)
    return {
        model.parent / entry.value
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _nbytes(files: set[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
