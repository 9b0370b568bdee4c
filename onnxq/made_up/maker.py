"""Makes samples for one model and runs each of them once, so that all that come out are legal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BadModel
from onnxq.made_up.dims import Dims, guesses
from onnxq.made_up.kinds import kinds_of
from onnxq.made_up.roles import CARRIERS, Part, Role, parts_of
from onnxq.made_up.scenes import Painter, Scene
from onnxq.made_up.steps import Loop, sizes_of
from onnxq.quality import arrays_of
from onnxq.runtime.session import Feed, Session
from onnxq.samples.trials import Trial

#: Sizes tried for free dimensions, in this order, until the model runs.
SIZES = (16, 32, 64, 128, 224, 256, 512, 8, 4, 2, 1)
#: What guessed dimensions may multiply up to in one input: three of 512 would be half a gigabyte.
MOST_ELEMENTS = 1 << 22
#: A short text; steps that a model takes with what it left for itself; and a past that it did not leave itself.
SHORT, STEPS, PAST = 12, 3, 5
#: Words by which one of two rows is shorter.
PADDING = 4
#: Combinations of switches that are tried, at most.
SETTINGS = 8
#: Pictures of all scales together, or one of each.
PICTURES = 4
#: Outputs of fewer numbers say little of a kind of content: so many rows are drawn of it too, or so many samples.
FEW, ROWS, DRAWS = 16, 32, 8
#: But not of pictures and sounds, a batch of which takes seconds: the numbers in the inputs of a sample, at most.
SMALL = 1024
#: Content whose length may be one.
_SEQUENCES = (Role.TOKENS, Role.FEATURES, Role.SPECTRUM)


@dataclass(frozen=True)
class Made:
    """A sample, where it came from, and what the float model made of it."""

    trial: Trial
    scene: Scene
    outputs: Sequence[NDArray]

    @property
    def feed(self) -> Feed:
        return self.trial.feed

    def relabelled(self, label: str) -> Made:
        return replace(self, trial=replace(self.trial, label=label))


class Maker:
    """Makes samples for `model`, which `session` runs.

    Attributes:
        dropped: labels of samples on which the float model itself fails to give numbers.
    """

    def __init__(self, model: ir.Model, session: Session, seed: int = 0) -> None:
        self._model, self._session = model, session
        self._parts = parts_of(model, session.inputs)
        self._dims = Dims(session.inputs)
        self._painter = Painter(self._dims, self._parts)
        self._by_kind = kinds_of(model, self._parts)
        self._rng = np.random.default_rng(seed)
        self._unknown: float | None = None
        self.dropped: dict[str, None] = {}

    def first(self) -> Scene | None:
        """The typical scene: the first that runs."""
        found = self._first()
        if found is None and any(part.role is Role.TOKENS and part.rows is None for part in self._parts):
            # Taken for words of a table that nobody found: most integers that are none may be 1.
            self._parts = [
                replace(p, role=Role.COUNT) if p.rows is None and p.role is Role.TOKENS else p for p in self._parts
            ]
            self._painter, self._by_kind = Painter(self._dims, self._parts), kinds_of(self._model, self._parts)
            found = self._first()
        return found

    def _first(self) -> Scene | None:
        draws = next(iter(self._by_kind.values()))
        for switches in ({}, *self._switches()):
            for sizes in guesses(self._dims, self._typical(), SIZES):
                scene = Scene(sizes, draws, switches)
                if self._run("", scene) is not None:
                    return scene
        return None

    def kinds(self, first: Scene) -> Iterator[Made]:
        """The typical sample first; every kind of content there is."""
        is_picture = any(part.role is Role.IMAGE for part in self._parts)
        count = max(1, PICTURES // len(self._by_kind)) if is_picture else 1
        for kind, draws in self._by_kind.items():
            label, scene = kind or self._length(first), replace(first, draws=draws)
            for _ in range(count):
                found = self.run(label, scene)
                yield from found
                if found and _count(found[0].outputs) < FEW and sum(x.size for x in found[0].feed.values()) <= SMALL:
                    yield from self._more(label, scene)

    def _more(self, label: str, scene: Scene) -> list[Made]:
        """More of a kind of content of which one sample says little: rows of one sample, or several samples."""
        wide = replace(scene, sizes={**scene.sizes, **dict.fromkeys(self._dims.batch, ROWS)})
        rows = self.run(label, wide) if self._dims.batch and not self._dims.past else []
        return rows or [made for _ in range(DRAWS) for made in self.run(label, scene)]

    def lengths(self, first: Scene) -> Iterator[Made]:
        """Samples of other lengths, and of two rows that are not equally long."""
        moving = self._sequence_symbols()
        if not moving:
            return
        for length in (SHORT, 1):
            scene = replace(first, sizes={**first.sizes, **dict.fromkeys(moving, length)})
            yield from self.run(self._length(scene), scene)
        if self._dims.batch:
            sizes = {**first.sizes, **dict.fromkeys(moving, SHORT), **dict.fromkeys(self._dims.batch, 2)}
            padded = any(part.role is Role.MASK for part in self._parts)
            label = "two rows, one of them padded" if padded else "two rows"
            yield from self.run(label, replace(first, sizes=sizes, padding=padded * PADDING))

    def pairs(self, first: Scene, made: Sequence[Made]) -> Iterator[Made]:
        """Samples of two rows, or of a length of two, where none that were `made` have more than one."""
        for symbols in (self._dims.batch, *([symbol] for symbol in self._dims.rest)):
            if symbols and all(each.scene.sizes[symbol] < 2 for each in made for symbol in symbols):
                label = "two rows" if symbols is self._dims.batch else f"{symbols[0]} = 2"
                yield from self.run(label, replace(first, sizes={**first.sizes, **dict.fromkeys(symbols, 2)}))

    def steps(self, first: Scene) -> Iterator[Made]:
        """Steps with what the model itself left of the steps before; or with some past, where it leaves none."""
        prompt = {**first.sizes, **dict.fromkeys(self._sequence_symbols(), SHORT)}
        found: list[Made] = []
        for batch in (1, 2) if self._dims.batch and self._dims.past else (1,):
            scene = replace(
                first, sizes={**prompt, **dict.fromkeys(self._dims.batch, batch)}, padding=(batch > 1) * PADDING
            )
            found += self._decode(scene, "going on from its own outputs")
        if not found and self._dims.past:
            found += self.run("some past", replace(first, sizes={**prompt, **dict.fromkeys(self._dims.past, PAST)}))
        yield from found

    def settings(self, first: Scene) -> Iterator[list[Made]]:
        """For every other setting of the switches, the typical sample and steps that go on from it."""
        for switches in self._switches():
            scene = replace(first, switches=switches)
            label = ", ".join(f"{name} = {value}" for name, value in switches.items())
            yield [*self.run(label, scene), *(each.relabelled(label) for each in self.steps(scene))]

    def run(self, label: str, scene: Scene) -> list[Made]:
        """A sample of a scene; none if the float model does not take it, or gives numbers on others but not on it."""
        made = self._run(label, scene)
        if made is None:
            return []
        unknown = _share_unknown(made.outputs)
        if self._unknown is None:
            self._unknown = unknown
        if unknown > self._unknown:
            self.dropped[label] = None
            return []
        return [made]

    def _run(self, label: str, scene: Scene) -> Made | None:
        if self._painter.elements(scene.sizes) > MOST_ELEMENTS:
            return None
        try:
            feed = self._painter.draw(scene, self._rng)
            return Made(Trial(label, feed), scene, self._session.run(feed))
        except (BadModel, ValueError):  # sizes that contradict each other make no array, or none that runs
            return None

    def generation(self, first: Scene, length: int, steps: int) -> tuple[list[Feed], dict[str, str]]:
        """A prompt of so many steps, single steps behind it, and which output is which input of the next one.

        Nothing where the model carries nothing from step to step.
        """
        sizes = {**first.sizes, **dict.fromkeys(self._sequence_symbols(), length), **dict.fromkeys(self._dims.batch, 1)}
        found = list(self._walk(replace(first, sizes=sizes), "", steps))
        return [made.feed for made, _ in found], dict(found[-1][1].pairs) if found else {}

    def _decode(self, scene: Scene, label: str) -> Iterator[Made]:
        """A prompt, not given out, and the first and the last of a few steps behind it."""
        for step, (made, _) in enumerate(self._walk(scene, label, STEPS)):
            if step in (1, STEPS):
                yield made

    def _walk(self, scene: Scene, label: str, steps: int) -> Iterator[tuple[Made, Loop]]:
        """A prompt and so many steps behind it, with what goes from each into the next; nothing if nothing does."""
        made = self._run(label, scene)
        loop = Loop(self._parts, self._session.outputs, made.outputs) if made is not None else None
        if made is None or loop is None or not loop.pairs:
            return
        leading = self._painter.leading
        moving = dict.fromkeys(self._symbols_of(leading), 1) if leading is not None and self._dims.past else {}
        yield made, loop
        for _ in range(steps):
            kept = loop.fed_back(made.feed, self._session.outputs, made.outputs)
            if moving:  # what is not read step by step stays: an encoder's output, say
                roles = (Role.CACHE, *CARRIERS)
                others = [p for p in self._parts if p.role in roles and not {*self._symbols_of(p)} & {*moving}]
                kept = {part.name: made.feed[part.name] for part in others if part is not leading} | kept
            sizes = {**scene.sizes, **sizes_of(self._dims, self._parts, kept), **moving}
            found = self.run(label, replace(scene, sizes=sizes, kept=kept))
            if not found:
                return
            made = found[0]
            yield made, loop

    def _switches(self) -> list[dict[str, int]]:
        """Every setting of the inputs that choose what the model does, but the usual one."""
        values: dict[str, list[int]] = {}
        for part in self._parts:
            if part.role is Role.SWITCH or (part.role is Role.COUNT and part.compared):
                near = [n + d for n in part.compared for d in (0, 1, -1)]
                found = [1, 0] if part.input.dtype.kind == "b" else [*near, 1, 0, 2]
                values[part.name] = list(dict.fromkeys(n for n in found if n >= 0 or part.input.dtype.kind != "u"))
        return list(itertools.islice(_nearest_first(values), SETTINGS)) if values else []

    def _typical(self) -> dict[str, int]:
        """What people run, by symbol, where a role tells."""
        found: dict[str, int] = {}
        for part in self._parts:
            for symbol in self._symbols_of(part) if part.role in CARRIERS else ():
                found.setdefault(symbol, CARRIERS[part.role])
            for axis in part.axes if part.role in CARRIERS else ():
                match self._dims.symbols_at(part.input, axis):
                    case [symbol] if symbol in found:  # '4*h': it is the product that is as long as that
                        size = self._dims.size(part.input, axis, {symbol: found[symbol]})
                        found[symbol] = max(1, min(found[symbol], found[symbol] * CARRIERS[part.role] // max(1, size)))
        return found

    def _sequence_symbols(self) -> list[str]:
        """Lengths that may be one."""
        return list(dict.fromkeys(s for p in self._parts if p.role in _SEQUENCES for s in self._symbols_of(p)))

    def _symbols_of(self, part: Part) -> list[str]:
        """Of the axes along which an input's content lies."""
        axes = part.axes
        found = (symbol for axis in axes for symbol in self._dims.symbols_at(part.input, axis))
        return [symbol for symbol in found if symbol in self._dims.rest]

    def _length(self, scene: Scene) -> str:
        """What a sample of no particular kind is called: by its length, if it has one."""
        n = self._painter.present(scene.sizes)
        return f"a length of {n}" if self._sequence_symbols() else "one size"


def _nearest_first(values: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Every choice of a value for each name: the first ones, then what differs from them in ever more names."""
    usual = {name: each[0] for name, each in values.items()}
    for count in range(len(values) + 1):
        for names in itertools.combinations(list(values)[::-1], count):
            for others in itertools.product(*(values[name][1:] for name in names)):
                yield usual | dict(zip(names, others, strict=True))


def _count(outputs: Sequence[NDArray]) -> int:
    """The numbers in the smallest output of floats."""
    found = [x.size for output in outputs for x in arrays_of(output) if x.dtype.kind in "fV"]
    return min(found, default=FEW)


def _share_unknown(outputs: Sequence[NDArray]) -> float:
    floats = [x for output in outputs for x in arrays_of(output) if x.dtype.kind in "fV" and x.size]
    return sum(float(np.mean(~np.isfinite(x.astype(np.float64)))) for x in floats)
