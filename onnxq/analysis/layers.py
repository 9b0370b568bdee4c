"""Every weight of a model in every form asked for: the error of each, worst layer first."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnxq import formats
from onnxq.analysis import granularities
from onnxq.analysis.statistics import ErrorStats, ErrorSums
from onnxq.analysis.tensor import sum_errors
from onnxq.analysis.trial import Trial
from onnxq.boundary import bounded
from onnxq.encoding import memo
from onnxq.errors import BadModel, NothingToDo
from onnxq.model.load import load_model
from onnxq.model.weights import Weight, find_weights
from onnxq.passes.prepare import prepare
from onnxq.progress import QUIET, Progress
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import DataSource


@dataclass(frozen=True)
class Form:
    """A number format with a granularity; a format without scales has none (None)."""

    format: str
    granularity: str | None

    @property
    def label(self) -> str:
        """As tables have it: `nf4 block64`."""
        return self.format if self.granularity is None else f"{self.format} {self.granularity}"


@dataclass(frozen=True)
class FormError:
    """One weight in one form.

    Attributes:
        stats: error of the weight.
        layer_sqnr: dB at the output of the node that reads it, with only this weight quantized; None where it was not
            measured (no data), or cannot be (the node is inside a Loop, say).
        model_sqnr: the same at the model's worst output.
    """

    form: Form
    stats: ErrorStats
    layer_sqnr: float | None = None
    model_sqnr: float | None = None

    @property
    def harm(self) -> float:
        """Noise over signal, where it was measured nearest to what the model's user sees; 0…"""
        nearest = next(x for x in (self.model_sqnr, self.layer_sqnr, self.stats.sqnr) if x is not None)
        return 10 ** (-nearest / 10)


@dataclass(frozen=True)
class Layer:
    """One weight of a model: where it is read, and its error in each form.

    `problem` says why a form has no figures, by its label (a weight that is not finite or does not fit).
    """

    node: str
    op: str
    weight: str
    shape: tuple[int, ...]
    forms: tuple[FormError, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """How many numbers the weight has."""
        return math.prod(self.shape)

    @property
    def harm(self) -> float:
        """That of its worst form; infinite where a form cannot hold the weight at all."""
        return math.inf if self.problems else max((found.harm for found in self.forms), default=0.0)

    def __getitem__(self, form: Form) -> FormError | None:
        return next((found for found in self.forms if found.form == form), None)


@dataclass(frozen=True)
class ModelAnalysis:
    """The layers of a model, most harmful first.

    Attributes:
        forms: what was compared, in the order of the columns.
        totals: error of all weights together, by form; without the layers that a form cannot hold.
        samples: how many samples the outputs were measured on; 0 without data.
        note: what a user should know of which samples these are.
    """

    model: str
    forms: tuple[Form, ...]
    layers: tuple[Layer, ...]
    totals: tuple[FormError, ...]
    samples: int = 0
    note: str = ""

    @property
    def is_known(self) -> bool:
        """False where samples were run, and nothing that came out has an error that could be measured."""
        measured = [found for layer in self.layers for found in layer.forms]
        return not self.samples or not measured or any(found.model_sqnr is not None for found in measured)

    def to_json(self) -> str:
        """Everything, for machines."""
        layers = [
            {
                "node": layer.node,
                "op": layer.op,
                "weight": layer.weight,
                "shape": list(layer.shape),
                "elements": layer.elements,
                "forms": [to_dict(found) for found in layer.forms],
                "problems": layer.problems,
            }
            for layer in self.layers
        ]
        forms = [dataclasses.asdict(form) for form in self.forms]
        totals = [to_dict(found) for found in self.totals]
        table = {"model": self.model, "samples": self.samples, "note": self.note, "forms": forms, "totals": totals}
        return json.dumps(table | {"layers": layers}, indent=1)


def to_dict(found: FormError) -> dict[str, object]:
    """The form and its figures side by side."""
    table = dataclasses.asdict(found.form) | found.stats.to_dict()
    return table | {"layer_sqnr": found.layer_sqnr, "model_sqnr": found.model_sqnr}


def forms_for(words: Sequence[str] = (), wanted: Sequence[str] = ()) -> tuple[Form, ...]:
    """The forms that these words mean, each once.

    Args:
        words: formats; none means all there are.
        wanted: granularities. None means the one each format is mostly used with, or, of a single format that
            has several, `granularities.WORDS`.

    Raises:
        BadRecipe: an unknown word.
        NothingToDo: no format takes any of the granularities.
    """
    found: dict[Form, None] = {}
    for word in words or formats.names():
        format = formats.get(word)
        is_of_many = len(words) == 1 and not format.has_fixed_block
        ways = wanted or (granularities.WORDS if is_of_many else (granularities.natural(format),))
        for way in ways:
            own = granularities.taken(word, way)
            if own is not None:
                found[Form(word, own if granularities.has_scales(word) else None)] = None
    if not found:
        raise NothingToDo(f"{', '.join(words)} cannot have one scale for each {' or '.join(wanted)}")
    return tuple(found)


def open_weights(model: str | Path) -> tuple[ir.Model, list[Weight]]:
    """The prepared model, in float32 where it was in half precision, and its weights in the order of execution.

    Raises:
        BadModel: not a model that can be read.
        NothingToDo: it has no weights of floating-point numbers.
    """
    loaded = load_model(model)
    prepare(loaded, widen=True)
    weights = list(find_weights(loaded))
    if not weights:
        default = next((value.name for value in loaded.graph.inputs if value.const_value is not None), None)
        why = "" if default is None else f" ('{default}' is an input, which a caller may replace)"
        raise NothingToDo(f"'{model}' holds no floating-point weights that could be analyzed{why}: nothing to do")
    return loaded, weights


@bounded
def analyze_model(
    model: str | Path,
    words: Sequence[str] = (),
    wanted: Sequence[str] = (),
    *,
    data: DataSource | Sampling | None = None,
    algorithm: str = "rtn",
    progress: Progress = QUIET,
) -> ModelAnalysis:
    """The error of every weight of `model` in every form.

    Args:
        words, wanted: formats and granularities, as `forms_for` takes them.
        data: samples (`source.open_data` says in which forms), or a `Sampling`, which says which of them; with them the
            model is run with one weight quantized at a time, on as many samples as the float model manages in half a
            second, at least two.
        algorithm: a word of `algorithms.DATA_FREE`.

    Raises:
        OnnxqError: of the model, the data or the words. That a form cannot hold a weight is said by its layer.
    """
    forms = forms_for(words, wanted)
    loaded, weights = open_weights(model)
    trial = None
    samples = Sampling.of(data, limit=None).open(loaded, model)
    if samples is not None:
        progress.start("running the float model")
        trial = Trial(loaded, weights, samples)
    progress.start("quantizing", len(weights) * len(forms))
    sums = {form: ErrorSums() for form in forms}
    layers = []
    for weight in weights:
        measured, problems = [], {}
        for form in forms:
            try:
                measured.append(_measure(weight, form, algorithm, sums[form], trial))
            except BadModel as error:
                problems[form.label] = str(error)
            progress.advance(1)
        where = (weight.node.name or "", weight.node.op_type, weight.value.name or "", weight.shape)
        layers.append(Layer(*where, tuple(measured), problems))
    memo.forget()
    layers.sort(key=lambda layer: -layer.harm)
    totals = tuple(FormError(form, sums[form].stats()) for form in forms)
    ran_on = () if trial is None else (trial.samples, trial.note)
    return ModelAnalysis(str(model), forms, tuple(layers), totals, *ran_on)


def granularity_of(form: Form, weight: Weight) -> formats.Granularity:
    """Which numbers of `weight` share a scale."""
    return granularities.parse(form.granularity or "tensor", weight.role)


def _measure(weight: Weight, form: Form, algorithm: str, total: ErrorSums, trial: Trial | None) -> FormError:
    granularity = granularity_of(form, weight)
    sums = sum_errors(weight.tensor, formats.get(form.format), granularity, algorithm)
    total.merge(sums)
    if trial is None:
        return FormError(form, sums.stats())
    layer, whole = trial.run(weight, formats.get(form.format), granularity, algorithm)
    return FormError(form, sums.stats(), layer, whole)
