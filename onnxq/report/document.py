"""What a report holds. Its JSON form is docs/report.schema.json, which follows from the types below."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from onnxq.errors import BadRecipe
from onnxq.files import limits, mirror, schemas, storage

#: Of the form below; a member that is added leaves it as it is, one that goes or changes its meaning does not.
VERSION = 1
Count = schemas.Count
#: Decibel, seconds and the like; nothing where it was not measured.
Known = float | None


class Summary(Struct):
    """The model as a whole. Sizes are bytes, times milliseconds of one run, errors dB of signal to noise."""

    bytes_before: Count | None = None
    bytes_after: Count | None = None
    inputs: str = ""
    proves: bool = False
    sqnr: Known = None
    sqnr_plain: Known = None
    outputs: dict[str, Known] = {}
    kinds: dict[str, Known] = {}
    worst_sample: Known = None
    faint_samples: Count = 0
    faint: dict[str, tuple[float, float]] = {}
    kld: Known = None
    flips: Known = None
    metric: str = ""
    score_before: Known = None
    score_after: Known = None
    float_ms: Known = None
    quantized_ms: Known = None
    latency_ratio: Known = None
    latency_spread: Known = None
    threads: Count | None = None
    kernels: dict[str, Count] = {}
    calibration: str = ""
    machine: str = ""


class Node(Struct):
    """A node of the graph: what it became, why, the dB of error at its outputs, and least milliseconds of a run."""

    name: str
    op: str
    becomes: str = ""
    format: str = ""
    weights: Count = 0
    reason: str = ""
    sqnr: Known = None
    float_ms: Known = None
    quantized_ms: Known = None


class Layer(Struct):
    """The outputs of a layer in both models: the error that it adds itself, and all that has added up until there.

    `name` is of the node that makes `value`, and `other` of that of the other model. `is_scaled`: its channels were
    scaled back for the comparison, as those who read it in the other model do.
    """

    name: str
    op: str
    other: str = ""
    paired_by: str = ""
    local_sqnr: Known = None
    sqnr: Known = None
    cosine: Known = None
    max_error: Known = None
    verdict: str = ""
    value: str = ""
    is_scaled: bool = False


class Activation(Struct):
    """What was seen of an activation, and what ranges follow from it.

    `chosen` is the range of the file's codes; `ranges` those of each calibration method. `counts` are numbers in bins
    of `width`, the first of which begins at `start`. `is_scaled`: the numbers are those of the quantized model, which
    has the channels scaled.
    """

    name: str
    low: float
    high: float
    start: float
    width: float
    counts: list[Count]
    chosen: tuple[float, float] | None = None
    ranges: dict[str, tuple[float, float]] = {}
    clipped: Known = None
    is_scaled: bool = False


class WeightError(Struct):
    """A weight and what its codes stand for; of an analysis, in each form."""

    node: str
    op: str
    shape: list[Count]
    format: str = ""
    sqnr: Known = None
    cosine: Known = None
    max_error: Known = None
    is_scaled: bool = False
    forms: dict[str, Known] = {}
    layer_forms: dict[str, Known] = {}
    model_forms: dict[str, Known] = {}


class Operator(Struct):
    """All kernels of one operator: how many ran, and milliseconds of all of them in one run."""

    op: str
    before: Count = 0
    after: Count = 0
    float_ms: float = 0.0
    quantized_ms: float = 0.0


class Reason(Struct):
    """Why nodes are not as the scheme asks for, and what would change it."""

    reason: str
    advice: str
    nodes: list[str]
    weights: Count = 0


class FrontPoint(Struct):
    """A plan that no other one beats: bits of a weight in the mean, size and time relative to the float model."""

    bits: float
    size: float
    nbytes: Count
    harm: float
    sqnr: Known = None
    latency: Known = None
    kld: Known = None
    flips: Known = None


class Report(Struct, forbid_unknown_fields=True):
    """What was found of a model; or of a folder, whose models are `parts`, each with the part's name as its title."""

    kind: str
    title: str
    model: str
    onnxq: str
    onnxq_report: Annotated[int, Meta(ge=VERSION, le=VERSION)] = VERSION
    against: str = ""
    scheme: str = ""
    target: str = ""
    summary: Summary = msgspec.field(default_factory=Summary)
    nodes: list[Node] = []
    layers: list[Layer] = []
    activations: list[Activation] = []
    weights: list[WeightError] = []
    operators: list[Operator] = []
    reasons: list[Reason] = []
    front: list[FrontPoint] = []
    harm: str = ""
    recipe: dict[str, Any] = {}
    hashes: dict[str, str] = {}
    commands: list[str] = []
    notes: list[str] = []
    parts: list[Report] = []

    def to_json(self) -> str:
        """Everything, for machines; `docs/report.schema.json` says what is what."""
        return json.dumps(_worded(msgspec.to_builtins(self)), indent=1, allow_nan=False)

    def with_addresses(self) -> Report:
        """The same with addresses of stores in the place of paths that stand for them here, without keys."""
        return msgspec.convert(_addressed(msgspec.to_builtins(self)), Report)


def known(x: float | None) -> float | None:
    """A figure for the report; None where it was not measured or is none."""
    return None if x is None or not math.isfinite(x) else float(x)


def _worded(value: Any) -> Any:
    """A value with words (`-inf`) for the numbers that JSON does not have: a recipe may say some, figures never are."""
    if isinstance(value, dict):
        return {key: _worded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_worded(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _addressed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _addressed(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_addressed(each) for each in value]
    return mirror.as_given(value, storage.without_secrets) if isinstance(value, str) else value


def schema() -> str:
    """The JSON Schema of `Report.to_json`."""
    table = msgspec.json.schema(Report)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | table, indent=1) + "\n"


def load_report(path: str | Path) -> Report:
    """A report that `Report.to_json` wrote.

    Raises:
        BadRecipe: it is none, or of another version.
    """
    try:
        return schemas.checked(_worded(limits.parse_json(limits.read_text(path, "the report "))), Report)
    except RecursionError:
        raise BadRecipe(f"'{path}' is not a report: it is nested too deeply") from None
    except ValueError as error:
        raise BadRecipe(f"'{path}' is not a report written by this version of onnxq: {error}") from None
