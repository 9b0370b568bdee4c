"""What each layer may become: the forms that number formats have there, and what each costs in the file.

What is chosen for is a unit: all nodes that share a weight, which has one form. Its options are found as a user would
find them, by planning the whole model in each format in turn, so that every rule about what can run where holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import algorithms, formats, targets
from onnxq.errors import BadRecipe
from onnxq.job import Job
from onnxq.model import graph
from onnxq.model.origin import ORIGIN
from onnxq.model.types import infer_types
from onnxq.model.weights import has_weights, weights_of
from onnxq.plan import Choice, Method, Plan, has_rank
from onnxq.planning.first_plan import make_plan
from onnxq.planning.scales import without_unobserved
from onnxq.planning.shared_weights import reconciled, together
from onnxq.recipe import Recipe, Rule
from onnxq.schemes import INTEGER_SCHEMES, SCHEMES
from onnxq.summaries.ranges import NO_RANGES, Ranges

#: Weights that share a scale, in formats that leave it open: longer blocks are the cheapest quarter of a bit there is.
BLOCKS = (32, 64, 128)
#: Integer formats from 2 to 8 bits; of as many bits, those with zero points, which cost little and are more exact.
WORDS = ("uint2", "int3", "uint4", "int8", "float16")
#: With ranks beside them, and of algorithms that need no data: what is usual where time is no matter.
RANKED, DATA_FREE = ("uint2/64+rank8", "int3/64+rank8"), ("uint4/32+hqq",)
#: What the scheme of a plan that a search made is called.
SCHEME = "search"


@dataclass(frozen=True)
class Form:
    """What a whole model may be planned in: a format or scheme, a block size, and what codes are chosen by.

    Attributes:
        algorithm: None: what measured best for each weight.
        rank: of what is added beside products to make up for their codes.
    """

    word: str
    block: int | None = None
    algorithm: str | None = None
    rank: int = 0

    def recipe(self, recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, scheme=self.word, block_size=self.block, granularity=None, symmetric=None)

    def choice(self, choice: Choice, recipe: Recipe) -> Choice:
        """`choice`, of this form, with its algorithm and rank, where a weight has room for them and no rule says it."""
        is_other = self.word not in SCHEMES and choice.format != self.word
        if is_other or choice.format is None or choice.method not in (Method.PACKED, Method.STORED):
            return choice
        algorithm = None if recipe.algorithm_for(choice.node, choice.op) else self.algorithm
        rank = 0 if recipe.rank_for(choice.node, choice.op) or not has_rank(choice) else self.rank
        return dataclasses.replace(choice, algorithm=algorithm, rank=rank)


@dataclass(frozen=True)
class Option:
    """One form of a unit.

    Attributes:
        choices: of its nodes.
        nbytes: of its weights in the file.
        plan: the number of the plan that it was found in.
    """

    choices: tuple[Choice, ...]
    nbytes: int
    plan: int

    @property
    def label(self) -> str:
        return self.choices[0].label


@dataclass(frozen=True)
class Unit:
    """Nodes that share weights.

    Attributes:
        name: of the first one.
        options: the longest first.
        elements: how many weights there are.
    """

    name: str
    options: tuple[Option, ...]
    elements: int

    @property
    def costs(self) -> NDArray[np.float64]:
        return np.array([option.nbytes for option in self.options], np.float64)


def forms(
    words: Sequence[str], target: targets.Target, *, fast: bool, has_data: bool, thorough: bool = False
) -> list[Form]:
    """What to plan in.

    Args:
        words: formats and schemes that the user named; none: those that are usual.
        fast: whether speed counts.
        thorough: whether time is no matter: ranks and slower algorithms are usual then too.

    Raises:
        BadRecipe: there is no such word or algorithm, or the target has no form for it.
    """
    if not words:
        every = (*WORDS, *RANKED, *(() if has_data else DATA_FREE)) if thorough else WORDS
        usual = [word for word in every if not target.refusal(Rule(word.partition("/")[0]).scheme)]
        words = [*usual, *(word for word in INTEGER_SCHEMES if fast and (has_data or not SCHEMES[word].without_data))]
    found: list[Form] = []
    for word in dict.fromkeys(words):
        if word.strip().lower() == "auto":
            raise BadRecipe("--formats: 'auto' is for whole models; name number formats")
        form, plus, codes = word.partition("+")
        name, _, block = form.partition("/")
        rule = Rule(f"{name}{plus}{codes}")
        if block and not block.isdecimal():
            raise BadRecipe(f"--formats: invalid block size in '{word}'; write uint4/64")
        Recipe(name, block_size=int(block) if block else None)
        if name not in SCHEMES:
            targets.require_format(target, name)
        is_open = not block and name not in SCHEMES and _has_open_block(formats.get(name))
        sizes = BLOCKS if is_open else [int(block) if block else None]
        if rule.algorithm in algorithms.WITH_DATA and not has_data:
            raise BadRecipe(f"--formats: the algorithm '{rule.algorithm}' of '{word}' needs --data")
        found += [Form(name, size, rule.algorithm, rule.rank) for size in sizes]
    return found


def _has_open_block(format: formats.Format) -> bool:
    return format.scale_type is not None and format.bits <= 4 and not format.has_fixed_block


def candidates(job: Job, found: Sequence[Form], ranges: Ranges = NO_RANGES) -> list[Plan]:
    """The whole model in each form, as far as nodes can be so; what cannot stays what it is then."""
    types, made = infer_types(job.model), []
    for form in found:
        recipe = form.recipe(job.recipe)
        plan = make_plan(job.model, recipe, job.target, types, has_data=job.knows_data)
        plan = plan.replacing([form.choice(choice, job.recipe) for choice in plan])
        if plan.those(Method.STATIC):
            plan = without_unobserved(job.model, plan, ranges)
        made.append(dataclasses.replace(reconciled(plan, job.model), scheme=SCHEME))
    return made


def units_of(job: Job, plans: Sequence[Plan], ranges: Ranges = NO_RANGES) -> list[Unit]:
    """The units of a model, each with the options that these `plans` give it."""
    leaders = together(job.model)
    members: dict[str, list[ir.Node]] = {}
    for node in graph.nodes(job.model):
        if has_weights(node) and all(node.name in plan.choices for plan in plans):
            members.setdefault(leaders.get(node.name or "", node.name or ""), []).append(node)
    sizes = [_bytes_by_weight(job.rewritten(plan, ranges)) for plan in plans]
    found: list[Unit] = []
    for name, nodes in members.items():
        weights = {weight.value: weight.elements for node in nodes for weight in weights_of(node)}
        elements = {origin(value): count for value, count in weights.items()}
        options: dict[object, Option] = {}
        for number, (plan, size) in enumerate(zip(plans, sizes, strict=True)):
            choices = tuple(plan.choices[node.name or ""] for node in nodes)
            nbytes = sum(size.get(each, 0) for each in elements)
            options.setdefault(tuple(map(_what, choices)), Option(choices, nbytes, number))
        ranked = sorted(options.values(), key=lambda option: -option.nbytes)
        found.append(Unit(name, tuple(ranked), sum(elements.values())))
    return found


def whole(plans: Sequence[Plan], units: Sequence[Unit]) -> Plan:
    """A plan with every unit in its longest form, and in int8 what may lie between kernels that compute in integers."""
    base = plans[-1]
    for plan in plans:
        base = base.replacing(c for c in plan.those(Method.STATIC) if c.format is None)
    return selected(base, units, [0] * len(units))


def uniform(plans: Sequence[Plan], units: Sequence[Unit]) -> list[tuple[int, ...]]:
    """What each of the plans chooses."""
    found = []
    for plan in plans:
        forms = [tuple(_what(plan.choices[c.node]) for c in unit.options[0].choices) for unit in units]
        known = [[tuple(map(_what, option.choices)) for option in unit.options] for unit in units]
        found.append(tuple(each.index(form) for each, form in zip(known, forms, strict=True)))
    return found


def selected(base: Plan, units: Iterable[Unit], chosen: Iterable[int]) -> Plan:
    """`base` with the option of each unit that was chosen."""
    options = (unit.options[i] for unit, i in zip(units, chosen, strict=True))
    return base.replacing(
        dataclasses.replace(choice, reason=_REASON if choice.method is not Method.KEEP else choice.reason)
        for option in options
        for choice in option.choices
    )


_REASON = "chosen by search"


def _what(choice: Choice) -> tuple[object, ...]:
    return choice.node, choice.method, choice.format, choice.block, choice.granularity, choice.algorithm, choice.rank


def origin(value: ir.Value) -> str:
    """The name of the weight that a constant stands for."""
    return str(value.meta.get(ORIGIN, value.name))


def _bytes_by_weight(model: ir.Model) -> Mapping[str, int]:
    """Bytes of the constants of a rewritten model, by the weight that they stand for."""
    found: dict[str, int] = {}
    for value in _constants(model):
        if value.const_value is not None:
            found[origin(value)] = found.get(origin(value), 0) + value.const_value.nbytes
    return found


def _constants(model: ir.Model) -> Iterator[ir.Value]:
    for each in model.graphs():
        yield from each.initializers.values()
