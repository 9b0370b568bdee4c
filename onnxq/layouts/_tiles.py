"""Tiles of 16 rows: the bytes of the `onnxq` domain's own operators, made to be read by vector instructions.

Kp is K filled up to whole blocks; T = ceil(N / 16). One byte of 4-bit codes holds k = 8g + j in its low nibble and
k = 8g + 4 + j in its high one, so that masking and shifting four bytes each give four neighbours:

    weight [T, Kp/8, 16, 4]     row 16t + c:   k = 0 4 | 1 5 | 2 6 | 3 7      (byte j = 0…3: low, high nibble)
    weight [T, Kp/4, 16, 4]     8 bits:        k = 0   | 1   | 2   | 3
    scales, zero points [T, Kp/B, 16]

    weight [T, Kp/2, 16, 2]     bfloat16:  k = 0   | 1          (Kp: K filled up to a multiple of 32; no scales)

Rows behind N have scale 0; elements behind K hold the code that decodes to zero.

Weights of recurrent layers have all gates of 16 numbers of the state together, so that what is done with the gates of a
number is done in registers. Such a weight is [D · G · H, K] for D directions and G gates, rows of a direction one after
the other, in ONNX's order of gates; of one direction also [1, G · H, K], as ONNX has it. T = ceil(H / 16):

    weight [D, T, ceil(K/4), G, 16, 4], scales [D, T, G, 16]
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.formats import E8M0, Granularity, QuantizedTensor
from onnxq.formats.kinds import arguments
from onnxq.layouts._layout import Form, Layout, Outline, layout
from onnxq.layouts._plain import exponent_type, exponents
from onnxq.layouts._rows import Bytes, blocked, blocks_last, scales_by_row, signed, unsigned, zero_points_by_row

ROWS = 16
DENSE_BLOCK = 32
#: A standard operator, its attributes, and the constants that it reads besides.
Step = tuple[str, dict[str, list[int]], list[list[int]]]


def onnxq_width(q_bits: int) -> int:
    """Bits of a code in the tiles: 4 for formats of up to 4 bits, else 8.

    Args:
        q_bits: of a code of the format.
    """
    return 4 if q_bits <= 4 else 8


@layout(np.uint8, lambda w: (_tiles(w), w.blocks * w.block * onnxq_width(w.format.bits) // 32, ROWS, 4))
def onnxq_tiles(q: QuantizedTensor) -> Bytes:
    """The codes of a weight in blocks of a multiple of 16, [T, Kp/8, 16, 4] or, above 4 bits, [T, Kp/4, 16, 4].

    Signed codes are stored with 8 (128) added, whatever the format's own width.

    Raises:
        ValueError: other blocks, or codes of more than 8 bits.
    """
    _require_block(blocked(q)[1])
    if q.codes.dtype.itemsize != 1:
        raise ValueError(f"{q.format.name} has codes of {q.format.bits} bits; tiles hold 4 or 8")
    width = onnxq_width(q.format.bits)
    codes = blocks_last(q, q.codes)
    n, kp = len(codes), codes.shape[1] * codes.shape[2]
    rows = unsigned(codes.reshape(n, kp), width)
    tiles = np.empty((-(-n // ROWS) * ROWS, kp), np.uint8)
    tiles[:n] = rows
    tiles[n:] = _padding(q)
    if width == 8:
        return np.ascontiguousarray(tiles.reshape(len(tiles) // ROWS, ROWS, kp // 4, 4).transpose(0, 2, 1, 3))
    halves = tiles.reshape(len(tiles) // ROWS, ROWS, kp // 8, 2, 4)
    packed = halves[:, :, :, 0] | (halves[:, :, :, 1] << np.uint8(4))
    return np.ascontiguousarray(packed.transpose(0, 2, 1, 3))


@layout(np.uint8, lambda w: (_tiles(w), w.blocks * w.block // 8, ROWS, w.format.bits))
def few_bits_tiles(q: QuantizedTensor) -> Bytes:
    """The same tiles of codes of 2 or 3 bits, [T, Kp/8, 16, 2 or 3]: of 4-bit codes a to h, which are k = 0 to 7, those
    bits that tell what they are.

        byte 0   f f e e b b a a    (bits 1 and 0 of each)
        byte 1   h h g g d d c c
        byte 2   h g f e d c b a    (bit 2)

    With 8 added, bits 2 and 3 follow from bit 1 where codes have 2 bits, and bit 3 from bit 2 where they have 3.

    Raises:
        ValueError: other blocks, or codes of other widths.
    """
    bits = q.format.bits
    if bits not in (2, 3) or (bits == 3 and q.codes.dtype.kind == "u"):
        raise ValueError(f"{q.format.name} has codes of {bits} bits; these tiles hold 2, or 3 with a sign")
    wide = onnxq_tiles(q)
    low = wide & np.uint8(0x33)
    packed = np.empty((*wide.shape[:3], bits), np.uint8)
    packed[..., :2] = low[..., ::2] | (low[..., 1::2] << np.uint8(2))
    if bits == 3:
        packed[..., 2] = np.bitwise_or.reduce(((wide >> 2) & 0x11) << np.arange(4, dtype=np.uint8), axis=3)
    return packed


def from_few_bits_tiles(tiles: Bytes, *, signed: bool) -> Bytes:
    """The tiles of 4-bit codes that `few_bits_tiles` shortened.

    Args:
        tiles: [T, Kp/8, 16, 2 or 3].
        signed: whether codes had 8 added.

    Raises:
        ValueError: another shape.
    """
    if tiles.ndim != 4 or tiles.shape[3] not in (2, 3):
        raise ValueError(f"tiles of 2 or 3 bits are [tiles, Kp/8, 16, 2 or 3], not {list(tiles.shape)}")
    pairs = np.stack([tiles[..., :2], tiles[..., :2] >> np.uint8(2)], axis=-1)
    low: Bytes = pairs.reshape(*tiles.shape[:3], 4) & np.uint8(0x33)
    if not signed:
        return low
    if tiles.shape[3] == 2:
        negative = (low & 0x22) >> np.uint8(1)
    else:
        negative = (tiles[..., 2:] >> np.arange(4, dtype=np.uint8)) & 0x11
    return np.asarray(low | negative << np.uint8(2) | (negative ^ 0x11) << np.uint8(3), np.uint8)


def dense_tiles(rows: NDArray) -> NDArray:
    """Numbers of 16 bits, [N, K], as [T, Kp/2, 16, 2], zeros behind N and K.

    Args:
        rows: of the matrix, [N, K].
    """
    n, k = rows.shape
    padded = np.zeros((-(-n // ROWS) * ROWS, -(-k // DENSE_BLOCK) * DENSE_BLOCK), rows.dtype)
    padded[:n, :k] = rows
    return np.ascontiguousarray(
        padded.reshape(len(padded) // ROWS, ROWS, padded.shape[1] // 2, 2).transpose(0, 2, 1, 3)
    )


def from_dense_tiles(tiles: NDArray, *, n: int, k: int) -> NDArray:
    """The inverse of `dense_tiles`: [N, K].

    Args:
        tiles: numbers of 16 bits.
        n, k: outputs and inputs.

    Raises:
        ValueError: tiles of another shape than that of `n` and `k`.
    """
    arguments.count((n, k))
    wanted = (-(-n // ROWS), -(-k // DENSE_BLOCK) * DENSE_BLOCK // 2, ROWS, 2)
    arguments.require_shape("tiles", tiles, wanted)
    rows = tiles.transpose(0, 2, 1, 3).reshape(wanted[0] * ROWS, wanted[1] * 2)
    return np.ascontiguousarray(rows[:n, :k])


def steps_to_rows(tiles: tuple[int, ...], shape: tuple[int, ...]) -> list[Step] | None:
    """What makes a matrix of `shape` of its `dense_tiles`, in standard operators; None if those are of another one.

    Args:
        tiles: their shape.

    Raises:
        ValueError: a shape that is no tuple.
    """
    if not (isinstance(tiles, tuple) and isinstance(shape, tuple)):
        raise ValueError("shapes are tuples of sizes")
    if len(tiles) != 4 or len(shape) != 2:
        return None
    rows, columns = tiles[0] * tiles[2], tiles[1] * tiles[3]
    if not 0 <= rows - shape[0] < ROWS or columns < shape[1]:
        return None
    steps: list[Step] = [("Transpose", {"perm": [0, 2, 1, 3]}, []), ("Reshape", {}, [[rows, columns]])]
    return steps if (rows, columns) == shape else [*steps, ("Slice", {}, [[0, 0], list(shape)])]


def dense(k_axis: int) -> Layout:
    """`dense_tiles` of a matrix whose axis `k_axis` is K."""

    def form(w: Outline) -> Form:
        n, k = w.shape[1 - k_axis], w.shape[k_axis]
        return Form(w.format.code_type, (-(-n // ROWS), -(-k // DENSE_BLOCK) * DENSE_BLOCK // 2, ROWS, 2))

    return Layout(lambda q: dense_tiles(q.codes.T if k_axis == 0 else q.codes), form)


def _require_block(block: int) -> None:
    if block < 1 or block % 16:
        raise ValueError(f"tiles hold blocks of a multiple of 16 weights, not of {block}")


def _tiles(w: Outline) -> int:
    return -(-w.rows // ROWS)


def _padding(q: QuantizedTensor) -> int:
    """What rows behind N hold: of a codebook the code of zero, else the middle. Their scale is 0 anyway."""
    levels = q.format.levels
    return 1 << (onnxq_width(q.format.bits) - 1) if levels is None else int(np.abs(levels).argmin())


@layout(exponent_type, lambda w: (_tiles(w), w.blocks, ROWS))
def onnxq_scales(q: QuantizedTensor) -> NDArray:
    """[T, Kp/B, 16] in the type that the scales have; powers of two of 8 bits (E8M0) as the uint8 of their exponent."""
    return row_tiles(exponents(scales_by_row(q)))


@layout(np.uint8, lambda w: (_tiles(w), w.blocks, ROWS))
def onnxq_zero_points(q: QuantizedTensor) -> Bytes:
    """[T, Kp/B, 16], one byte each, of a format that has zero points."""
    return row_tiles(zero_points_by_row(q).astype(np.uint8, copy=False))


def from_onnxq_tiles(
    format: formats.Format,
    weight: Bytes,
    scales: NDArray,
    zero_points: Bytes | None,
    *,
    n: int,
    k: int,
    block: int,
) -> QuantizedTensor:
    """The [N, K] weight that the three functions above packed.

    Args:
        format: of the codes.
        weight, scales, zero_points: as `onnxq_tiles`, `onnxq_scales` and `onnxq_zero_points` pack them.
        n, k: outputs and inputs.
        block: inputs that share a scale, a multiple of 16.

    Raises:
        ValueError: arrays whose shapes are not those of `n`, `k` and `block`.
    """
    width = onnxq_width(format.bits)
    _require_block(block)
    arguments.count((n, k))
    rows_of_tiles, blocks = -(-n // ROWS), -(-k // block)
    wanted = (rows_of_tiles, blocks * block * width // 32, ROWS, 4)
    arguments.require_shape("tiles", arguments.raw("tiles", weight), wanted)
    for what, array in (("scales", scales), ("zero points", zero_points)):
        if array is not None:
            arguments.require_shape(what, array, (rows_of_tiles, blocks, ROWS))
    if width == 8:
        rows = weight.transpose(0, 2, 1, 3)
    else:
        rows = np.stack([weight & np.uint8(15), weight >> np.uint8(4)], axis=3).transpose(0, 2, 1, 3, 4)
    kp = -(-k // block) * block
    codes: NDArray = np.ascontiguousarray(rows.reshape(len(weight) * ROWS, kp)[:n, :k])
    if format.code_type == np.int8:
        codes = signed(codes, width)
    scales = from_row_tiles(scales, n)
    if format.scale_type == E8M0:
        scales = scales.view(E8M0)
    zeros = None if zero_points is None else from_row_tiles(zero_points, n)
    return QuantizedTensor(format, Granularity(1, block), codes, scales, zeros)


def row_tiles(array: NDArray) -> NDArray:
    """[rows, blocks] as [T, blocks, 16], zeros behind the last row."""
    n, blocks = array.shape
    tiles = np.zeros((-(-n // ROWS) * ROWS, blocks), array.dtype)
    tiles[:n] = array
    return np.ascontiguousarray(tiles.reshape(len(tiles) // ROWS, ROWS, blocks).transpose(0, 2, 1))


def from_row_tiles(tiles: NDArray, n: int) -> NDArray:
    """The inverse of `row_tiles`.

    Args:
        tiles: as that makes them.
        n: how many rows there were before they were filled up.
    """
    return np.ascontiguousarray(tiles.transpose(0, 2, 1).reshape(len(tiles) * ROWS, tiles.shape[1])[:n])


def recurrent_tiles(directions: int, gates: int) -> Layout:
    """The codes of a recurrent layer's weight in int8 with one scale a row.

    Args:
        directions, gates: of the layer.
    """

    def form(w: Outline) -> Form:
        return Form(np.dtype(np.uint8), _recurrent_shape(directions, gates, w.rows, w.k))

    def pack(q: QuantizedTensor) -> Bytes:
        rows, k = math.prod(q.codes.shape[:-1]), q.codes.shape[-1]
        shape = _recurrent_shape(directions, gates, rows, k)
        tiles = np.full((directions, gates, shape[1] * ROWS, shape[2] * 4), 128, np.uint8)
        h = rows // directions // gates
        tiles[:, :, :h, :k] = unsigned(q.codes, 8).reshape(directions, gates, h, k)
        cut = tiles.reshape(directions, gates, shape[1], ROWS, shape[2], 4)
        return np.ascontiguousarray(cut.transpose(0, 2, 4, 1, 3, 5))

    return Layout(pack, form)


def recurrent_scales(directions: int, gates: int) -> Layout:
    """Its scales in float32.

    Args:
        directions, gates: of the layer.
    """

    def form(w: Outline) -> Form:
        return Form(np.dtype(np.float32), (directions, _recurrent_shape(directions, gates, w.rows, 1)[1], gates, ROWS))

    def pack(q: QuantizedTensor) -> NDArray[np.float32]:
        scales = arguments.present(q.scales, "scales").reshape(directions, gates, -1)
        h = scales.shape[2]
        padded = np.zeros((directions, gates, -(-h // ROWS) * ROWS), np.float32)
        padded[:, :, :h] = scales
        return np.ascontiguousarray(padded.reshape(directions, gates, -1, ROWS).transpose(0, 2, 1, 3))

    return Layout(pack, form)


def from_recurrent_tiles(weight: Bytes, scales: NDArray[np.float32], *, n: int, k: int, gates: int) -> QuantizedTensor:
    """The [D · G · H, K] weight that the two layouts above packed.

    Args:
        weight, scales: as they pack them.
        n, k: numbers of the state, and those that are summed up.
        gates: of the layer.

    Raises:
        ValueError: arrays whose shapes are not those of `n`, `k` and `gates`.
    """
    if arguments.raw("tiles", weight).ndim != 6 or min(n, k, gates, *weight.shape) < 1:
        raise ValueError(f"tiles are [directions, tiles, fours of k, gates, 16, 4], not {list(weight.shape)}")
    directions = weight.shape[0]
    wanted = _recurrent_shape(directions, gates, directions * gates * n, k)
    arguments.require_shape("tiles", weight, wanted)
    arguments.require_shape("scales", scales, (directions, wanted[1], gates, ROWS))
    rows = weight.transpose(0, 3, 1, 4, 2, 5).reshape(directions, gates, wanted[1] * ROWS, wanted[2] * 4)
    codes = signed(np.ascontiguousarray(rows[:, :, :n, :k]).reshape(-1, k), 8)
    steps = scales.transpose(0, 2, 1, 3).reshape(directions, gates, -1)[:, :, :n]
    return QuantizedTensor(formats.get("int8"), Granularity(0), codes, np.ascontiguousarray(steps).reshape(-1))


def _recurrent_shape(directions: int, gates: int, rows: int, k: int) -> tuple[int, ...]:
    if directions < 1 or gates < 1 or rows % (directions * gates):
        raise ValueError(f"{rows} rows are not those of {directions} directions and {gates} gates")
    return (directions, -(-(rows // directions // gates) // ROWS), -(-k // 4), gates, ROWS, 4)
