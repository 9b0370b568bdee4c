"""Recurrent layers behind their C ABI, and in float64 with a bound of how far kernels may be from that."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kernels import address
from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.runtime import native

LSTM, GRU, LINEAR_BEFORE_RESET, RNN = range(4)
GATES = {LSTM: 4, GRU: 3, LINEAR_BEFORE_RESET: 3, RNN: 1}
NAMES = {LSTM: "LSTM", GRU: "GRU", LINEAR_BEFORE_RESET: "GRU", RNN: "RNN"}


class Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("T", "B", "I", "H", "directions")),
        *((name, ctypes.c_int32) for name in ("cell", "backward")),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "recurrence", "weight_scales", "recurrence_scales")),
        *((name, ctypes.c_void_p) for name in ("bias", "lengths", "h", "c", "y", "last_h", "last_c")),
        ("clip", ctypes.c_float),
        ("bits", ctypes.c_int32),
    )


@dataclass
class Layer:
    """A layer as ONNX has it, but for weights in codes.

    Attributes:
        weight, recurrence: rows of a direction one after the other, [D · G · H, I] and [D · G · H, H].
        both: biases, [D, 2 · G · H].
        backward: bit d: direction d begins with the last step.
    """

    cell: int
    weight: QuantizedTensor
    recurrence: QuantizedTensor
    both: NDArray[np.float32]
    backward: int = 0
    clip: float = np.inf

    @property
    def directions(self) -> int:
        return len(self.both)

    @property
    def h(self) -> int:
        return self.recurrence.shape[1]

    @property
    def bias(self) -> NDArray[np.float32]:
        """As kernels read it: of gates, and of what is multiplied by the reset gate."""
        gates = GATES[self.cell]
        of_x, of_h = self.both.reshape(self.directions, 2, gates, self.h).transpose(1, 0, 2, 3)
        rows = of_x + of_h
        if self.cell == LINEAR_BEFORE_RESET:
            rows = np.concatenate([rows[:, :2], of_x[:, 2:], of_h[:, 2:]], axis=1)
        padded = np.zeros((*rows.shape[:2], -(-self.h // 16) * 16), np.float32)
        padded[..., : self.h] = rows
        return np.ascontiguousarray(padded.reshape(*rows.shape[:2], -1, 16).transpose(0, 2, 1, 3))


def layer(
    cell: int,
    inputs: int,
    hidden: int,
    directions: int = 1,
    *,
    backward: int | None = None,
    clip: float = np.inf,
    seed: int = 0,
) -> Layer:
    """With weights of about the size that trained ones have."""
    rng = np.random.default_rng([cell, inputs, hidden, directions, seed])
    rows = directions * GATES[cell] * hidden

    def codes(k: int) -> QuantizedTensor:
        w = rng.standard_normal((rows, k)).astype(np.float32) / np.sqrt(np.float32(k))
        return formats.get("int8").encode(w, Granularity(0))

    both = rng.standard_normal((directions, 2 * GATES[cell] * hidden)).astype(np.float32) / 4
    return Layer(cell, codes(inputs), codes(hidden), both, 2 * (directions - 1) if backward is None else backward, clip)


@dataclass
class Made:
    """What a layer makes: y [T, D, B, H], h and c [D, B, H]."""

    y: NDArray
    h: NDArray
    c: NDArray | None


def run(  # noqa: PLR0913
    isa: str,
    of: Layer,
    x: NDArray[np.float32],
    h: NDArray[np.float32] | None = None,
    c: NDArray[np.float32] | None = None,
    *,
    lengths: Sequence[int] | None = None,
    bits: int = 15,
    threads: int = 1,
    place: Callable[[NDArray], NDArray] = np.ascontiguousarray,
) -> Made:
    """By the kernel `isa`."""
    (steps, batch, inputs), gates, count = x.shape, GATES[of.cell], of.directions
    parts: list[NDArray] = []
    for q in (of.weight, of.recurrence):
        parts.append(place(layouts.recurrent_tiles(count, gates)(q)))
        parts.append(place(layouts.recurrent_scales(count, gates)(q)))
    given = [None if each is None else place(each.astype(np.float32)) for each in (h, c)]
    short = None if lengths is None else place(np.array(lengths, np.int32))
    x, bias = place(x), place(of.bias)
    y = place(np.full((steps, count, batch, of.h), np.nan, np.float32))
    last = [place(np.full((count, batch, of.h), np.nan, np.float32)) for _ in range(2)]
    p = Problem(steps, batch, inputs, of.h, count, of.cell, of.backward)
    p.x, p.weight, p.weight_scales, p.recurrence, p.recurrence_scales = map(address, (x, *parts))
    p.bias, p.lengths, p.h, p.c = map(address, (bias, short, *given))
    p.y, p.last_h, p.last_c = map(address, (y, *last))
    p.clip, p.bits = of.clip, bits
    found = ctypes.CDLL(str(native.path()))
    assert found.onnxq_recurrent_size() == ctypes.sizeof(Problem)
    assert found.onnxq_recurrent(isa.encode(), ctypes.byref(p), ctypes.c_int32(threads)) == 0
    return Made(y, last[0], last[1] if of.cell == LSTM else None)


def kernel_for(isa: str) -> str:
    """The name of the kernel that computes layers."""
    found = ctypes.CDLL(str(native.path()))
    found.onnxq_recurrent_kernel_for.restype = ctypes.c_char_p
    return found.onnxq_recurrent_kernel_for(isa.encode()).decode()


# --- the reference ----------------------------------------------------------------------------------------------------

#: What the unit roundoff of float32 is, and how far gates are from what they are by definition.
ROUNDOFF, GATE = 2.0**-24, 2.0**-20


@dataclass
class Number:
    """Numbers in float64, and how far those of a kernel may be from them: by sums and products of errors, and by the
    slopes of activation functions, which are at most 1/4 and 1. An operation in float32 adds its roundoff."""

    value: NDArray[np.float64]
    error: NDArray[np.float64] | float = 0.0

    def _rounded(self) -> Number:
        return Number(self.value, self.error + ROUNDOFF * (np.abs(self.value) + self.error))

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value, self.error + other.error)._rounded()

    def __sub__(self, other: Number) -> Number:
        return Number(self.value - other.value, self.error + other.error)._rounded()

    def __mul__(self, other: Number) -> Number:
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return Number(self.value * other.value, error)._rounded()

    def clipped(self, clip: float) -> Number:
        return Number(np.clip(self.value, -clip, clip), self.error)

    def sigmoid(self) -> Number:
        with np.errstate(over="ignore"):
            return Number(1 / (1 + np.exp(-self.value)), self.error / 4 + GATE)

    def tanh(self) -> Number:
        return Number(np.tanh(self.value), self.error + GATE)

    def times(self, w: NDArray[np.float64], bits: int) -> Number:
        """Rows of codes of these numbers times wᵀ: off by half a step of a row's largest number, and by six roundings:
        of that step and its inverse, of the two sums and of both scales."""
        most = 127 if bits == 8 else 127 * 128
        size = np.abs(self.value) + self.error
        step = size.max(-1, keepdims=True) / most
        off = self.error + step * (0.5 + 4 * most * ROUNDOFF) + 6 * ROUNDOFF * size
        return Number(self.value @ w.T, off @ np.abs(w).T)

    def rows(self, these: Any) -> Number:
        error = self.error if isinstance(self.error, float) else self.error[these]
        return Number(self.value[these], error)


def reference(
    of: Layer,
    x: NDArray[np.float32],
    h: NDArray[np.float32] | None = None,
    c: NDArray[np.float32] | None = None,
    *,
    lengths: Sequence[int] | None = None,
    bits: int = 15,
    after: Made | None = None,
) -> tuple[Made, Made]:
    """In float64, by the definition of ONNX's operators, with the weights that codes stand for; and the bounds.

    Args:
        after: what a kernel made. Each step begins with the h that the kernel had, so that bounds are those of a step:
            those of many grow without one.
    """
    steps, batch, _ = x.shape
    made, bound = (_empty(of, steps, batch) for _ in range(2))
    for d in range(of.directions):
        for b in range(batch):
            state = [Number(np.zeros(of.h) if each is None else each[d, b].astype(np.float64)) for each in (h, c)]
            length = steps if lengths is None else lengths[b]
            if length == 0:
                continue  # onnxruntime gives zeros
            times = range(length)[::-1] if of.backward >> d & 1 else range(length)
            for t in times:
                state = _step(of, d, Number(x[t, b].astype(np.float64)), state, bits)
                made.y[t, d, b], bound.y[t, d, b] = state[0].value, state[0].error
                if after is not None:
                    state[0] = Number(after.y[t, d, b].astype(np.float64))
            made.h[d, b], bound.h[d, b] = made.y[t, d, b], bound.y[t, d, b]
            if made.c is not None and bound.c is not None:
                made.c[d, b], bound.c[d, b] = state[1].value, state[1].error
    return made, bound


def _empty(of: Layer, steps: int, batch: int) -> Made:
    shape = (of.directions, batch, of.h)
    return Made(np.zeros((steps, *shape)), np.zeros(shape), np.zeros(shape) if of.cell == LSTM else None)


def _step(of: Layer, d: int, x: Number, state: list[Number], bits: int) -> list[Number]:
    gates, size = GATES[of.cell], of.h
    w, r = (q.dequantize(np.float64).reshape(of.directions, gates * size, -1)[d] for q in (of.weight, of.recurrence))
    of_x, of_h = (Number(each.astype(np.float64)) for each in of.both[d].reshape(2, gates * size))
    h, c = state

    def gate(g: int) -> slice:
        return slice(g * size, (g + 1) * size)

    from_x = x.times(w, bits)
    if of.cell in (GRU, LINEAR_BEFORE_RESET):
        from_h = h.times(r[: 2 * size] if of.cell == GRU else r, bits)
        update, reset = (
            (from_x.rows(gate(g)) + from_h.rows(gate(g)) + (of_x + of_h).rows(gate(g))).clipped(of.clip).sigmoid()
            for g in (0, 1)
        )
        if of.cell == GRU:
            sums = from_x.rows(gate(2)) + (reset * h).times(r[2 * size :], bits) + (of_x + of_h).rows(gate(2))
        else:
            sums = from_x.rows(gate(2)) + of_x.rows(gate(2)) + reset * (from_h.rows(gate(2)) + of_h.rows(gate(2)))
        fresh = sums.clipped(of.clip).tanh()
        return [update * (h - fresh) + fresh, c]
    from_h = h.times(r, bits)
    sums = (from_x + from_h + (of_x + of_h)).clipped(of.clip)
    if of.cell == RNN:
        return [sums.tanh(), c]
    i, o, f = (sums.rows(gate(g)).sigmoid() for g in (0, 1, 2))
    c = f * c + i * sums.rows(gate(3)).tanh()
    return [o * c.tanh(), c]
