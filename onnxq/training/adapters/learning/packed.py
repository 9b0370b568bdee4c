"""A frozen matrix in its codes as a module of torch: unpacked some rows at a time, forward and again backward.

The matrix lies as [N, K], codes of at most 4 bits two in a byte. A product by it keeps nothing for its gradient: rows
are unpacked once more then, so that the floats of a whole matrix are never there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.encoding.lazy import GivenTensor, turned
from onnxq.formats import QuantizedTensor

#: Weights that are unpacked at a time.
SLAB = 1 << 20


class PackedMatrix(torch.nn.Module):  # type: ignore[misc]
    """A quantized matrix [N, K].

    Args:
        q: the matrix; its codes may be views, which are copied.
    """

    def __init__(self, q: QuantizedTensor) -> None:
        super().__init__()
        self.rows, self.columns = q.shape
        self._whole = None if _is_simple(q) else q
        self.register_buffer("place", torch.empty(0))  # knows the device
        if self._whole is None:
            self._pack(q)

    @staticmethod
    def of(tensor: GivenTensor, *, turn: bool) -> PackedMatrix:
        """What `tensor` stands for, or its transpose."""
        q = tensor.given()
        return PackedMatrix(turned(q) if turn else q)

    def _pack(self, q: QuantizedTensor) -> None:
        format, how = q.format, q.granularity
        block = how.block if how.block is not None else self.columns
        self.block = max(1, min(block, self.columns))
        groups = -(-self.columns // self.block)
        low = -(1 << (format.bits - 1)) if format.levels is None and format.code_type.kind == "i" else 0
        levels = np.arange(1 << format.bits, dtype=np.float32) + low if format.levels is None else format.levels
        self.is_short = format.bits <= 4
        width = groups * self.block + (groups * self.block) % 2
        codes: NDArray[Any] = np.zeros((self.rows, width), np.uint8)
        codes[:, : self.columns] = (q.codes - np.asarray(low, q.codes.dtype)).astype(np.uint8) if low else q.codes
        if self.is_short:
            codes = codes[:, ::2] | codes[:, 1::2] << 4
        self.register_buffer("codes", torch.from_numpy(codes))
        self.register_buffer("levels", torch.from_numpy(np.array(levels, np.float32)))
        self.register_buffer("scales", _each(q.scales, self.rows, groups))
        self.register_buffer("zeros", _each(q.zero_points, self.rows, groups))

    @property
    def nbytes(self) -> int:
        """Of codes, scales and zero points."""
        if self._whole is not None:
            return self._whole.nbytes
        return sum(each.numel() * each.element_size() for each in self.buffers())

    def floats(self, rows: Any) -> torch.Tensor:
        """Some rows in float32.

        Args:
            rows: a slice, or a tensor of indices in one dimension.
        """
        if self._whole is not None:
            return torch.from_numpy(np.array(self._whole.dequantize(), np.float32)).to(self.place.device)[rows]
        codes = self.codes[rows]
        if self.is_short:
            codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)
        groups = self.scales.shape[1]
        x = self.levels[codes[:, : groups * self.block].int()].view(len(codes), groups, self.block)
        if self.zeros is not None:
            x -= self.zeros[rows][:, :, None]
        x *= self.scales[rows][:, :, None]
        return x.flatten(1)[:, : self.columns]

    def slabs(self) -> list[slice]:
        """All rows, so many together as are unpacked at a time."""
        step = max(1, SLAB // max(1, self.columns))
        return [slice(start, min(self.rows, start + step)) for start in range(0, self.rows, step)]

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x · Wᵀ, of [..., K]."""
        made: torch.Tensor = _Product.apply(x, self)
        return made

    def lookup(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows at `indices`, of any shape; negative ones count from the back."""
        flat = indices.reshape(-1).long()
        flat = torch.where(flat < 0, flat + self.rows, flat)
        return self.floats(flat).reshape(*indices.shape, self.columns)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: PackedMatrix) -> torch.Tensor:
        ctx.w = w
        parts = [x @ w.floats(rows).to(x.dtype).T for rows in w.slabs()]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        total: torch.Tensor | None = None
        for rows in ctx.w.slabs():
            part = gradient[..., rows] @ ctx.w.floats(rows).to(gradient.dtype)
            total = part if total is None else total.add_(part)
        return total, None


def _is_simple(q: QuantizedTensor) -> bool:
    """Whether a weight is its scale times what its code indexes, less a zero point, scales lying along rows."""
    format, how = q.format, q.granularity
    if format.has_minimum or format.bits > 8 or q.scales is None or format.super_block is not None:
        return False
    along_rows = how.axis in (None, 0) if how.block is None else how.axis == 1
    return along_rows and (format.levels is not None or format.is_integer)


def _each(numbers: Any, rows: int, groups: int) -> torch.Tensor | None:
    """Scales or zero points as one for each group of each row; None where there are none."""
    if numbers is None:
        return None
    array = np.asarray(numbers).astype(np.float32)
    if array.ndim < 2:
        array = array.reshape(-1, 1)
    return torch.from_numpy(np.array(np.broadcast_to(array, (rows, groups))))
