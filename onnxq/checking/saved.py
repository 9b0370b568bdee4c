"""Step 8: the file that was written, against the float model that it was made from."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx_ir as ir

from onnxq.checking.elsewhere import run_elsewhere
from onnxq.checking.models import Check, check_models
from onnxq.checking.nodes.check_nodes import check_nodes
from onnxq.checking.rules import kept_rules, unused_level
from onnxq.checking.spelled import as_run
from onnxq.errors import BadModel, Bug, listed
from onnxq.files.staging import scratch
from onnxq.job import Job
from onnxq.made_up.roles import Role, parts_of
from onnxq.model import graph
from onnxq.model.load import load_written
from onnxq.output import write
from onnxq.plan import Method, Plan
from onnxq.quality.decisions import NO_CLASSES, Classes
from onnxq.runtime.ort.installed import version
from onnxq.runtime.session import Session
from onnxq.samples.source import inputs_of
from onnxq.samples.trials import Trials

#: dB below which it is asked whether that much was lost by numbers of fewer bits, or before any had fewer.
SUSPECT_DB = 15.0
#: What a rewrite may cost that only changes the order of sums, or float16 for float32.
REWRITTEN_DB = 20.0


def check_saved(
    job: Job,
    plan: Plan,
    staged: Path,
    trials: Trials | None,
    measured: Callable[[], ir.Model],
    classes: Mapping[str, Classes] = NO_CLASSES,
) -> Check:
    """What is found by running the file at `staged`, in which `plan` was carried out.

    Args:
        trials: what to run the models on; None: they are too large to be run whole.
        measured: makes the same model as plans are measured by: without types for which onnxruntime may have no
            kernels, and rounding as float16 kernels do.
        classes: outputs that are scores of classes.

    Raises:
        CheckFailed: the file is broken, or computes something else.
        Bug: what was rewritten before anything was quantized computes something else already.
    """
    job.progress.start("checking the saved file")
    kept_to = kept_rules(staged, job.target.name)
    notes = [*unused_level(plan, job.recipe.accuracy_level), *_unseen(job, plan, staged)]
    with contextlib.ExitStack() as kept:
        runnable = staged

        def written(model: ir.Model) -> Path:
            path = Path(kept.enter_context(scratch())) / staged.name
            write.save(model, path)
            return path

        if job.target.spelled:
            runnable, said = kept.enter_context(as_run(staged, measured))
            notes += said
        if trials is None:
            names = [choice.node for choice in plan if choice.method is not Method.KEEP]
            found = check_nodes(job.model, runnable, names, threads=job.threads)
            return kept_to.told(found, *notes)
        bare = job.target.has_onnxq_ops
        reference, doubts = _reference(job)
        notes += doubts
        check = functools.partial(check_models, reference, trials=trials, threads=job.threads, classes=classes)
        found = check(runnable, bare=bare)
        if plan.shortens_floats:
            found = _rounded(found, check(written(measured()), seconds=0.0))
        if found.sqnr < SUSPECT_DB:
            _require_same(job, lambda path: check(path, seconds=0.0).sqnr, written)
    found = kept_to.told(found, *notes)
    if not job.target.consumer:
        return found
    there = run_elsewhere(job.target.consumer, job.open_there(), reference, staged, trials, job.threads)
    return dataclasses.replace(found, elsewhere=there, notes=(*found.notes, *there.notes))


def _require_same(job: Job, sqnr_of: Callable[[Path], float], written: Callable[[ir.Model], Path]) -> None:
    """That what was to be quantized is the user's model still; one that draws random numbers is never the same.

    Raises:
        BadModel: onnxruntime takes operators of functions for those of the model's opset, which compute something else.
        Bug: it is another one.
    """
    prepared = sqnr_of(written(job.model))
    if prepared < REWRITTEN_DB <= sqnr_of(job.path):
        if job.converted:
            raise BadModel(
                f"'{job.path}' is another model by ONNX than onnxruntime runs ({prepared:.1f} dB): functions are of "
                f"another opset than the model ({job.converted}), which onnxruntime does not heed; write them in "
                "its own"
            )
        raise Bug(
            f"this is a bug in onnxq: what it made of '{job.path}' before it quantized anything is another model "
            f"({prepared:.1f} dB); nothing was written"
        )


def _unseen(job: Job, plan: Plan, staged: Path) -> list[str]:
    """That without data nobody sees whether float16 holds the numbers of a table, which may be of any size.

    Pictures, sounds and what other models make are near 1, or as near as their own scaling says; the planner keeps in
    float32 what scales large inputs.
    """
    if job.data is not None or not plan.shortens_floats:
        return []
    given = load_written(staged).graph.inputs
    shortened = {value.name for value in given if any(map(_is_shortened, value.consumers()))}
    parts = parts_of(job.model, inputs_of(job.model))
    names = [f"'{part.name}'" for part in parts if part.role is Role.FEATURES and part.name in shortened]
    if not names:
        return []
    become, is_larger = ("becomes", "it is") if len(names) == 1 else ("become", "they are")
    return [
        f"{listed(names, 3)} {become} float16, in which numbers beyond 65504 are infinite and whole ones above 2048 "
        f"rounded: if {is_larger} larger give --data, and what that harms stays in float32"
    ]


def _is_shortened(node: ir.Node) -> bool:
    return graph.is_op(node, "Cast") and graph.attribute_int(node, "to", 0) == ir.DataType.FLOAT16


def _rounded(found: Check, rounding: Check) -> Check:
    """What was `found`, with the errors of the same model `rounding` between its nodes."""
    figures, of_samples = ("sqnr", "contrast", "sqnr_plain", "kld", "flips"), ("worst_sample", "faint_samples")
    fields = (*figures, *of_samples, "outputs", "kinds", "faint")
    return dataclasses.replace(found, **{name: getattr(rounding, name) for name in fields}).noting(
        "errors are those of float16 kernels, which round what every node makes; on processors onnxruntime computes "
        "most of these nodes in float32"
    )


def _reference(job: Job) -> tuple[Session, list[str]]:
    """The file the user gave; or the prepared model, where the runtime does not open it, and that it is so."""
    try:
        return Session(job.path, threads=job.threads), []
    except BadModel:
        note = f"onnxruntime {version()} does not open '{job.path}' as it is: compared with what was prepared of it"
        return Session(job.model, threads=job.threads), [note]
