"""What the user says of all weights at once: how many share a scale, and whether zero points are used.

A scheme or a number format says which kernels and how many bits; `Recipe.granularity` and `Recipe.symmetric` change
the scales within that. Kernels that know blocks only are given blocks which repeat the scale of their channel, or of
the whole: the same numbers, in blocks as long as rows allow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxq import formats, own_ops
from onnxq.model.weights import Weight
from onnxq.plan import BLOCKS, Choice, Method, in_float
from onnxq.recipe import Recipe, twin
from onnxq.schemes import SCHEMES
from onnxq.targets import Target


def as_asked(choice: Choice, weights: Sequence[Weight], recipe: Recipe, target: Target) -> Choice:
    """`choice` with the granularity and symmetry that the recipe names, as far as its kernel knows them."""
    format = formats.get(choice.format) if choice.format else None
    if format is None or format.scale_type is None or choice.method in (Method.KEEP, Method.HALF):
        return choice
    scheme = recipe.scheme_for(choice.node, choice.op)
    if choice.op in own_ops.CELLS and choice.method in (Method.DYNAMIC, Method.PACKED):
        return _of_recurrent(choice, weights, recipe, target)
    if recipe.symmetric is not None and scheme in SCHEMES and choice.method in (Method.PACKED, Method.STORED):
        choice = dataclasses.replace(choice, format=twin(format.name, symmetric=recipe.symmetric))
    if recipe.granularity in ("tensor", "channel"):
        return _coarser(choice, weights, recipe.granularity, target)
    if recipe.granularity == "block":
        return _in_blocks(choice, recipe, target)
    return choice


def _of_recurrent(choice: Choice, weights: Sequence[Weight], recipe: Recipe, target: Target) -> Choice:
    """Kernels of recurrent layers know one scale a row, and no zero points."""
    is_open = recipe.symmetric is False and recipe.scheme_for(choice.node, choice.op) in SCHEMES
    if is_open and choice.method is Method.PACKED:
        stored = in_float(choice, "its kernel has no zero points: unpacked when the model loads")
        return as_asked(stored, weights, recipe, target)
    if recipe.granularity in ("tensor", "block"):
        reason = f"{'an' if choice.op != 'GRU' else 'a'} {choice.op} has one scale an output"
        return choice.to(choice.method, choice.format, None, reason)
    return choice


def _coarser(choice: Choice, weights: Sequence[Weight], granularity: str, target: Target) -> Choice:
    has_kernel_block = choice.method is Method.PACKED or choice.block is not None
    if choice.method is Method.STORED and target.stores(choice.format or "", None):
        has_kernel_block = False
    if not has_kernel_block:
        wide = granularity if granularity == "tensor" else None
        reason = choice.reason.replace(": 8 bits a channel", ": 8 bits") if wide else choice.reason
        return dataclasses.replace(choice, block=None, granularity=wide, reason=reason)
    all_lengths = {weight.shape[weight.role.contraction] for weight in weights}
    block = _least_padded(max(all_lengths)) if len(all_lengths) == 1 else choice.block
    by_bnb4 = choice.method is Method.PACKED and formats.get(choice.format or "").bnb4 is not None
    whole = block is not None and not any(length % block for length in all_lengths)
    if by_bnb4 and not whole and not target.has_onnxq_ops:
        choice = in_float(choice, "MatMulBnb4's blocks would reach over the ends of its rows: unpacked when it loads")
    return dataclasses.replace(choice, block=block, granularity=granularity)


def _least_padded(k: int) -> int:
    """The block that fills rows of `k` weights with the fewest more; of several the longest."""
    return min(BLOCKS, key=lambda block: (-(-k // block) * block, -block))


def _in_blocks(choice: Choice, recipe: Recipe, target: Target) -> Choice:
    if choice.block is not None or choice.method is not Method.STORED:
        return choice
    block = recipe.block_size or formats.get(choice.format or "").default_block or 32
    if choice.op in ("Conv", "ConvTranspose") or not target.stores(choice.format or "", block):
        return choice.to(choice.method, choice.format, None, choice.reason or "one scale a channel: it has no blocks")
    return choice.to(choice.method, choice.format, block, choice.reason)
