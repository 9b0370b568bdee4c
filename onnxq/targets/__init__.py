"""Where a model will run: which formats have a kernel there, and how they are spelt.

One file each; the file name is the word on the command line and the name of the class inside.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onnxq import formats, own_ops
from onnxq.errors import BadRecipe
from onnxq.model.weights import Weight
from onnxq.plan import COMPUTING, Method


@dataclass(frozen=True)
class Placement:
    """What a target makes of a wish: the method and format it can really give, and the reason if they differ."""

    method: Method
    format: str
    block: int | None
    reason: str = ""


#: Standard opsets that brought what schemes need: dynamic quantization, one scale a channel and bfloat16, float8.
OPSETS = {
    "w8a8-dynamic": 11,
    "w8a8": 13,
    "bf16": 13,
    "bfloat16": 13,
    "float8_e4m3": 19,
    "float8_e5m2": 19,
}


class Target(Protocol):
    """What every file of this folder defines, under its own file name."""

    name: str
    #: Float types other than float32 have no fast kernels there: compute in float32, keeping the interface.
    widens_half: bool
    #: Operators of the com.microsoft domain may be used.
    has_contrib_ops: bool
    #: Operators of the onnxq domain may be used.
    has_onnxq_ops: bool

    def opset_for(self, scheme: str) -> int:
        """The lowest standard opset in which the scheme can be spelt for this target; 0: any."""

    def refusal(self, format: str) -> str:
        """Why no weight can be stored in this number format there; empty if it can."""

    def place(self, weight: Weight, wish: Placement) -> Placement:
        """The nearest thing to `wish` that this target can run for `weight`."""


@functools.cache
def names() -> tuple[str, ...]:
    """The words of all targets, from the folder's file names."""
    return tuple(sorted(p.stem.replace("_", "-") for p in Path(__file__).parent.glob("[!_]*.py")))


@functools.cache
def get(name: str) -> Target:
    """The target called `name`.

    Raises:
        BadRecipe: no file of that name; the message lists those there are.
    """
    if name not in names():
        raise BadRecipe(f"unknown target '{name}'; choose one of {', '.join(names())}")
    stem = name.replace("-", "_")
    found: Target = getattr(importlib.import_module(f"onnxq.targets.{stem}"), stem)()
    return found


def require_format(target: Target, word: str) -> None:
    """Refuse a number format that the target has no form for.

    Raises:
        BadRecipe: with the reason, and the targets that have one.
    """
    reason = target.refusal(word)
    if reason:
        others = [name for name in names() if not get(name).refusal(word)]
        raise BadRecipe(f"{target.name} cannot hold {word} weights: {reason}; give --target {' or '.join(others)}")


def refuse_own_formats(word: str) -> str:
    """The reason that holds for targets without operators of the onnxq domain; empty if there is none."""
    format = formats.get(word)
    offset = own_ops.offset_type(format)
    if offset is not None and offset.kind == "f":
        return "no operator adds the minimum of a block"
    if hasattr(format, "base"):
        return "no operator reads scales of 8 bits"
    if format.scale_type == formats.E8M0:
        return "no operator multiplies by powers of two in 8 bits"
    if format.bits not in (2, 4, 8, 16):
        return f"no operator reads codes of {format.bits} bits"
    return ""


def stored(wish: Placement, reason: str) -> Placement:
    """The wish's format, unpacked when the model is loaded."""
    return Placement(Method.STORED, wish.format, wish.block, reason)


def no_table_kernel(wish: Placement) -> Placement:
    """For a Gather on a table whose format no kernel looks up: 8 bits a row."""
    return Placement(Method.STORED, "int8", None, f"no kernel looks rows up in {wish.format}: 8 bits a row")


def at_least_four_bits(wish: Placement) -> Placement:
    """For weights that standard operators unpack: 8 bits in the place of fewer than 4."""
    if wish.method is Method.STORED and formats.get(wish.format).bits < 4:
        return Placement(Method.STORED, "int8", None, f"{wish.reason or 'nothing unpacks 2 bits'}: 8 bits a channel")
    return wish


def is_plain_matmul(weight: Weight) -> bool:
    """Whether the node multiplies x by a matrix on the right."""
    return weight.node.op_type in ("MatMul", "Gemm") and weight.role.index == 1 and len(weight.shape) == 2


def needs_plain_matmul(weight: Weight, wish: Placement) -> Placement:
    """The wish, if the node is no product, or one of x with a matrix on the right, which kernels multiply."""
    is_product = weight.node.op_type in ("MatMul", "Gemm")
    if not is_product or wish.method not in COMPUTING or is_plain_matmul(weight):
        return wish
    return stored(wish, "the weight is not a matrix on the right: unpacked when the model loads")
