"""What a float model and a quantized one are compared on: samples, what each is called, and what they prove."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxq.runtime.session import Feed

#: What samples that the user gave are called.
GIVEN = "data"


@dataclass(frozen=True)
class Trial:
    """One sample. Those of one label are judged together: the worst label is what a model is worth."""

    label: str
    feed: Feed


@dataclass(frozen=True)
class Trials:
    """Samples of one or more labels.

    Attributes:
        samples: the first is the typical one, which is timed.
        words: what they are, for people.
        proves: whether the user gave any of them. What is made up shows that a model runs, and where it is weak; not
            that it is good at what it is for.
        notes: what a user should know of them, a sentence each.
        further: of other batches, on which the saved file is run once: they count where it is worse there.
    """

    samples: tuple[Trial, ...] = ()
    words: str = ""
    proves: bool = False
    notes: tuple[str, ...] = ()
    further: tuple[Trial, ...] = ()

    @property
    def feeds(self) -> list[Feed]:
        return [trial.feed for trial in self.samples]

    @property
    def labels(self) -> list[str]:
        """Of each sample."""
        return [trial.label for trial in self.samples]

    def joined(self, others: Iterable[Trial], notes: Sequence[str] = ()) -> Trials:
        return dataclasses.replace(self, samples=(*self.samples, *others), notes=(*self.notes, *notes))

    @staticmethod
    def given(feeds: Sequence[Feed], words: str, note: str = "") -> Trials:
        """Samples of the user's."""
        return Trials(tuple(Trial(GIVEN, feed) for feed in feeds), words, True, (note,) if note else ())
