"""Samples are taken through a model piece by piece: each piece gets what those before it have left.

Only a piece of the model is in memory at a time, and of the samples what `Shelf` has room for.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.layers.shelf import Shelf
from onnxq.model.pieces import Piece
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.runtime.process import heap
from onnxq.runtime.session import Feed, Session
from onnxq.samples.prefetch import prefetch
from onnxq.samples.source import Data


class CannotBeCut(Exception):
    """What passes between two pieces is no tensor."""


def runner_of(piece: Piece, model: ir.Model, state: Feed, names: Sequence[str]) -> Callable[[Feed], dict[str, NDArray]]:
    """A function that runs a piece on what samples are in front of it, and gives these values, those that were
    computed.

    Args:
        model: the one that was cut.
        state: a sample in front of the piece.

    Raises:
        CannotBeCut: the sample lacks something that the piece reads, as inputs that a model has a default for.
    """
    if not state.keys() >= set(piece.reads):
        raise CannotBeCut
    own = piece.model(model, state)
    expose = ExposeValues(names)
    expose(own)
    RemoveUnused()(own)
    outputs = {name: out for name, out in zip(names, expose.outputs, strict=True) if out is not None}
    session = Session(own, threads=0)

    def run(state: Feed) -> dict[str, NDArray]:
        found = session.run(fed(session, state), list(outputs.values()))
        return {name: x for name, x in zip(outputs, found, strict=True) if x is not None}

    return run


def leave(shelf: Shelf, number: int, piece: Piece, state: Feed, made: Feed) -> None:
    """Put what the pieces behind need of a sample in the place of what this one needed.

    Raises:
        CannotBeCut: what the piece makes is no tensor, or the sample lacks an input that is read later.
    """
    if not all(isinstance(made.get(name), np.ndarray) and made[name].dtype != object for name in piece.makes):
        raise CannotBeCut
    if not made.keys() | state.keys() >= set(piece.leaves):
        raise CannotBeCut
    shelf.put(number, {name: made[name] if name in made else state[name] for name in piece.leaves})


def fed(session: Session, state: Feed) -> Feed:
    """Of the values that are there, those that a piece reads."""
    return {each.name: state[each.name] for each in session.inputs}


class FloatWalk:
    """The samples as the float model has them, in front of one piece after the other.

    Args:
        model: the one that was cut; not changed.
        parts: the samples, in the order of their numbers.
        memory: of bytes that values between pieces may take a quarter is used; the rest of them lies on disk.
        folder: for these; made when it is needed.
    """

    def __init__(self, model: ir.Model, parts: Sequence[Data], memory: int | None, folder: Path) -> None:
        self._model, self._parts = model, parts
        self._shelf, self._is_first = Shelf(folder, memory), True

    def through(self, piece: Piece, names: Sequence[str], first: int, *, goes_on: bool) -> Iterator[dict[str, NDArray]]:
        """These values of each sample from number `first` on.

        Args:
            goes_on: the samples are behind the piece afterwards, all of them.

        Raises:
            CannotBeCut: what passes to or from the piece is no tensor, or is missing.
            BadModel, BadData: the piece fails on some sample, or it cannot be read.
        """
        start = 0 if goes_on else first
        makes = [name for name in piece.makes if name not in names] if goes_on else []
        run: Callable[[Feed], dict[str, NDArray]] | None = None
        with contextlib.closing(self._states(start)) as states:
            for number, state in states:
                run = runner_of(piece, self._model, state, [*names, *makes]) if run is None else run
                values = run(state)
                if goes_on:
                    leave(self._shelf, number, piece, state, values)
                if number >= first:
                    yield {name: values[name] for name in names if np.size(values.get(name, ()))}
        self._is_first &= not goes_on
        del run
        heap.give_back()

    def _states(self, start: int) -> Generator[tuple[int, Feed]]:
        """(number, what is in front of the piece) of each sample from number `start` on."""
        if not self._is_first:
            count = sum(part.count for part in self._parts)
            yield from ((number, self._shelf.get(number)) for number in range(start, count))
            return
        before = itertools.accumulate((part.count for part in self._parts), initial=0)
        rest = [part.after(max(0, start - skipped)) for part, skipped in zip(self._parts, before, strict=False)]
        with contextlib.closing(prefetch(itertools.chain(*rest))) as samples:
            yield from enumerate(samples, start)
