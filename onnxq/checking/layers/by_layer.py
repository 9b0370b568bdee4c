"""`check --by-layer`: two models, whoever made them, value by value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.boundary import bounded
from onnxq.calibration.calibrate import element_counts
from onnxq.calibration.memory import in_groups
from onnxq.checking.layers.difference import Difference, axes_between, difference, turned, turned_back
from onnxq.checking.layers.forced import Forced
from onnxq.checking.layers.pairing import Pair, Pairs
from onnxq.checking.layers.result import ByLayer, LayerError, role_of
from onnxq.checking.layers.scaled import UNLIKE, Scale, ScaleSums, taken_back
from onnxq.checking.layers.side import Side, cloned
from onnxq.errors import BadModel, amount
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.types import NOT_TENSORS, infer_types
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.progress import QUIET, Progress
from onnxq.runtime.session import THREADS, Feed, Session
from onnxq.samples.same_inputs import require_same_inputs
from onnxq.samples.sampling import Sampling
from onnxq.samples.trials import Trials

#: Bytes of a number of A, with those of B, of B's layer alone, of what that reads, and of comparing them.
_BYTES = 32
#: Operators whose values lie in blocks of channels, as onnxruntime's optimizer writes them for the machine at hand.
BLOCKED = "com.microsoft.nchwc"
#: Values paired by the order of execution alone are the same if they look like it.
_GUESSED = 0.5
NO_VALUES = "no sample could be made up: give --data"
NO_NUMBERS = (
    "no layer that is in both models gives floating-point numbers, as many in one as in the other, on these inputs; "
    "without --by-layer, 'onnxq check' compares outputs of integers, truth values and texts too"
)


@dataclass
class _Row:
    """A pair with where its values are read, and what was seen of them."""

    pair: Pair
    in_a: str
    in_b: str
    axes: tuple[int, ...] | None = None
    whole: Difference = field(default_factory=Difference)
    alone: Difference = field(default_factory=Difference)
    is_conditional: bool = False
    sums: ScaleSums | None = None
    scale: Scale | None = None

    @property
    def root(self) -> str:
        return self.pair.b.name or ""


@bounded
def by_layer(
    a: str | Path,
    b: str | Path,
    sampling: Sampling | None = None,
    *,
    memory: int | None = None,
    threads: int = THREADS,
    progress: Progress = QUIET,
) -> ByLayer:
    """Compare the values of the model at `b` with those of the model at `a`, of which it has the inputs.

    Args:
        sampling: samples; without, or where it names none, some are made up.
        memory: bytes that values may take at a time. Where they need more there are several passes over the samples.
            None: 512 MiB.

    Raises:
        OnnxqError: a model or the data cannot be read or run, or the models have other inputs.
    """
    progress.start("pairing the layers")
    one, other = Side(Path(a)), Side(Path(b))
    progress.start("reading samples" if sampling is not None and sampling.source else "making up inputs")
    trials = _trials(one, other, sampling or Sampling())
    pairs = Pairs(one, other).in_order()
    notes = list(trials.notes) if trials.samples else [NO_VALUES]
    rows = _rows(one, other, pairs)
    layers: list[LayerError] = []
    if trials.samples:
        layers, lost = _Comparison(one, other, trials.feeds, threads).compare(rows, memory, progress)
        notes += lost if layers else [*lost, NO_NUMBERS]
    return ByLayer(
        str(a),
        str(b),
        trials.words,
        trials.proves,
        len(trials.samples),
        tuple(layers),
        _unpaired(one, {pair.a.name or "" for pair in pairs}),
        _unpaired(other, {pair.b.name or "" for pair in pairs}),
        tuple(notes),
    )


def _trials(one: Side, other: Side, sampling: Sampling) -> Trials:
    require_same_inputs((one.path, other.path), (one.model, other.model))
    if (data := sampling.open(one.model, one.path)) is not None:
        feeds = list(data)
        return Trials.given(feeds, amount(len(feeds), "sample"), data.note)
    return make_up(one.model, scout(one.model))


def _rows(one: Side, other: Side, pairs: Sequence[Pair]) -> list[_Row]:
    """Those that can be read as floats in both models, and are not simply what goes in."""
    rows, types = [], infer_types(one.model, guess=True)
    for pair in pairs:
        x, y = one.stand(pair.a), other.stand(pair.b)
        if y is not None and isinstance(y.type, NOT_TENSORS):
            continue
        if x is not None and not (types.of(x).is_tensor and (types.of(x).dtype or ir.DataType.FLOAT) in graph.FLOATS):
            continue
        if y is not None and getattr(y.producer(), "domain", "") == BLOCKED:
            continue
        if x is not None and y is not None and not (x.is_graph_input() and y.is_graph_input()):
            is_conditional = any(value.graph is not side.model.graph for value, side in ((x, one), (y, other)))
            rows.append(_Row(pair, x.name or "", y.name or "", is_conditional=is_conditional))
    return rows


def _unpaired(side: Side, paired: set[str]) -> tuple[str, ...]:
    return tuple(node.name or node.op_type for node in side.nodes if side.made_by(node).name not in paired)


class _Comparison:
    def __init__(self, a: Side, b: Side, feeds: Sequence[Feed], threads: int) -> None:
        self._a, self._b, self._feeds, self._threads = a, b, feeds, threads
        self._outputs = {a.root(value) for value in a.model.graph.outputs}

    def compare(
        self, rows: Sequence[_Row], memory: int | None, progress: Progress
    ) -> tuple[list[LayerError], list[str]]:
        """Each row's error, of those that were ever computed; and what could not be found, in sentences."""
        largest = max(self._feeds, key=lambda feed: sum(x.size for x in feed.values()))
        counts = element_counts(self._a.model, list(dict.fromkeys(row.in_a for row in rows)), largest, self._threads)

        def groups_of(rows: Sequence[_Row]) -> list[list[_Row]]:
            return in_groups(rows, lambda row: _BYTES * max(1, counts[row.in_a]), memory)

        groups = groups_of(rows)
        progress.start("comparing layers", len(groups) * (len(self._feeds) + 1), "samples")
        for group in groups:
            self._look(group)
            progress.advance(1)
        rows = [row for row in rows if row.axes is not None]
        scales = taken_back(self._a, {row.pair.a.name or "": row.sums for row in rows}, self._outputs)
        for row in rows:
            row.scale = scales.get(row.pair.a.name or "")
        self._force([row for row in rows if not self._b.values[row.root].is_graph_input() or row.in_b != row.root])
        found: list[LayerError] = []
        problems: list[str] = []
        for group in groups_of(rows):
            problem = self._run(group, progress)
            if problem:
                problems.append(problem)
            found += [self._error(row) for row in group if row.whole.count or row.whole.broken]
        if untold := [row.pair.a.name or "" for row in rows if row.whole.untold]:
            problems.append(_untold(untold))
        return found, list(dict.fromkeys(problems))

    def _look(self, group: Sequence[_Row]) -> None:
        """How B's values lie, by the first samples in which they are computed; pairs that are none are told by it."""
        ours = _Watched(self._a, [row.in_a for row in group], self._threads)
        theirs = _Watched(self._b, [row.in_b for row in group], self._threads)
        unseen = list(group)
        for feed in self._feeds:
            x, y = ours.run(feed), theirs.run(feed)
            missing = []
            for row in unseen:
                if not _is_float(x.get(row.in_a)) or not _is_float(y.get(row.in_b)):
                    missing.append(row)
                    continue
                row.axes = axes_between(x[row.in_a], y[row.in_b])
                if row.axes is not None and row.pair.how == "order":
                    is_alike = difference(x[row.in_a], turned(y[row.in_b], row.axes)).cosine >= _GUESSED
                    row.axes = row.axes if is_alike else None
                if row.axes is not None and difference(x[row.in_a], turned(y[row.in_b], row.axes)).sqnr < UNLIKE:
                    row.sums = ScaleSums()
            unseen = missing
            for row in group:
                if row.sums is not None:
                    _compare(row, x.get(row.in_a), y.get(row.in_b), row.sums.add)
            if not any(row.is_conditional for row in unseen) and not any(row.sums for row in group):
                return

    def _force(self, rows: Sequence[_Row]) -> None:
        self._forced = Forced(self._b, [row.pair for row in rows], infer_types(self._b.model, guess=True))
        self._given = {self._forced.inputs[row.root]: row for row in rows if row.root in self._forced.inputs}

    def _run(self, group: Sequence[_Row], progress: Progress) -> str:
        """All samples through both models and the cut one; what went wrong with that, in a sentence."""
        piece, names = self._forced.piece([row.in_b for row in group])
        taken = {value.name or "": value.dtype for value in piece.graph.inputs}
        given = {name: row for name, row in self._given.items() if name in taken}
        theirs = _Watched(self._b, [row.in_b for row in group], self._threads)
        ours = _Watched(self._a, [row.in_a for row in (*group, *given.values())], self._threads)
        problem, alone = "", None
        try:
            alone = Session(piece, threads=self._threads)
        except BadModel as error:
            problem = _without(group, error)
        for feed in self._feeds:
            x, y = ours.run(feed), theirs.run(feed)
            for row in group:
                _compare(row, x.get(row.in_a), y.get(row.in_b), row.whole.add)
            if alone is not None:
                try:
                    more = {name: _as_in_b(row, x.get(row.in_a), taken[name]) for name, row in given.items()}
                    outputs = list(dict.fromkeys(name for name in names if name is not None))
                    fed = {name: array for name, array in (feed | more).items() if name in taken}
                    found = dict(zip(outputs, alone.run(fed, outputs), strict=True))
                    for row, name in zip(group, names, strict=True):
                        _compare(row, x.get(row.in_a), found.get(name or ""), row.alone.add)
                except BadModel as error:
                    problem, alone = _without(group, error), None
            progress.advance(1)
        if alone is None:
            for row in group:
                row.alone = Difference()
        return problem

    def _error(self, row: _Row) -> LayerError:
        alone = row.alone if row.alone.count or row.alone.broken else None
        local = None if alone is None else alone.sqnr
        makers = [self._a.maker.get(row.pair.a.name or ""), self._b.maker.get(row.root)]
        names = [("", "input") if node is None else (node.name or "", node.op_type) for node in makers]
        return LayerError(
            row.pair.a.name or "",
            row.pair.b.name or "",
            *names[0],
            *names[1],
            row.pair.how,
            row.axes or (),
            row.whole.count,
            row.whole.sqnr,
            local,
            row.whole.cosine,
            row.whole.max_error,
            None if alone is None else alone.max_error,
            role_of(row.whole.sqnr, local),
            row.pair.a in self._outputs,
            row.scale is not None,
        )


class _Watched:
    """A model that gives some of its values, in bodies of If too."""

    def __init__(self, side: Side, names: Sequence[str], threads: int) -> None:
        wanted = list(dict.fromkeys(names))
        model = cloned(side.model)
        expose = ExposeValues(wanted)
        expose(model)
        self._names = {name: out for name, out in zip(wanted, expose.outputs, strict=True) if out is not None}
        self._session = Session(model, threads=threads)
        self._inputs = {i.name for i in self._session.inputs}

    def run(self, feed: Feed) -> dict[str, NDArray]:
        outputs = list(dict.fromkeys(self._names.values()))
        given = {name: x for name, x in feed.items() if name in self._inputs}
        by_output = dict(zip(outputs, self._session.run(given, outputs), strict=True))
        return {name: by_output[out] for name, out in self._names.items()}


def _as_in_b(row: _Row, x: NDArray | None, dtype: ir.DataType | None) -> NDArray:
    """What the cut model is given in the place of a value of B: that of A, as it lies in B; nothing, if A has none."""
    kind = np.float64 if dtype == ir.DataType.DOUBLE else np.float32
    if x is None:
        return np.zeros(0, kind)
    with np.errstate(over="ignore"):  # B has float32 there, and would have infinity too
        x = (x if row.scale is None else row.scale.put_on(x)).astype(kind)
    return turned_back(x, row.axes or ())


def _without(group: Sequence[_Row], error: BadModel) -> str:
    return f"what {len(group)} layers add themselves is not known, as they do not run alone: {error}"


def _untold(names: Sequence[str]) -> str:
    shown, more = ", ".join(f"'{name}'" for name in names[:3]), len(names) - 3
    rest = f" and {more} more" if more > 0 else ""
    return f"{shown}{rest}: where A has NaN or infinity, B has something else in places, which are left out"


def _is_float(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.size > 0 and x.dtype.kind in "fV"


def _compare(row: _Row, x: object, y: object, add: Callable[[NDArray, NDArray], None]) -> None:
    """`add` what a value is in both models, if it was computed, its axes and channels as they are in A."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and _is_float(x) and _is_float(y) and x.size == y.size:
        y = turned(y, row.axes or ()).reshape(x.shape)
        add(x, y if row.scale is None else row.scale.taken_off(y))
