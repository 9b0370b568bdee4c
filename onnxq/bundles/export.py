"""`onnxq export`: a model with all that another machine needs to run it, in a folder."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx_ir as ir

from onnxq import own_ops, targets
from onnxq.boundary import bounded
from onnxq.bundles import measure, stored
from onnxq.bundles.manifest import (
    MANIFEST,
    SAMPLES,
    VERSION,
    Manifest,
    Measured,
    Value,
    entry_of,
    this_platform,
    write_manifest,
)
from onnxq.bundles.readme import README, readme
from onnxq.conversion.restore import restore_products
from onnxq.errors import BadModel, CheckFailed, amount
from onnxq.files import schemas
from onnxq.job import Environment
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import external_tensors, load_model
from onnxq.output import copy_model, place, write
from onnxq.output.signature import target_of
from onnxq.quality import compare_outputs, unrepeatable
from onnxq.quality.blank import blank_notes
from onnxq.runtime import library
from onnxq.runtime.machine import this_machine
from onnxq.runtime.ort.wrong_rules import wrong_rules
from onnxq.runtime.session import Session
from onnxq.samples.same_inputs import require_same_inputs
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import DataSource, inputs_of
from onnxq.samples.trials import Trials
from onnxq.version import __version__

MODEL, RUN = "model.onnx", "run.py"
#: Domains whose operators every onnxruntime has.
_EVERYWHERE = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True)
class Exported:
    """What `export` did.

    Attributes:
        bytes: of the files that the manifest lists, as `verify` counts them.
        notes: sentences for the user.
    """

    output: Path
    manifest: Manifest
    bytes: int
    notes: tuple[str, ...]


@bounded
def export(
    model: str | Path,
    output: str | Path | None = None,
    *,
    target: str | None = None,
    reference: str | Path | None = None,
    data: DataSource | Sampling | None = None,
    check: bool = True,
    force: bool = False,
    environment: Environment | None = None,
) -> Exported:
    """Write a folder with the model as it is, onnxq's library if the model has operators of it, samples with what the
    model makes of them here, lines to load it in several languages, checksums, and a manifest of all that.

    Args:
        model: quantized or not; it is not quantized again.
        output: the folder [default: the model's name with .bundle].
        target: for which the model was made, and by whose operators it is to be read [default: what the model says].
        reference: the float model, for the error that is measured here and again there.
        data: samples, of which a few are stored; without, some are made up.
        check: run the model here. Without, there is nothing that `verify` could compare.
        force: replace a bundle that is there.

    Raises:
        BadModel: a model cannot be read or run, or has operators that the target lacks.
        BadRecipe, BadData: the target is unknown; the samples do not fit.
        BadOutput: the folder cannot be written.
        CheckFailed: the copied model gives no outputs that can be compared.
    """
    path, environment = Path(model), environment or Environment()
    destination = Path(output) if output is not None else Path(f"{path.stem}.bundle")
    others = [Path(reference)] if reference is not None else []
    environment.progress.start("loading")
    loaded, sources = _opened(path, others)
    sampling = Sampling.of(data, stored.MOST)
    if isinstance(sampling.source, (str, Path)) and Path(sampling.source).exists():
        sources.append(Path(sampling.source))
    seen = place.check_destination(destination, sources, force, MANIFEST)
    environment.guard.reads(path, *others, sampling.source)
    environment.guard.replaces(destination)
    word = _target(path, loaded, target)
    with write.staging(destination) as folder:
        staged = folder / "result"  # beside what else is in there, whatever the bundle is called
        staged.mkdir()
        environment.progress.start("copying")
        copy_model.copy_files(path, loaded, staged / MODEL, environment.shard_size)
        compiled, rules = _programs(staged, loaded)
        measured, notes = None, ["not run: there is nothing that 'onnxq verify' could compare"]
        if check:
            environment.progress.start("measuring")
            measured, notes = _measured(staged, path, others, sampling, compiled, environment.threads)
        manifest = _described(staged, loaded, word, None if compiled is None else compiled.name, measured)
        manifest.files = {each.name: entry_of(each) for each in sorted(staged.iterdir())}
        (staged / README).write_text(readme(manifest, rules), encoding="utf-8")
        manifest.files[README] = entry_of(staged / README)
        write_manifest(staged, manifest)
        nbytes = sum(entry.bytes for entry in manifest.files.values())
        place.publish(staged, destination, seen, environment.guard)
    return Exported(destination, manifest, nbytes, tuple(notes))


def _opened(path: Path, others: Sequence[Path]) -> tuple[ir.Model, list[Path]]:
    """The model, of which the others have the inputs, and all files that they are made of."""
    models = [load_model(each) for each in (path, *others)]
    require_same_inputs([path, *others], models)
    tensors = [tensor for each in models for tensor in external_tensors(each)]
    return models[0], [path, *others, *dict.fromkeys(Path(tensor.path) for tensor in tensors)]


def _programs(staged: Path, model: ir.Model) -> tuple[Path | None, str]:
    """Leaves the library, if the model needs it, and lines that run it; where that lies here, and the rules of
    onnxruntime's optimizer that the lines leave out."""
    has_own = any(node.domain == own_ops.DOMAIN for node in graph.nodes(model))
    compiled = library.ops_library() if has_own else None
    if compiled is not None:
        shutil.copyfile(compiled, staged / compiled.name)
    rules = ";".join(wrong_rules(staged / MODEL))
    program = Path(__file__).with_name("run_bundle.py").read_text(encoding="utf-8")
    (staged / RUN).write_text(program.replace('WRONG_RULES = ""', f'WRONG_RULES = "{rules}"'), encoding="utf-8")
    return compiled, rules


def _target(path: Path, model: ir.Model, asked: str | None) -> str:
    """The target's word.

    Raises:
        BadModel: the model has operators that it lacks.
    """
    domains = {node.domain for node in graph.nodes(model)} - {*_EVERYWHERE}
    domains -= {function.domain for function in model.functions.values()} - {own_ops.DOMAIN}
    fitting = "onnxq" if own_ops.DOMAIN in domains else "ort-cpu" if domains else "onnx"
    word = asked or target_of(model) or fitting
    lacking = sorted(domains - {*targets.get(word).domains})
    if lacking and asked is not None:
        raise BadModel(
            f"'{path}' has operators of {', '.join(lacking)}, which target {word} lacks: "
            f"'onnxq convert {path.name} --to {word}' first"
        )
    return fitting if lacking else word


def _measured(
    staged: Path, path: Path, others: Sequence[Path], sampling: Sampling, compiled: Path | None, threads: int
) -> tuple[Measured | None, list[str]]:
    """Run the copied model, and leave samples with its outputs in the folder; what was found, and what is odd.

    Raises:
        CheckFailed: it gives no outputs that can be compared.
    """
    model = load_model(staged / MODEL)
    trials, session = _trials(model, path, sampling), Session(staged / MODEL, threads=threads)
    if not trials.feeds:
        return None, [f"{trials.words or 'no samples'}: there is nothing that 'onnxq verify' could compare"]
    feeds = trials.feeds[: stored.MOST]
    once, again = session.run(feeds[0]), session.run(feeds[0])
    random = unrepeatable(session.outputs, once, again)
    is_compared = [name not in random and stored.is_storable(x) for name, x in zip(session.outputs, once, strict=True)]
    names = [name for name, is_wanted in zip(session.outputs, is_compared, strict=True) if is_wanted]
    if not names:
        raise CheckFailed(
            f"no output of '{path}' can be compared: they are random, or no arrays; --no-check exports it"
        )
    found = measure.run(staged / MODEL, feeds, names, threads, True if compiled is None else compiled)
    floats: list = []
    if others:
        in_float = Session(others[0], threads=threads)
        if not {*names} <= {*in_float.outputs}:
            raise BadModel(f"'{others[0]}' has other outputs than '{path}': it is not the float model of it")
        floats = [in_float.run(feed, names) for feed in feeds]
    kept = stored.Stored(feeds, found.outputs, floats)
    if two := stored.of_two_kinds(names, kept):
        raise BadModel(f"'{others[0]}' gives '{two[0]}' as another kind than '{path}': {two[1]}")
    kept = kept.fitting()
    if not kept.feeds:
        return None, ["a sample is too large to be stored: there is nothing that 'onnxq verify' could compare"]
    apart = stored.of_other_shapes(names, kept)
    to_float = compare_outputs(names, kept.floats, kept.wanted, apart) if others else None
    error = to_float.sqnr if to_float is not None and to_float.outputs else None
    if error is None:
        kept = dataclasses.replace(kept, floats=[])
    stored.save(staged / SAMPLES, kept, session.inputs)
    machine = schemas.MachineFile(**asdict(this_machine()))
    count, on, proves = len(kept.feeds), trials.words, trials.proves
    notes = [f"output '{name}' is random: not compared" for name in sorted(random)]
    notes += [f"output '{name}' has another shape in the float model: not compared with it" for name in sorted(apart)]
    notes += blank_notes(compare_outputs(names, kept.wanted, kept.wanted), "the model", kept.feeds)
    notes += [] if to_float is None else blank_notes(to_float, samples=kept.feeds)
    return Measured(machine, threads, count, on, proves, names, found.milliseconds, found.kernels, error), notes


def _trials(model: ir.Model, path: Path, sampling: Sampling) -> Trials:
    """Few samples: the user's, or made-up ones of as many kinds."""
    if (data := sampling.open(model, path)) is not None:
        feeds = list(itertools.islice(data, stored.MOST))
        return Trials.given(feeds, amount(len(feeds), "sample"))
    restore_products(model)  # inputs are made up for what reads them: rows of a table that packed codes hide
    made = make_up(model, scout(model))
    kinds = {trial.label: trial for trial in reversed(made.samples)}
    first = list(dict.fromkeys([*made.labels]))[: stored.MOST]
    return dataclasses.replace(made, samples=tuple(kinds[label] for label in first))


def _described(staged: Path, model: ir.Model, target: str, library: str | None, measured: Measured | None) -> Manifest:
    """All but the files, of which one says what is in the others."""
    inputs = [
        Value(each.name, each.dtype.name, None if each.shape is None else [*each.shape]) for each in inputs_of(model)
    ]
    opsets = {domain or "ai.onnx": version or 0 for domain, version in model.opset_imports.items()}
    return Manifest(VERSION, __version__, target, this_platform(), MODEL, library, {}, inputs, opsets, measured)
