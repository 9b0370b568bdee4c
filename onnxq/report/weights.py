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

#: Channels that are so many dB nearer once they are scaled were scaled on purpose, as balancing does it: rounding moves
#: them far less. Where both those that are read and those that are made were, they are fitted in turns: so often at
#: most, and for as long as a turn leaves less than this share of the noise.
GAIN, ROUNDS, NEARER = 6.0, 32, 0.9
#: Least cosine between weights of nodes with other names that are taken to be the same.
ALIKE = 0.9
#: A channel of fewer numbers tells no scale: one that is fitted to n takes in a share of 1/n of what rounding did.
LEAST = 3
#: Of weights with more numbers the first columns are compared.
LARGEST = 1 << 24


def weight_errors(in_float: ir.Model, restored: ir.Model, unfolded: ir.Model | None = None) -> Iterator[WeightError]:
    """Of the weights that both models have, by the nodes that read them.

    Args:
        in_float: prepared.
        restored: the quantized model, its weights floats again that know their codes (`conversion/restore.py`).
        unfolded: the float model as it was, for weights into which nothing was folded before they were quantized.
    """
    plain = {} if unfolded is None else {_key(weight): weight for weight in find_weights(unfolded)}
    weights, others = list(find_weights(in_float)), {_key(weight): weight for weight in find_weights(restored)}
    named = {_key(weight) for weight in weights}
    renamed = [other for key, other in others.items() if key not in named]
    for weight in weights:
        other = others.get(_key(weight)) or _lookalike(weight, renamed)
        if other is None:
            continue
        try:
            w, got = _rows(weight), _rows(other)
            was = plain.get(_key(weight))
            w = w if was is None else _nearer(w, _rows(was), got)
        except OnnxqError:  # codes that cannot be read are told by those who run the model
            continue
        if w.shape != got.shape and _turned(w).shape == got.shape:
            got = _turned(got)
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
            got = _turned(got) if w.shape != got.shape else got
            size = math.sqrt((w * w).sum() * (got * got).sum()) if w.shape == got.shape else 0.0
            if size and (w * got).sum() >= ALIKE * size:
                renamed.remove(other)
                return other
    return None


def _nearer(one: NDArray[np.float64], other: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    """Which of two spellings of a weight those codes stand for."""
    turned = got if got.shape == one.shape else _turned(got)
    if one.shape != other.shape or one.shape != turned.shape:
        return one
    return other if np.square(turned - other).sum() < np.square(turned - one).sum() else one


def format_of(tensor: ir.TensorProtocol) -> str:
    """The word of a weight's number format, where that is known."""
    if not isinstance(tensor, GivenTensor):
        return ""
    form: Format | None = tensor.form[0] if tensor.form is not None else None
    if form is None:
        form = tensor.given().format
    return form.name


def _rows(weight: Weight) -> NDArray[np.float64]:
    """A weight as [contraction, channels, the rest], which is the places of a kernel."""
    role, w = weight.role, weight.tensor.numpy()
    axes = list(dict.fromkeys((role.contraction, role.channel)))
    w = np.moveaxis(w, axes, range(len(axes)))
    w = w.reshape(*w.shape[: len(axes)], *[1] * (2 - len(axes)), -1)
    most = LARGEST // max(1, w.shape[0] * w.shape[2])
    return np.asarray(w[:, : max(1, most)], np.float64)


def _turned(w: NDArray[np.float64]) -> NDArray[np.float64]:
    return w.swapaxes(0, 1)


def _compared(weight: Weight, word: str, w: NDArray[np.float64], got: NDArray[np.float64]) -> WeightError:
    """What is told of one weight; channels that were scaled on purpose are scaled back first."""
    scaled = _scaled_like(w, got)
    noise, signal = _noise(scaled, got), float((scaled * scaled).sum())
    length = math.sqrt(signal * float((got * got).sum()))
    return WeightError(
        weight.node.name or "",
        weight.node.op_type,
        list(weight.shape),
        word,
        sqnr=known(decibel(signal, noise)) if noise and signal else None,
        cosine=known(float((scaled * got).sum()) / length) if length else None,
        max_error=float(np.abs(got - scaled).max()),
        is_scaled=scaled is not w,
    )


def _noise(w: NDArray[np.float64], got: NDArray[np.float64]) -> float:
    return float(((got - w) ** 2).sum())


def _scaled_like(w: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    """`w` with its channels scaled as they are in `got`: what it makes, what it reads, or both; itself, if none are."""
    best, noise = w, _noise(w, got)
    for axes in ((1,), (0,), (1, 0)):
        made, left = _fitted(w, got, axes, noise)
        # More numbers that are fitted take in more of what rounding did: not without need.
        if left < 10 ** (-GAIN / 10) * noise:
            best, noise = made, left
    return best


def _fitted(
    w: NDArray[np.float64], got: NDArray[np.float64], axes: tuple[int, ...], noise: float
) -> tuple[NDArray[np.float64], float]:
    """`w` scaled along `axes`, in turns for as long as that brings it clearly nearer; and the noise that is left."""
    for _ in range(ROUNDS if len(axes) > 1 else 1):
        made = w
        for axis in axes:
            made = made * _scale(made, got, axis)
        left = _noise(made, got)
        if left > NEARER * noise:
            return w, noise
        w, noise = made, left
    return w, noise


def _scale(w: NDArray[np.float64], got: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """By what each channel along `axis` would have been scaled, by least squares; 1 where it is told by few numbers."""
    others = tuple(i for i in range(3) if i != axis)
    power = (w * w).sum(others, keepdims=True)
    if w.size < LEAST * w.shape[axis]:
        return np.ones_like(power)
    return np.divide((w * got).sum(others, keepdims=True), power, out=np.ones_like(power), where=power > 0)
