"""Step 8: the file that was written, against the float model that it was made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from onnxq.checking.elsewhere import run_elsewhere
from onnxq.checking.models import Check, check_models, check_nodes
from onnxq.checking.rules import kept_rules
from onnxq.errors import BadModel
from onnxq.job import Job
from onnxq.plan import Method, Plan
from onnxq.quality import NO_CLASSES, Classes
from onnxq.runtime.session import Session
from onnxq.samples.trials import Trials


def check_saved(
    job: Job, plan: Plan, staged: Path, trials: Trials | None, classes: Mapping[str, Classes] = NO_CLASSES
) -> Check:
    """What is found by running the file at `staged`, in which `plan` was carried out.

    Args:
        trials: what to run the models on; None: they are too large to be run whole.
        classes: outputs that are scores of classes.

    Raises:
        CheckFailed: the file is broken, or computes something else.
    """
    job.progress.start("checking the saved file")
    if trials is None:
        names = [choice.node for choice in plan if choice.method is not Method.KEEP]
        return check_nodes(job.model, staged, names, threads=job.threads)
    bare, consumer = job.target.has_onnxq_ops, job.target.consumer
    found = check_models(_reference(job), staged, trials, threads=job.threads, bare=bare, classes=classes)
    notes = kept_rules(staged, job.target.name)
    if not consumer:
        return found
    there = run_elsewhere(consumer, job.path, staged, trials, job.threads)
    return dataclasses.replace(found, elsewhere=there, notes=(*found.notes, *notes, *there.notes))


def _reference(job: Job) -> Session:
    """The file the user gave; or the prepared model, where the runtime has no kernels for it."""
    try:
        return Session(job.path, threads=job.threads)
    except BadModel:
        return Session(job.model, threads=job.threads)
