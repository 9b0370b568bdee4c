"""The whole story of a folder: each part through `pipeline.quantize`, one format for what they share, one rename."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxq import targets
from onnxq.boundary import bounded
from onnxq.errors import BadRecipe
from onnxq.files.guard import Guard
from onnxq.folders import contents, layouts, options_of_part, placing
from onnxq.folders.result import FolderResult
from onnxq.folders.run import Run
from onnxq.output import place, write
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe

#: Arguments of `pipeline.quantize` that name files of a single model.
OF_ONE_MODEL = ("plan", "ranges", "evidence", "trace", "like")
#: Those that may name files that every part reads.
_READ = ("profile", "preprocessing", "tokenizer", "evaluate")


@bounded
def quantize_folder(
    folder: str | Path,
    output: str | Path | None = None,
    recipe: Recipe | str = "auto",
    *,
    data: options_of_part.FolderData | None = None,
    layout: str = layouts.KEEP_NAMES,
    variants: bool = False,
    force: bool = False,
    progress: Progress = QUIET,
    **options: Any,
) -> FolderResult:
    """Quantize every model of a folder and write a complete folder, which the same programs load.

    Args:
        output: by default the folder's name with the scheme in it, in the current folder.
        recipe: for all parts; a rule whose pattern is `PART/NODE` is for that part, `PART/*` with `keep` copies it.
        data: samples by part, or a folder with an entry named like each part that has some; the other parts do without.
        layout: `same` keeps all names, `transformers.js` names models by their precision, as it looks for them.
        variants: copy other precisions of the models too, instead of leaving them out.
        force: replace `output` if onnxq wrote it.
        options: of `pipeline.quantize`, for every part: target, preprocessing, limit, seed, effort, profile, check …;
            and its `guard`, for the whole folder.

    Raises:
        OnnxqError: one of its kinds (`errors.py`); nothing is left behind then.
    """
    for name in OF_ONE_MODEL:
        if options.pop(name, None) is not None:
            raise BadRecipe(f"'{name}' is for a single model, and {folder} is a folder; give one of its models")
    found = contents.open_folder(folder, variants=variants)
    layouts.require_layout(layout, found)
    wanted = Recipe(recipe) if isinstance(recipe, str) else recipe
    samples, said = options_of_part.data_of([part.name for part in found.parts], data)
    scheme = wanted.resolve(has_data=bool(samples), auto=targets.get(options.get("target", "ort-cpu")).auto).scheme
    files = layouts.files_of(found.parts, layout, scheme)
    destination = Path(output) if output is not None else Path(f"{found.path.resolve().name}.{scheme}")
    guard: Guard = options.pop("guard", None) or Guard(force)
    seen = place.check_destination(destination, [found.path], guard.force)
    guard.reads(*options_of_part.files_of(data), *(options.get(name) for name in _READ))
    guard.replaces(destination)
    with write.staging(destination) as scratch:
        staged = scratch / "result"  # beside what else is in there, whatever the result is called
        staged.mkdir()
        run = Run(found, scratch, staged, wanted, samples, files, options, progress)
        run.quantize_parts()
        run.share_formats()
        run.place_models(layout)
        placing.copy_others(found, staged)
        result = run.result(destination, scheme, said + run.tell_clients(layout, scheme))
        place.write_report(staged, result.to_json())
        place.publish(staged, destination, seen, guard)
    return result
