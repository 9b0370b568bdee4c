"""What an adapter is trained by: labels, another model's outputs, or a function of the user's own.

A loss is a mean over all places of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from onnxq.errors import BadData, first_line
from onnxq.quality import LEAST_PROBABILITY, Classes
from onnxq.runtime.session import Feed, Session

#: Labels of places that do not count.
IGNORED = -100


class Loss(Protocol):
    """Of a model's outputs by name, on a batch with the arrays beside its inputs."""

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor: ...


class ByLabels:
    """Cross entropy where labels are classes, squared error where they are numbers.

    Args:
        name: of the labels in a batch.
        output: what they are labels of.
        classes: what that holds, if scores of classes.
    """

    def __init__(self, name: str, output: str, classes: Classes | None) -> None:
        self.name, self.output, self.classes = name, output, classes

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor:
        """
        Raises:
            BadData: the labels are not one for each place, or name a class that there is not.
        """
        found, labels = outputs[self.output], np.asarray(batch[self.name])
        if labels.dtype.kind == "f":
            wanted = torch.from_numpy(np.asarray(labels, np.float32)).to(found.device)
            if wanted.numel() != found.numel():
                raise BadData(self._misfit(labels, tuple(found.shape)))
            return functional.mse_loss(found.float(), wanted.reshape(found.shape))
        if labels.dtype.kind not in "iub":
            raise BadData(f"the labels '{self.name}' are of type {labels.dtype}; give classes or numbers")
        rows = torch.movedim(found, -1 if self.classes is None else self.classes.axis, -1).float()
        count = rows.shape[-1]
        right = torch.from_numpy(labels.astype(np.int64)).to(rows.device).reshape(-1)
        if right.numel() * count != rows.numel():
            raise BadData(self._misfit(labels, tuple(rows.shape[:-1])))
        counted = right[right != IGNORED]
        if counted.numel() and not 0 <= int(counted.min()) <= int(counted.max()) < count:
            raise BadData(f"the labels '{self.name}' are from 0 to {count - 1}, or {IGNORED} where none counts")
        logs = _logarithms(rows, self.classes).reshape(-1, count)
        return functional.nll_loss(logs, right, ignore_index=IGNORED)

    def _misfit(self, labels: Any, shape: tuple[int, ...]) -> str:
        return f"the labels '{self.name}' of a batch are {labels.shape}, output '{self.output}' has places for {shape}"


class ByTeacher:
    """Kullback-Leibler divergence from another model where outputs are scores of classes, else the squared error over
    the square of what is wanted; the mean of all outputs of floats.

    Args:
        teacher: takes the same inputs and has the same outputs.
    """

    def __init__(self, teacher: Session, classes: Mapping[str, Classes], inputs: frozenset[str]) -> None:
        self.teacher, self.classes, self.inputs = teacher, classes, inputs

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor:
        """
        Raises:
            BadData: the teacher's outputs are of other shapes, or none is of floats.
        """
        wanted = self.teacher.run({name: x for name, x in batch.items() if name in self.inputs})
        parts = []
        for name, right in zip(self.teacher.outputs, wanted, strict=True):
            found = outputs.get(name)
            if not isinstance(found, torch.Tensor) or not found.is_floating_point():
                continue
            target = torch.from_numpy(np.asarray(right, np.float32)).to(found.device)
            if target.shape != found.shape:
                raise BadData(
                    f"output '{name}' of the teacher is {list(target.shape)}, the model's {list(found.shape)}"
                )
            classes = self.classes.get(name)
            if classes is None:
                square = target.square().mean().clamp(min=1e-30)
                parts.append((found.float() - target).square().mean() / square)
                continue
            p, q = (_logarithms(torch.movedim(x.float(), classes.axis, -1), classes) for x in (target, found))
            parts.append((p.exp() * (p - q)).sum(-1).mean())
        if not parts:
            raise BadData("the teacher and the model have no output of floats with one name: nothing can be distilled")
        return torch.stack(parts).mean()


class ByFunction:
    """A function of the user's own, of outputs and batch.

    Args:
        source: what the user calls it.
    """

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self.function, self.source = function, source

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor:
        """
        Raises:
            BadData: it fails, or gives no single number of torch.
        """
        try:
            found = self.function(dict(outputs), dict(batch))
        except Exception as error:  # whatever the caller's own function raises
            raise BadData(f"--loss '{self.source}' failed with {type(error).__name__}: {first_line(error)}") from error
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            raise BadData(
                f"--loss '{self.source}' must give one number as a tensor of torch, not {type(found).__name__}"
            )
        return found.reshape(())


def _logarithms(rows: torch.Tensor, classes: Classes | None) -> torch.Tensor:
    """Of the probabilities that scores along the last axis stand for."""
    kind = "logits" if classes is None else classes.kind
    if kind == "probabilities":
        return rows.clamp(min=LEAST_PROBABILITY).log()
    return functional.log_softmax(rows, dim=-1)
