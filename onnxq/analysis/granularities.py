"""Which weights may share a scale: the words for it, and which of them a format takes."""

from __future__ import annotations

import functools
import re

import numpy as np

from onnxq import formats
from onnxq.errors import BadRecipe, OnnxqError
from onnxq.formats import Format, Granularity
from onnxq.model.weights import Role

#: Block sizes compared where none is named.
BLOCKS = (32, 128)
#: Words compared where none is named.
WORDS = ("tensor", "channel", *(f"block{size}" for size in BLOCKS))


def parse(word: str, role: Role) -> Granularity:
    """`tensor`, `channel`, or `block32` (any size) for a weight used as `role` says.

    Raises:
        BadRecipe: another word.
    """
    if word == "tensor":
        return Granularity()
    if word == "channel":
        return Granularity(role.channel)
    found = re.fullmatch(r"block([1-9]\d{0,8})", word)
    if found is None:
        raise BadRecipe(f"unknown granularity '{word}'; choose one of {', '.join(WORDS)}, or a block of any size")
    return Granularity(role.contraction, int(found[1]))


def word_of(granularity: Granularity) -> str:
    """The inverse of `parse`."""
    if granularity.axis is None:
        return "tensor"
    return "channel" if granularity.block is None else f"block{granularity.block}"


def natural(format: Format) -> str:
    """The granularity that a format is mostly used with."""
    return "channel" if format.default_block is None else f"block{format.default_block}"


@functools.cache
def taken(word: str, granularity: str) -> str | None:
    """What the format called `word` makes of a granularity: that one, its own where it knows no other, None if refused.

    Found by encoding a few numbers, so that a new format needs to be entered nowhere.
    """
    format, wanted = formats.get(word), parse(granularity, Role(0, 0, 1))
    try:
        q = format.encode(np.ones((2, 4 * (wanted.block or 1)), np.float32), wanted)
    except (OnnxqError, ValueError):
        return None
    return word_of(q.granularity)


def has_scales(word: str) -> bool:
    """Whether the format has scales at all; a plain cast has none, and no granularity."""
    format = formats.get(word)
    return format.fit(np.ones((2, 64), np.float32), parse(natural(format), Role(0, 0, 1)))[0] is not None
