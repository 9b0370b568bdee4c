"""How far a student is from its teacher, or from labels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxq.errors import BadData, BadRecipe
from onnxq.quality.decisions import LEAST_PROBABILITY, Classes
from onnxq.runtime.own_functions import call, failing, import_function, shown

Outputs = Mapping[str, Any]
#: What a loss of the user's own is called with.
GETS = ("outputs", "labels", "inputs")


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The mean square of a − b in parts of that of b around its mean, so that outputs of any size count the same."""
    b = b.detach()
    power = (b - b.mean()).square().mean().clamp_min(1e-12)
    return (a - b).square().mean() / power


def divergence(student: Tensor, teacher: Tensor, classes: Classes, temperature: float = 1.0) -> Tensor:
    """KL divergence of the teacher's decisions from the student's, in nats a decision."""
    a, b = (_logarithms(x, classes, temperature) for x in (student, teacher.detach()))
    # With the difference of the probabilities, whose sum is nothing, no part is negative, however near they are.
    far, near = a - b, (a - b).clamp(-1, 1)
    p = b.exp()
    parts = torch.where(far == near, p * (torch.expm1(near) - near), a.exp() - p - p * far)
    return parts.sum(-1).mean() * temperature**2


def _logarithms(x: Tensor, classes: Classes, temperature: float) -> Tensor:
    x = x.movedim(classes.axis, -1)
    if classes.kind == "probabilities":
        x = torch.log(x.clamp_min(LEAST_PROBABILITY))
    return torch.log_softmax(x / temperature, -1)


class Distillation:
    """The sum over the float outputs: KL divergence where they are scores of classes, else the mean square."""

    def __init__(self, classes: Mapping[str, Classes], temperature: float = 1.0) -> None:
        self.classes, self.temperature = classes, temperature

    def __call__(self, student: Outputs, teacher: Outputs) -> Tensor:
        total: Tensor | None = None
        for name, wanted in teacher.items():
            found = student[name]
            if not isinstance(wanted, Tensor) or not wanted.is_floating_point() or not wanted.numel():
                continue
            found, wanted = found.float(), wanted.float()
            known = self.classes.get(name)
            is_class = known is not None and -wanted.dim() <= known.axis < wanted.dim()
            if is_class and known is not None:
                part = divergence(found, wanted, known, self.temperature)
            else:
                part = distance(found, wanted)
            total = part if total is None else total + part
        if total is None:
            raise BadRecipe("the model has no output of floats to distil: give --loss and --labels")
        return total


def cross_entropy(outputs: Outputs, labels: Tensor, classes: Mapping[str, Classes], called: str) -> Tensor:
    """Of the first output that is scores of classes, [...], with a label for each decision, in nats a decision.

    Args:
        called: how the array of the labels is, for messages.

    Raises:
        BadRecipe: there is no such output.
        BadData: labels are of another length, or name a class that there is not.
    """
    name = next((name for name in outputs if name in classes), None)
    if name is None:
        raise BadRecipe("no output is known for scores of classes: say which by --logits, or give --loss")
    scores = _logarithms(outputs[name].float(), classes[name], 1.0)
    decisions = scores.numel() // scores.shape[-1]
    if labels.numel() != decisions:
        raise BadData(
            f"there are {labels.numel()} labels '{called}' for {decisions} decisions of output '{name}', "
            f"which is {list(outputs[name].shape)}"
        )
    labels = labels.reshape(-1)
    if not labels.is_floating_point():
        labels = labels.long()
    elif len(broken := labels[~(labels.isfinite() & (labels == labels.floor()))]):
        what = f"output '{name}' takes numbers of classes, whole ones below {scores.shape[-1]}"
        raise BadData(f"the labels '{called}' hold {_said(broken[0])}; {what}")
    if len(labels) and not 0 <= labels.amin() <= labels.amax() < scores.shape[-1]:  # before they are cast
        low, high = _said(labels.amin()), _said(labels.amax())
        raise BadData(f"the labels '{called}' are {low} to {high}; output '{name}' has {scores.shape[-1]} classes")
    return functional.nll_loss(scores.reshape(-1, scores.shape[-1]), labels.long())


def _said(x: Tensor) -> str:
    """A number, for a message."""
    value = x.item()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def go_back(loss: Tensor, *, is_own: bool) -> None:
    """Add the gradients of a loss to those of what learns.

    Args:
        is_own: whether a function of the user's gave it, whose parts may have gradients of the user's own.

    Raises:
        BadRecipe: such a part fails.
    """
    with failing("--loss, when its gradients were computed,", BadRecipe) if is_own else contextlib.nullcontext():
        loss.backward()


class OwnLoss:
    """A function of the user's: of the outputs by name, the labels (None where there are none) and the inputs.

    Raises:
        BadRecipe: there is no such function.
    """

    def __init__(self, loss: str | Callable[..., Any]) -> None:
        self.name = loss if isinstance(loss, str) else getattr(loss, "__name__", "the given function")
        self._function = import_function(loss, f"--loss '{loss}'", BadRecipe) if isinstance(loss, str) else loss

    def __call__(self, outputs: Outputs, labels: Tensor | None, feed: Mapping[str, Any]) -> Tensor:
        """
        Raises:
            BadRecipe: it takes something else, fails, or gives no number of torch.
        """
        found = call(self._function, f"--loss {self.name}", GETS, (outputs, labels, feed), BadRecipe)
        if not issubclass(type(found), Tensor):  # isinstance would ask the object itself
            raise BadRecipe(f"--loss {self.name} gave {shown(found)}, not one number as a tensor of torch")
        is_dense = found.layout is torch.strided and not found.is_complex() and not found.is_meta
        if found.numel() != 1 or not is_dense:
            what = f"{found.dtype} {list(found.shape)}, {found.layout}, on {found.device}"
            raise BadRecipe(f"--loss {self.name} gave a tensor of {what}, not one real number")
        return found.reshape(())
