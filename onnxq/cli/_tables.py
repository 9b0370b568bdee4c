"""What a person is shown: plans, checks and models as tables."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from onnxq.checking.models import Check
from onnxq.checking.result import Result
from onnxq.checking.score import Score
from onnxq.errors import BadModel, BadRecipe, amount, one_line
from onnxq.model import graph
from onnxq.model.load import TYPE, is_quantized
from onnxq.model.weights import find_weights
from onnxq.output.signature import Signature, signature_of
from onnxq.passes.prepare import prepare
from onnxq.plan import Choice, Method, Plan
from onnxq.recipe import Recipe
from onnxq.report.words import count, decibel, error, judged, judged_on, milliseconds, nbytes
from onnxq.runtime.machine import threads_in_words
from onnxq.runtime.timing import speed_in_words
from onnxq.targets.rules import Finding

if TYPE_CHECKING:  # which few commands need
    from onnxq.checkpoints.import_weights import Imported

#: Regions of which a table tells: those that take longest.
MOST_REGIONS = 3


def plan_table(plan: Plan, *, each_node: bool = False) -> Table:
    """The plan, nodes of the same kind and fate in one line unless `each_node`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node" if each_node else "nodes", "operator", "becomes", "weights", "why"):
        table.add_column(column, justify="right" if column == "weights" else "left", overflow="fold")
    # A weight that several nodes read is listed once, where it is read first.
    followers = [c for c in plan if c.shares in plan.choices and plan.choices[c.shares].label == c.label]
    others = Counter(c.shares for c in followers)
    names = {c.node for c in followers}
    plan = dataclasses.replace(plan, choices={c.node: c for c in plan if c.node not in names})
    if each_node:
        for c in plan:
            more = f" (and {others[c.node]} more)" if others[c.node] else ""
            table.add_row(c.node + more, c.op, c.label, count(c.elements), c.reason)
        return table
    groups: dict[tuple[str, str, str], list[Choice]] = {}
    for c in plan:
        groups.setdefault((c.op, c.label, _without_names(c)), []).append(c)
    weights = {key: sum(c.elements for c in choices) for key, choices in groups.items()}
    for key in sorted(groups, key=lambda key: (-weights[key], key)):
        op, label, _ = key
        table.add_row(str(len(groups[key])), op, label, count(weights[key]), _reason(groups[key]))
    return table


def _without_names(choice: Choice) -> str:
    """The reason, quoted names taken out, so that equal reasons fall together."""
    return "…".join(choice.reason.split("'")[::2])


def _reason(choices: list[Choice]) -> str:
    """The reason that all of them share, in the words of the first; how many others say it of another name."""
    first = choices[0].reason
    others = sum(reason != first for reason in {choice.reason for choice in choices})
    return f"{first} (and {others} more like it)" if others else first


def result_table(result: Result) -> Group:
    """Size, error and speed."""
    method = result.recipe.calibration if result.plan.those(Method.STATIC) else ""
    machine = "" if result.signature is None else result.signature.machine
    notes = (*result.further_notes, *result.notes)
    return _outcome(size_words(result), method, result.check, notes, machine=machine, score=result.score)


def import_table(done: Imported) -> Group:
    """Size, error and speed of a model with imported weights."""
    return _outcome(size_words(done), "", done.check, () if done.check is None else done.check.further_notes)


def conversion_table(before: int, after: int, check: Check | None) -> Group:
    """Size, difference and speed of a model that was made of another quantized one."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("size", f"{nbytes(before)} → {nbytes(after)}", f"{after / max(1, before):.2f} of what it was")
    if check is not None and check.is_known:
        table.add_row("agrees", error(check), f"with what it was, on {check.inputs}")
        if check.float_ms:
            table.add_row("speed", *_speed(check, "it was"))
    elif check is not None:
        table.add_row(
            *(Text(word, style="bold red") for word in ("not compared", "", "nobody knows whether it agrees"))
        )
    return Group(table, *(Text(one_line(f"note: {note}")) for note in (() if check is None else check.further_notes)))


def check_table(check: Check) -> Group:
    """Error and speed."""
    return _outcome(None, "", check, check.notes, score=check.score)


def size_words(done: Result | Imported) -> tuple[str, str]:
    """How large a file became, and what that is of float; why it is more, where it has few weights."""
    before, after = done.bytes_before, done.bytes_after
    why = "; what describes the nodes outweighs so few weights" if done.is_outweighed else ""
    return f"{nbytes(before)} → {nbytes(after)}", f"{after / max(1, before):.2f} of float{why}"


def _outcome(
    size: tuple[str, str] | None,
    method: str,
    check: Check | None,
    notes: Sequence[str],
    *,
    machine: str = "",
    score: Score | None = None,
) -> Group:
    """The notes go below the table: they are sentences, too long for its columns."""
    table = Table(box=None, pad_edge=False, show_header=False)
    if size is not None:
        table.add_row("size", *size)
    if method:
        table.add_row("ranges", method, "of activations, by calibration")
    if score is not None:
        worse = "lower" if score.higher else "higher"
        fell = f"{score.drop:.4g} {worse}" if score.drop > 0 else f"not {worse}"
        allowed = "" if score.allowed is None else f", may be {score.allowed:g} {worse}"
        table.add_row(score.metric or "score", f"{score.in_float:.6g} → {score.quantized:.6g}", f"{fell}{allowed}")
    if check is not None:
        _add_check(table, check)
    if check is not None and machine:
        table.add_row("plan", "by kernel times", one_line(f"measured on {machine}"))
    return Group(table, *(Text(one_line(f"note: {note}")) for note in notes))


def _add_check(table: Table, check: Check) -> None:
    if check.is_known:
        table.add_row("error", error(check), escape(one_line(judged_on(check))))
        if not math.isnan(check.flips):
            divergence = "" if math.isnan(check.kld) else f"; KL divergence {check.kld:.3g} nats"
            table.add_row("flips", f"{check.flips:.2%}", f"of decisions{divergence}")
        if not check.proves:
            missing = ("not proven", "no data", "made-up inputs show weak points, not how good it is: give --data")
            table.add_row(*(Text(word, style="bold yellow") for word in missing))
    else:
        missing = ("not proven", "not compared", "nobody knows how good it is")
        table.add_row(*(Text(word, style="bold red") for word in missing))
    if check.float_ms:
        table.add_row("speed", *_speed(check, "float"))
    if check.elsewhere is not None and check.elsewhere.was_run:
        there = check.elsewhere
        types = ", ".join(f"{count} in {word}" for word, count in sorted(there.types.items()))
        figure = judged(there.sqnr, of_faint=there.is_of_faint)
        table.add_row(f"in {there.runtime}", figure, f"the float model: {decibel(there.float_sqnr)}")
        share = (
            f"{there.quantized_ms / max(there.float_ms, 1e-9):.2f} of float's time; convolutions and products: {types}"
        )
        table.add_row("", f"{milliseconds(there.float_ms)} → {milliseconds(there.quantized_ms)}", share)
    if check.kernels:
        table.add_row(
            "kernels", ", ".join(f"{n} {op}" for op, n in check.kernels.items()), "ran on packed or integer weights"
        )
    slowest = sorted(check.regions, key=lambda region: -region.ms)
    for region in slowest[:MOST_REGIONS]:
        table.add_row(escape(one_line(region.name)), amount(len(region.steps), "step"), escape(one_line(str(region))))
    if others := slowest[MOST_REGIONS:]:
        took = f"{sum(region.ms for region in others):.3g} ms; --json has their steps"
        table.add_row("", amount(len(others), "other region"), took)


def _speed(check: Check, other: str) -> tuple[str, str]:
    words = speed_in_words(check.latency_ratio, check.latency_spread, other)
    return (
        f"{milliseconds(check.float_ms)} → {milliseconds(check.quantized_ms)}",
        f"{words}, {threads_in_words(check.threads)}",
    )


def findings_table(found: list[Finding], target: str) -> Table | str:
    """Where a model breaks the rules of a runtime: a line for each thing that is wrong, with its nodes."""
    if not found:
        return f"keeps the rules of {target}; rules only: not run"
    table = Table(box=None, pad_edge=False)
    for column in ("nodes", "example", "what is wrong there", "so that"):
        table.add_column(column, justify="right" if column == "nodes" else "left")
    by_words: dict[tuple[str, bool], list[str]] = {}
    for finding in found:
        by_words.setdefault((finding.says, finding.refuses), []).append(finding.node)
    for (says, refuses), nodes in sorted(by_words.items(), key=lambda item: not item[0][1]):
        table.add_row(str(len(nodes)), escape(nodes[0]), escape(says), "refused" if refuses else "slower or less exact")
    return table


def model_table(model: ir.Model) -> Table:
    """A model's interface and what its constants are stored as."""
    table = Table(box=None, pad_edge=False, show_header=False)
    versions = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items())
    table.add_row("opsets", versions)
    maker = " ".join(filter(None, (model.producer_name or "unknown", model.producer_version)))
    table.add_row("made by", f"{maker}, IR {model.ir_version}")
    for word, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            table.add_row(word, f"{value.name}: {_type(value)}")
    ops = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in graph.nodes(model))
    shown = [f"{n} {op}" for op, n in ops.most_common(12)]
    others = sum(ops.values()) - sum(n for _, n in ops.most_common(12))
    table.add_row("nodes", f"{sum(ops.values())}: " + ", ".join([*shown, *([f"{others} others"] if others else [])]))
    stored: Counter[str] = Counter()
    for tensor in _constants(model):
        stored[tensor.dtype.name.lower()] += tensor.nbytes
    table.add_row("constants", ", ".join(f"{nbytes(n)} {dtype}" for dtype, n in stored.most_common()) or "none")
    weights = Counter(weight.node.op_type for weight in find_weights(_prepared(model)))
    quantized = is_quantized(model)
    none = "none" if quantized is None else "none but those of quantized nodes"
    table.add_row("weights", ", ".join(f"{n} of {op}" for op, n in weights.most_common()) or none)
    if quantized is not None:
        table.add_row("quantized", quantized)
    if "onnxq" in model.metadata_props:
        _add_origin(table, model)
    return table


def _constants(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Those of initializers and of Constant nodes, in whichever of the two a file has them."""
    graphs = [*model.graphs()]
    for function in model.functions.values():
        graphs += function.graph, *function.graph.subgraphs()
    for each in graphs:
        for value in (*each.initializers.values(), *(out for node in each for out in node.outputs)):
            with contextlib.suppress(ValueError, TypeError):  # a file may give such a node no number, or several
                tensor = ir.convenience.get_const_tensor(value)
                if tensor is not None:
                    yield tensor


def _add_origin(table: Table, model: ir.Model) -> None:
    """How the model was made, as far as it says."""
    try:
        made = signature_of(model)
    except BadRecipe as error:
        table.add_row("onnxq", str(error))
        return
    if made is None:
        table.add_row("onnxq", one_line(model.metadata_props["onnxq"]))
        return
    runtime = f", onnxruntime {made.onnxruntime}" if made.onnxruntime else ""
    how = "given" if made.is_given else "tuned" if made.profile else "of the recipe"
    for word, text in (
        ("version", f"onnxq {made.version}{runtime}"),
        ("recipe", _in_words(made)),
        ("plan", f"{made.plan_hash}, {how}{', trained' if made.is_trained else ''}"),
        ("model hash", made.model),
        ("data hash", made.data or "no data"),
        ("profile hash", f"{made.profile}, {made.machine}" if made.profile else "no times decided"),
    ):
        table.add_row(word, one_line(text))


def _in_words(made: Signature) -> str:
    """The recipe, without what is usual."""
    usual = dataclasses.asdict(Recipe())
    words = {k: x for k, x in dataclasses.asdict(made.recipe).items() if x != usual[k] and k not in ("scheme", "rules")}
    rules = [f"{rule.set} '{rule.nodes}'" for rule in made.recipe.rules]
    asked = f" (asked for: {made.asked})" if made.asked != made.recipe.scheme else ""
    options = [*(f"{key} = {value}" for key, value in words.items()), *rules]
    return ", ".join([f"{made.recipe.scheme}{asked} for {made.plan.target}", *options])


def _type(value: ir.Value) -> str:
    if TYPE in value.metadata_props:
        return value.metadata_props[TYPE]
    return _of_kind(value.type, "?" if value.dtype is None else value.dtype.name.lower(), _shape(value.shape))


def _of_kind(kind: ir.TypeProtocol | None, dtype: str, shape: str) -> str:
    """A type in words: of a tensor, or of a sequence or an optional value of what has that shape."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        word = "sequence" if isinstance(kind, ir.SequenceType) else "optional"
        return f"{word}({_of_kind(kind.elem_type, dtype, shape)})"
    sparse = "sparse " if isinstance(kind, ir.SparseTensorType) else ""
    return f"{sparse}{dtype}{shape}"


def _prepared(model: ir.Model) -> ir.Model:
    """A copy in which weights are found wherever the file has them: in Constant nodes, functions, turned."""
    try:
        copy = model.clone()
        prepare(copy)
    except (BadModel, RuntimeError):  # of a function that reads what nobody makes: it is only to be shown
        return model
    return copy


def _shape(shape: ir.Shape | None) -> str:
    return (
        " of any shape" if shape is None else "[" + ", ".join("?" if str(d) == "None" else str(d) for d in shape) + "]"
    )
