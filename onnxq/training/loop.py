"""Steps of the optimizer, end to end, with looks at samples held back; what was best there is what remains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from onnxq.errors import BadRecipe, amount
from onnxq.progress import Progress
from onnxq.training.batches import Batch, Samples, batches_of
from onnxq.training.checkpoint import Checkpoint, resumed
from onnxq.training.losses import go_back
from onnxq.training.settings import Settings
from onnxq.training.student import Student

#: Of the learning rate for codes, what scales and ranges learn by (they are in tenths already), and floats in parts of
#: their magnitude.
FLOATS = 0.1
#: Steps in a row without a finite loss after which training stops; or all of them, where there are fewer.
SKIPS = 5

#: The loss of a batch, with its gradient.
LossOf = Callable[[Batch], torch.Tensor]


@dataclass
class History:
    """What happened.

    Attributes:
        losses: (step, loss on samples held back).
        best, best_step: the least of them, and when it was.
        skipped: steps without a finite loss.
        done: steps that were taken.
        why: it ended before the last step; empty if it did not.
    """

    losses: list[tuple[int, float]] = field(default_factory=list)
    best: float = math.inf
    best_step: int = 0
    skipped: int = 0
    done: int = 0
    why: str = ""

    @property
    def first(self) -> float:
        """The loss before training."""
        return self.losses[0][1] if self.losses else math.nan


def optimizer_of(student: Student, rate: float, names: Iterable[str] | None = None) -> torch.optim.Adam:
    """Adam with a rate for each kind of parameter.

    Args:
        names: of those that learn; None: all.
    """
    wanted, groups = None if names is None else set(names), []
    for kind, parameters in student.parameters().items():
        for name, parameter in parameters:
            if wanted is not None and name not in wanted:
                continue
            # By what it was at first: a run that goes on from a checkpoint has to find the same rates.
            own = rate * (FLOATS * max(student.sizes[name], 1e-3) if kind == "floats" else 1.0)
            own *= student.weights[name].step if kind == "codes" else 1.0
            groups.append({"params": [parameter], "lr": own, "rate": own, "name": name, "kind": kind})
    if not groups:
        raise BadRecipe("nothing learns: the plan leaves nothing of what --learn names")
    return torch.optim.Adam(groups, betas=(0.9, 0.99), fused=True)  # in one go over each parameter


class Loop:
    """End-to-end training of a student.

    Args:
        loss_of: the loss of a batch.
        explain: what to say of a batch whose loss is not finite.
        kept: where progress is saved; None: nowhere.
    """

    def __init__(
        self,
        student: Student,
        samples: Samples,
        settings: Settings,
        loss_of: LossOf,
        explain: Callable[[Batch], str],
        kept: Checkpoint | None,
    ) -> None:
        self.student, self.samples, self.settings = student, samples, settings
        self._loss_of, self._explain, self._kept = loss_of, explain, kept
        self.history, self._in_row, self._is_whole = History(), 0, True
        self.best = student.state()

    def run(self, progress: Progress) -> History:
        """Train, and leave the student as it was best.

        Raises:
            BadRecipe: losses are not finite, of steps or of samples held back.
        """
        optimizer = optimizer_of(self.student, self.settings.rate)
        self._resume(optimizer)
        steps, history = self.settings.steps, self.history
        ends = math.inf if self.settings.minutes is None else time.monotonic() + 60 * self.settings.minutes
        batches = batches_of(len(self.samples.train), self.settings.batch, self.settings.seed, history.done)
        try:
            if not history.losses:
                self._look(0)
                self._save(optimizer)  # what it starts from may have taken long
            elif self._is_due() and history.losses[-1][0] != history.done:  # a run ended in the middle of that look
                self._look(history.done)
            self._say(progress)
            while history.done < steps and not history.why:
                self._step(optimizer, next(batches))
                progress.advance(1)
                if self._is_due() or time.monotonic() > ends:
                    self._look(history.done)
                    self._say(progress)
                if time.monotonic() > ends and history.done < steps:
                    history.why = f"{self.settings.minutes:g} minutes were over"
                if history.done % self.settings.checkpoint_every == 0:
                    self._save(optimizer)
        except KeyboardInterrupt:
            if self._is_whole and history.losses:  # half a step is none: what was saved last is gone on from
                self._save(optimizer)
            raise
        if not math.isfinite(history.best):
            self._refuse()
        self.student.load(self.best)
        return history

    def _is_due(self) -> bool:
        """Whether there is a look behind the steps that are done."""
        return self.history.done == self.settings.steps or self.history.done % self.settings.evaluate_every == 0

    def _step(self, optimizer: torch.optim.Adam, chosen: list[int]) -> None:
        history, settings = self.history, self.settings
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * settings.factor(history.done, settings.steps)
        optimizer.zero_grad()
        batches = self.samples.batch([self.samples.train[i] for i in chosen])
        for batch in batches:
            loss = self._loss_of(batch)
            if not bool(torch.isfinite(loss)):
                self._skip(batch, "")
                break
            if not loss.requires_grad:
                raise BadRecipe("the loss depends on nothing that learns: no gradient reaches it")
            go_back(loss * (batch.count / len(chosen)), is_own=settings.loss is not None)
        else:
            length = _length(optimizer)
            wrong = "" if math.isfinite(length) else _first_not_finite(optimizer)
            if not wrong:
                if settings.clip and length > settings.clip:
                    for p in _learning(optimizer):
                        p.grad.mul_(settings.clip / length)
                self._is_whole = False
                optimizer.step()
                self.student.limit()
                self._in_row = 0
            else:
                self._skip(batches[0], f"the gradient of '{wrong}'")
        history.done += 1
        self._is_whole = True

    def _skip(self, batch: Batch, what: str) -> None:
        """A step that is not taken.

        Raises:
            BadRecipe: it is one of many in a row.
        """
        self.history.skipped += 1
        self._in_row += 1
        if self._in_row >= min(SKIPS, self.settings.steps):
            where = what or self._explain(batch)
            raise BadRecipe(
                f"training stopped at step {self.history.done + 1}: {where} is not finite, {self._in_row} steps in a "
                f"row; {self._advice()}"
            )

    def _advice(self) -> str:
        """What helps where steps end in nothing."""
        advice = "give a lower --rate, or keep that layer (--keep)"
        if self._kept is None:
            return advice
        if self.settings.loss is None:
            # From it a run with these settings comes here again, and one with others refuses it.
            self._kept.remove()
            return advice
        return f"mend the loss and go on, or delete the checkpoint '{self._kept.path}' and {advice}"

    def _refuse(self) -> None:
        """
        Raises:
            BadRecipe: always.
        """
        if self._kept is not None:
            self._kept.remove()  # all steps are done: from it no run, with whatever loss, would learn more
        what = "the loss" if self.settings.loss or self.settings.labels else "the float model or the quantized one"
        looks = amount(len(self.history.losses), "look")
        raise BadRecipe(f"{what} is not finite on the samples held back, in {looks}: nothing says what was best")

    def _look(self, step: int) -> None:
        """The loss on samples held back; and whether it is still worth going on. No number is as bad as infinity."""
        found = self.held_back()
        found = math.inf if math.isnan(found) else found
        history = self.history
        if found < history.best or not step:
            history.best, history.best_step, self.best = found, step, self.student.state()
        history.losses.append((step, found))  # last: a look that is interrupted before is done again
        waited = sum(1 for at, _ in history.losses if at > history.best_step)
        if waited >= self.settings.patience and step < self.settings.steps:
            history.why = f"{waited} looks at samples held back saw nothing better"

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def held_back(self) -> float:
        """The mean loss on the samples held back."""
        total, count = 0.0, 0
        held, size = self.samples.held_back, self.settings.batch
        for start in range(0, len(held), size):
            for batch in self.samples.batch(held[start : start + size]):
                total += float(self._loss_of(batch)) * batch.count
                count += batch.count
        return total / max(1, count)

    def _say(self, progress: Progress) -> None:
        history = self.history
        now = f"{history.losses[-1][1]:.4g}, {history.first:.4g} before" if history.losses else "?"
        left = self.settings.steps - history.done
        progress.start(f"training, loss {now}", left, "steps")

    def _save(self, optimizer: torch.optim.Adam) -> None:
        if self._kept is None:
            return
        history: dict[str, Any] = dict(vars(self.history))
        state = {"student": self.student.state(), "best": self.best, "optimizer": optimizer.state_dict()}
        self._kept.save({**state, "history": history, "in_row": self._in_row})

    def _resume(self, optimizer: torch.optim.Adam) -> None:
        if self._kept is None or (kept := self._kept.load()) is None:
            return
        try:
            found = resumed(kept, self.student.state(), optimizer, self.settings.steps)
        except ValueError as error:
            raise self._kept.damaged(str(error)) from None
        self.student.load(found.student)
        self.best = found.best
        optimizer.load_state_dict(found.optimizer)
        self.history = History(**{name: getattr(found.history, name) for name in vars(self.history)})
        self._in_row = found.in_row


def _learning(optimizer: torch.optim.Adam) -> list[torch.nn.Parameter]:
    """What has a gradient."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _length(optimizer: torch.optim.Adam) -> float:
    """Of the gradient, of all parameters together."""
    lengths = [torch.linalg.vector_norm(p.grad) for p in _learning(optimizer)]
    return float(torch.linalg.vector_norm(torch.stack(lengths))) if lengths else 0.0


def _first_not_finite(optimizer: torch.optim.Adam) -> str:
    """The first parameter whose gradient is not finite; empty if all are."""
    groups = ((group["name"], p.grad) for group in optimizer.param_groups for p in group["params"])
    return next((name for name, grad in groups if grad is not None and not bool(torch.isfinite(grad).all())), "")
