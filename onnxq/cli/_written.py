"""What a person, or a program, is shown of a model that was made of another quantized one."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from rich.console import RenderableType

from onnxq.checking.models import Check
from onnxq.cli import _tables
from onnxq.cli._console import Bars, console, say
from onnxq.cli._given import guard_of
from onnxq.errors import Exit, NothingToDo, one_line
from onnxq.files import mirror
from onnxq.job import Environment
from onnxq.output.copy_model import copy_model

T = TypeVar("T")


class Written(Protocol):
    """A dataclass of what was done; further members go into the JSON."""

    @property
    def output(self) -> Path: ...

    @property
    def bytes_before(self) -> int: ...

    @property
    def bytes_after(self) -> int: ...

    @property
    def check(self) -> Check | None: ...


def echo_json(done: Any, **more: object) -> None:
    """All members of a dataclass with `output` and `check`, or what `more` says instead."""
    check = None if done.check is None else done.check.to_dict()
    table = dataclasses.asdict(done) | {"output": mirror.told(done.output), "check": check}
    click.echo(json.dumps(table | more, indent=1))


def show(done: Written, is_what: str, *more: RenderableType, notes: Sequence[str] = ()) -> None:
    """A headline, what more is known, and what became of size and time."""
    out = console()
    out.print(f"{done.output}: {is_what}\n", style="bold")
    for each in more:
        out.print(each)
    out.print(_tables.conversion_table(done.bytes_before, done.bytes_after, done.check))
    for note in notes:
        out.print(one_line(f"note: {note}"))


def made_or_copied(model: Path, options: dict[str, Any], make: Callable[[Environment], T]) -> T | None:
    """What `make` does of `model`; None where there is nothing to do, and whoever named an output got a copy there, as
    of `quantize`.

    Raises:
        NothingToDo: no output was named.
    """
    guard, shard_size, output = guard_of(options), options.get("shard_size"), options["output"]
    try:
        with Bars(console(stderr=True)) as bars:
            return make(Environment(options["threads"], bars, guard, shard_size))
    except NothingToDo as nothing:
        if output is None:
            raise
        copy_model(model, output, guard, shard_size)
        if options["as_json"]:
            click.echo(json.dumps({"output": mirror.told(output), "copied": str(nothing)}, indent=1))
        else:
            say(f"{nothing}; {output} is a copy of it")
        return None


def end(check: Check | None) -> None:
    """Tell by the exit status of a file that could not be compared, or that its runtime refuses or breaks."""
    if check is None:
        return
    end_unverified(*check.undone, check.lost_there)
    if not check.is_known:
        sys.exit(Exit.UNCHECKED)


def end_unverified(*sentences: str) -> None:
    """Say of files why nobody knows how good they are, and tell by the exit status; of files with no sentence that is
    known."""
    told = [sentence for sentence in sentences if sentence]
    for sentence in told:
        click.secho(f"onnxq: warning: {one_line(mirror.as_given(sentence))}", fg="red", bold=True, err=True)
    if told:
        sys.exit(Exit.UNCHECKED)
