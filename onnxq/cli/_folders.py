"""The part of the commands that is about folders of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxq.cli._console import Bars, console
from onnxq.cli._options import effort_of, options, preprocessing_of, profile_of, recipe_of
from onnxq.errors import BadModel, BadRecipe
from onnxq.files.guard import Guard
from onnxq.folders import layouts, quantize_folder
from onnxq.folders.contents import open_folder
from onnxq.folders.tables import folder_table

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
    "html": "--html",
}
_OF_FOLDERS = {"layout": "--layout", "variants": "--variants"}


def quantize(folder: Path, options: dict[str, Any], guard: Guard) -> None:
    """`onnxq quantize FOLDER`."""
    wrong = next((word for key, word in _OF_MODELS.items() if options[key]), None)
    if wrong is not None:
        raise BadRecipe(f"{wrong} is for a single model, and '{folder}' is a folder; give one of its models")
    guard.reads(*(file for file in folder.rglob("*") if file.is_file()))  # models among them
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
            force=options["force"],
            check=not options["no_check"],
            threads=options["threads"],
            strict=options["strict"],
            progress=bars,
        )
    if options["save_profile"]:
        guard.write_text(options["save_profile"], profile.to_json())
    if options["report"]:
        guard.write_text(options["report"], result.to_json())
    if options["as_json"]:
        click.echo(result.to_json())
        return
    out = console()
    out.print(f"{result.output}: {result.kind} folder, {result.scheme} for {result.target}\n", style="bold")
    out.print(folder_table(result))


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
