"""What an adapter is trained by: labels, another model's outputs, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from onnxq.errors import BadData
from onnxq.quality.decisions import Classes
from onnxq.runtime.session import Feed, Session
from onnxq.training.adapters.learning.batches import Part
from onnxq.training.labels import fitting, labels_of
from onnxq.training.losses import Distillation, OwnLoss, cross_entropy

#: Labels of places that do not count.
IGNORED = -100


class Loss(Protocol):
    """Of a model's outputs by name, on a batch with the arrays beside its inputs; a mean over all that counts there."""

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor: ...

    def counted(self, part: Part) -> int:
        """Over how many that mean is: labels that count, or samples. Without any, the loss is nothing."""
        ...


def held_back_loss(loss: Loss, parts: Iterable[Part], outputs_of: Callable[[Feed], Mapping[str, Any]]) -> float:
    """The mean over all that counts in the samples held back, as if all of them were one batch.

    Args:
        outputs_of: computes the outputs of a part; is not asked where nothing counts.

    Raises:
        BadData: nothing counts in any of them.
    """
    total, count = 0.0, 0
    for part in parts:
        if counted := loss.counted(part):
            total += float(loss(outputs_of(part.feed), part.feed)) * counted
            count += counted
    if not count:
        raise nothing_counts("held back")
    return total / count


def nothing_counts(which: str) -> BadData:
    """What to say where samples have no labels, or none that count."""
    return BadData(f"no label of the samples {which} counts: there are none, or all are {IGNORED}")


class ByLabels:
    """Cross entropy where labels are classes, squared error where they are numbers.

    Args:
        name: of the labels in a batch.
        outputs: of the model, of which the first that they fit is meant; for classes those known for scores go first.
        classes: what those hold that are known for scores; others are logits along the last axis.
    """

    def __init__(self, name: str, outputs: Sequence[str], classes: Mapping[str, Classes]) -> None:
        self.name, self.classes, self.outputs = name, classes, outputs

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor:
        """
        Raises:
            BadData: the labels are no numbers, not one for each place, or name a class that there is not.
        """
        labels = labels_of(batch[self.name], self.name)
        is_class = labels.dtype.kind != "f"
        order = sorted(self.outputs, key=lambda name: is_class and name not in self.classes)
        places = {name: self._places(outputs[name], name, is_class) for name in order}
        name = next((name for name, count in places.items() if count == labels.size), order[0])
        found = outputs[name]
        if places[name] != labels.size:
            shapes = f"{labels.shape}, output '{name}' is {tuple(found.shape)}"
            why = "" if is_class else "; classes are integers, and floats numbers that it is to give"
            raise BadData(f"the labels '{self.name}' of a batch are {shapes}{why}")
        if not is_class:
            wanted = torch.from_numpy(fitting(labels, np.float32, self.name)).to(found.device)
            return functional.mse_loss(found.float(), wanted.reshape(found.shape))
        classes = self.classes.get(name) or Classes(-1)
        right = torch.from_numpy(labels.astype(np.int64)).to(found.device).reshape(-1)
        rows = found.movedim(classes.axis, -1)
        kept = rows.reshape(-1, rows.shape[-1])[right != IGNORED]
        if not len(kept):
            return kept.sum()  # nothing, with a gradient; also where outputs are no numbers
        return cross_entropy({name: kept}, right[right != IGNORED], {name: Classes(-1, classes.kind)}, self.name)

    def counted(self, part: Part) -> int:
        """
        Raises:
            BadData: the labels are no numbers.
        """
        labels = labels_of(part.feed[self.name], self.name)
        return labels.size if labels.dtype.kind == "f" else int((labels != IGNORED).sum())

    def _places(self, x: torch.Tensor, name: str, is_class: bool) -> int:
        """How many labels an output has room for."""
        classes = self.classes.get(name) or Classes(-1)
        return x.numel() // max(1, x.shape[classes.axis] if x.dim() else 1) if is_class else x.numel()


class ByTeacher:
    """How far outputs are from another model's.

    Args:
        teacher: takes the same inputs and has the same outputs.
        inputs: of the teacher.
    """

    def __init__(self, teacher: Session, classes: Mapping[str, Classes], inputs: frozenset[str]) -> None:
        self.teacher, self.inputs, self._distance = teacher, inputs, Distillation(classes)

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor:
        """
        Raises:
            BadData: the teacher's outputs are of other names or shapes.
            BadRecipe: none is of floats.
        """
        found = self.teacher.run({name: x for name, x in batch.items() if name in self.inputs})
        wanted = {}
        for name, x in zip(self.teacher.outputs, found, strict=True):
            right = torch.from_numpy(np.asarray(x, np.float32)) if x.dtype.kind in "fV" else None
            if right is None or name not in outputs:
                continue
            if right.shape != outputs[name].shape:
                shapes = f"{list(right.shape)} and {list(outputs[name].shape)}"
                raise BadData(f"output '{name}' of the teacher and of the model are of shapes {shapes}")
            wanted[name] = right.to(outputs[name].device)
        return self._distance(outputs, wanted)

    def counted(self, part: Part) -> int:
        return part.samples


class ByFunction:
    """A function of the user's own, of outputs, labels and inputs.

    Args:
        source: `module:function`.
        labels: the array that is given to it as labels; None: none is.

    Raises:
        BadData: there is no such function.
    """

    def __init__(self, source: str, labels: str | None) -> None:
        self.labels, self._loss = labels, OwnLoss(source)

    def __call__(self, outputs: Mapping[str, Any], batch: Feed) -> torch.Tensor:
        """
        Raises:
            BadData: the labels are no numbers, or beyond those that torch has.
            BadRecipe: it fails, or gives no single number of torch.
        """
        labels = None
        if self.labels is not None:
            where = next((x.device for x in outputs.values() if isinstance(x, torch.Tensor)), torch.device("cpu"))
            labels = torch.from_numpy(np.array(labels_of(batch[self.labels], self.labels))).to(where)
        return self._loss(outputs, labels, {name: x for name, x in batch.items() if name != self.labels})

    def counted(self, part: Part) -> int:
        return part.samples
