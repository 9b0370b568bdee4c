"""`--html` of several commands: what was found, as a page or as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from onnxq.cli._commands import WORDS
from onnxq.cli._given import guard_of
from onnxq.cli._options import FORCE_OPTION, MODEL, options
from onnxq.errors import BadOutput
from onnxq.files import storage
from onnxq.files.guard import Guard, is_same
from onnxq.runtime.profile import MachineProfile

HTML_OPTION = click.option(
    "--html",
    type=MODEL,
    multiple=True,
    metavar="FILE",
    help="Write what was found as a page to look at in a browser; to a name that ends in .json, the same as JSON "
    "(docs/report.md). Repeatable.",
)
HTML_OPTIONS = options(HTML_OPTION, FORCE_OPTION)


def announced(guard: Guard, files: Sequence[Path], option: str = "--html") -> None:
    """Tell the guard of the files that will be written; a page that cannot be made is told before anything is done."""
    for number, path in enumerate(files):
        if any(is_same(path, other) for other in files[:number]):
            raise BadOutput(f"'{path}' is what {option} writes already; choose another name with {option}")
        guard.writes(path, option)
    if any(path.suffix.lower() != ".json" for path in files):
        from onnxq.report import page

        page.require()


def guard_for_html(given: dict[str, Any]) -> Guard:
    """The guard of a command that reads all it names and writes nothing but `--html`."""
    guard = guard_of(given)
    announced(guard, given["html"])
    return guard


def write_html(guard: Guard, files: Sequence[Path], make: Callable[[], Any]) -> None:
    """Write the report that `make` makes, which takes time, to files of these names.

    Args:
        make: makes a `report.document.Report`.
    """
    if not files:
        return
    from onnxq.report import page

    report = make().with_addresses()
    for path in files:
        guard.write_text(path, page.as_file(report, path.name))


def write_beside(
    guard: Guard, given: dict[str, Any], result: Any, profile: MachineProfile, make: Callable[[], Any]
) -> None:
    """What options of `quantize` ask for beside a model or a folder: the times, the result as JSON, the page.

    Args:
        result: has a `to_json`.
        make: as of `write_html`.
    """
    if given["save_profile"]:
        guard.write_text(given["save_profile"], profile.to_json())
    if given["report"]:
        guard.write_text(given["report"], result.to_json())
    write_html(guard, given["html"], make)


def command_line() -> str:
    """What was typed, for a report to say: it is shown to others, who are not to have the keys of a store."""
    words = click.get_current_context().find_root().meta.get(WORDS, ())
    return shlex.join(["onnxq", *(storage.without_secrets(word) for word in words)])
