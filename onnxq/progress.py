"""How long work tells how far it is. The command line draws bars; a library says nothing unless asked."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def start(self, what: str, total: int | None = None) -> None:
        """A new step begins; `total` is in whatever unit `advance` counts, None if it is not known."""

    def advance(self, done: int) -> None:
        """So much more of the step is done."""


class Quiet:
    """Says nothing."""

    def start(self, what: str, total: int | None = None) -> None:
        pass

    def advance(self, done: int) -> None:
        pass


QUIET = Quiet()
