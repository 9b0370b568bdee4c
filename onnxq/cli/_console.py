"""Where tables and progress bars go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from onnxq.errors import printable, without_halves
from onnxq.files import mirror
from onnxq.runtime import supervisor

#: Columns of tables that do not go to a terminal.
PIPED_WIDTH = 110


def console(*, stderr: bool = False) -> Console:
    """Where tables and bars go. Names of nodes may hold brackets: nothing in them is markup."""
    console = _Console(stderr=stderr, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPED_WIDTH)
    return console


def say(text: str = "") -> None:
    """A line for people, without what a terminal would obey: names from files are in it."""
    click.echo(printable(mirror.as_given(text)))


class _Console(Console):
    """Leaves it to the command line what becomes of a closed pipe; names from files are shown, never obeyed."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Line breaks in what is printed are ours; those in cells of tables are parts of names."""
        shown = (Text(without_halves(mirror.as_given(each))) if isinstance(each, str) else each for each in objects)
        super().print(*shown, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain, lines=True)
        return super().render(renderable, options)

    def on_broken_pipe(self) -> None:
        raise


class _Rate(ProgressColumn):
    """Units a second, where a unit was given and some are done."""

    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit")
        return Text(f"{task.speed:.3g} {unit}/s" if unit and task.speed else "")


class Bars:
    """Progress bars on a terminal; nothing elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Rate(),
            TimeRemainingColumn(),
        )
        self._is_shown = console.is_terminal
        self._bars = Progress(*columns, console=console, transient=True, disable=not self._is_shown)
        self._task: TaskID | None = None

    def __enter__(self) -> Bars:
        if self._is_shown:
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_shown:
            self._bars.stop()

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        supervisor.doing(what)
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(what, total=total, unit=unit)

    def advance(self, done: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, done)
