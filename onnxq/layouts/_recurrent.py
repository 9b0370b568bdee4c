"""Tiles of recurrent layers: all gates of 16 numbers of the state together, so that what is done with the gates of a
number is done in registers.

A weight of D directions and G gates is [D · G · H, K], rows of a direction one after the other, in ONNX's order of
gates; of one direction also [1, G · H, K], as ONNX has it. T = ceil(H / 16).

    weight  [D, T, ceil(K/4), G, 16, 4]   codes with 128 added: 64 bytes hold four k of one gate
    scales  [D, T, G, 16]                 one for each row

Numbers behind H have scale 0; k behind K hold the code of zero.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.layouts._layout import Form, Layout, Outline
from onnxq.layouts._rows import Bytes, signed, unsigned
from onnxq.layouts._tiles import ROWS

WIDTH = 8


def recurrent_tiles(directions: int, gates: int) -> Layout:
    """The codes of a weight in int8 with one scale a row."""

    def form(w: Outline) -> Form:
        return Form(np.dtype(np.uint8), _tiled(directions, gates, w.rows, w.k))

    def pack(q: QuantizedTensor) -> Bytes:
        rows, k = math.prod(q.codes.shape[:-1]), q.codes.shape[-1]
        shape = _tiled(directions, gates, rows, k)
        tiles = np.full((directions, gates, shape[1] * ROWS, shape[2] * 4), 1 << (WIDTH - 1), np.uint8)
        h = rows // directions // gates
        tiles[:, :, :h, :k] = unsigned(q.codes, WIDTH).reshape(directions, gates, h, k)
        cut = tiles.reshape(directions, gates, shape[1], ROWS, shape[2], 4)
        return np.ascontiguousarray(cut.transpose(0, 2, 4, 1, 3, 5))

    return Layout(pack, form)


def recurrent_scales(directions: int, gates: int) -> Layout:
    """Its scales in float32."""

    def form(w: Outline) -> Form:
        return Form(np.dtype(np.float32), (directions, _tiled(directions, gates, w.rows, 1)[1], gates, ROWS))

    def pack(q: QuantizedTensor) -> NDArray[np.float32]:
        scales = arguments.present(q.scales, "scales").reshape(directions, gates, -1)
        h = scales.shape[2]
        padded = np.zeros((directions, gates, -(-h // ROWS) * ROWS), np.float32)
        padded[:, :, :h] = scales
        return np.ascontiguousarray(padded.reshape(directions, gates, -1, ROWS).transpose(0, 2, 1, 3))

    return Layout(pack, form)


def from_recurrent_tiles(weight: Bytes, scales: NDArray[np.float32], *, h: int, k: int) -> QuantizedTensor:
    """The [D · G · H, K] weight that the two layouts above packed.

    Args:
        weight, scales: as they pack them.
        h, k: numbers of the state, and those that are summed up.

    Raises:
        ValueError: arrays whose shapes are not those of `h` and `k`.
    """
    arguments.count((h, k))
    if weight.ndim != 6 or min(weight.shape) < 1:
        raise ValueError(f"tiles are [directions, tiles, fours of k, gates, 16, 4], not {list(weight.shape)}")
    directions, gates = weight.shape[0], weight.shape[3]
    wanted = _tiled(directions, gates, directions * gates * h, k)
    arguments.require_shape("tiles", arguments.raw("tiles", weight), wanted)
    arguments.require_shape("scales", scales, (directions, wanted[1], gates, ROWS))
    rows = weight.transpose(0, 3, 1, 4, 2, 5).reshape(directions, gates, wanted[1] * ROWS, wanted[2] * 4)
    codes = signed(np.ascontiguousarray(rows[:, :, :h, :k]).reshape(-1, k), WIDTH)
    steps = scales.transpose(0, 2, 1, 3).reshape(directions, gates, -1)[:, :, :h]
    return QuantizedTensor(formats.get("int8"), Granularity(0), codes, np.ascontiguousarray(steps).reshape(-1))


def _tiled(directions: int, gates: int, rows: int, k: int) -> tuple[int, ...]:
    h = rows // max(1, directions * gates)
    return (directions, -(-h // ROWS), -(-k // 4), gates, ROWS, 4)
