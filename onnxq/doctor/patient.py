"""A model as the rules see it: its graph, the weights that are stored as codes, what ran, and what samples need."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from onnxq import targets
from onnxq.calibration.calibrate import Keep, observe
from onnxq.conversion.restore import restore_all
from onnxq.doctor.pairs import Codes, codes_of
from onnxq.doctor.stored import StoredWeight, stored_weights
from onnxq.errors import BadModel, OnnxqError
from onnxq.job import WHOLE_MODEL_BYTES
from onnxq.made_up.maker import Maker
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.model.types import Types, infer_types
from onnxq.output import write
from onnxq.passes import prepare
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.opsets.inline_functions import InlineFunctions
from onnxq.passes.restore.standard_pairs import StandardPairs, has_own_pairs
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.machine import Machine, this_machine
from onnxq.runtime.process.trial import signal_that_ends
from onnxq.runtime.session import Feed, Session
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import Data
from onnxq.samples.trials import Trial
from onnxq.summaries.summary import Summary
from onnxq.targets import Target


class Patient:
    """A model that is examined.

    Attributes:
        raw: as it lies in the file.
        model: with constants as initializers, functions but our own inlined, and a name for every node. Nothing else
            was changed: codes are codes. QuantizeLinear and DequantizeLinear of onnxruntime's domain are ONNX's.
        runnable: the same, with those of onnxruntime's domain.
        target: where it is to run.
        machine: where it is now.
        notes: what could not be looked at, a sentence each.
    """

    def __init__(self, path: Path, target: str = "ort-cpu", sampling: Sampling | None = None) -> None:
        self.path = path
        self.raw = load_model(path)
        self.model = load_model(path)
        lift = LiftConstantsToInitializersPass(True, size_limit=0)
        prepare.run([InlineFunctions(), DropInitializerInputs(), lift, UniqueNames()], self.model)
        self.runnable = self.model
        if has_own_pairs(self.model):
            self.runnable = self.model.clone()
            StandardPairs()(self.model)
        self.target: Target = targets.get(target)
        self.machine: Machine = this_machine()
        self.notes: list[str] = []
        self.inputs = ""
        self._sampling = sampling or Sampling()

    @property
    def nodes(self) -> Iterator[ir.Node]:
        return graph.nodes(self.model)

    @functools.cached_property
    def types(self) -> Types:
        return infer_types(self.model, guess=True)

    @functools.cached_property
    def weights(self) -> Sequence[StoredWeight]:
        """Those that are stored as codes which a standard operator reads, in the order of execution."""
        return tuple(stored_weights(self.model))

    @functools.cached_property
    def data(self) -> Data | None:
        """The samples that the user gave."""
        return self._sampling.open(self.model, self.path)

    @functools.cached_property
    def kernels(self) -> Sequence[Kernel]:
        """What runs on one sample, the user's or a made-up one; nothing where there is none, or nothing runs."""
        if self._opened is None:
            self.notes.append("which kernels run is not known: the model is too large to be run whole")
        if not isinstance(self._opened, Session):
            return ()
        if self.crash:
            self.notes.append("which kernels run is not known: onnxruntime crashes")
            return ()
        feed = self._feed()
        if feed is None:
            self.notes.append("which kernels run is not known: no inputs could be made up for the model; give --data")
            return ()
        try:
            self._opened.run(feed)
        except BadModel as error:
            self.notes.append(f"which kernels run is not known: {error}")
            return ()
        return self._opened.kernels()

    @property
    def refusal(self) -> str:
        """Why onnxruntime does not open the model; empty if it does."""
        return self._opened if isinstance(self._opened, str) else ""

    @functools.cached_property
    def _opened(self) -> Session | str | None:
        """The model in onnxruntime, or what that says; None: it is too large to be tried."""
        if write.nbytes_to_write(self.model) > WHOLE_MODEL_BYTES:
            return None
        if self._crash and signal_that_ends(lambda: Session(self.runnable)):
            is_plain = signal_that_ends(lambda: Session(self.runnable, optimize=False))
            plain = "" if is_plain else "; without its optimizer it does not"
            return f"onnxruntime crashes ({self._crash}) when it opens the model{plain}"
        try:
            return Session(self.runnable, profile=True)
        except BadModel as error:
            return str(error)

    @functools.cached_property
    def crash(self) -> str:
        """That onnxruntime opens the model and crashes when it runs it; empty if it does not."""
        if not (self._crash and isinstance(self._opened, Session)):
            return ""
        on = "a sample of the data" if self.data is not None else "inputs that were made up; give --data"
        return f"onnxruntime crashes ({self._crash}) when it runs the model on {on}"

    @functools.cached_property
    def _crash(self) -> str:
        """The signal by which a process of its own ends that opens and runs the model; empty if it does not crash."""
        return signal_that_ends(self._run_once)

    def _run_once(self) -> None:
        session, feed = Session(self.runnable), self._feed()
        if feed is not None:
            session.run(feed)

    def _feed(self) -> Feed | None:
        if self.data is not None:
            self.inputs = "a sample of the data"
            return next(iter(self.data))
        made = _made_up(self.runnable)
        if made is None:  # sizes of tables and the like are told by weights in floats
            restored = load_model(self.path)
            with contextlib.suppress(BadModel):
                restore_all(restored)
                made = _made_up(restored)
        self.inputs = "" if made is None else f"a made-up input ({made.label})"
        return None if made is None else made.feed

    @functools.cached_property
    def seen(self) -> dict[str, Summary]:
        """What the user's samples need of the values that are rounded with fixed scales; empty where there are none."""
        if self.data is None or not isinstance(self._opened, Session) or self.crash:
            return {}
        names = [
            node.inputs[0].name or ""
            for node in self.nodes
            if graph.is_op(node, "QuantizeLinear")
            and node.inputs[0] is not None
            and not node.inputs[0].is_initializer()
        ]
        if not names:
            return {}
        try:
            return dict(observe(self.runnable, list(dict.fromkeys(names)), self.data, Keep()).summaries)
        except OnnxqError as error:
            self.notes.append(f"ranges were not compared with the data: {error}")
            return {}

    def ranges(self) -> Iterator[tuple[ir.Node, ir.Value, Codes, Summary]]:
        """Each QuantizeLinear with what it rounds, what its codes can hold, and what the samples need."""
        for node in self.nodes:
            codes = codes_of(node) if graph.is_op(node, "QuantizeLinear") else None
            value = node.inputs[0] if codes is not None else None
            summary = None if value is None else self.seen.get(value.name or "")
            if codes is not None and value is not None and summary is not None and summary.finite:
                yield node, value, codes, summary


def _made_up(model: ir.Model) -> Trial | None:
    """The typical input for a model, if it runs one."""
    maker = Maker(model, scout(model))
    scene = maker.first()
    made = None if scene is None else next(maker.kinds(scene), None)
    return None if made is None else made.trial
