"""Put the weights of a checkpoint into a model, as they are wherever the model has a form for their codes.

The model is one in float that has the products already, one that they are added to, or none: then it is made of them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from onnxq import targets
from onnxq.boundary import bounded, require_types
from onnxq.checking.models import Check, check_models
from onnxq.checking.nodes.check_nodes import check_nodes
from onnxq.checking.rules import kept_rules
from onnxq.checking.spelled import as_run
from onnxq.checkpoints import own_file, schemes
from onnxq.checkpoints.checkpoint import Checkpoint, open_folder_or_file, without
from onnxq.checkpoints.matching import (
    forms,
    joined,
    leftovers,
    make_products,
    match,
    plain,
    recurrent,
    ties,
    unmatched,
)
from onnxq.checkpoints.matching.folded import batchnorms, biases, computed, doubts, integers
from onnxq.checkpoints.matching.folded.sources import Sources
from onnxq.checkpoints.matching.folded.work import Work
from onnxq.checkpoints.matching.match import Match, Matched
from onnxq.checkpoints.matching.names import dotted, names_in, renaming
from onnxq.checkpoints.matching.put import Placing
from onnxq.checkpoints.own_arrays import as_in_graph, as_prepared, own_biases, parts_of, without_tables
from onnxq.checkpoints.schemes import gguf, linear4bit
from onnxq.checkpoints.stored import Layer
from onnxq.errors import BadModel, BadRecipe, listed
from onnxq.job import WHOLE_MODEL_BYTES, Environment
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import external_tensors, is_quantized, load_model, said_of_floats
from onnxq.model.origin import ORIGIN
from onnxq.model.weights import weights_of
from onnxq.output import write
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.prepare import prepare
from onnxq.passes.quantize.insert_onnxq_nodes import EXACT_BELOW
from onnxq.passes.rewrite import rewrite
from onnxq.plan import Choice, Method, Plan
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session
from onnxq.summaries.ranges import NO_RANGES
from onnxq.targets import Target
from onnxq.version import __version__

FORMAT = "int4"
_FINAL_NORM, _LAYER = "model.norm.weight", re.compile(r"model\.layers\.(\d{1,6})\.")
#: Names and sentences that an error lists.
MOST = 8


@dataclass(frozen=True)
class ImportOptions:
    """How the tensors of a checkpoint are read, and what computes with them.

    Attributes:
        partial: leave out tensors that fit nowhere, and keep parameters that get nothing, instead of refusing.
        without: names of tensors, or patterns of them (`*`, `?`), which the model has nothing of: they are not read.
        group: inputs that share a scale, where a Linear4bit checkpoint does not say it (`layouts.group_size`).
        accuracy_level: 4 lets kernels round activations to int8, for speed; 0 and 1 leave them as they are.
        add: products that the model does not have: of the value called so in the model, by the layer's name. What comes
            out is a new output of the model, called like the layer.
        match: `auto`: layers whose names the model does not have are found by structure, if their numbers are alike;
            `names`: by names alone; `unchecked`: by structure, whatever their numbers.

    Raises:
        BadRecipe: a group, level or way that there is not.
    """

    partial: bool = False
    without: tuple[str, ...] = ()
    group: int | None = None
    accuracy_level: int = Recipe.accuracy_level
    add: Mapping[str, str] = field(default_factory=dict)
    match: str = "auto"

    def __post_init__(self) -> None:
        require_types(ImportOptions, vars(self))
        if self.group is not None and self.group < 1:
            raise BadRecipe(f"invalid group size {self.group}; choose 1 or more")
        if self.match not in match.WAYS:
            raise BadRecipe(f"unknown way to match '{self.match}'; choose one of {', '.join(match.WAYS)}")
        Recipe(FORMAT, accuracy_level=self.accuracy_level)  # refuses what is none


@dataclass(frozen=True)
class Imported:
    """What `import_weights` did. The check is against the model with the unpacked weights.

    Attributes:
        is_outweighed: whether the file is larger for what describes the nodes alone.
    """

    output: Path
    plan: Plan
    match: Match
    check: Check | None
    bytes_before: int
    bytes_after: int
    is_outweighed: bool = False


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
        checkpoint: a `.safetensors`, `.npz` or `.gguf` file, or a folder of them with its configuration, of any of
            the schemes in `checkpoints/schemes/`.
        check: run the saved file.
        environment: its guard says whether `output` may be replaced.

    Raises:
        BadModel: the model cannot be read, or the checkpoint does not fit it.
        BadData: the checkpoint cannot be read.
        BadOutput: the output cannot be written.
        CheckFailed: the saved file does not compute what the unpacked weights do, or has nodes that the target's
            runtime refuses by its documentation.
    """
    place, environment, how = targets.get(target), environment or Environment(), options or ImportOptions()
    path = Path(checkpoint if model is None else model)
    guard, progress = environment.guard, environment.progress
    if output is not None:
        write.require_onnx(Path(output))
    guard.reads(path, checkpoint)
    progress.start("loading")
    tensors = as_in_graph(open_folder_or_file(checkpoint))
    tensors = without(tensors, how.without, parts_of(tensors))
    layers = _layers(tensors, how)
    destination = Path(output) if output is not None else Path(f"{path.stem}.{_scheme(layers)}.onnx")
    guard.reads(*tensors.files)
    guard.writes(destination)
    loaded = make_products.model_of(layers, str(checkpoint)) if model is None else load_model(path)
    files = [path, *{Path(tensor.path) for tensor in external_tensors(loaded)}]
    guard.reads(*files)
    before = write.nbytes_to_write(loaded) if model is None else sum(file.stat().st_size for file in files)
    if (quantized := is_quantized(loaded)) is not None:
        raise BadModel(f"'{path}' is quantized already ({quantized}): give the float model")
    if model is not None:
        loaded = as_prepared(loaded, tensors, lambda: load_model(path))
    make_products.add(loaded, how.add, layers)
    found, given = _put_in(loaded, tensors, layers, place, how, is_whole=model is not None)
    told = found.match
    _require_fit(path, checkpoint, told, tensors.absent, how)
    recipe = Recipe(FORMAT, accuracy_level=how.accuracy_level)
    plan = _plan(loaded, found, place, _scheme(layers), given)
    rewritten = _signed(rewrite(loaded, plan, NO_RANGES, recipe, place, is_final=True), target, told)
    with write.staging(destination) as folder:
        staged = folder / destination.name
        progress.start("writing", write.nbytes_to_write(rewritten))
        nbytes = write.save(rewritten, staged, progress.advance, environment.shard_size)
        kept_to = kept_rules(staged, target)
        proof = kept_to.told(_check(loaded, plan, recipe, staged, environment)) if check else None
        guard.publish(staged, destination)
    is_outweighed = model is not None and write.is_outweighed(path, rewritten, (before, nbytes))
    return Imported(destination, plan, told, proof, before, nbytes, is_outweighed)


def _signed(model: ir.Model, target: str, told: Match) -> ir.Model:
    """The model, which says by what it was made, and of which parts of the checkpoint."""
    table = {"version": __version__, "target": target, "imported": told.prefixes} | said_of_floats(model)
    model.metadata_props["onnxq"] = json.dumps(table, sort_keys=True)
    model.producer_name, model.producer_version = "onnxq", __version__
    return model


def _layers(tensors: Checkpoint, how: ImportOptions) -> list[Layer]:
    """What the checkpoint holds; groups of Linear4bit are as large as the user says."""
    found = schemes.layers_of(tensors)
    if how.group is None:
        return found
    told = {layer.name: layer for layer in linear4bit.layers(tensors, how.group)}
    return [told.get(layer.name, layer) if layer.scheme == "linear4bit" else layer for layer in found]


def _scheme(layers: Sequence[Layer]) -> str:
    """What the file is called after: the first scheme that quantizes."""
    return next((layer.scheme for layer in layers if layer.scheme != schemes.FLOATS), schemes.FLOATS)


def _put_in(
    model: ir.Model, tensors: Checkpoint, layers: Sequence[Layer], place: Target, how: ImportOptions, *, is_whole: bool
) -> tuple[Matched, set[str]]:
    """Give the model what fits; that, and which constants of the file have other numbers by their names.

    Args:
        is_whole: whether the model is what the checkpoint is of, and not made of products alone.
    """
    is_checked = how.match != "unchecked"
    DropInitializerInputs()(model)
    renamed = renaming(names_in(model), _names(tensors, layers), is_bold=not is_checked)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    sources = Sources(model, tensors, renamed)
    tensors, layers = without_tables(model, tensors, layers, renamed)
    ties.part(model, tensors, renamed)
    own = unmatched.constants(model)
    folded = batchnorms.fold(model, tensors, renamed)
    layers = [layer for layer in joined.join(layers, model) if folded.withheld.isdisjoint(layer.tensors)]
    folded.placed += recurrent.fill(model, tensors, renamed)
    folded.placed += joined.fill_parts(model, tensors, renamed)
    folded.placed += biases.put_back(model, tensors, renamed, {*folded.placed, *folded.withheld})
    whole, kept, perhaps = integers.fill(model, tensors, sources)
    folded.placed, folded.misfits = folded.placed + whole, folded.misfits + kept
    folded.notes += perhaps
    apart = {*folded.placed, *folded.withheld}
    given = _constants(model, tensors, layers, apart, renamed, is_checked=is_checked)
    made = computed.compute(Work(model, tensors, own, given, apart, sources, is_checked))
    given |= made.sources
    mixed, modules = doubts.mixed(model, own), doubts.Modules(model, given, renamed)
    constants = list(dict.fromkeys([*folded.placed, *given.values()]))
    now, kernels = unmatched.constants(model), unmatched.kernels(model)
    refusal = prepare(model, opset=_opset(layers, place), widen=place.widens_half, merges=False)
    stayed = unmatched.Unmatched(model, own, now, kernels)
    placing = Placing(place, refusal, is_exact=how.accuracy_level < EXACT_BELOW)
    is_foreign = gguf.is_foreign(tensors)
    placed = {*constants, *given}
    found = match.put_in(
        model, tensors, layers, placing, how.match, placed, sources, is_tied=tensors.is_tied or is_foreign
    )
    told = found.match
    told.constants, told.notes = constants, [*folded.notes, *told.notes]
    told.misfits += folded.misfits + made.misfits + mixed
    if made.told:
        told.notes.append(f"computed again: {listed(made.told, MOST)}")
    told.unused = [name for name in told.unused if name not in constants]
    left = stayed.beside(tensors, told.unused, is_foreign=is_foreign)
    told.lost, told.kept, told.bare, told.advice = left.lost, left.kept, left.bare, left.advice
    told.notes += [f"kept, as sines and cosines of places: {listed(left.places, MOST)}"] * bool(left.places)
    held = doubts.held([*stayed.values, *doubts.chosen(model, sources)], sources, tensors, own, told)
    told.misfits += held
    old = {value.name for values in held.values() for value in values}
    told.bare = [name for name in told.bare if name not in old]
    if not is_foreign:
        known = left.same.union(left.lost)
        doubtful = modules.doubts(tensors, [name for name in told.unused if name not in known], left.old)
        told.misfits += doubtful.values()
        explained = known.union(doubtful)
        told.notes += doubts.perhaps(stayed.values, tensors, [x for x in told.unused if x not in explained])
        if is_whole and not _are_added(told, how):
            shaped = {source for name in told.bare for source in (name, renamed(name)) if source in told.unused}
            told.misfits += leftovers.vanished(tensors, told.unused, known.union(doubtful, folded.withheld, shaped))
    told.misfits += unmatched.of_other_shapes(told.bare, told.unused, own, tensors, renamed)
    return found, {name for name, tensor in now.items() if own.get(name) is not tensor}


def _names(tensors: Checkpoint, layers: Sequence[Layer]) -> set[str]:
    """What constants may be called in the checkpoint, or are in the model that it was converted from."""
    aliases = {alias for _, alias in _aliases(tensors)}
    return {*tensors, *aliases, *(f"{name}.weight" for layer in layers for name in (layer.name, *layer.aliases))}


def _constants(
    model: ir.Model,
    tensors: Checkpoint,
    layers: Sequence[Layer],
    apart: Set[str],
    renamed: Callable[[str], str],
    *,
    is_checked: bool,
) -> dict[str, str]:
    """Give constants that the checkpoint holds in floats their numbers, but for the tensors `apart`; which ones."""
    aliases = {alias: name for name, alias in _aliases(tensors)}
    own = own_biases(model, tensors, layers)
    apart = apart | {name for layer in layers if layer.scheme != schemes.FLOATS for name in layer.tensors} - own
    doubtful = functools.partial(gguf.may_lie_turned, tensors)
    names = {alias for layer in layers for alias in (dotted(layer.name), *map(dotted, layer.aliases))}
    return plain.replace_constants(model, tensors, aliases, apart, doubtful, names, renamed, is_checked=is_checked)


def _aliases(tensors: Checkpoint) -> Iterator[tuple[str, str]]:
    """Tensors, and what else they are called."""
    if _FINAL_NORM in tensors:  # as onnxruntime-genai calls it, behind the last layer
        count = 1 + max((int(found[1]) for name in tensors if (found := _LAYER.match(name))), default=-1)
        yield _FINAL_NORM, f"model.layers.{count}.final_norm_layernorm.weight"
    architecture = str(tensors.metadata.get("general.architecture", ""))
    if not tensors.is_gguf or architecture.startswith("gemma"):  # whose norms llama.cpp's converter adds 1 to
        return
    noted = own_file.names_of(tensors.metadata)
    yield from ((tensor, noted[tensor]) for tensor in tensors if tensor in noted)
    for tensor in tensors:
        name, _, part = tensor.rpartition(".")
        yield from ((tensor, f"{alias}.{part}") for alias in gguf.aliases(name))


def _opset(layers: Sequence[Layer], target: Target) -> int:
    """The lowest standard opset in which all forms that lose nothing can be spelt for the target."""
    found = [target.opset_for(FORMAT)]
    for layer in layers:
        try:
            stored = layer.open()
        except BadModel:  # which `put_in` reports
            continue
        found += [target.opset_for(form.word) for form in forms.exact_forms(stored) if not target.refusal(form.word)][
            :1
        ]
    return max(found)


def _require_fit(path: Path, checkpoint: str | Path, match: Match, absent: str, how: ImportOptions) -> None:
    problems = [absent] if absent else []
    problems += match.misfits[:MOST]
    if len(match.misfits) > MOST:
        problems.append(f"{len(match.misfits) - MOST} others do not fit")
    if match.surplus:
        problems.append(f"the model has no product called {listed(match.surplus, MOST)}")
    if match.lost:
        lost, go = listed(match.lost, MOST), "goes" if len(match.lost) == 1 else "go"
        problems.append(f"{lost} {go} nowhere, and {_getting(match.kept, ', of such shapes,')}{match.advice}")
    codes = [name.removesuffix(".codes") for name in match.unused if name.endswith(".codes")]
    own = [name for name in codes if f"{name}.codebooks" not in match.unused]
    if own:
        problems.append(
            f"the codes of {', '.join(own[:MOST])} are as onnxq writes them: `onnxq decode` makes floats of them"
        )
    if not match.blocks and not match.constants:
        names = ", ".join(match.missing[:MOST]) or "none"
        why = "; ".join(problems) or "it holds no tensors of a kind that onnxq reads"
        raise BadModel(f"'{checkpoint}' has nothing for '{path}', whose products are {names}: {why}")
    if match.bare and not _are_added(match, how):
        problems.append(_getting(match.bare, " of the model"))
    if problems and not how.partial:
        raise BadModel(f"'{checkpoint}' does not fit '{path}': {'; '.join(problems)}; --partial imports the rest")


def _are_added(match: Match, how: ImportOptions) -> bool:
    """Whether all of the checkpoint is products that were added to the model."""
    return bool(how.add) and {*match.prefixes.values()} <= {*how.add}


def _getting(names: Sequence[str], what: str) -> str:
    return f"{listed(names, MOST)}{what} {'gets' if len(names) == 1 else 'get'} nothing"


def _plan(model: ir.Model, found: Matched, target: Target, scheme: str, placed: Set[str]) -> Plan:
    """The products that were found, as the target spells them; all else stays as it is.

    Args:
        placed: names of constants that have the checkpoint's numbers.
    """
    choices = {}
    for node in graph.nodes(model):
        weights = list(weights_of(node))
        name, elements = node.name or "", sum(weight.elements for weight in weights)
        if name in found.choices:
            choices[name] = found.choices[name]
        elif weights:
            reason = "not matched" if name in found.match.kept else "not in the checkpoint"
            if all({weight.value.name, weight.value.meta.get(ORIGIN)} & placed for weight in weights):
                reason = "float in the checkpoint"
            choices[name] = Choice(name, node.op_type, Method.KEEP, None, None, elements, reason)
    return Plan(scheme, target.name, choices)


def _check(model: ir.Model, plan: Plan, recipe: Recipe, staged: Path, environment: Environment) -> Check:
    """Against the float model with the unpacked weights."""
    threads, place = environment.threads, targets.get(plan.target)
    environment.progress.start("checking the saved file")
    with as_run(staged, lambda: rewrite(model, plan, NO_RANGES, recipe, place)) as (run, said):
        if write.nbytes_to_write(model) > WHOLE_MODEL_BYTES:
            names = [choice.node for choice in plan if choice.method is not Method.KEEP]
            return check_nodes(model, run, names, threads=threads).noting(*said)
        trials = make_up(model, scout(model))
        reference, bare = Session(model, threads=threads), place.has_onnxq_ops
        return check_models(reference, run, trials, threads=threads, bare=bare).noting(*said)
