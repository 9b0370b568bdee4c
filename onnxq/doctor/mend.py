"""`onnxq doctor --fix`: a new file without what can be mended mechanically, checked by running both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnxq.boundary import bounded
from onnxq.checking.models import Check, check_models
from onnxq.conversion.files import opened
from onnxq.doctor.rule import Rule, without
from onnxq.errors import BadModel, CheckFailed, NothingToDo, amount
from onnxq.job import WHOLE_MODEL_BYTES, Environment
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.output import write
from onnxq.passes.restore.standard_pairs import PAIRS, StandardPairs, has_own_pairs
from onnxq.runtime.session import Session
from onnxq.samples.sampling import Sampling
from onnxq.samples.trials import Trials

#: dB that the mended model must agree with what the file says, both run without the runtime's optimizer: what is mended
#: is exact, but for a bias that is rounded to other codes. With it, kernels that are fused may round activations.
LEAST_DB, LEAST_DB_FUSED = 30.0, 20.0


@dataclass(frozen=True)
class Mended:
    """What `mend` did. The check is of the new file against the old one without the optimizer; None: too large, or the
    old one does not run."""

    output: Path
    rules: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    check: Check | None


@bounded
def mend(
    model: str | Path,
    output: str | Path | None = None,
    *,
    sampling: Sampling | None = None,
    ignored: tuple[str, ...] = (),
    environment: Environment | None = None,
) -> Mended:
    """Write `model` without the faults that rules can mend.

    Args:
        output: [default: the model's name with `mended` in it]
        sampling: samples to check it on; without, some are made up.
        ignored: words of rules whose faults stay.
        environment: its guard says whether `output` may be replaced.

    Raises:
        NothingToDo: there is nothing of that kind.
        CheckFailed: the new file gives something else; it was not kept.
        OnnxqError: the model cannot be read, or the output not be written.
    """
    environment, path = environment or Environment(), Path(model)
    guard, progress = environment.guard, environment.progress
    destination = Path(output) if output is not None else Path(f"{path.stem}.mended.onnx")
    write.require_onnx(destination)
    loaded, before = opened(path, destination, environment)
    theirs = _pairs(loaded)
    StandardPairs()(loaded)
    done = tuple(rule.word for rule in without(ignored) if rule.mends and _mended(rule, loaded))
    if not done:
        raise NothingToDo(f"'{path}' has no fault that --fix could mend")
    _give_back(loaded, theirs)
    with write.staging(destination) as folder:
        staged = folder / destination.name
        progress.start("writing", write.nbytes_to_write(loaded))
        nbytes = write.save(loaded, staged, progress.advance)
        progress.start("checking the saved file")
        check = _checked(path, staged, sampling or Sampling(), environment)
        guard.publish(staged, destination)
    return Mended(destination, done, before, nbytes, check)


def _mended(rule: Rule, model: ir.Model) -> bool:
    """Whether there was something to mend. Constants that nothing reads any more go with it."""
    read = [value for each in graph.graphs(model) for value in each.initializers.values() if value.uses()]
    is_mended = rule.mend(model)
    for value in read:
        if not value.uses() and not value.is_graph_output() and isinstance(value.graph, ir.Graph):
            value.graph.initializers.pop(value.name or "", None)
    return is_mended


def _pairs(model: ir.Model) -> set[int] | None:
    """QuantizeLinear and DequantizeLinear of ONNX's own domain, in a model that has some of onnxruntime's too; None in
    others. Rules read the latter as the former.
    """
    if not has_own_pairs(model):
        return None
    return {id(node) for node in graph.nodes(model) if graph.is_op(node, *PAIRS)}


def _give_back(model: ir.Model, standard: set[int] | None) -> None:
    """Into onnxruntime's domain, what was there, and what is new: the opset may have no such types."""
    for node in graph.nodes(model):
        if standard is not None and graph.is_op(node, *PAIRS) and id(node) not in standard:
            node.domain = graph.MICROSOFT


def _checked(path: Path, staged: Path, sampling: Sampling, environment: Environment) -> Check | None:
    model = load_model(path)
    if write.nbytes_to_write(model) > WHOLE_MODEL_BYTES:
        return None
    try:
        before = Session(path, optimize=False, threads=environment.threads)
        trials = _trials(model, path, sampling)
    except BadModel:
        return None
    found = check_models(before, staged, trials, threads=environment.threads)
    if found.is_another(LEAST_DB_FUSED, LEAST_DB):
        raise CheckFailed(
            f"mended, the model gives something else ({found.difference}): leave it, and see what 'doctor' says"
        )
    return found


def _trials(model: ir.Model, path: Path, sampling: Sampling) -> Trials:
    data = sampling.open(model, path)
    if data is None:
        return make_up(model, scout(model))
    feeds = list(data)
    return Trials.given(feeds, amount(len(feeds), "sample"))
