"""`train()`: quantize, learn, and write what was learned as `quantize` writes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from onnxq import pipeline
from onnxq.boundary import bounded
from onnxq.calibration.calibrate import hash_model
from onnxq.checking.logits import classes_of
from onnxq.checking.result import Result
from onnxq.errors import BadModel, BadRecipe, OutOfMemory, amount
from onnxq.files.guard import Guard
from onnxq.job import Job
from onnxq.plan import Plan
from onnxq.progress import QUIET, Progress
from onnxq.quality.decisions import Classes
from onnxq.recipe import Recipe
from onnxq.request import Learned
from onnxq.samples.source import DataSource, lasting
from onnxq.summaries.ranges import Ranges
from onnxq.training import memory
from onnxq.training.batches import Batch, Samples, open_samples
from onnxq.training.blocks import Walk
from onnxq.training.channels import is_better
from onnxq.training.checkpoint import Checkpoint, is_checkpoint
from onnxq.training.graph.module import GraphModule
from onnxq.training.loop import History, Loop
from onnxq.training.losses import Distillation, OwnLoss, cross_entropy
from onnxq.training.settings import Settings
from onnxq.training.student import Student

#: Of the default checkpoint.
SUFFIX = ".training"


@bounded
def train(
    model: str | Path,
    output: str | Path | None = None,
    recipe: Recipe | str = "auto",
    *,
    data: DataSource,
    settings: Settings = Settings(),  # noqa: B008
    guard: Guard | None = None,
    progress: Progress = QUIET,
    **options: Any,
) -> Result:
    """Quantize the model at `model`, train it with the quantization in place, and write it to `output`, checked.

    Args:
        output: by default the model's name with the scheme in it, in the current folder.
        recipe: what to do, as `quantize` takes it; a scheme word is short for a recipe with that scheme.
        data: samples to train on; those that are held back judge.
        settings: how to train.
        guard: knows of further files that are read or written.
        options: what else `quantize` takes.

    Raises:
        OnnxqError: one of its kinds; no file is left behind then but the checkpoint.
    """
    guard = Guard(bool(options.get("force"))) if guard is None else guard
    if settings.report is not None:
        guard.writes(Path(settings.report), "--losses")
    if settings.checkpoint is not None:  # now, and not when all is ready to train
        guard.writes(Path(settings.checkpoint), "--checkpoint", is_checkpoint)
    if (limit := options.get("limit")) is not None and isinstance(data, Iterator) and settings.samples is None:
        settings = dataclasses.replace(settings, samples=limit)  # it may have no end
    data = lasting(data)  # calibration opens it, and then training
    trainer = _Trainer(settings, guard, progress, tuple(options.get("logits", ())))
    result = pipeline.quantize(
        model,
        output,
        recipe,
        data=data,
        guard=guard,
        progress=progress,
        strict=True,
        learn=trainer.learn,
        held_back=settings.held_back,
        labels=settings.labels,
        **{key: value for key, value in options.items() if key not in ("force", "strict")},
    )
    if trainer.kept is not None:
        trainer.kept.remove()
    if settings.report is not None:
        guard.write_text(Path(settings.report), json.dumps(trainer.report(), indent=1))
    return result


class _Trainer:
    """What `quantize` calls with a plan, and gets another model of."""

    def __init__(self, settings: Settings, guard: Guard, progress: Progress, logits: tuple[str, ...]) -> None:
        self.settings, self.guard, self.progress, self._logits = settings, guard, progress, logits
        self.kept: Checkpoint | None = None
        self.history = History()

    def learn(self, job: Job, start: Job, plan: Plan, ranges: Ranges, destination: Path) -> Learned:
        """
        Args:
            job: the float model.
            start: what to start from: its biases may have been corrected.
        """
        settings = self.settings
        self.progress.start("preparing to train")
        self._open_checkpoint(destination, start, plan, ranges)
        device = _device(settings)
        teacher = GraphModule(job.model).requires_grad_(False).to(device)
        student = Student(start, plan, ranges, settings.learn)
        student.module.to(device)
        student.module.pieces = settings.pieces
        _require_path(student)
        samples = open_samples(job, settings, teacher, memory.room(settings))
        losses = _Losses(student, teacher, settings, classes_of(job.model, self._logits))
        with _as_memory(settings):
            walk = Walk(student, teacher, samples, settings)
            needed = memory.estimate(student, samples, settings, losses) + walk.nbytes
            memory.require(needed, settings, device)
            self.progress.start(f"training takes about {memory.in_words(needed)}")
            notes = [f"training took about {memory.in_words(needed)} of memory"]
            loop = Loop(student, samples, settings, losses, losses.explain, self.kept)
            if self.kept is None or self.kept.load() is None:
                notes += self._begin(walk, loop)
            del walk
            self.history = loop.run(self.progress)
        student.module.to("cpu")
        if student.copies:
            several = f"{amount(student.copies, 'weight')} that nodes read in several ways"
            notes.append(f"{several} learned in each of them: the file has one for each")
        return dataclasses.replace(student.result(), notes=(*notes, *self._notes(samples)))

    def _begin(self, walk: Walk, loop: Loop) -> Iterator[str]:
        """Fit the student to the float model block by block, if it is nearer to that as a whole then."""
        before = loop.held_back()
        start = loop.student.state()
        walk.through(self.progress)
        if not is_better(after := loop.held_back(), before):
            loop.student.load(start)
        elif walk.moved or walk.better:
            yield from walk.notes()
            yield f"so {_what(self.settings)} on samples held back went from {before:.4g} to {after:.4g}"

    def _open_checkpoint(self, destination: Path, job: Job, plan: Plan, ranges: Ranges) -> None:
        given = self.settings.checkpoint
        path = destination.with_name(destination.name + SUFFIX) if given is None else Path(given)
        self.guard.writes(path, "--checkpoint", is_checkpoint)
        free = {"checkpoint", "checkpoint_every", "report", "minutes", "memory", "device", "pieces", "loss"}
        fields = {name: str(x) for name, x in vars(self.settings).items() if name not in free}
        about = json.dumps(fields, sort_keys=True)
        self.kept = Checkpoint(path, about, hash_model(job.model), job.data_hash, plan.to_json())

    def _notes(self, samples: Samples) -> Iterator[str]:
        history = self.history
        steps, rows = amount(history.done, "step"), amount(len(samples.train), "sample")
        yield (
            f"trained {steps} on {rows}: {_what(self.settings)} {history.first:.4g} → "
            f"{history.best:.4g} on {len(samples.held_back)} held back, best at step {history.best_step}"
        )
        if history.why:
            yield f"training ended before its last step: {history.why}"
        if history.skipped:
            what = "step was skipped: its loss was" if history.skipped == 1 else "steps were skipped: their losses were"
            yield f"{history.skipped} {what} not finite"

    def report(self) -> dict[str, Any]:
        """What happened, for JSON, which has no infinity: a loss that is none is null."""
        losses = [(at, loss if math.isfinite(loss) else None) for at, loss in self.history.losses]
        rest = {name: x for name, x in vars(self.history).items() if name != "losses"}
        best = self.history.best
        return {"held_back": losses} | rest | {"best": best if math.isfinite(best) else None}


def _what(settings: Settings) -> str:
    return "loss" if settings.loss or settings.labels else "distance from the float model"


class _Losses:
    """The loss of a batch by what the user asked for."""

    def __init__(
        self, student: Student, teacher: GraphModule, settings: Settings, classes: Mapping[str, Classes]
    ) -> None:
        self.student, self.teacher, self.settings, self.classes = student, teacher, settings, classes
        self._own = None if settings.loss is None else OwnLoss(settings.loss)
        self._distil = Distillation(classes, settings.temperature)

    def __call__(self, batch: Batch) -> torch.Tensor:
        device, labels = self.student.module.device, None
        if batch.labels is not None:
            labels = torch.from_numpy(batch.labels).to(device)
        with self._precision(device):
            outputs = self.student.module(batch.feed)
            if self._own is not None:
                return self._own(outputs, labels, batch.feed)
            if labels is not None:
                return cross_entropy(outputs, labels, self.classes, self.settings.labels or "")
            with torch.no_grad():
                wanted = self.teacher(batch.feed)
            return self._distil(outputs, wanted)

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if not self.settings.bfloat16:
            return contextlib.nullcontext()
        autocast: contextlib.AbstractContextManager[Any] = torch.autocast(device.type, torch.bfloat16)
        return autocast

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def explain(self, batch: Batch) -> str:
        """The first value that is not finite, and the layer that makes it."""
        found = self.student.module.first_not_finite(batch.feed)
        return f"what layer {found} makes" if found else "the loss"


def _device(settings: Settings) -> torch.device:
    """
    Raises:
        BadRecipe: there is no such device.
    """
    word = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.ones(1, device=word)
        found.item()  # which one without numbers ('meta') cannot give
        return found.device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise BadRecipe(f"--device '{word}': torch has no such device here; cpu is always there") from None


def _require_path(student: Student) -> None:
    """
    Raises:
        BadModel: no gradient reaches anything that learns.
    """
    learns = {name for each in student.parameters().values() for name, _ in each}
    if not learns:
        reasons = sorted(set(student.frozen.values()))
        why = f": {'; '.join(reasons)}" if reasons else ""
        raise BadRecipe(f"nothing learns of what --learn names{why}")
    stopped = student.module.without_path()
    lost = learns & stopped.keys()
    if lost and lost == learns & student.module.weights.keys():
        name = min(lost)
        why = f": {stopped[name]} has none" if stopped[name] else ", as no output is a float"
        raise BadModel(f"no gradient reaches '{name}' or anything else that learns{why}")


@contextlib.contextmanager
def _as_memory(settings: Settings) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(f"training ran out of memory: {memory.helps(settings)}") from error
    except RuntimeError as error:
        if "not enough memory" in str(error):
            raise OutOfMemory(f"training ran out of memory: {memory.helps(settings)}") from error
        raise
