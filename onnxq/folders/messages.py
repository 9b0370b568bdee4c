"""What the parts of a folder say while they are quantized: which part it is about, and nothing twice."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxq.boundary import warn
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


@contextlib.contextmanager
def collected_warnings(models: Sequence[Path], count: Callable[[], int]) -> Iterator[None]:
    """An option is unused if it is in all `count()` parts that were quantized; other warnings are given once.

    What is said of several models is said of the first: commands that advice names take no folder.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said: dict[tuple[type[Warning], str], int] = {}
    for each in caught:
        message = str(each.message)
        for model in models if issubclass(each.category, UnusedOption) else ():
            message = message.replace(str(model), str(models[0]))
        key = (each.category, message)
        said[key] = said.get(key, 0) + 1
    for (category, message), times in said.items():
        if not issubclass(category, UnusedOption) or times >= count():
            warn(message, category)
