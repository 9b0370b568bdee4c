"""`onnxq inspect`: show what is in a model."""

from __future__ import annotations

from pathlib import Path

import click

from onnxq.cli import _tables
from onnxq.cli._console import console
from onnxq.cli._options import MODEL
from onnxq.folders.contents import open_folder
from onnxq.folders.tables import contents_table
from onnxq.model.load import load_model


@click.command(short_help="Show what is in a model.")
@click.argument("model", type=MODEL)
def inspect(model: Path) -> None:
    """Show what is in MODEL: interface, operators, and what its weights are stored as. Of a folder: its parts."""
    if model.is_dir():
        console().print(contents_table(open_folder(model)))
        return
    console().print(_tables.model_table(load_model(model, to_look_at=True)))
