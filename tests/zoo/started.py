"""How the scripts beside it start: the tests' own modules are found, words are read, shared models are there."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1]))
from shared import SHARED
from zoo_models import load_zoo


def parser_for(doc: str | None, table: Path | None = None) -> argparse.ArgumentParser:
    """The command line of a script, by its docstring; with `--write` if it makes a table."""
    parser = argparse.ArgumentParser(description=doc)
    if table is not None:
        parser.add_argument("--write", action="store_true", help=f"put the rows into docs/{table.name}")
    return parser


def start(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, ModuleType]:
    """What was asked for, and the zoo.py of the shared folder.

    Raises:
        SystemExit: there are no shared models.
    """
    options, zoo = parser.parse_args(), load_zoo()
    if zoo is None:
        raise SystemExit(f"no shared models in {SHARED}; ONNXQ_SHARED says where they are")
    return options, zoo


def processor() -> str:
    """Its name, and the instructions that the kernels know."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if os.name == "posix" else ""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    known = {name.strip(): value.split() for name, value in fields.items()}
    kinds = [
        flag for flag in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_bf16") if flag in known.get("flags", [])
    ]
    return f"{' '.join(known.get('model name', ['unknown']))} ({', '.join(kinds)})"
