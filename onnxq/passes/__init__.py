"""Graph rewrites, one a file, named by what they do. Each is an `onnx_ir.passes.InPlacePass` whose constructor takes
exactly what it reads. `prepare.py` says in which order those of `normalize/` run, a target's description those of
`quantize/`; a pass that neither names says which one it `follows`, and is one new file.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ir as ir


class Pass(ir.passes.InPlacePass):
    """A pass that is found by its file."""

    #: File name of the pass behind which this one runs, wherever that runs; empty: it runs where it is named.
    follows: str = ""


@functools.cache
def found(folder: str) -> dict[str, type[Pass]]:
    """By file name, the pass that each file of a folder here defines."""
    made: dict[str, type[Pass]] = {}
    for path in sorted((Path(__file__).parent / folder).glob("[!_]*.py")):
        module = importlib.import_module(f"onnxq.passes.{folder}.{path.stem}")
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, Pass) and each.__module__ == module.__name__:
                made[path.stem] = each
    return made


def in_order(folder: str, words: Iterable[str]) -> Iterator[str]:
    """These passes of a folder, each with all that follow it."""
    for word in words:
        yield word
        yield from in_order(folder, (other for other, each in found(folder).items() if each.follows == word))
