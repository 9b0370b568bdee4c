"""`onnxq inspect`: show what is in a model."""

from __future__ import annotations

from pathlib import Path

import click

from onnxq import tables
from onnxq.cli._console import console
from onnxq.cli._options import MODEL
from onnxq.load import load_model


@click.command(short_help="Show what is in a model.")
@click.argument("model", type=MODEL)
def inspect(model: Path) -> None:
    """Show what is in MODEL: interface, operators, and what its weights are stored as."""
    console().print(tables.model_table(load_model(model, to_look_at=True)))
