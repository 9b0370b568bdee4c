"""The command line: parse, call, print. The one place where an exception becomes an exit code.

One file each; the file name is the command's word, with dashes for underscores, and the name of the function inside.
"""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path
from typing import Any

import click

from onnxq.errors import OnnxqError
from onnxq.version import __version__


class _Errors(click.Group):
    """Turns an `OnnxqError` into its sentence and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OnnxqError as error:
            prefix = "onnxq: " if error.exit_code else ""
            click.echo(f"{prefix}{error}", err=bool(error.exit_code))
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("onnxq: interrupted", err=True)
            sys.exit(128 + signal.SIGINT)


@click.group(cls=_Errors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="onnxq")
def main() -> None:
    """A quantization compiler for ONNX.

    \b
    onnxq quantize model.onnx                        4-bit weights, no data needed
    onnxq quantize model.onnx --data samples.npz     int8 weights and activations
    onnxq quantize model.onnx -s nf4 -o small.onnx   a format by name

    The result runs in stock onnxruntime. What is not worth quantizing stays in float, with the reason.
    """


for _path in sorted(Path(__file__).parent.glob("[!_]*.py")):
    main.add_command(getattr(importlib.import_module(f"onnxq.cli.{_path.stem}"), _path.stem))
