"""The training loop: AdamW on A and B, judged on samples held back, which an interruption does not undo."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.optim.adamw import adamw

from onnxq.boundary import require_types
from onnxq.errors import BadModel, BadRecipe, CheckFailed, OutOfMemory, amount, first_line
from onnxq.files import limits
from onnxq.progress import Progress
from onnxq.runtime.session import Feed
from onnxq.training.adapters.adapter import Adapter
from onnxq.training.adapters.learning.batches import Batches, Part
from onnxq.training.adapters.learning.losses import ByFunction, Loss, held_back_loss, nothing_counts
from onnxq.training.adapters.learning.module import AdaptedModule
from onnxq.training.losses import go_back
from onnxq.training.settings import MOST

#: Steps in a row whose loss or gradients are no numbers, after which training stops; all, where there are fewer.
MOST_SKIPPED = 5
#: Share of all steps in which the learning rate rises.
_WARM_UP = 0.05
#: Of the learning rate, what it falls to.
_END = 0.1
_CLIP = 1.0
#: Between two times that it is saved how far training came, at most.
_SECONDS = 30.0
#: What a loss that is no number of float32 counts as.
LARGEST = 1e300
#: The largest of those that are.
MOST_LOSS = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class FitOptions:
    """How long and how fast.

    Attributes:
        epochs: passes over the samples.
        steps: at most so many batches; None: as many as the epochs have.
        batch: samples in one.
        rate: the highest learning rate, of A.
        ratio: how many times that is B's (LoRA+, Hayou et al., 2024).
        seed: of A, and of the order of samples.
        every: steps between two looks at the samples held back; None: ten of them in all.
        patience: looks without a better loss, after which training stops.

    Raises:
        BadRecipe: a number that makes no sense.
    """

    epochs: int = 3
    steps: int | None = None
    batch: int = 8
    rate: float = 1e-3
    ratio: float = 4.0
    seed: int = 0
    every: int | None = None
    patience: int = 4

    def __post_init__(self) -> None:
        require_types(FitOptions, vars(self))
        for name in ("epochs", "steps", "batch", "every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadRecipe(f"invalid {name} {value}; choose 1 or more")
            if value is not None and value > MOST:
                raise BadRecipe(f"invalid {name}; choose {MOST:,} or fewer")
        if self.seed < 0:
            raise BadRecipe(f"invalid seed {self.seed}; choose 0 or more")
        for name in ("rate", "ratio"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadRecipe(f"invalid {name} {getattr(self, name):g}; choose a number above 0")


class Moments(NamedTuple):
    """What AdamW knows of a parameter: means of its gradients and of their squares, and how many there were."""

    mean: torch.Tensor
    square: torch.Tensor
    count: torch.Tensor

    @staticmethod
    def of(parameter: torch.Tensor) -> Moments:
        """Before the first step."""
        return Moments(torch.zeros_like(parameter), torch.zeros_like(parameter), torch.tensor(0.0))


@dataclass
class State:
    """How far training came.

    Attributes:
        step: the next one.
        losses: by step, on the samples held back.
        best: the adapters of the least of them.
        skipped: steps in a row that were.
    """

    step: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    best: Adapter | None = None
    skipped: int = 0

    @property
    def least(self) -> float:
        return min(self.losses.values(), default=math.inf)


class Fit:
    """One run of training."""

    def __init__(
        self, adapted: AdaptedModule, loss: Loss, batches: Batches, held_back: Batches, options: FitOptions
    ) -> None:
        self.adapted, self.loss, self.batches, self.held_back = adapted, loss, batches, held_back
        self.options, self.state = options, State()
        self.steps = options.epochs * batches.count
        if options.steps is not None:
            self.steps = min(self.steps, options.steps)
        self.every = options.every or max(1, self.steps // 10)
        #: Products whose adapter a gradient ever reached.
        self.reached: set[str] = set()
        self.moments = [Moments.of(parameter) for parameter in adapted.parameters()]

    def run(self, progress: Progress, save: Callable[[], None] = lambda: None) -> None:
        """Train to the end, and leave the best adapters in the module.

        Args:
            save: is called after every look at the samples held back, twice a minute, and when training is interrupted.

        Raises:
            BadData: nothing counts in any sample.
            BadModel: no gradient reaches any adapter.
            CheckFailed: losses or gradients are no numbers; the sentence names the product where that begins.
            OutOfMemory: there is not enough; the sentence says what helps.
        """
        try:
            self._run(progress, save)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise self._too_much(error) from None
        except RuntimeError as error:
            if "not enough memory" in str(error) or "can't allocate" in str(error):
                raise self._too_much(error) from None
            raise

    def _too_much(self, error: BaseException) -> OutOfMemory:
        return OutOfMemory(
            f"training needs more memory than there is, with {self.options.batch} samples in a batch: give a smaller "
            f"--batch, shorter samples, or fewer products by --lora ({first_line(error)})"
        )

    def _run(self, progress: Progress, save: Callable[[], None]) -> None:
        state = self.state
        held = f"{sum(each.numel() for each in self.adapted.parameters())} numbers beside "
        held += f"{limits.in_words(self.adapted.packed_bytes)} of codes"
        progress.start(f"training {held}", self.steps, "steps")
        progress.advance(state.step)
        is_whole, saved = True, time.monotonic()
        try:
            if self._is_due() and state.step not in state.losses:  # also where a run ended just before the look
                self._look(save)
            while state.step < self.steps and not self._is_done():
                is_whole = False
                self._step()
                state.step += 1
                is_whole = True
                progress.advance(1)
                if time.monotonic() - saved > _SECONDS:
                    save()
                    saved = time.monotonic()
                if self._is_due():
                    self._look(save)
                    progress.start(f"training, loss {state.least:.4g}", self.steps, "steps")
                    progress.advance(state.step)
        except KeyboardInterrupt:
            if is_whole:  # half a step is none: what was saved last is gone on from
                save()
            raise
        assert state.best is not None
        if state.least == LARGEST:
            raise CheckFailed(
                f"the loss is no number on the samples held back, in {amount(len(state.losses), 'look')}: nothing says "
                "what was best"
            )
        if not self.updates:
            raise nothing_counts("to learn from")
        self.adapted.put(state.best)

    @property
    def updates(self) -> int:
        """The steps that changed something: of the others losses were no numbers, or nothing counted."""
        return int(self.moments[0].count)

    def loss_on(self, parts: Iterable[Part]) -> float:
        """The mean loss over all that counts, without gradients.

        Raises:
            BadData: nothing counts.
        """
        with torch.no_grad():
            return held_back_loss(self.loss, parts, lambda feed: self.adapted(_inputs(self.adapted, feed)))

    def _is_due(self) -> bool:
        """Whether this step is one of those behind which there is a look."""
        return self.state.step % self.every == 0 or self.state.step == self.steps

    def _is_done(self) -> bool:
        """Whether the last looks were no better than one before."""
        losses = list(self.state.losses.values())
        return len(losses) > self.options.patience and min(losses[-self.options.patience :]) > self.state.least

    def _look(self, save: Callable[[], None]) -> None:
        found = self.loss_on(self.held_back.all())
        if not abs(found) <= MOST_LOSS:  # NaN is not either
            found = LARGEST
        if found < self.state.least or self.state.best is None:
            self.state.best = self.adapted.adapter()
        self.state.losses[self.state.step] = found
        save()

    def _step(self) -> None:
        parts = [(part, self.loss.counted(part)) for part in self.batches.at(self.state.step)]
        # What does not count is left out: nothing times NaN would be NaN, and AdamW moves by what it remembers.
        parts = [each for each in parts if each[1]]
        if not parts:
            return
        total = sum(count for _, count in parts)
        for parameter in self.adapted.parameters():
            parameter.grad = None
        for part, count in parts:
            loss = self.loss(self.adapted(_inputs(self.adapted, part.feed)), part.feed) * (count / total)
            if not torch.isfinite(loss):
                self._skip(part.feed)
                return
            self._require_path(loss)
            go_back(loss, is_own=isinstance(self.loss, ByFunction))
        parameters = self.adapted.parameters()
        self.reached.update(name for name, each in self.adapted.adapters.items() if each.b.grad is not None)
        if not self.reached:
            self._require_path(None)
        norm = torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
        if not torch.isfinite(norm):
            self._skip(parts[0][0].feed)
            return
        self.state.skipped = 0
        for which, rate in ((0, self.options.rate), (1, self.options.rate * self.options.ratio)):
            _update(parameters[which::2], self.moments[which::2], rate * self._share())

    def _require_path(self, loss: torch.Tensor | None) -> None:
        if loss is None or not loss.requires_grad:
            name = next(iter(self.adapted.adapters))
            raise BadModel(
                f"no gradient reaches the adapters from the loss, that of '{name}' among them: an operator on the way "
                "has none, or the loss is of another output"
            )

    def _share(self) -> float:
        """Of the learning rate, at this step: a rise, then half a cosine."""
        done, rise = self.state.step, max(1, round(_WARM_UP * self.steps))
        if done < rise:
            return (done + 1) / rise
        way = (done - rise) / max(1, self.steps - rise)
        return _END + (1 - _END) * 0.5 * (1 + math.cos(math.pi * way))

    def _skip(self, feed: Feed) -> None:
        self.state.skipped += 1
        if self.state.skipped < min(MOST_SKIPPED, self.steps):
            return
        raise CheckFailed(
            f"training stopped at step {self.state.step + 1}: {self.state.skipped} losses in a row are no numbers, "
            f"{self._culprit(feed)}; give a lower --rate, or look at the samples"
        )

    def _culprit(self, feed: Feed) -> str:
        """The first product that reads, or makes, what is no number."""
        found: list[str] = []

        def watch(name: str, x: torch.Tensor) -> None:
            if not found and not bool(torch.isfinite(x).all()):
                found.append(name)

        self.adapted.watch = watch
        try:
            with torch.no_grad():
                self.adapted(_inputs(self.adapted, feed))
        finally:
            self.adapted.watch = None
        if found:
            return f"first at what product '{found[0]}' reads"
        names = [name for name, each in self.adapted.adapters.items() for x in (each.a, each.b) if _is_broken(x.grad)]
        return f"first in the gradient of product '{names[-1]}'" if names else "in the loss itself"


def _update(parameters: list[torch.nn.Parameter], moments: list[Moments], rate: float) -> None:
    """A step of AdamW without decay. The class of torch's optimizers loads its compiler, which takes 75 MB."""
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    with torch.no_grad():
        adamw(
            list(parameters),
            gradients,
            *([each[i] for each in moments] for i in range(2)),
            [],
            [each.count for each in moments],
            foreach=False,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def _inputs(adapted: AdaptedModule, feed: Feed) -> Feed:
    """Of a batch what the model reads."""
    return {name: feed[name] for name in adapted.graph.inputs if name in feed}


def _is_broken(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and not bool(torch.isfinite(gradient).all())
