"""How long-running work reports its progress. The command line draws bars; a library says nothing unless asked."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        """A new step begins; `total` is in what `advance` counts, None if it is not known. With a `unit`, the plural of
        what that is, its rate is worth showing."""

    def advance(self, done: int) -> None:
        """So much more of the step is done."""


class Quiet:
    """Says nothing."""

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        pass

    def advance(self, done: int) -> None:
        pass


QUIET = Quiet()
