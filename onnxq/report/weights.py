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
from onnxq.report.document import WeightError, known

#: A channel whose scale is off by so much was scaled on purpose, as balancing does it; rounding moves it far less.
SCALED = 0.1
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
    others = {(weight.node.name, weight.role.index): weight for weight in find_weights(restored)}
    for weight in find_weights(in_float):
        other = others.get((weight.node.name, weight.role.index))
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
        sqnr=known(10 * math.log10(signal / noise)) if noise and signal else None,
        cosine=known(float((w * got).sum()) / length) if length else None,
        max_error=float(np.abs(got - w).max()),
        is_scaled=is_scaled,
    )


def _scale(w: NDArray[np.float64], got: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """By what each channel, which reaches along `axis`, would have been scaled, by least squares."""
    power = (w * w).sum(axis, keepdims=True)
    return np.divide((w * got).sum(axis, keepdims=True), power, out=np.ones_like(power), where=power > 0)
