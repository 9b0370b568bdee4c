"""What layers get where those before them are quantized already, so that their codes make up for what those changed.

The model is cut into pieces whose layers do not depend on each other. Each is run on what the float pieces before it
leave, and on what the quantized ones leave; then its own weights get their codes, and the next one follows. Each node
is run three times for each sample, and no more than a piece of the model is in memory.

Source: Li et al., GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration (ICML 2025).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.calibration.layers.pass_samples import fed, leave, runner_of
from onnxq.calibration.layers.shelf import Shelf
from onnxq.calibration.memory import in_groups
from onnxq.encoding import memo
from onnxq.job import Job
from onnxq.model import graph
from onnxq.model.layer_inputs import LayerInput
from onnxq.model.pieces import Piece, cut
from onnxq.model.weights import find_weights
from onnxq.output.packed_elsewhere import pack_elsewhere
from onnxq.passes.rewrite import rewrite
from onnxq.runtime.process import heap
from onnxq.runtime.session import Session
from onnxq.samples.prefetch import prefetch
from onnxq.summaries.evidence import Layer, add_input
from onnxq.summaries.gram import HELD_ROWS, Gram, finite_pairs, spread_out
from onnxq.summaries.ranges import Ranges


class FollowingWalk:
    """Both models, piece by piece: each sample's values as they are in float, and with the codes chosen so far.

    Args:
        ranges: of activations, where the plan quantizes them.
        memory: bytes for observing, and half as many for values between pieces; what is more of these lies on disk.
        scratch: a folder for what is seen, which has to stay as long as the evidence.

    Attributes:
        found: the evidence for the weights that were passed.
    """

    def __init__(self, job: Job, ranges: Ranges, memory: int | None, scratch: Path) -> None:
        assert job.data is not None
        self.job, self.ranges, self.memory, self.file = job, ranges, memory, scratch / "following.npz"
        samples, held_back = job.data.split(job.sampling.held_back)
        self.count, self.held_back = samples.count, held_back.count
        self.in_float, self.quantized = (Shelf(scratch / word, memory) for word in ("float", "quantized"))
        with contextlib.closing(prefetch(itertools.chain(samples, held_back))) as every:
            for i, sample in enumerate(every):
                self.in_float.put(i, sample)
                self.quantized.put(i, sample)
        self.found: dict[str, Layer] = {}
        self._numbers: dict[LayerInput, int] = {}
        self._next = itertools.count()

    def through(self, inputs: Mapping[str, LayerInput]) -> None:
        """Find the evidence for these weights, each of which is read in one place.

        Raises:
            CannotBeCut: the model cannot be run in pieces.
            BadModel: it cannot be run on some sample.
        """
        readers = {weight.value.name or "": weight.node for weight in find_weights(self.job.model)}
        pieces = cut(self.job.model, [readers[name] for name in inputs])
        last = pieces[-1][0]
        self.job.progress.start("following codes", len(pieces) * (self.count + self.held_back), "samples")
        for piece, nodes in pieces:
            here = {name: each for name, each in inputs.items() if any(readers[name] is node for node in nodes)}
            distinct = list(dict.fromkeys(each.seen for each in here.values()))
            for group in in_groups(distinct, lambda each: 8 * each.rows.groups * each.rows.k**2, self.memory):
                self._look(piece, group, goes_on=piece is not last and distinct[-1] in group)
            for name, each in here.items():
                number = self._numbers[each.seen]
                self.found[name] = Layer(each.channel, each.rows.groups, self.file, (number,), follows=True)
            if piece is not last:
                self._pass(piece)

    def _look(self, piece: Piece, group: Sequence[LayerInput], *, goes_on: bool) -> None:
        """Look at inputs of layers in a piece, and take the float samples through it if this `goes_on`."""
        names = list(dict.fromkeys(each.value for each in group))
        makes = [name for name in piece.makes if name not in names and goes_on]
        model, example = self.job.model, self.quantized.get(0)
        in_float = runner_of(piece, model, example, [*names, *makes])
        quantized = runner_of(piece, model, example, names) if piece.first else None  # before it all is the same
        grams = {each: Gram.empty(each.rows.groups, each.rows.k, follows=True) for each in group}
        rows: dict[LayerInput, tuple[list[NDArray], list[NDArray]]] = {each: ([], []) for each in group}
        for i in range(self.count + self.held_back):
            state = self.in_float.get(i)
            true = in_float(state)
            seen = true if quantized is None else quantized(self.quantized.get(i))
            if goes_on:
                leave(self.in_float, i, piece, state, true)
            for each in group:
                if not all(np.size(values.get(each.value, ())) for values in (seen, true)):
                    continue  # in a branch that was not taken
                pair = [each.rows(values[each.value], self.count) for values in (seen, true)]
                if pair[0].shape != pair[1].shape:
                    continue  # as many as the numbers before say
                if i < self.count:
                    grams[each].update_pair(*pair)
                    continue
                for kept, part in zip(rows[each], finite_pairs(*pair), strict=True):
                    kept.append(spread_out(part, -(-HELD_ROWS // self.held_back)))
        for each, gram in grams.items():
            # Not how many there are: an input that layers of a later piece read too is looked at again.
            self._numbers[each] = next(self._next)
            add_input(self.file, self._numbers[each], gram, *rows[each])

    def _pass(self, piece: Piece) -> None:
        """Take the samples through the piece with its codes."""
        job = self.job
        in_float = piece.model(job.model, self.quantized.get(0), piece.makes)
        names = {node.name for node in graph.nodes(in_float)}
        plan = dataclasses.replace(
            job.plan, choices={name: choice for name, choice in job.plan.choices.items() if name in names}
        )
        evidence = {**job.evidence, **self.found}
        quantized = rewrite(in_float, plan, self.ranges, job.recipe, job.target, evidence)
        for engine in job.environment.shared:
            pack_elsewhere(engine, quantized)
        session = Session(quantized, threads=0)
        memo.forget()
        heap.give_back()
        for i in range(self.count + self.held_back):
            state = self.quantized.get(i)
            made = session.run(fed(session, state), piece.makes) if piece.makes else []
            leave(self.quantized, i, piece, state, dict(zip(piece.makes, made, strict=True)))
            job.progress.advance(1)
