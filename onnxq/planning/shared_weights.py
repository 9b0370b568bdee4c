"""Weights that several nodes read: branches of an If, towers of a network, an embedding that is the head as well.

Each is one weight with one format, so that it is stored once. A matrix and its transpose are the same weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx_ir as ir

from onnxq import formats
from onnxq.model import graph
from onnxq.model.origin import identity
from onnxq.model.weights import are_waves, weights_of
from onnxq.plan import COMPUTING, Choice, Method, Plan


def first_readers(model: ir.Model) -> dict[str, str]:
    """By node, the first one that reads a weight which it reads too; nodes that share none are left out."""
    first: dict[str, str] = {}
    leaders: dict[str, str] = {}
    for node in graph.nodes(model):
        name, weights = node.name or "", [identity(weight.value) for weight in weights_of(node)]
        leader = next((first[weight] for weight in weights if weight in first), name)
        for weight in weights:
            first.setdefault(weight, leader)
        if leader != name:
            leaders[name] = leaders[leader] = leader
    return leaders


def together(model: ir.Model) -> dict[str, str]:
    """`first_readers`, and for tables of sines and cosines that are looked up by the same places the first of them: one
    alone is half of a rotation."""
    leaders = first_readers(model)
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    for node in graph.nodes(model):
        for weight in weights_of(node) if graph.is_op(node, "Gather") else ():
            if not are_waves(weight):
                continue
            leader = leaders.get(node.name or "", node.name or "")
            other = first.setdefault((id(node.inputs[1]), weight.shape), leader)
            other = leaders.get(other, other)
            if other != leader:
                joined = {each for each, its in leaders.items() if its in (leader, other)} | {leader, other}
                leaders |= dict.fromkeys(joined, other)
    return leaders


def in_company(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """Those of `nodes` whose weight, as it lies, others of them read in the same graph."""
    readers: dict[tuple[object, ir.Value], set[ir.Node]] = {}
    for node in nodes:
        for weight in weights_of(node):
            readers.setdefault((node.graph, weight.value), set()).add(node)
    return {node for those in readers.values() if len(those) > 1 for node in those}


def marked(plan: Plan, model: ir.Model) -> Plan:
    """`plan` whose choices say with which node they share their weights."""
    leaders = first_readers(model)
    followers = [c for c in plan if leaders.get(c.node, c.node) != c.node]
    return plan.replacing(dataclasses.replace(c, shares=leaders[c.node]) for c in followers)


def reconciled(plan: Plan, model: ir.Model) -> Plan:
    """`plan` in which nodes that share a weight agree on its format: the longest that one of them needs."""
    by_leader: dict[str, list[Choice]] = {}
    for node, leader in first_readers(model).items():
        if node in plan.choices:
            by_leader.setdefault(leader, []).append(plan.choices[node])
    changed = []
    for choices in by_leader.values():
        if len({_form(c) for c in choices}) < 2 or any(c.method is Method.HALF for c in choices):
            continue
        longest = max(choices, key=_length)
        changed += [_as(c, longest) for c in choices if _form(c) != _form(longest)]
    return plan.replacing(changed)


def _form(choice: Choice) -> tuple[str | None, int | None, str | None]:
    return choice.format, choice.block, choice.granularity


def _length(choice: Choice) -> tuple[int, bool]:
    """Formats in the order of their bits; of the same bits, one that only stores goes with every operator."""
    bits = 32 if choice.format is None else formats.get(choice.format).bits
    return bits, choice.method not in COMPUTING


def _as(choice: Choice, longest: Choice) -> Choice:
    """`choice` with the format of `longest`, in a form that its own operator has."""
    reason = f"shares its weights with '{longest.node}', which needs this format"
    if longest.format is None:
        return dataclasses.replace(choice, method=Method.KEEP, format=None, block=None, granularity=None, reason=reason)
    both = choice.method is longest.method and choice.method in (Method.PACKED, Method.STATIC)
    return choice.like(longest, choice.method if both else Method.STORED, reason)
