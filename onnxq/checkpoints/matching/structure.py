"""Which layers belong together where a checkpoint and a model call them by different names.

Evidence, the strongest first:

    1. the name that a converter is known to give (`Layer.aliases`)
    2. the longest end of dotted names that both share, with a number or two words in it
    3. the same numbers and the same role: q_proj, attn_q and query; of one shape
    4. nothing else that is left has this shape
    5. as many layers as products of this shape are left: in order of their names, and of execution

All of it are proposals: `match.py` compares numbers before it takes one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnxq.checkpoints.matching.names import ends_of

#: What matrices of transformers are called, by what they do; looked for at the end of names.
ROLES = {
    "qkv": r"attn_qkv|qkv_proj|query_key_value|wqkv|attn\.c_attn|qkv|in_proj",
    "q": r"attn_q|q_proj|wq|query|q_lin|to_q",
    "k": r"attn_k|k_proj|wk|key|k_lin|to_k",
    "v": r"attn_v|v_proj|wv|value|v_lin|to_v",
    "o": r"attn_output|o_proj|wo|out_proj|out_lin|to_out\.0|attention\.output\.dense|attn\.c_proj|att\w*\.dense",
    "gate_up": r"gate_up_proj|gate_up",
    "gate": r"ffn_gate|gate_proj|w1",
    "up": r"ffn_up|up_proj|w3|fc1|lin1|intermediate\.dense|mlp\.c_fc|dense_h_to_4h",
    "down": r"ffn_down|down_proj|w2|fc2|lin2|output\.dense|mlp\.c_proj|dense_4h_to_h",
    "embed": r"token_embd|embed_tokens|wte|tok_embeddings|word_embeddings|embed_in",
    "head": r"lm_head|embed_out|output",
}
#: Characters at the end of a name in which roles are looked for: far more than any is called by.
MOST_LAST = 128
#: Why a proposal that no name speaks for.
BY_SHAPE = "by its shape"
_ROLES = {role: re.compile(rf"(?:^|[._/])(?:{words})$", re.IGNORECASE) for role, words in ROLES.items()}


@dataclass(frozen=True)
class Side:
    """A layer of the checkpoint, or a weight of the model: an index, names that it may have, and (out, in)."""

    index: int
    names: tuple[str, ...]
    shape: tuple[int, int]


@dataclass(frozen=True)
class Proposal:
    """One of each, and why."""

    layer: int
    weight: int
    why: str
    #: Whether numbers alone can tell.
    is_weak: bool = False


def proposals(
    layers: Sequence[Side], weights: Sequence[Side], aliases: Mapping[int, tuple[str, ...]]
) -> list[Proposal]:
    """At most one for each layer and weight, of equal shapes."""
    found: list[Proposal] = []
    left, right = dict.fromkeys(layers), dict.fromkeys(weights)

    def take(pairs: Iterator[tuple[Side, Side]], why: str, *, is_weak: bool = False) -> None:
        for layer, weight in list(pairs):
            if layer in left and weight in right:
                found.append(Proposal(layer.index, weight.index, why, is_weak))
                del left[layer], right[weight]

    take(_unique(left, right, lambda s: aliases.get(s.index, ()), lambda s: s.names), "by the converter's names")
    take(_unique(left, right, *[_ends] * 2), "by the end of its name")
    take(_unique(left, right, *[lambda s: list(_roles(s.names))] * 2), "by its role")
    take(_unique(left, right, *[lambda s: [()]] * 2), BY_SHAPE)
    take(_in_order(left, right), "by its place in order", is_weak=True)
    return found


def role_of(name: str) -> tuple[Hashable, ...] | None:
    """The numbers in a name and what the layer does; None where that is not told."""
    end = name[-MOST_LAST:]
    role = next((role for role, form in _ROLES.items() if form.search(end)), None)
    numbers = tuple(int(digits) for digits in re.findall(r"(?<![A-Za-z0-9])(?:[A-Za-z]+_?)?(\d{1,6})(?=[._/]|$)", name))
    if role is None or (role in ("embed", "head") and numbers):
        return None
    return (*numbers[:1], role)


def _ends(side: Side) -> list[Hashable]:
    return [end for name in side.names for end in ends_of(name)]


def _roles(names: Sequence[str]) -> Iterator[Hashable]:
    yield from {key for name in names if (key := role_of(name)) is not None}


def _unique(
    left: Collection[Side],
    right: Collection[Side],
    of_layer: Callable[[Side], Sequence[Hashable] | list[Hashable]],
    of_weight: Callable[[Side], Sequence[Hashable] | list[Hashable]],
) -> Iterator[tuple[Side, Side]]:
    """Pairs of one shape that share a key which nothing else on either side has, the first such key of a layer."""
    by_key: tuple[dict[Hashable, list[Side]], dict[Hashable, list[Side]]] = (defaultdict(list), defaultdict(list))
    for sides, keys, table in ((left, of_layer, by_key[0]), (right, of_weight, by_key[1])):
        for side in sides:
            for word in dict.fromkeys(keys(side)):
                table[side.shape, word].append(side)
    for layer in left:
        for word in dict.fromkeys(of_layer(layer)):
            here, there = by_key[0][layer.shape, word], by_key[1].get((layer.shape, word), [])
            if len(here) == len(there) == 1:
                yield layer, there[0]
                break


def _in_order(left: Collection[Side], right: Collection[Side]) -> Iterator[tuple[Side, Side]]:
    by_shape: dict[tuple[int, int], tuple[list[Side], list[Side]]] = {}
    for i, sides in enumerate((left, right)):
        for side in sides:
            by_shape.setdefault(side.shape, ([], []))[i].append(side)
    for here, there in by_shape.values():
        if len(here) == len(there):
            here.sort(key=lambda s: [_natural(name) for name in s.names[:1]])
            yield from zip(here, there, strict=True)


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in names by their size."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d{1,18})", name)]
