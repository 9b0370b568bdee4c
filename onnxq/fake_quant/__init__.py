"""Fake quantization: rounding to a grid and back in the forward pass, a gradient that ignores the rounding.

For training with quantization in mind. Everything here is numpy; `torch_functions.py` holds the same as autograd
functions of torch, which is not needed otherwise.
"""

from __future__ import annotations

from onnxq.fake_quant.affine import (
    AffineGrid,
    backward,
    backward_lsq,
    codes,
    fit,
    forward,
    from_codes,
    grid_of,
    grid_over,
    inside,
)
from onnxq.fake_quant.learned_offset import (
    OffsetGrid,
    backward_offset,
    backward_range,
    fit_offset,
    forward_offset,
    offset_grid_over,
)
from onnxq.fake_quant.learned_scale import gradient_factor, initial_scale
from onnxq.fake_quant.observer import Observer

__all__ = [
    "AffineGrid",
    "Observer",
    "OffsetGrid",
    "backward",
    "backward_lsq",
    "backward_offset",
    "backward_range",
    "codes",
    "fit",
    "fit_offset",
    "forward",
    "forward_offset",
    "from_codes",
    "gradient_factor",
    "grid_of",
    "grid_over",
    "initial_scale",
    "inside",
    "offset_grid_over",
]
