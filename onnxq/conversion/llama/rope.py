"""By how much positions turn the queries and keys of a decoder, found in the constants of its graph.

Pair i of a head turns by position · frequency[i]; a Llama's frequencies are base ** (-2i / size), some divided by a
factor. Exporters store the frequencies, or tables of cosines and sines, one column a pair or each column twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.encoding.lazy import GivenTensor
from onnxq.model import graph

#: Pairs of a head: fewer are no head of any model, more are other tables.
_PAIRS = range(2, 257)
#: Relative rounding of frequencies in float32 and float16.
_SINGLE, _HALF = 1e-5, 2e-3
#: By how much angles of a table that was not quantized may be off.
_NEAR = 1e-3
#: Positions of a table that are looked at.
_PLACES = 256
Wide = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Cosines and sines that were quantized, and what they stand for."""

    cos: ir.Value
    sin: ir.Value
    angles: Wide


@dataclass(frozen=True, eq=False)
class Rope:
    """Attributes:
    base: of the frequencies.
    factors: [pairs] by which some are divided; None: none is.
    positions: that a table has; None: any.
    rounded: a table whose numbers were quantized.
    """

    frequencies: Wide
    base: float
    factors: NDArray[np.float32] | None
    positions: int | None = None
    rounded: Table | None = None

    @property
    def size(self) -> int:
        """Of a head, all of which turns."""
        return 2 * len(self.frequencies)


def find_ropes(model: ir.Model) -> list[Rope]:
    """All that the constants of a model may be, each once; those of tables first."""
    values = [value for each in graph.graphs(model) for value in each.initializers.values()]
    known = [(v, t) for v in values if (t := graph.constant(v)) is not None and t.dtype in graph.FLOATS]
    found: list[Rope] = []
    for rope in (*_tables(known), *_vectors(known)):
        same = [r for r in found if len(r.frequencies) == len(rope.frequencies)]
        if not any(np.allclose(r.frequencies, rope.frequencies, rtol=_HALF) for r in same):
            found.append(rope)
    return found


def sharpen(rope: Rope) -> None:
    """Let a table that was quantized hold what it stands for."""
    if rope.rounded is not None:
        for value, function in ((rope.rounded.cos, np.cos), (rope.rounded.sin, np.sin)):
            old = value.const_value
            assert old is not None
            made = function(rope.rounded.angles).astype(old.dtype.numpy()).reshape(old.shape.numpy())
            value.const_value = ir.tensor(made, name=value.name)


def _vectors(known: list[tuple[ir.Value, ir.TensorProtocol]]) -> Iterator[Rope]:
    for _, tensor in known:
        if tensor.size not in _PAIRS or max(tensor.shape.numpy(), default=0) != tensor.size:
            continue
        w = tensor.numpy().astype(np.float64).reshape(-1)
        if not np.isfinite(w).all() or abs(w[0] - 1) > _HALF or (w <= 0).any() or (np.diff(w) >= 0).any():
            continue
        same = _SINGLE if tensor.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else _HALF
        exact = (b for b in _bases(w) if np.allclose(_powers(b, len(w)), w, rtol=same, atol=0))
        base = next(exact, None)
        yield _scaled(w, None) if base is None else Rope(_powers(base, len(w)), base, None)


def _tables(known: list[tuple[ir.Value, ir.TensorProtocol]]) -> Iterator[Rope]:
    by_shape: dict[tuple[int, ...], list[tuple[ir.Value, Wide, float]]] = {}
    for value, tensor in known:
        shape = tuple(n for n in tensor.shape.numpy() if n != 1)
        if len(shape) == 2 and shape[0] and (shape[1] in _PAIRS or shape[1] // 2 in _PAIRS):
            w, error = tensor.numpy().reshape(shape), _error(tensor)
            first = w[0].astype(np.float64)
            if min(np.abs(first - 1).max(), np.abs(first).max()) <= max(error, _NEAR):  # cosines or sines of 0
                by_shape.setdefault(shape, []).append((value, w.astype(np.float64), error))
    for tables in by_shape.values():
        cos = next((t for t in tables if np.abs(t[1][0] - 1).max() <= max(t[2], _NEAR)), None)
        sin = next((t for t in tables if np.abs(t[1][0]).max() <= max(t[2], _NEAR)), None)
        rope = None if cos is None or sin is None else _of_tables(cos, sin)
        if rope is not None:
            yield rope


def _error(tensor: ir.TensorProtocol) -> float:
    """By how much the numbers of a constant may be off."""
    if not isinstance(tensor, GivenTensor):
        return 0.0
    scales = tensor.given().scales
    return 0.0 if scales is None else float(np.abs(scales.astype(np.float64)).max(initial=0))


def _of_tables(cos: tuple[ir.Value, Wide, float], sin: tuple[ir.Value, Wide, float]) -> Rope | None:
    angles, error = np.arctan2(sin[1], cos[1]), max(cos[2], sin[2])
    half, found = angles.shape[1] // 2, np.arange(angles.shape[1])
    for way in (np.tile(np.arange(half), 2), np.repeat(np.arange(half), 2)):
        first = np.unique(way, return_index=True)[1]
        if 2 * half == angles.shape[1] and np.abs(_wrapped(angles - angles[:, first[way]])).max() <= 2 * error + 1e-6:
            angles, found = angles[:, first], way
            break
    rope = _of_angles(angles, error) if angles.shape[1] in _PAIRS else None
    if rope is None or not error:
        return rope
    turns = np.outer(np.arange(len(angles)), rope.frequencies)[:, found]
    return Rope(rope.frequencies, rope.base, rope.factors, rope.positions, Table(cos[0], sin[0], turns))


def _of_angles(angles: Wide, error: float) -> Rope | None:
    """Frequencies of [positions, pairs] angles, each known but for whole turns and about `error`."""
    positions, pairs = angles.shape
    w, place = angles[min(1, positions - 1)].copy(), 2
    while place < min(positions, _PLACES):  # the angle of a later position tells more digits, and fewer turns
        w += _wrapped(angles[place] - place * w) / place
        place *= 2
    most, rows = _NEAR + 2 * error, np.arange(min(positions, _PLACES))[:, None]
    if (w <= 0).any() or abs(w[0] - 1) > most:
        return None

    def explains(frequencies: Wide) -> bool:
        return bool(np.abs(_wrapped(angles[: len(rows)] - rows * frequencies)).max() < most)

    base = next((b for b in _bases(w) if explains(_powers(b, pairs))), None)
    if base is not None:
        return Rope(_powers(base, pairs), base, None, positions)
    return _scaled(w, positions) if explains(w) and (np.diff(w) < 0).all() else None


def _wrapped(angles: Wide) -> Wide:
    """-π … π."""
    return np.remainder(angles + np.pi, 2 * np.pi) - np.pi


def _powers(base: float, pairs: int) -> Wide:
    return np.asarray(base ** (-np.arange(pairs) / pairs), np.float64)


def _bases(w: Wide) -> Iterator[float]:
    """What the frequencies are powers of, as few digits as may be first; only low frequencies are ever slowed down."""
    measured = float(w[1]) ** -len(w)
    if np.isfinite(measured):
        yield from dict.fromkeys(float(f"{measured:.{digits}e}") for digits in range(7))


def _scaled(w: Wide, positions: int | None) -> Rope:
    found = (b for b in _bases(w) if abs(b ** (-1 / len(w)) / w[1] - 1) < _SINGLE)
    base = next(found, float(w[1]) ** -len(w))
    return Rope(w, base, (_powers(base, len(w)) / w).astype(np.float32), positions)
