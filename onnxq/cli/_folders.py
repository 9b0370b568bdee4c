"""The part of the commands that is about folders of models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from onnxq.checking.layers.floor import require_floors, require_output_floor
from onnxq.checking.layers.result import ByLayer
from onnxq.cli import _written
from onnxq.cli._console import Bars, console
from onnxq.cli._given import effort_of, preprocessing_of, profile_of, recipe_of, sampling_of
from onnxq.cli._layers import layers_table
from onnxq.cli._options import options
from onnxq.cli._report import announced, command_line, write_beside, write_html
from onnxq.errors import BadModel, BadRecipe, CheckFailed, one_line
from onnxq.files.guard import Guard
from onnxq.folders import layouts, quantize_folder
from onnxq.folders.compare import FolderCheck, compare_folders
from onnxq.folders.contents import open_folder
from onnxq.folders.result import FolderResult
from onnxq.folders.tables import check_table, folder_table
from onnxq.job import Environment

FOLDER_OPTIONS = options(
    click.option(
        "--layout",
        type=click.Choice(layouts.LAYOUTS),
        help="Of a folder: keep all names, or name models by their precision, as transformers.js looks for them."
        f"  [default: {layouts.KEEP_NAMES}]",
    ),
    click.option(
        "--variants", is_flag=True, help="Of a folder: copy other precisions of its models instead of leaving them out."
    ),
)

#: Options of `quantize` that are about a single model.
_OF_MODELS = {
    "plan_file": "--plan",
    "ranges": "--ranges",
    "evidence": "--evidence",
    "trace": "--trace",
    "like": "--like",
    "evaluate": "--evaluate",
    "max_drop": "--max-drop",
    "metric": "--metric",
    "labels": "--labels",
    "logits": "--logits",
    "budget": "--budget",
    "formats": "--formats",
    "shard_size": "--shard-size",
}
#: Options of `check` that are.
_OF_TWO_MODELS = {"metric": "--metric", "labels": "--labels", "logits": "--logits"}
_OF_FOLDERS = {"layout": "--layout", "variants": "--variants"}


def quantize(folder: Path, options: dict[str, Any], guard: Guard) -> None:
    """`onnxq quantize FOLDER`."""
    _refuse_options_of_models(_OF_MODELS, folder, options)
    announced(guard, options["html"])
    keep(guard, folder)
    profile = profile_of(options, guard)
    with Bars(console(stderr=True)) as bars:
        result = quantize_folder(
            folder,
            options["output"],
            recipe_of(options),
            target=options["target"],
            data=options["data"],
            preprocessing=preprocessing_of(options),
            limit=options["limit"],
            seed=options["seed"],
            effort=effort_of(options),
            profile=profile,
            layout=options["layout"] or layouts.KEEP_NAMES,
            variants=options["variants"],
            guard=guard,
            check=not options["no_check"],
            threads=options["threads"],
            strict=options["strict"],
            progress=bars,
        )
    write_beside(guard, options, result, profile, lambda: _report_of_result(folder, result, options, guard))
    if options["as_json"]:
        click.echo(result.to_json())
    else:
        out = console()
        out.print(f"{result.output}: {result.kind} folder, {result.scheme} for {result.target}\n", style="bold")
        out.print(folder_table(result))
    _written.end_unverified(*(part.result.unverified() for part in result.parts if part.result is not None))


def keep(guard: Guard, *folders: Path) -> None:
    """Nothing in these folders of models is written over.

    Raises:
        BadOutput: something in them is to be.
    """
    for folder in folders:
        guard.reads(*(file for file in folder.rglob("*") if file.is_file()))  # models among them


def _report_of_result(folder: Path, result: FolderResult, options: dict[str, Any], guard: Guard) -> Any:
    from onnxq.report import folders

    with Bars(console(stderr=True)) as bars:
        environment = Environment(options["threads"], bars, guard)
        return folders.of_result(folder, result, sampling_of(options), environment, (command_line(),))


def check(a: Path, b: Path, options: dict[str, Any], guard: Guard) -> FolderCheck:
    """`onnxq check FOLDER FOLDER`: part by part."""
    _refuse_options_of_models(_OF_TWO_MODELS, a, options)
    keep(guard, a, b)
    with Bars(console(stderr=True)) as bars:
        found = compare_folders(
            a,
            b,
            sampling_of(options),
            layers=options["by_layer"],
            memory=options["max_memory"],
            threads=options["threads"],
            progress=bars,
        )
    write_html(guard, options["html"], lambda: _report_of_check(found, options, guard))
    if options["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=1))
        return found
    out = console()
    for part in found.parts:
        if isinstance(part.found, ByLayer):
            out.print(one_line(part.name), style="bold", markup=False, highlight=False)
            out.print(layers_table(part.found, is_whole=options["is_whole"]))
            out.print()
    out.print(check_table(found))
    return found


def _report_of_check(found: FolderCheck, options: dict[str, Any], guard: Guard) -> Any:
    from onnxq.report import folders

    with Bars(console(stderr=True)) as bars:
        return folders.of_check(found, Environment(options["threads"], bars, guard), (command_line(),))


def require_floors_of_parts(found: FolderCheck, floors: Mapping[str, float]) -> None:
    """
    Raises:
        CheckFailed: a part is below a floor; the sentence names the first one.
    """
    for part in found.parts:
        try:
            if isinstance(part.found, ByLayer):
                require_floors(part.found, floors)
            else:
                require_output_floor(part.found.sqnr, floors)
        except CheckFailed as error:
            raise CheckFailed(f"part '{part.name}': {error}") from None


def _refuse_options_of_models(words: Mapping[str, str], folder: Path, options: dict[str, Any]) -> None:
    wrong = next((word for key, word in words.items() if options[key]), None)
    if wrong is not None:
        raise BadRecipe(f"{wrong} is for a single model, and '{folder}' is a folder; give one of its models")


def refuse_options_of_folders(model: Path, options: dict[str, Any]) -> None:
    wrong = next((word for key, word in _OF_FOLDERS.items() if options[key]), None)
    if wrong is not None:
        raise BadRecipe(f"{wrong} is for a folder of models, and '{model}' is not one")


def refuse_folders(*paths: Path) -> None:
    """For commands that look at single models.

    Raises:
        BadModel: one of them is a folder; which models it holds.
    """
    for path in paths:
        if path.is_dir():
            models = ", ".join(part.file.as_posix() for part in open_folder(path).parts)
            raise BadModel(f"'{path}' is a folder; give one of its models: {models}")
