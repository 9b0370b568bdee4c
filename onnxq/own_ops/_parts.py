"""Shared by the bodies: lines of ONNX text that decode codes and scales."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.own_ops import Variant

FLOAT, INT32, UINT4 = (int(dtype) for dtype in (ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.UINT4))

#: Sizes as vectors of one element, from attributes.
K_AND_BLOCK = """
    k0 = Constant <value_int: int = @K> ()
    block0 = Constant <value_int: int = @block_size> ()
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    rest = Constant <value_ints = [-1]> ()
    k = Reshape (k0, rest)
    block = Reshape (block0, rest)
    first = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    each_k = Range (first, k0, step)
    block_of_k = Div (each_k, block0)"""
#: And of tiles: the scales are [T, blocks, 16].
TILES = f"""{K_AND_BLOCK}
    n0 = Constant <value_int: int = @N> ()
    n = Reshape (n0, rest)
    scales_shape = Shape (scales)
    blocks = Slice (scales_shape, one, two)
    kp = Mul (blocks, block)"""


def nibbles(v: Variant, name: str, axis: int) -> list[str]:
    """`unpacked`: one code a byte, low nibbles first along `axis`."""
    if v.bits == 8:
        return [f"unpacked = Identity ({name})"]
    return [
        "fifteen = Constant <value = uint8 {15}> ()",
        "four = Constant <value = uint8 {4}> ()",
        f"low = BitwiseAnd ({name}, fifteen)",
        f'high = BitShift <direction = "RIGHT"> ({name}, four)',
        f"unpacked = Concat <axis = {axis}> (low, high)",
    ]


def scale_values(name: str, *, exponents: bool) -> list[str]:
    """`scale`: scales as float32. Exponents u stand for 2^(u − 127)."""
    if not exponents:
        return [f"scale = Cast <to = {FLOAT}> ({name})"]
    return [
        f"exponent = Cast <to = {FLOAT}> ({name})",
        "exponent_of_one = Constant <value = float {127}> ()",
        "power = Sub (exponent, exponent_of_one)",
        "base = Constant <value = float {2}> ()",
        "scale = Pow (base, power)",
    ]


def level_values(table: NDArray[np.float32], codes: str) -> list[str]:
    """`value`: the levels that codes index."""
    return [
        f"levels = Constant <value = {vector(table)}> ()",
        f"index = Cast <to = {INT32}> ({codes})",
        "value = Gather (levels, index)",
    ]


def middle_values(middle: int, codes: str) -> list[str]:
    """`value`: signed numbers from codes in which `middle` stands for zero."""
    return [
        f"code = Cast <to = {FLOAT}> ({codes})",
        f"middle = Constant <value = float {{{middle}}}> ()",
        "value = Sub (code, middle)",
    ]


def shifted_values(codes: str, zero_points: str, axis: int) -> list[str]:
    """`value`: codes less the zero points of their blocks, which lie along `axis`."""
    return [
        f"code = Cast <to = {FLOAT}> ({codes})",
        f"zeros = Cast <to = {FLOAT}> ({zero_points})",
        f"each_zero = Gather <axis = {axis}> (zeros, block_of_k)",
        "value = Sub (code, each_zero)",
    ]


def kernel_values(v: Variant, codes: str, zero_points: str, axis: int) -> list[str]:
    """`value`: what the codes of a kernel's format stand for, before the scale."""
    if v.decoded.levels is not None:
        return level_values(v.decoded.levels, codes)
    if v.zero_points:
        return shifted_values(codes, zero_points, axis)
    return middle_values(1 << (v.bits - 1), codes)


def scaled(axis: int) -> list[str]:
    """`w`: `value` times the `scale` of its block; blocks lie along `axis`."""
    return [f"each_scale = Gather <axis = {axis}> (scale, block_of_k)", "w = Mul (value, each_scale)"]


def vector(array: NDArray[np.float32]) -> str:
    """A float vector in ONNX's text form, exact."""
    return f"float[{array.size}] {{{', '.join(repr(float(x)) for x in array)}}}"
