"""What a comparison of two models layer by layer found, for people and for machines."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from onnxq.quality import MAX_DB, REPEATABLE_DB, UNEQUAL_DB

#: Of the JSON form.
VERSION = 1
#: A layer whose own noise is at least this share of the noise behind it adds error; others pass on what they are given.
ADDS = 0.25

#: How a value of one model was found in the other: both call it the same; the same operators lead to it; or it is the
#: next of its kind in the order of execution, and looks alike.
Pairing = Literal["name", "position", "order"]
#: What a layer does to the error: it is the same in both models; adds some of its own; passes on what it is given.
Role = Literal["same", "adds", "passes"]


class LayerError(msgspec.Struct, frozen=True):
    """How far one value of model B is from the value of model A that it stands for.

    Attributes:
        a, b: names of the values.
        node, op: of A, which makes the value; of an input, "" and "input".
        node_b, op_b: of B.
        pairing: how the two were found to belong together.
        axes: of B's value, in the order in which they are A's; () where that is their own order.
        elements: of A's value, in all samples.
        sqnr: dB, cumulative: both models run from their inputs on.
        local_sqnr: dB, of what the layer itself adds: it reads in B what A has there. None: it could not be run so.
        cosine: of the angle between the two values.
        max_error, local_max_error: the largest difference of two numbers.
        role: see `Role`; None where `local_sqnr` is, or the error too small for anyone to say where it comes in.
        is_output: whether it is an output of A, perhaps once it is moved or converted.
        is_scaled: whether B has its channels scaled, which those who read it take back; for the figures they were
            scaled back.
    """

    a: str
    b: str
    node: str
    op: str
    node_b: str
    op_b: str
    pairing: Pairing
    axes: tuple[int, ...]
    elements: int
    sqnr: float
    local_sqnr: float | None
    cosine: float
    max_error: float
    local_max_error: float | None
    role: Role | None
    is_output: bool = False
    is_scaled: bool = False


class ByLayer(msgspec.Struct, frozen=True):
    """What was found, in A's order of execution.

    Attributes:
        a, b: paths of the models.
        inputs: what both were run on, in words.
        proves: whether the user's own samples were among that.
        samples: how many there were.
        layers: values that were paired and computed.
        unpaired_a, unpaired_b: nodes whose values have no partner: fused into others, or there for quantization alone.
        notes: what a user should know, a sentence each.
    """

    a: str
    b: str
    inputs: str
    proves: bool
    samples: int
    layers: tuple[LayerError, ...]
    unpaired_a: tuple[str, ...] = ()
    unpaired_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def unverified(self) -> str:
        """Why nobody knows whether the models differ, in a sentence; "" where layers were compared."""
        if self.layers:
            return ""
        return f"no layer of '{self.a}' was compared with one of '{self.b}': {self.notes[-1]}"

    @property
    def first_apart(self) -> LayerError | None:
        """The first layer at which the models differ by more than the order in which threads add up would explain."""
        return next((layer for layer in self.layers if layer.sqnr < REPEATABLE_DB), None)

    @property
    def worst(self) -> LayerError | None:
        return min(self.layers, key=lambda layer: layer.sqnr, default=None)

    @property
    def adding(self) -> tuple[LayerError, ...]:
        """Layers that add error of their own, those that add the most first."""
        found = [layer for layer in self.layers if layer.role == "adds"]
        return tuple(sorted(found, key=lambda layer: MAX_DB if layer.local_sqnr is None else layer.local_sqnr))

    def shown(self, most: int) -> tuple[LayerError, ...]:
        """Those to show where `most` rows are enough, in order: all, if there are no more. Else the first apart, the
        worst and the outputs, then the layers that add the most error, as many as there is room for."""
        if len(self.layers) <= most:
            return self.layers
        marked = [each for each in (self.first_apart, self.worst) if each is not None]
        outputs = [layer for layer in self.layers if layer.is_output]
        outputs = sorted(outputs, key=lambda layer: layer.sqnr)[: max(1, most // 2)]
        chosen = list(dict.fromkeys(map(id, (*marked, *outputs, *self.adding))))[:most]
        return tuple(layer for layer in self.layers if id(layer) in chosen)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON, with what follows from it; an error without bounds is None."""
        table: dict[str, Any] = {"onnxq_layers": VERSION} | msgspec.to_builtins(self)
        for layer in table["layers"]:
            layer.update({key: None for key, x in layer.items() if isinstance(x, float) and not math.isfinite(x)})
        first, worst = self.first_apart, self.worst
        table["first_apart"] = None if first is None else first.a
        table["worst"] = None if worst is None else worst.a
        table["adding"] = [layer.a for layer in self.adding]
        return table


def role_of(sqnr: float, local: float | None) -> Role | None:
    """What a layer does, by the error behind it and that which it adds."""
    if local is None:
        return None
    if sqnr >= UNEQUAL_DB:
        return "same" if sqnr >= MAX_DB else None
    return "adds" if local < UNEQUAL_DB and local <= sqnr - 10 * math.log10(ADDS) else "passes"
