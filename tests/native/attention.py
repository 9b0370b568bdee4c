"""Attention behind its C ABI, and in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
from kernels import address
from numpy.typing import NDArray

from onnxq.runtime import native


class Head(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("q", "k", "v", "mask", "y"))


class Attention(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "S", "T", "D", "E")),
        ("head", ctypes.POINTER(Head)),
        *((name, ctypes.c_int64) for name in ("q_row", "v_token", "y_row", "k_token", "k_number")),
        *((name, ctypes.c_int64) for name in ("mask_row", "mask_token")),
        ("scale", ctypes.c_float),
        ("exact", ctypes.c_int32),
    )


def attention(  # noqa: PLR0913
    isa: str,
    qkv: Sequence[NDArray[np.float32]],
    mask: NDArray[np.float32] | None = None,
    *,
    scale: float = 1.0,
    exact: bool = False,
    turned: bool = True,
    joined: bool = False,
    threads: int = 1,
    place: Callable[[NDArray], NDArray] = np.ascontiguousarray,
) -> NDArray[np.float32]:
    """y [heads, S, E] by the kernel `isa` of q [heads, S, D], k [heads, T, D], v [heads, T, E], mask [S or 1, T or 1].

    Args:
        turned: k is given as it is; else with its last two dimensions exchanged.
        joined: a row of all heads lies in one piece, of q, k, v and y.
    """
    q, k, v = qkv
    (heads, rows, numbers), (_, tokens, outputs) = q.shape, v.shape
    mask = None if mask is None else place(mask)
    step = heads if joined else 1
    if joined:
        rows_of = [place(np.ascontiguousarray(each.swapaxes(0, 1)).reshape(each.shape[1], -1)) for each in (q, k, v)]
        y = place(np.full((rows, heads * outputs), np.nan, np.float32))
        widths = (numbers, numbers, outputs)
        at = [[_behind(x, i * w) for i in range(heads)] for x, w in zip(rows_of, widths, strict=True)]
        to = [_behind(y, i * outputs) for i in range(heads)]
    else:
        arrays = [[place(each[head]) for head in range(heads)] for each in (q, k if turned else k.swapaxes(1, 2), v)]
        y = place(np.full((heads, rows, outputs), np.nan, np.float32))
        at = [[address(each) for each in one] for one in arrays]
        to = [_behind(y, i * rows * outputs) for i in range(heads)]
    head = (Head * heads)(*(Head(*(each[i] for each in at), address(mask), to[i]) for i in range(heads)))
    strides = (step * numbers, step * outputs, step * outputs)
    p = Attention(heads, rows, tokens, numbers, outputs, head, *strides)
    p.k_token, p.k_number = (step * numbers, 1) if turned or joined else (1, tokens)
    if mask is not None:
        p.mask_row = 0 if mask.shape[0] == 1 else mask.shape[1]
        p.mask_token = 0 if mask.shape[1] == 1 else 1
    p.scale, p.exact = scale, exact
    found = ctypes.CDLL(str(native.path()))
    assert found.onnxq_attention_size() == ctypes.sizeof(Attention)
    assert found.onnxq_attention(isa.encode(), ctypes.byref(p), ctypes.c_int32(threads)) == 0
    return np.ascontiguousarray(y.reshape(rows, heads, outputs).swapaxes(0, 1)) if joined else y


def _behind(array: NDArray[np.float32], numbers: int) -> int:
    """The address of a number of `array`."""
    return (address(array).value or 0) + 4 * numbers


def kernel_for(isa: str, rows: int, outputs: int = 16) -> str:
    """The name of the kernel that computes such an attention."""
    p = Attention(1, rows, 1, 16, outputs)
    found = ctypes.CDLL(str(native.path()))
    found.onnxq_attention_kernel_for.restype = ctypes.c_char_p
    return found.onnxq_attention_kernel_for(isa.encode(), ctypes.byref(p)).decode()


def reference(
    q: NDArray, k: NDArray, v: NDArray, mask: NDArray | None = None, scale: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """y and the weights [heads, S, T], in float64."""
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * scale + (0 if mask is None else mask.astype(np.float64))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v, weights


def bound(
    q: NDArray, k: NDArray, v: NDArray, mask: NDArray | None, scale: float, *, exact: bool
) -> NDArray[np.float64]:
    """How far each y may lie from the reference.

    A score is off by e = (D + 2) u Σ |q| |k| scale + 4 u |score|, with u = 2^-24 (Higham, Accuracy and Stability of
    Numerical Algorithms, section 4.2); where q and k are rounded to bfloat16 first, by 2^-8 of that sum more. Weights
    are off by at most the factor exp(2 max e), by that of exp itself (2^-22; where it is rounded to bfloat16, by 2^-13
    and 2^-9), and sums of T of them by T u. All that is of Σ weight |v|, and v is rounded as q is.
    """
    _, weights = reference(q, k, v, mask, scale)
    tokens, numbers = k.shape[-2:]
    terms = np.abs(q.astype(np.float64)) @ np.abs(k.astype(np.float64)).swapaxes(-1, -2) * abs(scale)
    size = terms if mask is None else terms + np.where(np.isfinite(mask), np.abs(mask), 0)
    rounded = 0.0 if exact else 1.0
    off = ((numbers + 6) * 2.0**-24 + rounded * 1.01 * 2.0**-8) * size
    factor = np.expm1(2 * off.max(-1, keepdims=True)) + 2 * (tokens + 4) * 2.0**-24 + 2.0**-20 + rounded * 2.0**-6.5
    return factor * (weights @ np.abs(v.astype(np.float64))) + 1e-30
