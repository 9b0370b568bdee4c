"""The error of each weight as it lies in a quantized file, against the float model's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import OnnxqError
from onnxq.formats import Format
from onnxq.model.weights import Weight, find_weights
from onnxq.quality import decibel
from onnxq.report.document import WeightError, known

#: A channel whose scale is off by so much was scaled on purpose, as balancing does it; rounding moves it far less.
SCALED = 0.1
#: Least cosine between weights of nodes with other names that are taken to be the same.
ALIKE = 0.9
#: A channel of fewer numbers tells no scale.
LEAST = 8
#: Of weights with more numbers the first columns are compared.
LARGEST = 1 << 24


def weight_errors(in_float: ir.Model, restored: ir.Model) -> Iterator[WeightError]:
    """Of the weights that both models have, by the nodes that read them.

    Args:
        in_float: prepared.
        restored: the quantized model, its weights floats again that know their codes (`conversion/restore.py`).
    """
    weights, others = list(find_weights(in_float)), {_key(weight): weight for weight in find_weights(restored)}
    named = {_key(weight) for weight in weights}
    renamed = [other for key, other in others.items() if key not in named]
    for weight in weights:
        other = others.get(_key(weight)) or _lookalike(weight, renamed)
        if other is None:
            continue
        try:
            w, got = _rows(weight), _rows(other)
        except OnnxqError:  # codes that cannot be read are told by those who run the model
            continue
        if w.shape != got.shape and w.T.shape == got.shape:
            got = got.T
        is_coded = isinstance(other.tensor, GivenTensor)
        if w.shape != got.shape or not w.size or not (np.isfinite(w).all() and np.isfinite(got).all()):
            continue
        if is_coded or not np.array_equal(w, got):
            yield _compared(weight, format_of(other.tensor), w, got)


def _key(weight: Weight) -> tuple[str | None, int]:
    return weight.node.name, weight.role.index


def _lookalike(weight: Weight, renamed: list[Weight]) -> Weight | None:
    """The first of the weights, in the order of execution, that is in codes and has the numbers of `weight`: tools that
    write operators on codes name nodes anew. It is taken off the list."""
    for other in renamed:
        if isinstance(other.tensor, GivenTensor) and sorted(other.shape) == sorted(weight.shape):
            try:
                w, got = _rows(weight), _rows(other)
            except OnnxqError:
                continue
            got = got.T if w.shape != got.shape else got
            size = math.sqrt((w * w).sum() * (got * got).sum()) if w.shape == got.shape else 0.0
            if size and (w * got).sum() >= ALIKE * size:
                renamed.remove(other)
                return other
    return None


def format_of(tensor: ir.TensorProtocol) -> str:
    """The word of a weight's number format, where that is known."""
    if not isinstance(tensor, GivenTensor):
        return ""
    form: Format | None = tensor.form[0] if tensor.form is not None else None
    if form is None:
        form = tensor.given().format
    return form.name


def _rows(weight: Weight) -> NDArray[np.float64]:
    """A weight as a matrix, its contraction along the first axis."""
    w = np.moveaxis(weight.tensor.numpy(), weight.role.contraction, 0)
    w = w.reshape(w.shape[0], -1)
    return np.asarray(w[:, : max(1, LARGEST // max(1, w.shape[0]))], np.float64)


def _compared(weight: Weight, word: str, w: NDArray[np.float64], got: NDArray[np.float64]) -> WeightError:
    """What is told of one weight; channels that were scaled on purpose are scaled back first."""
    is_scaled = False
    for axis in (1, 0):
        scale = _scale(w, got, axis)
        if w.shape[axis] >= LEAST and np.median(np.abs(scale - 1)) > SCALED:
            w, is_scaled = w * scale, True
    noise, signal = float(((got - w) ** 2).sum()), float((w * w).sum())
    length = math.sqrt(signal * float((got * got).sum()))
    return WeightError(
        weight.node.name or "",
        weight.node.op_type,
        list(weight.shape),
        word,
        sqnr=known(decibel(signal, noise)) if noise and signal else None,
        cosine=known(float((w * got).sum()) / length) if length else None,
        max_error=float(np.abs(got - w).max()),
        is_scaled=is_scaled,
    )


def _scale(w: NDArray[np.float64], got: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """By what each channel, which reaches along `axis`, would have been scaled, by least squares."""
    power = (w * w).sum(axis, keepdims=True)
    return np.divide((w * got).sum(axis, keepdims=True), power, out=np.ones_like(power), where=power > 0)
