"""What files of plans, ranges, observations and progress hold, member by member, checked before anything is done.

A file may have been edited, cut short, or made to do harm; what passes here is of the right types and in range.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from onnxq.errors import BadRecipe
from onnxq.files import limits

T = TypeVar("T")
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
#: Of a whole, not nothing.
Share = Annotated[float, Meta(gt=0, le=1)]
Rank = Annotated[int, Meta(ge=-1, le=64)]
Axis = Annotated[int, Meta(ge=-64, le=64)]
#: Of a time, or of one relative to another.
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class HistogramFile(Struct):
    exponent: Annotated[int, Meta(ge=-1074, le=1024)]
    first: Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
    counts: str


class SummaryFile(Struct):
    """What is kept of one activation."""

    count: Count
    zeros: Count
    nans: Count
    infinities: Count
    low: float
    high: float
    total: float
    squares: float
    batches: Count
    average_low: float
    average_high: float
    least_rank: Rank
    most_rank: Rank
    unlike: Count
    axis: Axis | None
    channel_low: list[float]
    channel_high: list[float]
    histogram: HistogramFile | None = None
    momentum: Share = 0.1
    trail: list[tuple[float, float] | None] | None = None


class ObservationsFile(Struct):
    model: str
    data: str
    samples: Count
    shard: tuple[Count, Count] | None
    unranked: list[str]
    problems: dict[str, str]
    chosen: str
    summaries: dict[str, Any]


class GapsFile(Struct):
    """What a worker met of samples, beside its observations: which say anything, and what is not finite in them."""

    looked_at: list[tuple[Count, bool]]
    found: list[tuple[Count, dict[str, list[Literal["NaN", "infinity"]]]]]


class RangesFile(Struct):
    model: str
    data: str
    method: str
    values: dict[str, tuple[float, float]]
    ranks: dict[str, Rank]
    problems: dict[str, str]
    notes: dict[str, str] = {}
    observations: Any = None


class ProgressFile(Struct):
    """How far an interrupted calibration came."""

    key: str
    done: Count
    finished: dict[str, Any]
    current: dict[str, Any]
    problems: dict[str, str] = {}


class TrainingFile(Struct):
    """How far the training of an adapter came. `updates`: steps that changed something; losses by step."""

    key: str
    step: Count
    skipped: Count
    updates: Count
    losses: list[tuple[Count, float]]


class SignatureFile(Struct):
    """What a written model says of how it was made, and what is usual. `plan` is a hash; `recipe` what is not usual."""

    version: str
    model: str
    target: str
    plan: str
    recipe: dict[str, Any]
    asked: str
    data: str = ""
    onnxruntime: str = ""
    is_given: bool = False
    is_checked: bool = True
    is_trained: bool = False
    held_back: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None
    profile: str = ""
    machine: str = ""


class MachineFile(Struct, forbid_unknown_fields=True):
    cpu: str
    isa: str
    cores: Count
    onnxruntime: str
    library: Count


class PlanTimeFile(Struct, forbid_unknown_fields=True):
    ratio: Amount
    spread: Amount


class ProfileFile(Struct, forbid_unknown_fields=True):
    """A machine profile."""

    onnxq_profile: Count
    machine: MachineFile
    threads: Annotated[int, Meta(ge=0, le=1 << 16)]
    kernels: dict[str, Amount]
    models: dict[str, Amount]
    plans: dict[str, PlanTimeFile]
    tile_rows: dict[str, Annotated[int, Meta(ge=1, lt=1 << 31)]] = {}


class SafetensorsEntry(Struct):
    dtype: str
    shape: list[Count]
    data_offsets: tuple[Count, Count]


class EncodedArray(Struct):
    """What a file of encoded arrays says of one that is not as it was."""

    format: str
    shape: list[Count]
    axis: int | None
    block: int | None
    parts: list[str]
    levels: list[float] | None = None


def form_of(
    declared: Any, narrower: Mapping[str, Any], order: Sequence[str] = (), required: Sequence[str] = ()
) -> type[Struct]:
    """What a file holds of a dataclass: its fields and no others.

    Args:
        narrower: types of some of them, in files.
        order: of all of them, in files in which they have no names.
        required: those that a file must have although the dataclass has a default.
    """
    types = typing.get_type_hints(declared) | dict(narrower)
    defaults = {
        field.name: msgspec.NODEFAULT if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(declared)
    }
    fields = [
        (name, types[name], msgspec.NODEFAULT if name in required else default)
        for name, default in ((name, defaults[name]) for name in order or defaults)
    ]
    return msgspec.defstruct(f"{declared.__name__}File", fields, forbid_unknown_fields=True, array_like=bool(order))


def checked(table: object, form: type[T]) -> T:
    """What was read from JSON, as what it should be.

    Raises:
        ValueError: it is not; the text says where.
    """
    try:
        return msgspec.convert(table, form)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        place = f"{where.strip('.`')}: " if where else ""
        raise ValueError(f"{place}{what[:1].lower()}{what[1:].replace('`', '')}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def progress_in(path: Path, form: type[T]) -> T | None:
    """What a file of progress says, if it is one of this form."""
    try:
        return checked(limits.parse_json(limits.read_text(path, "the progress ", limits.RANGES_BYTES)), form)
    except (BadRecipe, ValueError):
        return None
