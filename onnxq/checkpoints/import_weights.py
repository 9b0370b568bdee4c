"""Put the weights of a Linear4bit checkpoint into a model, as they are: nothing is quantized again.

The model is one in float that has the products already, one that they are added to, or none: then it is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnxq import targets
from onnxq.boundary import bounded, require_types
from onnxq.checking.models import Check, check_models, check_nodes
from onnxq.checkpoints import make_products
from onnxq.checkpoints import match as matching
from onnxq.checkpoints.match import Match
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.errors import BadModel, BadRecipe
from onnxq.job import Environment
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import external_tensors, is_quantized, load_model
from onnxq.model.weights import weights_of
from onnxq.output import write
from onnxq.passes.prepare import prepare
from onnxq.passes.quantize.insert_onnxq_nodes import EXACT_BELOW
from onnxq.passes.rewrite import rewrite
from onnxq.pipeline import WHOLE_MODEL_BYTES
from onnxq.plan import Choice, Method, Plan, in_float
from onnxq.planning.first_plan import MATMULS
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session
from onnxq.summaries.ranges import NO_RANGES
from onnxq.targets import Target
from onnxq.version import __version__

FORMAT = "int4"


@dataclass(frozen=True)
class ImportOptions:
    """How the tensors of a checkpoint are read, and what computes with them.

    Attributes:
        partial: leave out tensors that fit nowhere, instead of refusing the checkpoint.
        group: inputs that share a scale, where the checkpoint does not say it (`layouts.group_size`).
        accuracy_level: 4 lets kernels round activations to int8, for speed; 0 and 1 leave them as they are.
        add: products that the model does not have: of the value called so in the model, by the layer's name. What comes
            out is a new output of the model, called like the layer.

    Raises:
        BadRecipe: a group or level that there is not.
    """

    partial: bool = False
    group: int | None = None
    accuracy_level: int = Recipe.accuracy_level
    add: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_types(ImportOptions, vars(self))
        if self.group is not None and self.group < 1:
            raise BadRecipe(f"invalid group size {self.group}; choose 1 or more")
        Recipe(FORMAT, accuracy_level=self.accuracy_level)  # refuses what is none


@dataclass(frozen=True)
class Imported:
    """What `import_weights` did. The check is against the model with the unpacked weights."""

    output: Path
    plan: Plan
    match: Match
    check: Check | None
    bytes_before: int
    bytes_after: int


@bounded
def import_weights(
    model: str | Path | None,
    checkpoint: str | Path,
    output: str | Path | None = None,
    *,
    target: str = "ort-cpu",
    options: ImportOptions | None = None,
    check: bool = True,
    environment: Environment | None = None,
) -> Imported:
    """Write `model` with the products that `checkpoint` names on its packed weights.

    Args:
        model: a float model. None: one is made, in which each layer of the checkpoint is a product of an input of its
            own: `x` to `y` where there is a single layer, else `{prefix}.x` to `{prefix}.y`.
        checkpoint: a `.safetensors` or `.npz` file with tensors `{prefix}.weight_4bit` uint8 [out, in / 2],
            `{prefix}.scales_4bit` float16 [out, groups] and, where there is one, `{prefix}.bias` [out] and
            `{prefix}.group_size`.
        check: run the saved file.
        environment: its guard says whether `output` may be replaced.

    Raises:
        BadModel: the model cannot be read, or the checkpoint does not fit it.
        BadData: the checkpoint cannot be read.
        BadOutput: the output cannot be written.
        CheckFailed: the saved file does not compute what the unpacked weights do.
    """
    place, environment, how = targets.get(target), environment or Environment(), options or ImportOptions()
    path = Path(checkpoint if model is None else model)
    guard, progress = environment.guard, environment.progress
    destination = Path(output) if output is not None else Path(f"{path.stem}.linear4bit.onnx")
    write.require_onnx(destination)
    guard.reads(path, checkpoint)
    guard.writes(destination)
    progress.start("loading")
    tensors = open_checkpoint(checkpoint)
    loaded = make_products.model_of(tensors, str(checkpoint)) if model is None else load_model(path)
    files = [path, *{Path(tensor.path) for tensor in external_tensors(loaded)}]
    guard.reads(*files)
    before = write.nbytes_to_write(loaded) if model is None else sum(file.stat().st_size for file in files)
    quantized = is_quantized(loaded)
    if quantized is not None:
        raise BadModel(f"'{path}' is quantized already ({quantized}): give the float model")
    make_products.add(loaded, how.add, tensors)
    refusal = prepare(loaded, opset=place.opset_for(FORMAT), widen=place.widens_half)
    match = matching.put_in(loaded, tensors, how.group)
    _require_fit(path, checkpoint, match, how.partial)
    recipe = Recipe(FORMAT, accuracy_level=how.accuracy_level)
    plan = _plan(loaded, match, place, refusal, is_exact=how.accuracy_level < EXACT_BELOW)
    rewritten = rewrite(loaded, plan, NO_RANGES, recipe, place)
    table = {"version": __version__, "target": target, "imported": match.prefixes}
    rewritten.metadata_props["onnxq"] = json.dumps(table, sort_keys=True)
    rewritten.producer_name, rewritten.producer_version = "onnxq", __version__
    with write.staging(destination) as folder:
        staged = folder / destination.name
        progress.start("writing", write.nbytes_to_write(rewritten))
        nbytes = write.save(rewritten, staged, progress.advance)
        proof = _check(loaded, plan, staged, environment) if check else None
        guard.publish(staged, destination)
    return Imported(destination, plan, match, proof, before, nbytes)


def _require_fit(path: Path, checkpoint: str | Path, match: Match, partial: bool) -> None:
    problems = list(match.misfits)
    if match.surplus:
        problems.append(f"the model has no product called {', '.join(match.surplus)}")
    if not match.blocks:
        names = ", ".join(match.missing[:8]) or "none"
        why = "; ".join(problems) or "it holds no tensors called *.weight_4bit"
        raise BadModel(f"'{checkpoint}' has nothing for '{path}', whose products are {names}: {why}")
    if problems and not partial:
        raise BadModel(f"'{checkpoint}' does not fit '{path}': {'; '.join(problems)}; --partial imports the rest")


def _plan(model: ir.Model, match: Match, target: Target, refusal: str, *, is_exact: bool) -> Plan:
    """The products that were found, as the target spells them; all else stays as it is."""
    choices = {}
    for node in graph.nodes(model):
        weights = list(weights_of(node))
        name, elements = node.name or "", sum(weight.elements for weight in weights)
        if name in match.blocks:
            block = match.blocks[name]
            wish = Choice(name, node.op_type, Method.PACKED, FORMAT, block, elements)
            if block not in matching.BLOCKS:
                wish = in_float(wish, f"no kernel reads groups of {block}: unpacked when the model loads")
            elif refusal and graph.MICROSOFT not in target.domains:
                wish = in_float(wish, refusal)
            elif is_exact and not target.domains:  # runtimes that fuse standard operators round activations
                wish = in_float(wish, "activations in float: unpacked when the model loads")
            choices[name] = target.place(weights[0], wish)
        elif weights:
            reason = "not in the checkpoint" if node.op_type in MATMULS else f"{node.op_type} is never imported"
            choices[name] = Choice(name, node.op_type, Method.KEEP, None, None, elements, reason)
    return Plan("linear4bit", target.name, choices)


def _check(model: ir.Model, plan: Plan, staged: Path, environment: Environment) -> Check:
    """Against the float model with the unpacked weights."""
    threads = environment.threads
    environment.progress.start("checking the saved file")
    if write.nbytes_to_write(model) > WHOLE_MODEL_BYTES:
        names = [choice.node for choice in plan if choice.method is not Method.KEEP]
        return check_nodes(model, staged, names, threads=threads)
    reference = Session(model, threads=threads)
    bare = targets.get(plan.target).has_onnxq_ops
    return check_models(reference, staged, make_up(model, scout(model)), threads=threads, bare=bare)
