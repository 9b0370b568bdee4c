"""Where the result of a folder goes: refused early, moved there in one step at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path

from onnxq.errors import BadOutput
from onnxq.output import write

#: A file of each folder that was written here: what was done, as JSON. Only such folders are ever replaced.
REPORT = "onnxq.json"


def check_destination(output: Path, source: Path, force: bool) -> None:
    """Refuse early what could not be written later.

    Raises:
        BadOutput: the output is there already (without `force`, or not written by onnxq), is or holds the source, or
            lies in it.
    """
    here, there = output.resolve(), source.resolve()
    if here == there or here.is_relative_to(there) or there.is_relative_to(here):
        raise BadOutput(f"of {output} and {source}, one contains the other; choose another folder with -o")
    if not here.parent.is_dir():
        raise BadOutput(f"the folder {output.parent} does not exist")
    if not os.access(here.parent, os.W_OK):
        raise BadOutput(f"the folder {output.parent} cannot be written to; choose another place")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise BadOutput(f"{output} is not a folder; choose another name with -o")
    if Path.cwd().is_relative_to(here):
        raise BadOutput(f"{output} is the folder you are in; choose another name with -o")
    if output.exists() and any(output.iterdir()):
        if not (output / REPORT).is_file():
            raise BadOutput(f"{output} holds files that onnxq did not write there; choose another name with -o")
        if not force:
            raise BadOutput(f"{output} exists; give --force to replace it, or another name with -o")


def publish(staged: Path, output: Path) -> None:
    """Move a folder that lies in the staging folder of `output` into place; what was there before goes.

    A reader finds the old folder or the new one, but for the moment between two renames none.
    """
    if not output.exists():
        os.rename(staged, output)
        return
    old = staged.with_name(f"{staged.name}.old")
    os.rename(output, old)  # into the staging folder, with which it is removed
    try:
        os.rename(staged, output)
    except BaseException:
        os.rename(old, output)
        raise


def write_report(folder: Path, text: str) -> None:
    """Leave in the folder what was done to it; not where, as it may be moved."""
    table = json.loads(text)
    table.pop("output")
    write.write_text(folder / REPORT, json.dumps(table, indent=1) + "\n")
