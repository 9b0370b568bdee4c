"""Weights and activations on their grids, whose codes and scales are parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxq.fake_quant import torch_functions
from onnxq.formats import QuantizedTensor
from onnxq.planning.scales import CODES, Scale

#: Scales and ranges are learned as their logarithm, in tenths: a step of the size that suits codes moves them by
#: a tenth of that share of themselves.
TENTH = 0.1


class _Nearest(torch.autograd.Function):  # type: ignore[misc]
    """The nearest level, with the straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, levels: Tensor) -> Tensor:
        middles = (levels[1:] + levels[:-1]) / 2
        ctx.save_for_backward((x >= levels[0]) & (x <= levels[-1]))
        return levels[torch.bucketize(x, middles)]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None


class _Steps(torch.autograd.Function):  # type: ignore[misc]
    """s · (code − z) of places between the ends of the grid, with the straight-through gradient, and s its own.

    One function for what would be a dozen operations: each reads and writes as much as the weight has.
    """

    @staticmethod
    def forward(ctx: Any, place: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        steps = torch.round(place).sub_(zero)
        ctx.save_for_backward(steps, scale)
        return steps * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        steps, scale = ctx.saved_tensors
        of_place = gradient * scale if ctx.needs_input_grad[0] else None
        of_scale = (gradient * steps).sum_to_size(scale.shape) if ctx.needs_input_grad[1] else None
        return of_place, of_scale, None


class _Half(torch.autograd.Function):  # type: ignore[misc]
    """A scale as float16 holds it, the gradient as if it held everything."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.to(torch.float16).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class LearnedWeight(torch.nn.Module):  # type: ignore[misc]
    """A weight s · (code − z), or s times the level that a code names.

    What is learned of codes is where in steps (or levels) a weight lies: rounding gives the code. It starts where the
    float weight lies, or as near to that as its first code allows, which some algorithm may have chosen otherwise.

    Args:
        start: the codes to start from, in whatever shape the file has them.
        w: the float weight.
        is_turned: the codes are those of the transpose of a matrix.
        beside: what is added to them and stays, of the weight's shape; None: nothing is.
        moves: how far codes may move from where the float weight lies, in steps; None: as far as they like.
        scales: whether scales are learned.

    Raises:
        ValueError: codes of this format cannot be learned (`can_learn`).
    """

    def __init__(
        self,
        start: QuantizedTensor,
        w: NDArray,
        *,
        moves: float | None,
        codes: bool,
        scales: bool,
        is_turned: bool = False,
        beside: NDArray | None = None,
    ) -> None:
        super().__init__()
        if not can_learn(start):
            raise ValueError(f"codes of {start.format.name} cannot be learned")
        self.start, self.moves, self.dtype = start, moves, torch.from_numpy(w[:0]).dtype
        self.shape, self.is_turned = w.shape, is_turned
        w = w if beside is None else w - beside
        self.register_buffer("beside", None if beside is None else torch.from_numpy(np.array(beside, np.float32)))
        lying = torch.from_numpy(np.array(w.T if is_turned else w, np.float32, order="C")).reshape(start.shape)
        assert start.scales is not None
        self.half = start.scales.dtype == np.float16
        self.register_buffer("scale", torch.from_numpy(np.array(start.scales, np.float32)))
        zero = np.array([0] if start.zero_points is None else start.zero_points, np.float32)
        self.register_buffer("zero", torch.from_numpy(zero))
        spread = self._spread(lying, self.scale)
        spread = torch.where(spread == 0, torch.ones_like(spread), spread)
        place = lying / spread
        self.register_buffer("levels", torch.zeros(0))
        if start.format.levels is None:
            info = _limits(start)
            self.low, self.high = info
            codes_ = torch.from_numpy(start.codes.astype(np.float32))
            place = place + self._spread(place, self.zero)
            place = torch.minimum(torch.maximum(place, codes_ - 0.35), codes_ + 0.35).clamp_(self.low, self.high)
        else:
            order = np.argsort(start.format.levels)
            self.levels = torch.from_numpy(np.array(start.format.levels[order], np.float32))
            place = self._inside(place, torch.from_numpy(np.argsort(order)[start.codes.astype(np.int64)]))
        #: Between neighbouring codes, on average.
        self.step = float((self.levels[-1] - self.levels[0]) / (len(self.levels) - 1)) if len(self.levels) else 1.0
        if moves is not None:
            self.register_buffer("origin", place.clone())
        self.place = torch.nn.Parameter(place, requires_grad=codes)
        self.stretch = torch.nn.Parameter(torch.zeros_like(self.scale), requires_grad=scales)

    def _inside(self, place: Tensor, rank: Tensor) -> Tensor:
        """Moved into the cell of the level of this rank."""
        middles = (self.levels[1:] + self.levels[:-1]) / 2
        ends = torch.cat([self.levels[:1] - 1, middles, self.levels[-1:] + 1])
        low, high = ends[rank], ends[rank + 1]
        edge = 0.15 * (high - low)
        return torch.minimum(torch.maximum(place, low + edge), high - edge)

    def _spread(self, x: Tensor, parameter: Tensor) -> Tensor:
        how = self.start.granularity
        return parameter if parameter.numel() == 1 else torch_functions.spread(x, parameter, how.axis, how.block)

    @property
    def scales(self) -> Tensor:
        """As the file will hold them."""
        found = self.scale * torch.exp(TENTH * self.stretch)
        return _Half.apply(found) if self.half else found

    def forward(self, _: Any = None) -> Tensor:
        w = self._weight()
        if self.is_turned:
            w = w.reshape(self.shape[::-1]).T
        elif w.shape != self.shape:
            w = w.reshape(self.shape)
        return (w if self.beside is None else w + self.beside).to(self.dtype)

    def axis(self, axis: int) -> int | None:
        """Of the codes, the one that is this axis of the weight; None: none of them is."""
        axis, shape = axis % len(self.shape), self.start.shape
        if self.is_turned:
            return 1 - axis if len(shape) == 2 else None
        is_same = shape[: axis + 1] == self.shape[: axis + 1] or shape == self.shape
        return axis if is_same else None

    def _weight(self) -> Tensor:
        if len(self.levels):
            return self._spread(self.place, self.scales) * _Nearest.apply(self.place, self.levels)
        place, how = self.place, self.start.granularity
        if how.axis is None or how.block is None or place.shape[how.axis] % how.block:
            return _Steps.apply(place, self._spread(place, self.scales), self._spread(place, self.zero))
        axis = how.axis % place.dim()
        blocks = place.unflatten(axis, (-1, how.block))
        scale, zero = (x.unsqueeze(axis + 1) if x.numel() > 1 else x for x in (self.scales, self.zero))
        return _Steps.apply(blocks, scale, zero).flatten(axis, axis + 1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def limit(self) -> None:
        """Bring codes back that went too far; what lies outside of the grid is brought to its ends, from where
        gradients still lead it back."""
        if self.moves is not None:
            far = self.moves * self.step
            self.place.copy_(torch.minimum(torch.maximum(self.place, self.origin - far), self.origin + far))
        low, high = (self.levels[0], self.levels[-1]) if len(self.levels) else (self.low, self.high)
        self.place.clamp_(low, high)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def result(self) -> QuantizedTensor:
        """The codes and scales that were learned."""
        start, scales = self.start, self.scales.cpu().numpy()
        assert start.scales is not None
        if len(self.levels):
            middles = (self.levels[1:] + self.levels[:-1]) / 2
            rank = torch.bucketize(self.place, middles).cpu().numpy()
            codes = np.argsort(start.format.levels)[rank]  # type: ignore[arg-type]
        else:
            codes = torch.clamp(torch.round(self.place), self.low, self.high).cpu().numpy()
        made = codes.astype(start.codes.dtype).reshape(start.codes.shape)
        scales = scales.astype(start.scales.dtype).reshape(start.scales.shape)
        return QuantizedTensor(start.format, start.granularity, made, scales, start.zero_points)


def can_learn(q: QuantizedTensor) -> bool:
    """Whether codes of this format, and their scales, can be learned: integers or levels, with scales that are floats
    and stand for themselves."""
    format = q.format
    is_plain = q.scales is not None and q.scales.dtype in (np.float32, np.float16) and q.nested is None
    has_codes = format.levels is not None or (format.is_integer and format.bits <= 16)
    is_free = not format.powers_of_two and not format.has_minimum and format.base is None
    return is_plain and has_codes and is_free and _is_plain_decode(q)


def _is_plain_decode(q: QuantizedTensor) -> bool:
    """Whether a few of its numbers are what scales and codes say."""
    if q.scales is None or not q.codes.size:
        return False
    z: Any = 0 if q.zero_points is None else q.granularity.spread(q.zero_points, q.shape).astype(np.float32)
    if q.format.levels is not None:
        value = np.asarray(q.format.levels, np.float32)[q.codes.astype(np.int64)]
    else:
        value = q.codes.astype(np.float32) - z
    found = value * q.granularity.spread(q.scales, q.shape).astype(np.float32)
    return bool(np.allclose(found, q.dequantize(), rtol=1e-5, atol=0))


def _limits(q: QuantizedTensor) -> tuple[float, float]:
    """The lowest and highest code: symmetric ones leave the lowest out where the codes do."""
    bits, is_signed = q.format.bits, q.codes.dtype.kind == "i"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    if q.format.lowest is not None:
        low = q.format.lowest
    elif is_signed and q.format.name == "int8":
        low = -127
    return float(low), float(high)


class LearnedRange(torch.nn.Module):  # type: ignore[misc]
    """An activation on 8 or 16 bits, s · (code − z), of which s may be learned (LSQ) and z stays."""

    def __init__(self, start: Scale, *, learns: bool) -> None:
        super().__init__()
        self.format, self._codes = start.format, CODES[start.format]
        self.register_buffer("scale", torch.tensor(start.scale, dtype=torch.float32))
        self.register_buffer("zero", torch.tensor(float(start.zero_point)))
        self.stretch = torch.nn.Parameter(torch.zeros(()), requires_grad=learns)

    def forward(self, x: Tensor) -> Tensor:
        scale, zero = self.scale.to(x.dtype), self.zero.to(x.dtype)
        if not self.stretch.requires_grad:
            return torch_functions.FakeQuantize.apply(x, scale, zero, *self._codes)
        scale = scale * torch.exp(TENTH * self.stretch).to(x.dtype)
        # Of the paper: without it the gradient of one scale grows with the numbers that share it.
        factor = 1 / (x.numel() * self._codes[1]) ** 0.5
        return torch_functions.LearnedScale.apply(x, scale, zero, *self._codes, factor)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def result(self) -> Scale:
        """What was learned."""
        return Scale(float(self.scale * torch.exp(TENTH * self.stretch)), int(self.zero), self.format)
