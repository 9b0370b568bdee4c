"""Pictures in another size: along each axis a sum of neighbours, whose weights ONNX's specification gives."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxq.training.graph.operators import Call, as_list, operator


@operator("Upsample", constants=[1])
def upsample(call: Call, x: Tensor, scales: Tensor | None = None) -> Tensor:
    given = call.get("scales") if scales is None else scales.tolist()
    sizes = [math.floor(n * factor) for n, factor in zip(x.shape, given, strict=True)]
    return _resized(call, x, range(x.ndim), sizes, given, "asymmetric")


@operator("Resize", constants=[1, 2, 3])
def resize(
    call: Call, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None
) -> Tensor:
    if call.opset < 11:
        return upsample(call, x, roi)
    axes = [axis % x.ndim for axis in call.get("axes") or range(x.ndim)]
    how = call.get("coordinate_transformation_mode", "half_pixel")
    if how == "tf_crop_and_resize" or call.get("antialias", 0):
        raise call.refuse("it crops or smooths while it resizes")
    if sizes is not None and sizes.numel():
        wanted = as_list(sizes)
        factors = [n / x.shape[axis] for n, axis in zip(wanted, axes, strict=True)]
        if (policy := call.get("keep_aspect_ratio_policy", "stretch")) != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            wanted = [math.floor(factor * x.shape[axis] + 0.5) for axis in axes]
    else:
        assert scales is not None
        factors = scales.tolist()
        wanted = [math.floor(x.shape[axis] * factor) for axis, factor in zip(axes, factors, strict=True)]
    return _resized(call, x, axes, wanted, factors, how)


def _resized(
    call: Call, x: Tensor, axes: range | list[int], sizes: list[int], factors: list[float], how: str
) -> Tensor:
    for axis, size, factor in zip(axes, sizes, factors, strict=True):
        if size == x.shape[axis] and factor == 1:
            continue
        places = _places(size, x.shape[axis], factor, how)
        if call.get("mode", "nearest") == "nearest":
            index = _nearest(places, call.get("nearest_mode", "round_prefer_floor" if how != "asymmetric" else "floor"))
            where = torch.from_numpy(np.clip(index, 0, x.shape[axis] - 1)).to(x.device)
            x = x.index_select(axis, where)
        else:
            weights = torch.from_numpy(_weights(call, places, x.shape[axis])).to(x)
            x = torch.matmul(x.movedim(axis, -1), weights.T).movedim(-1, axis)
    return x


def _places(size: int, old: int, factor: float, how: str) -> NDArray[np.float64]:
    """Where in the old axis each number of the new one lies."""
    i = np.arange(size, dtype=np.float64)
    if how == "asymmetric":
        return i / factor
    if how == "align_corners":
        return i * (old - 1) / (size - 1) if size > 1 else np.zeros(1)
    if how == "pytorch_half_pixel" and size <= 1:
        return np.zeros(size)
    if how == "tf_half_pixel_for_nn":
        return (i + 0.5) / factor
    if how == "half_pixel_symmetric":
        adjusted = size / (factor * old)
        return old / 2 * (1 - adjusted) + (i + 0.5) / factor - 0.5
    return (i + 0.5) / factor - 0.5


def _nearest(places: NDArray[np.float64], how: str) -> NDArray[np.int64]:
    if how == "floor":
        found = np.floor(places)
    elif how == "ceil":
        found = np.ceil(places)
    elif how == "round_prefer_ceil":
        found = np.floor(places + 0.5)
    else:
        found = np.ceil(places - 0.5)
    return found.astype(np.int64)


def _weights(call: Call, places: NDArray[np.float64], old: int) -> NDArray[np.float64]:
    """[new, old]: what each old number adds to each new one."""
    first = np.floor(places)
    t = places - first
    if call.get("mode") == "linear":
        taps, shares = (0, 1), (1 - t, t)
    else:
        taps, shares = (-1, 0, 1, 2), _cubic(t, call.get("cubic_coeff_a", -0.75))  # type: ignore[assignment]
    found = np.zeros((len(places), old))
    for tap, share in zip(taps, shares, strict=True):
        where = first.astype(np.int64) + tap
        if call.get("exclude_outside", 0):
            share = np.where((where < 0) | (where >= old), 0, share)
        np.add.at(found, (np.arange(len(places)), np.clip(where, 0, old - 1)), share)
    return found / found.sum(1, keepdims=True) if call.get("exclude_outside", 0) else found


def _cubic(t: NDArray[np.float64], a: float) -> tuple[NDArray[np.float64], ...]:
    """Source: Keys, Cubic Convolution Interpolation for Digital Image Processing (1981), equation 4."""
    return (
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    )


@operator("Crop")
def crop(call: Call, x: Tensor) -> Tensor:
    left, top, right, bottom = call.get("border")
    scale = call.get("scale")
    height = x.shape[2] - top - bottom if not scale else scale[0]
    width = x.shape[3] - left - right if not scale else scale[1]
    return x[:, :, top : top + height, left : left + width]


@operator("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(call.get("mode", "linear"), call.get("mode", "bilinear"))
    around = call.get("padding_mode", "zeros")
    return torch.nn.functional.grid_sample(x, grid, mode, around, bool(call.get("align_corners", 0)))


@operator("ImageScaler")
def image_scaler(call: Call, x: Tensor) -> Tensor:
    bias = torch.tensor(call.get("bias"), dtype=x.dtype, device=x.device)
    return x * call.get("scale", 1.0) + bias.reshape(1, -1, 1, 1)


@operator("Affine")
def affine(call: Call, x: Tensor) -> Tensor:
    return x * call.get("alpha", 1.0) + call.get("beta", 0.0)
