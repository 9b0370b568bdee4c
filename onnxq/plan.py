"""Step 3: what happens to each node, and why. `planning/first_plan.py` makes a plan; this file is what one is."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from onnxq import algorithms, formats, own_ops
from onnxq.boundary import bounded, require_types
from onnxq.errors import BadRecipe
from onnxq.files import limits, schemas
from onnxq.formats import Granularity
from onnxq.recipe import Recipe


class Method(StrEnum):
    """How a node is to compute."""

    STATIC = "static"  # int8 kernel, activation ranges from calibration (QuantizeLinear/DequantizeLinear)
    DYNAMIC = "dynamic"  # int8 kernel, activation range measured in every run
    PACKED = "packed"  # a kernel that reads the packed weight, float activations
    FUSED = "fused"  # with the nodes around it one kernel, which reads float activations
    STORED = "stored"  # weight unpacked to float when the model is loaded, float kernel
    HALF = "half"  # the whole node in float16
    KEEP = "keep"  # as it was


#: What may be called a scheme: files are named after it.
_WORD = re.compile(r"\w[\w.+-]{,63}", re.ASCII)
#: Methods that have a float alternative worth weighing: the same weight, unpacked when the model loads, or the nodes as
#: they were.
COMPUTING = (Method.STATIC, Method.DYNAMIC, Method.PACKED, Method.FUSED)
#: Why a node of those is in float for its time alone: by the times of kernels, and by those of the saved file.
FLOAT_IS_FASTER, FILE_IS_SLOWER = "computing in float is faster here", "the saved file was slower than float"


@dataclass(frozen=True)
class Choice:
    """The line of one node in a plan.

    Attributes:
        node: its name in the prepared model.
        op: its operator type.
        method: how it will compute.
        format: number format of its weights; None where it has none, or they stay as they are.
        block: weights along the contraction that share a scale; None: one scale a channel.
        elements: how many weights it reads.
        reason: why this and not what the scheme asked for; empty where it is what the scheme asked for.
        half: the half-precision format that its weights have in the file; None for wider ones. They lose nothing in it,
            so nothing longer is worth writing.
        shares: the node before it that reads the same weights, which are counted there; empty if there is none.
        granularity: `tensor` or `channel` where that much shares a scale, which each block of a kernel then repeats;
            None: a block, or without blocks a channel.
        algorithm: that chooses the codes of its weight, before what the recipe says; None: as that says.
        rank: of what is added beside it to make up for them; 0: as the recipe says.
    """

    node: str
    op: str
    method: Method
    format: str | None = None
    block: int | None = None
    elements: int = 0
    reason: str = ""
    half: str | None = None
    shares: str = ""
    granularity: str | None = None
    algorithm: str | None = None
    rank: int = 0

    def to(self, method: Method, format: str | None, block: int | None, reason: str = "") -> Choice:
        """The same node, computed so."""
        made = dataclasses.replace(self, method=method, format=format, block=block, reason=reason)
        return made if format == self.format else dataclasses.replace(made, algorithm=None, rank=0)

    @property
    def joins_bf16_region(self) -> bool:
        """Whether this convolution computes in bfloat16 where the target has regions: its weights are stored so, and
        nothing speaks against it, for what `in_float` gave back has a reason."""
        is_convolution = self.op in ("Conv", "ConvTranspose")
        return is_convolution and self.method is Method.STORED and self.format == "bfloat16" and not self.reason

    @property
    def label(self) -> str:
        """The choice in a few words, for tables."""
        if self.method in (Method.KEEP, Method.HALF):
            return "float" if self.method is Method.KEEP else "float16"
        if self.method is Method.FUSED:
            return "fused"
        if self.format is None:
            return "int8"
        block = f" {self.granularity}" if self.granularity else f" b{self.block}" if self.block else ""
        of_all = " tensor" if self.granularity == "tensor" else ""
        words = {
            Method.STATIC: f"{self.format}{of_all or block}",
            Method.DYNAMIC: f"int8{of_all} dynamic",
            Method.STORED: f"{self.format}{block} stored",
        }
        return words.get(self.method, f"{self.format}{block}") + self.codes

    @property
    def codes(self) -> str:
        """Behind plus signs, as in rules: the algorithm and the rank that are its own."""
        return (f"+{self.algorithm}" if self.algorithm else "") + (f"+rank{self.rank}" if self.rank else "")

    def algorithm_by(self, recipe: Recipe) -> str | None:
        """Its own algorithm, else the one that the recipe names for it; None: what measured best for each weight."""
        return self.algorithm or recipe.algorithm_for(self.node, self.op)

    def rank_by(self, recipe: Recipe) -> int:
        """Its own rank, else the recipe's for it; 0 where nothing can make up for codes."""
        return (self.rank or recipe.rank_for(self.node, self.op)) if has_rank(self) else 0

    def format_for(self, method: Method) -> str | None:
        """The format of its weights if it computed so: one scale for the 4 bits of a channel is for int8 kernels, and
        what float kernels read has 8 bits then."""
        is_short = self.method is Method.STATIC and self.format is not None and formats.get(self.format).bits < 8
        return "int8" if is_short and method is not Method.STATIC else self.format

    def like(self, other: Choice, method: Method, reason: str) -> Choice:
        """The same node with its weights in the form that those of `other` have."""
        made = self.to(method, other.format_for(method), other.block, reason)
        return dataclasses.replace(made, granularity=other.granularity, algorithm=other.algorithm)

    def groups(self, rank: int, axis: int) -> Granularity | None:
        """Whose scale each block repeats, in a weight of `rank` dimensions with blocks along `axis`; None: its own.

        A channel of more than two dimensions is a row along `axis`, as each matrix of a stack has rows of its own.
        """
        if self.granularity is None or self.block is None:
            return None
        if self.granularity == "tensor":
            return Granularity()
        return Granularity(1 - axis) if rank == 2 else Granularity(axis, 1 << 40)

    def to_dict(self) -> dict[str, object]:
        """For JSON, without what is the usual: no granularity, algorithm or rank of its own."""
        usual = ("granularity", "algorithm", "rank")
        return {key: x for key, x in dataclasses.asdict(self).items() if x or key not in usual}


#: Weights along the contraction that may share a scale in kernels, the most first.
BLOCKS = (256, 128, 64, 32, 16)
#: The largest rank of what is added beside a node.
MOST_RANK = 9999
#: What files say of a choice, and of a plan.
CHOICE_TYPES = {"method": str, "elements": schemas.Count, "rank": schemas.Count}
_ChoiceFile = schemas.form_of(Choice, CHOICE_TYPES)
_PlanFile = msgspec.defstruct(
    "PlanFile",
    [("scheme", str), ("target", str), ("choices", types.GenericAlias(list, _ChoiceFile)), ("regions", bool, True)],
    forbid_unknown_fields=True,
)


def in_float(choice: Choice, reason: str) -> Choice:
    """The same node with its kernel in float: its weights stay small on disk. One without weights is kept."""
    if choice.format is None:
        return Choice(choice.node, choice.op, Method.KEEP, reason=reason)
    return dataclasses.replace(choice, method=Method.STORED, format=choice.format_for(Method.STORED), reason=reason)


def has_rank(choice: Choice) -> bool:
    """Whether two matrices beside the node can make up for the codes of its weight."""
    is_float = choice.format is None or formats.get(choice.format).scale_type is None
    return choice.op in ("MatMul", "Gemm", "Conv") and choice.method in (Method.PACKED, Method.STORED) and not is_float


def finer(choice: Choice, reason: str) -> Choice | None:
    """The same node with weights of the next longer format, that of the file in the end; where it computes in float16,
    with its kernel in float. None where there is no longer one."""
    choice = dataclasses.replace(choice, algorithm=None, rank=0)
    if choice.method is Method.HALF:
        return in_float(choice, reason)
    bits = 32 if choice.format is None else formats.get(choice.format).bits
    if bits < 8:
        block = choice.block if choice.method is Method.PACKED else None
        wide = choice.granularity if block or choice.granularity == "tensor" else None
        if choice.method is Method.STATIC and choice.block is not None:
            wide = "tensor"  # what reads blocks knows else one scale
        return dataclasses.replace(choice, format="int8", block=block, granularity=wide, reason=reason)
    if bits == 8:
        return dataclasses.replace(choice.to(Method.STORED, choice.half or "float16", None, reason), granularity=None)
    if choice.method in (Method.STORED, Method.PACKED) and choice.half is None:
        return Choice(choice.node, choice.op, Method.KEEP, elements=choice.elements, reason=reason)
    return None


@dataclass(frozen=True)
class Plan:
    """A `Choice` for each node that has weights or could run in integers, by node name, in order of execution.

    Attributes:
        regions: whether islands of int8 become nodes of the onnxq domain where the target has those; else they stay
            operators that onnxruntime has kernels for, which are faster on some processors.
    """

    scheme: str
    target: str
    choices: dict[str, Choice] = field(default_factory=dict)
    regions: bool = True

    def __post_init__(self) -> None:
        require_types(Plan, vars(self))

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices.values())

    def method(self, node: str | None) -> Method:
        """How a node computes; kept where the plan has none of that name."""
        choice = self.choices.get(node or "")
        return Method.KEEP if choice is None else choice.method

    def those(self, *methods: Method) -> list[Choice]:
        """The choices of these methods, in order of execution."""
        return [choice for choice in self if choice.method in methods]

    @property
    def kernels_of(self) -> str:
        """Whose kernels compute it, in words that tell times of kernels apart."""
        return self.target if self.regions else f"{self.target} without regions"

    @property
    def shortens_floats(self) -> bool:
        """Whether nodes compute in float16 that did not in the file."""
        return any(choice.half is None for choice in self.those(Method.HALF))

    def replacing(self, changed: Iterable[Choice]) -> Plan:
        """This plan with some choices exchanged.

        Args:
            changed: each takes the place of the one of the same node.
        """
        return dataclasses.replace(self, choices=self.choices | {choice.node: choice for choice in changed})

    @property
    def changes_anything(self) -> bool:
        """Whether a node is not kept as it was."""
        return any(choice.method is not Method.KEEP for choice in self)

    @property
    def forms(self) -> list[tuple[str, Method, str | None, int | None]]:
        """What becomes of each node, whatever the reason."""
        return [(choice.node, choice.method, choice.format, choice.block) for choice in self]

    def to_json(self) -> str:
        """The plan as text that a user may edit and give back with `--plan`."""
        table = dataclasses.asdict(self)
        table["choices"] = [choice.to_dict() for choice in self]
        if self.regions:
            del table["regions"]
        return json.dumps(table, indent=1)


@bounded
def load_plan(path: str | Path) -> Plan:
    """A plan written by `Plan.to_json`, perhaps edited.

    Args:
        path: of a JSON file.

    Raises:
        BadRecipe: not JSON, or not of that form.
    """
    text = limits.read_text(path, "the plan ")
    try:
        table: Any = schemas.checked(limits.parse_json(text, strict=True), _PlanFile)
        return plan_from(table.scheme, table.target, map(msgspec.structs.asdict, table.choices), regions=table.regions)
    except BadRecipe as error:
        raise BadRecipe(f"the plan '{path}': {error}") from None
    except ValueError as error:
        raise BadRecipe(f"'{path}' is not a plan written by 'onnxq plan': {error}") from None


def plan_from(scheme: str, target: str, rows: Iterable[Mapping[str, Any]], *, regions: bool = True) -> Plan:
    """The plan that a file holds.

    Args:
        rows: the fields of each choice, by name and of the types that files have.
        regions: as `Plan` has it.

    Raises:
        ValueError: a word in it is unknown.
        BadRecipe: it cannot be carried out, or says twice what a node becomes.
    """
    if not _WORD.fullmatch(scheme):
        raise BadRecipe(f"'{scheme[:40]}' is no scheme; example: w8a8")
    choices: dict[str, Choice] = {}
    for choice in (_choice(row, target) for row in rows):
        if choice.node in choices:
            raise BadRecipe(f"node '{choice.node}' is there twice")
        choices[choice.node] = choice
    return Plan(scheme, target, choices, regions)


def _formats_of(method: Method, given: str | None) -> Sequence[str | None]:
    """What the weights of a node may become, by its method; None for operators without weights."""
    if method is Method.STATIC:
        return ("int8", "int4", "lpbq", "float8_e4m3", None)
    if method is Method.DYNAMIC:
        return ("int8",)
    if method is Method.FUSED:
        return (None,)
    if method not in (Method.PACKED, Method.STORED):
        return (given,)
    known = given is not None and isinstance(given, str) and formats.get(given).name == given
    if not known:
        return ()
    format = formats.get(given or "")
    is_possible = method is Method.STORED or format.is_dense or format.scale_type is not None
    return (given,) if is_possible else ()


def _is_of_blocks(word: str, target: str) -> bool:
    """Whether nothing unpacks it there with one scale a channel."""
    format = formats.get(word)
    return format.has_fixed_block or (format.default_block is not None and format.bits < 8 and target != "onnxq")


def _choice(row: Mapping[str, Any], target: str) -> Choice:
    """A choice read from a file, if it is one that can be carried out."""
    choice = Choice(**{**row, "method": Method(row["method"])})
    wrong = f"node '{choice.node}' cannot be {choice.method} with format {choice.format} and block {choice.block}"
    if choice.format not in _formats_of(choice.method, choice.format):
        raise BadRecipe(wrong)
    is_dense = choice.method is Method.PACKED and formats.get(choice.format or "").is_dense
    is_whole = is_dense or (choice.method is Method.PACKED and choice.op in own_ops.CELLS)
    if is_whole and (choice.block is not None or target != "onnxq"):  # whose own operators these are
        raise BadRecipe(wrong)
    needs_block = (choice.method is Method.PACKED and not is_whole) or (
        choice.method is Method.STORED and _is_of_blocks(choice.format or "", target)
    )
    needs_block = needs_block or (choice.method is Method.STATIC and choice.format == "lpbq")
    if choice.block not in (BLOCKS if needs_block else (None, *BLOCKS)):
        raise BadRecipe(wrong)
    if choice.method in (Method.PACKED, Method.STORED):
        format = formats.get(choice.format or "")
        if format.has_fixed_block and choice.block != format.default_block:
            raise BadRecipe(f"{wrong}: a block of {format.name} has {format.default_block} weights")
    if choice.half not in (None, "float16", "bfloat16") or choice.granularity not in (None, "tensor", "channel"):
        raise BadRecipe(wrong)
    if choice.algorithm is not None:
        algorithms.require(choice.algorithm)
    if choice.rank and not (has_rank(choice) and choice.rank <= MOST_RANK):
        raise BadRecipe(f"{wrong} with rank {choice.rank} beside it")
    return choice
