"""On what plans are compared: samples, and what the float model gives for them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numpy.typing import NDArray

from onnxq.quality import Quality, arrays_of, compare_outputs
from onnxq.quality.decisions import Classes
from onnxq.runtime.session import Feed, Session
from onnxq.samples.source import add_to_hash


@dataclass(frozen=True)
class Watched:
    """
    Attributes:
        outputs: of the model, by name.
        feeds, wanted, labels: of each sample, its inputs, the float model's outputs, and what it is called.
        random: outputs that are not compared.
        classes: outputs that are scores of classes.
    """

    outputs: tuple[str, ...]
    feeds: Sequence[Feed]
    wanted: Sequence[list[NDArray]]
    labels: Sequence[str]
    random: frozenset[str]
    classes: Mapping[str, Classes]

    def quality(self, session: Session) -> Quality:
        """Of the model in a session, on all samples."""
        quality = Quality(self.random, classes=self.classes)
        for number in range(len(self.feeds)):
            quality.merge(self.compared(session, number))
        return quality

    def compared(self, session: Session, number: int) -> Quality:
        """On one sample."""
        wanted, got = self.wanted[number], session.run(self.feeds[number])
        labels = [self.labels[number]]
        return compare_outputs(self.outputs, [wanted], [got], self.random, labels, self.classes)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of everything that decides a quality."""
        digest = hashlib.sha256()
        about = self.outputs, self.labels, sorted(self.random), sorted(self.classes.items(), key=lambda each: each[0])
        digest.update(repr(about).encode())
        for feed, wanted in zip(self.feeds, self.wanted, strict=True):
            add_to_hash(digest, feed)
            for number, output in enumerate(wanted):
                add_to_hash(digest, {f"{number}.{i}": x for i, x in enumerate(arrays_of(output))})
        return digest.hexdigest()
