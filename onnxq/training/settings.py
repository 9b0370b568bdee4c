"""What a user says of how to train."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.boundary import require_types
from onnxq.errors import BadRecipe

#: What can be learned, each with what it is.
LEARNED = {
    "rounding": "whether a code of a weight is the one below or above",
    "scales": "the scales of weights",
    "ranges": "the ranges of activations that are quantized",
    "biases": "what is added behind layers",
    "norms": "the factors of normalizations",
    "weights": "all weights: codes may move as far as they like, and what stays in float learns too",
}
#: What is learned unless something else is said.
USUAL = ("rounding", "scales", "ranges", "biases", "norms")
SCHEDULES = ("cosine", "linear", "constant")
#: Of steps, samples and whatever else is counted: more than anybody waits for, and no more than floats tell apart.
MOST = 1_000_000_000

#: From outputs, labels and inputs to one number, all tensors of torch.
Loss = Callable[..., Any]


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        learn: words of `LEARNED`.
        steps: of the optimizer, end to end.
        block_steps: for each block before that, by the float block's outputs; 0: none.
        batch: samples a step.
        rate: the learning rate, of blocks three times that: of codes in steps between codes; a tenth of it, as a
            share, of scales and ranges, and of floats by their magnitude.
        schedule: how it goes down.
        warmup: share of the steps in which it first goes up.
        clip: the longest gradient, of all parameters together; 0: any.
        samples: that are trained on; None: all but those held back.
        held_back: samples that are kept out to see when to stop.
        evaluate_every: steps between two looks at them.
        patience: such looks without a better loss after which it stops.
        loss: `module:function` or a function; None: distillation, or cross entropy where there are labels.
        labels: the array of the data that holds them.
        temperature: of distilled classes.
        seed: of batches.
        checkpoint: a file for what was reached, from which an interrupted run goes on.
        checkpoint_every: steps between two savings of it.
        pieces: of the graph whose values are computed again for gradients, to save memory; 1: none are.
        memory: bytes that the estimate may reach; None: what the machine has free.
        minutes: after which it ends, with what it has.
        device: of torch; empty: a GPU where there is one.
        bfloat16: multiply in bfloat16.
        report: a file for losses by step, as JSON.

    Raises:
        BadRecipe: a word or number that cannot be.
    """

    learn: tuple[str, ...] = USUAL
    steps: int = 500
    block_steps: int = 0
    batch: int = 8
    rate: float = 0.003
    schedule: str = "cosine"
    warmup: float = 0.05
    clip: float = 1.0
    samples: int | None = None
    held_back: int = 32
    evaluate_every: int = 50
    patience: int = 10
    loss: str | Loss | None = None
    labels: str | None = None
    temperature: float = 1.0
    seed: int = 0
    checkpoint: str | Path | None = None
    checkpoint_every: int = 100
    pieces: int = 1
    memory: int | None = None
    minutes: float | None = None
    device: str = ""
    bfloat16: bool = False
    report: str | Path | None = None

    def __post_init__(self) -> None:
        require_types(Settings, vars(self))
        wrong = next((word for word in self.learn if word not in LEARNED), None)
        if wrong is not None:
            raise BadRecipe(f"--learn '{wrong}': unknown; choose among {', '.join(LEARNED)}")
        if not self.learn:
            raise BadRecipe(f"--learn: nothing to learn; choose among {', '.join(LEARNED)}")
        zero, one = ("steps", "block_steps", "seed"), ("batch", "held_back", "evaluate_every", "patience", "pieces")
        for name, least in (*((name, 0) for name in zero), *((name, 1) for name in (*one, "checkpoint_every"))):
            if getattr(self, name) < least:
                raise BadRecipe(f"--{name.replace('_', '-')} {getattr(self, name)}: at least {least}")
            if getattr(self, name) > MOST and name != "seed":
                raise BadRecipe(f"--{name.replace('_', '-')}: at most {MOST:,}")
        if not self.steps and not self.block_steps:
            raise BadRecipe("--steps 0 and --block-steps 0: nothing is trained; 'onnxq quantize' does that")
        for name in ("samples", "memory"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadRecipe(f"--{name} {value}: at least 1")
        if not 0 < self.rate < math.inf or not 0 < self.temperature < math.inf:
            raise BadRecipe(f"--rate {self.rate:g} and --temperature {self.temperature:g} must be above 0, and finite")
        for name, most in (("warmup", 1.0), ("clip", math.inf), ("minutes", math.inf)):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:  # NaN is neither
                raise BadRecipe(f"--{name} {value:g}: at least 0{' and at most 1' * (most == 1)}")
        if self.schedule not in SCHEDULES:
            raise BadRecipe(f"--schedule '{self.schedule}': choose one of {', '.join(SCHEDULES)}")

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by in this step of so many."""
        warmup = max(1, round(self.warmup * steps)) if self.warmup else 0
        if step < warmup:
            return (step + 1) / warmup
        share = (step - warmup) / max(1, steps - warmup)
        if self.schedule == "cosine":
            return 0.01 + 0.99 * (1 + math.cos(math.pi * share)) / 2
        return 1 - 0.99 * share if self.schedule == "linear" else 1.0
