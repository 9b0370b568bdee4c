"""Reports of what a command found, or of models as they lie on disk. What takes runs of the model is measured here."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from onnxq.analysis.layers import FormError, ModelAnalysis
from onnxq.benching.kernels import kernels_of
from onnxq.checking.compare import compare
from onnxq.checking.layers.by_layer import by_layer
from onnxq.checking.layers.result import ByLayer
from onnxq.checking.models import Check
from onnxq.checking.result import Result
from onnxq.conversion.dequantize import GROWTH
from onnxq.conversion.restore import restore_all
from onnxq.errors import BadModel, OnnxqError, amount
from onnxq.files import limits
from onnxq.frontier import Frontier
from onnxq.job import WHOLE_MODEL_BYTES, Environment
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import external_tensors, load_model
from onnxq.output import write
from onnxq.output.signature import Signature, signature_of
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.fold_constants import FoldConstants
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.opsets.inline_functions import InlineFunctions
from onnxq.passes.prepare import prepare, run
from onnxq.plan import Method, Plan, load_plan
from onnxq.report import nodes as nodes_of_models
from onnxq.report.activations import Codes, activations_of, most_clipped, ranges_in
from onnxq.report.document import Activation, FrontPoint, Layer, Report, Summary, WeightError, known, load_report
from onnxq.report.operators import add_times, by_operator, name_kernels
from onnxq.report.reasons import reasons_of
from onnxq.report.weights import weight_errors
from onnxq.runtime.session import Feed
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import Data
from onnxq.version import __version__

#: Samples on which layers are compared at most: each runs three models.
LAYERS = 8


@dataclass(frozen=True)
class Subject:
    """What a report is of.

    Attributes:
        model: the quantized file, or the only one.
        in_float: what it was made of; None where that is not known.
        sampling: the samples on which the two are run; without, inputs are made up.
        commands: by which it is had again.
    """

    model: Path
    in_float: Path | None = None
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    environment: Environment = dataclasses.field(default_factory=Environment)
    commands: tuple[str, ...] = ()


def of_result(result: Result, subject: Subject) -> Report:
    """What `quantize` did."""
    report = _empty("quantize", subject)
    report.scheme, report.target = result.plan.scheme, result.plan.target
    _add_check(report, result.check)
    report.summary.bytes_before, report.summary.bytes_after = result.bytes_before, result.bytes_after
    report.summary.calibration = result.recipe.calibration if result.plan.those(Method.STATIC) else ""
    if result.score is not None:
        _add_score(report.summary, result.score.metric, result.score.in_float, result.score.quantized)
    report.notes += [*([f"{result.copied}; the output is a copy of the model"] if result.copied else []), *result.notes]
    _add_models(report, subject, result.plan)
    return report


def of_check(check: Check, subject: Subject) -> Report:
    """What `check` found of two models."""
    report = _empty("check", subject)
    _add_check(report, check)
    _add_models(report, subject, None)
    return report


def of_layers(found: ByLayer, subject: Subject) -> Report:
    """What `check --by-layer` found of two models."""
    report = _empty("check", subject)
    _add_layers(report, found)
    _add_models(report, subject, None)
    return report


def read_report(subject: Subject) -> Report:
    """The report of a file: a plan, a report as JSON, or a model, beside the float model if that is given.

    Raises:
        BadRecipe: JSON of neither kind.
        BadModel: the model cannot be read.
    """
    if subject.model.suffix.lower() != ".json":
        return of_model(subject)
    text = limits.read_text(subject.model, "the file ")
    if '"onnxq_report"' in text:
        return load_report(subject.model)
    return of_plan(load_plan(subject.model), subject)


def of_model(subject: Subject) -> Report:
    """A model as it lies on disk, and beside the float model, if that is known."""
    report = _empty("model", subject)
    if subject.in_float is not None:
        environment = subject.environment
        environment.progress.start("comparing the two models")
        try:
            _add_check(report, compare(subject.in_float, subject.model, subject.sampling, threads=environment.threads))
        except OnnxqError as error:
            report.notes.append(f"not compared as a whole: {error}")
    _add_models(report, subject, None)
    return report


def _tell(report: Report, *notes: str) -> None:
    """Add notes that are not there yet: on the same samples several things are measured."""
    report.notes += [note for note in notes if note and note not in report.notes]


def of_plan(plan: Plan, subject: Subject) -> Report:
    """A plan that was written to a file, and that nobody has carried out yet."""
    report = _empty("plan", subject)
    report.scheme, report.target = plan.scheme, plan.target
    report.nodes, report.reasons = nodes_of_models.nodes_of_plan(plan), reasons_of(plan)
    return report


def of_analysis(analysis: ModelAnalysis, subject: Subject) -> Report:
    """The error of every weight in every form."""
    report = _empty("analyze", subject)
    report.summary.inputs = amount(analysis.samples, "sample") if analysis.samples else ""
    _tell(report, analysis.note)
    for layer in analysis.layers:
        row = WeightError(layer.node, layer.op, list(layer.shape))
        row.forms = {found.form.label: known(found.stats.sqnr) for found in layer.forms}
        row.layer_forms = {f.form.label: known(f.layer_sqnr) for f in layer.forms if f.layer_sqnr is not None}
        row.model_forms = {f.form.label: known(f.model_sqnr) for f in layer.forms if f.model_sqnr is not None}
        report.weights.append(row)
        report.notes += [f"{layer.node}, {label}: {problem}" for label, problem in layer.problems.items()]
    report.nodes = nodes_of_models.nodes_of(_prepared(subject.model), None)
    worst = {layer.node: min(map(_sqnr, layer.forms), default=None) for layer in analysis.layers}
    for node in report.nodes:
        node.sqnr = known(worst.get(node.name))
    return report


def of_search(front: Frontier, subject: Subject) -> Report:
    """The plans that no other one beats."""
    report = _empty("search", subject)
    report.harm = front.harm
    for point in front.points:
        found = point.figures
        figures = [known(each) for each in (found.sqnr, point.latency, found.kld, found.flips)]
        report.front.append(FrontPoint(point.bits, point.size, point.nbytes, found.harm, *figures))
    report.notes.append(f"{amount(front.runs, 'plan')} measured, {len(front.points)} of them beaten by no other one")
    if front.points:
        best = min(front.points, key=lambda point: point.figures.harm)
        report.scheme, report.target = best.plan.scheme, best.plan.target
        report.nodes, report.reasons = nodes_of_models.nodes_of_plan(best.plan), reasons_of(best.plan)
        report.notes.append(f"nodes are those of the most accurate plan, of {best.bits:.2f} bits")
    return report


def _empty(kind: str, subject: Subject) -> Report:
    report = Report(kind, subject.model.name, str(subject.model), __version__, commands=list(subject.commands))
    report.against = "" if subject.in_float is None else str(subject.in_float)
    return report


def _add_check(report: Report, check: Check | None) -> None:
    if check is None:
        return
    fields = {field.name for field in dataclasses.fields(check)}
    summary = report.summary
    for name in summary.__struct_fields__:
        if name in fields:
            value = getattr(check, name)
            setattr(summary, name, known(value) if isinstance(value, float) else value)
    summary.outputs = {name: known(x) for name, x in check.outputs.items()}
    summary.kinds = {name: known(x) for name, x in check.kinds.items()}
    if check.float_ms:
        summary.latency_ratio = check.latency_ratio
    else:
        summary.float_ms = summary.quantized_ms = summary.latency_spread = None
    if check.score is not None:
        _add_score(summary, check.score.metric, check.score.in_float, check.score.quantized)
    report.notes += check.notes


def _add_score(summary: Summary, metric: str, before: float, after: float) -> None:
    summary.metric, summary.score_before, summary.score_after = metric or "score", known(before), known(after)


def _add_models(report: Report, subject: Subject, plan: Plan | None) -> None:
    """What the files tell, and what runs of them do."""
    progress = subject.environment.progress
    progress.start("looking at the file")
    quantized = load_model(subject.model, to_look_at=True)
    signature = _signature(quantized, report)
    if signature is not None:
        plan = plan or signature.plan
        _add_signature(report, signature)
    report.summary.bytes_after = bytes_of(subject.model, quantized)
    source = subject.in_float
    prepared = _prepared(source or subject.model)
    if source is None:
        report.nodes = nodes_of_models.nodes_of(quantized if plan is None else prepared, None)
        if plan is not None:
            _name(report, plan)
    else:
        report.summary.bytes_before = bytes_of(source, load_model(source, to_look_at=True))
        report.weights = _weights(report, prepared, source, subject.model)
        report.nodes = nodes_of_models.nodes_of(prepared, plan, report.weights)
    report.reasons = [] if plan is None else reasons_of(plan)
    makers = nodes_of_models.makers(prepared)
    if write.nbytes_to_write(prepared) > WHOLE_MODEL_BYTES:
        report.notes.append("the model is too large to be run whole: no times and no activations were looked at")
        nodes_of_models.add_errors(report.nodes, makers, report.layers, report.weights)
        return
    if source is not None and not report.layers:
        _look_at_layers(report, subject)
    nodes_of_models.add_errors(report.nodes, makers, report.layers, report.weights)
    try:
        _add_runs(report, subject, prepared, quantized)
    except OnnxqError as error:
        report.notes.append(f"not run for this report: {error}")


def _look_at_layers(report: Report, subject: Subject) -> None:
    assert subject.in_float is not None
    environment = subject.environment
    try:
        _add_layers(
            report,
            by_layer(
                subject.in_float,
                subject.model,
                dataclasses.replace(subject.sampling, limit=min(LAYERS, subject.sampling.limit or LAYERS)),
                threads=environment.threads,
                progress=environment.progress,
            ),
        )
    except OnnxqError as error:
        report.notes.append(f"not compared layer by layer: {error}")


def _add_layers(report: Report, found: ByLayer) -> None:
    for layer in found.layers:
        row = Layer(layer.node or layer.a, layer.op, layer.node_b or layer.b, layer.pairing, verdict=layer.role or "")
        row.local_sqnr, row.sqnr = known(layer.local_sqnr), known(layer.sqnr)
        row.cosine, row.max_error, row.value = known(layer.cosine), known(layer.max_error), layer.a
        row.is_scaled = layer.is_scaled
        report.layers.append(row)
    _tell(report, f"layers were compared on {found.inputs}", *found.notes)


def _name(report: Report, plan: Plan) -> None:
    """Let nodes of a quantized model say what a plan says of those of the same name."""
    for node in report.nodes:
        choice = plan.choices.get(node.name)
        if choice is not None:
            node.becomes, node.format, node.reason = choice.label, choice.format or "", choice.reason
            node.weights = choice.elements or node.weights


def _add_runs(report: Report, subject: Subject, prepared: ir.Model, quantized: ir.Model) -> None:
    path = subject.in_float or subject.model
    model, progress = load_model(path), subject.environment.progress
    data = subject.sampling.open(model, path)
    _tell(report, "" if data is None else data.note)
    if data is not None and subject.in_float is not None:
        report.activations = _activations(report, subject, prepared, ranges_in(quantized), data)
    feed = next(iter(data), None) if data is not None else _made_up(model)
    if feed is None:
        report.notes.append("no inputs could be made up for the model: kernels were not timed; give --data")
        return
    progress.start("timing kernels")
    threads = subject.environment.threads
    after = kernels_of(subject.model, feed, threads)
    before = kernels_of(path, feed, threads) if subject.in_float is not None else []
    report.operators = by_operator(before, after)
    owners = nodes_of_models.owners(prepared)
    add_times(report.nodes, owners, before, after)
    if not report.recipe:  # else its plan has told
        name_kernels(report.nodes, owners, after)


def _activations(
    report: Report, subject: Subject, prepared: ir.Model, chosen: dict[str, Codes], data: Data
) -> list[Activation]:
    """Of the float model; those that the file has scaled as they are there, since that is what its ranges are for."""
    progress = subject.environment.progress
    scaled = {layer.value for layer in report.layers if layer.is_scaled} & chosen.keys()
    found = activations_of(prepared, {k: x for k, x in chosen.items() if k not in scaled}, data, progress)
    if scaled:
        own = activations_of(load_model(subject.model), {name: chosen[name] for name in scaled}, data, progress)
        found += [msgspec.structs.replace(each, is_scaled=True) for each in own]
    return most_clipped(found)


def _made_up(model: ir.Model) -> Feed | None:
    feeds = make_up(model, scout(model)).feeds
    return feeds[0] if feeds else None


def _weights(report: Report, prepared: ir.Model, source: Path, quantized: Path) -> list[WeightError]:
    restored = load_model(quantized, to_look_at=True)
    try:
        restore_all(restored)
        run([FoldConstants(GROWTH), RemoveUnused()], restored)
    except (BadModel, ValueError) as error:
        report.notes.append(f"the weights of the quantized model cannot be read: {error}")
        return []
    has_norms = any(graph.is_op(node, "BatchNormalization") for node in graph.nodes(restored))
    return list(weight_errors(prepared, restored, _unfolded(source) if has_norms else None))


def _unfolded(path: Path) -> ir.Model:
    """A model that is prepared only as far as weights are found: other tools leave normalizations where they are."""
    model = load_model(path, to_look_at=True)
    lift = LiftConstantsToInitializersPass(True, size_limit=0)
    run([InlineFunctions(), DropInitializerInputs(), lift, UniqueNames(), FoldConstants(GROWTH)], model)
    return model


def _signature(model: ir.Model, report: Report) -> Signature | None:
    try:
        return signature_of(model)
    except OnnxqError as error:
        report.notes.append(str(error))
        return None


def _add_signature(report: Report, made: Signature) -> None:
    told = made.to_dict()
    recipe = told["recipe"]
    assert isinstance(recipe, dict)
    report.recipe = recipe
    report.scheme, report.target = made.plan.scheme, made.plan.target
    report.summary.machine = report.summary.machine or made.machine
    report.summary.calibration = made.recipe.calibration if made.plan.those(Method.STATIC) else ""
    hashes = {"float model": made.model, "data": made.data, "plan": made.plan_hash, "machine profile": made.profile}
    report.hashes = {word: value for word, value in hashes.items() if value}
    report.hashes["onnxq"], report.hashes["onnxruntime"] = made.version, made.onnxruntime


def _prepared(path: Path) -> ir.Model:
    """The model as plans name its nodes; as it is, where it cannot be prepared and is only to be shown."""
    model = load_model(path, to_look_at=True)
    try:
        prepare(model)
    except (BadModel, RuntimeError):
        return load_model(path, to_look_at=True)
    return model


def bytes_of(path: Path, model: ir.Model) -> int:
    """Of all files of a model."""
    files = {path, *(Path(tensor.path) for tensor in external_tensors(model))}
    return sum(file.stat().st_size for file in files)


def _sqnr(found: FormError) -> float:
    """The nearest to what the model's user sees."""
    nearest = next(x for x in (found.model_sqnr, found.layer_sqnr, found.stats.sqnr) if x is not None)
    return nearest if math.isfinite(nearest) else 0.0
