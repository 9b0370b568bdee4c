"""What the parts of a folder say while they are quantized: which part it is about, and nothing twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxq.boundary import taking_warnings, warn
from onnxq.errors import OnnxqError, UnusedOption
from onnxq.progress import Progress


@dataclass(frozen=True)
class OfPart:
    """Progress, said with the name of the part."""

    progress: Progress
    name: str

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        self.progress.start(f"{self.name}: {what}", total, unit)

    def advance(self, done: int) -> None:
        self.progress.advance(done)


@contextlib.contextmanager
def about(part: str) -> Iterator[None]:
    """What goes wrong in here is said of the part."""
    try:
        yield
    except OnnxqError as error:
        raise type(error)(f"part '{part}': {error}") from error


def but_for_unused() -> contextlib.AbstractContextManager[None]:
    """Options without effect were said already."""

    def take(message: str, category: type[Warning]) -> None:
        if not issubclass(category, UnusedOption):
            warn(message, category)

    return taking_warnings(take)


@contextlib.contextmanager
def collected_warnings(models: Sequence[Path], count: Callable[[], int]) -> Iterator[None]:
    """An option is unused if it is in all `count()` parts that were quantized; other warnings are given once.

    What is said of several models is said of the first: commands that advice names take no folder.
    """
    said: dict[tuple[type[Warning], str], int] = {}

    def take(message: str, category: type[Warning]) -> None:
        for model in models if issubclass(category, UnusedOption) else ():
            message = message.replace(str(model), str(models[0]))
        said[category, message] = said.get((category, message), 0) + 1

    with taking_warnings(take):
        yield
    for (category, message), times in said.items():
        if not issubclass(category, UnusedOption) or times >= count():
            warn(message, category)
