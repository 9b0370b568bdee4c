"""`onnxq verify`: a bundle on the machine that will run it, against what was measured where it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from onnxq.boundary import bounded
from onnxq.bundles import measure, stored
from onnxq.bundles.manifest import (
    MANIFEST,
    SAMPLES,
    SUMS,
    Manifest,
    Measured,
    entry_of,
    read_manifest,
    require_whole,
    this_platform,
)
from onnxq.errors import BadModel, BadRecipe, CheckFailed, MissingRuntime
from onnxq.job import Environment
from onnxq.model.load import external_tensors, load_model
from onnxq.quality import MAX_DB, Quality, compare_outputs
from onnxq.quality.blank import blank_notes
from onnxq.runtime import library
from onnxq.runtime.machine import Machine, this_machine
from onnxq.runtime.session import Session

#: Least agreement, in dB, of the outputs here with those stored: processors round intermediate results differently, and
#: functions in the place of a library even more.
AGREES_DB = 15.0
#: Where the float model's outputs are stored, so many dB more error than there was are too many, ...
WORSE_DB = 3.0
#: dB by which what a manifest says of its own outputs is untrue, and not another machine's rounding.
UNTRUE_DB = 10.0
#: ... unless the outputs are so near.
SAME_DB = 40.0


@dataclass(frozen=True)
class Verified:
    """What was found.

    Attributes:
        there: what the bundle says of the machine that made it; None: nothing, so nothing was compared.
        agrees: dB of the outputs here against those of that machine.
        sqnr: dB against the float model, where its outputs are stored.
        milliseconds, kernels: of this machine.
        notes: what a user should know, a sentence each.
    """

    manifest: Manifest
    bytes: int
    machine: Machine
    agrees: float | None = None
    sqnr: float | None = None
    milliseconds: float = 0.0
    kernels: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def there(self) -> Measured | None:
        return self.manifest.measured


@bounded
def verify(
    bundle: str | Path,
    *,
    load_library: bool = False,
    threads: int | None = None,
    environment: Environment | None = None,
) -> Verified:
    """Check that every file of a bundle is what was exported, run its samples here, and compare.

    Args:
        load_library: run the bundle's own library. It is code: only for bundles whose maker you trust. Without, this
            installation's library takes its place where they are the same file; else the functions in the model.
        threads: [default: as many as it was measured on, if this machine has so many cores]

    Raises:
        BadModel: it is no bundle, not whole, or its model does not run here.
        BadData: its samples are damaged.
        CheckFailed: the model computes something else here.
    """
    environment, folder = environment or Environment(), Path(bundle)
    manifest = read_manifest(folder)
    nbytes = require_whole(folder, manifest, environment.progress)
    model, there = folder / manifest.model, manifest.measured
    for tensor in external_tensors(load_model(model)):  # of text, or unusual protobuf, the bytes do not tell
        if str(tensor.location) not in manifest.files:
            raise BadModel(f"the model of '{folder}' reads '{tensor.location}', which is not among its files")
    compiled, notes = _library(folder, manifest, load_library)
    machine = this_machine()
    count = min(manifest.threads, machine.cores) if threads is None else threads  # a stranger may say any number
    session = Session(model, threads=count, library=compiled)
    listed = {*manifest.files, MANIFEST, SUMS}
    others = sorted(each.name for each in folder.iterdir() if each.is_file() and each.name not in listed)
    notes += [f"'{name}' is not of the bundle: not looked at" for name in others[:3]]
    if there is None:
        return Verified(manifest, nbytes, machine, notes=(*notes, "no samples are stored: it was only opened"))
    lacking = sorted({*there.outputs} - {*session.outputs})
    if lacking:
        raise BadModel(f"the model of '{folder}' has no output '{lacking[0]}', which the manifest names")
    environment.progress.start("measuring")
    has_floats = there.sqnr is not None
    kept = stored.load(folder / SAMPLES, session.inputs, there.samples, len(there.outputs), has_floats)
    found = measure.run(model, kept.feeds, there.outputs, count, compiled)
    stored.require_types(folder / SAMPLES, there.outputs, kept, found.outputs)
    notes += _differences(there, machine, found.kernels)
    quality = compare_outputs(there.outputs, kept.wanted, found.outputs)
    notes += blank_notes(quality, "where it was exported, the model", kept.feeds)
    apart = stored.of_other_shapes(there.outputs, kept)
    to_float = compare_outputs(there.outputs, kept.floats, found.outputs, apart) if has_floats else None
    error = None if to_float is None or not to_float.outputs else to_float.sqnr
    if has_floats and there.sqnr is not None:
        _require_told(folder, there.sqnr, compare_outputs(there.outputs, kept.floats, kept.wanted, apart))
    if quality.outputs:
        rest = compare_outputs(there.outputs, kept.wanted, found.outputs, frozenset(there.outputs) - apart)
        _require_agreement(folder, there, quality, error, rest)
    is_of_nothing = quality.agreement is None and not any(x.size for feed in kept.feeds for x in feed.values())
    notes += ["nothing was compared: the stored samples are empty"] if is_of_nothing else []
    if is_of_nothing or quality.appearing or (quality.blank and not quality.outputs):
        return Verified(manifest, nbytes, machine, None, None, found.milliseconds, found.kernels, tuple(notes))
    agrees = MAX_DB if quality.agreement is None else quality.agreement  # without any: all are empty
    return Verified(
        manifest, nbytes, machine, agrees, error, found.milliseconds, found.kernels, tuple(dict.fromkeys(notes))
    )


def _require_told(folder: Path, said: float, stored: Quality) -> None:
    """
    Raises:
        BadModel: what a bundle says of its distance to float is not what the outputs that lie in it say.
    """
    found = f"{stored.sqnr:.1f} dB" if stored.outputs else "nothing that could be compared with it"
    if not stored.outputs or abs(stored.sqnr - said) > UNTRUE_DB:
        raise BadModel(
            f"'{folder}' contradicts itself: its manifest says {said:.1f} dB against the float model, the outputs that "
            f"are stored in it {found}"
        )


def _library(folder: Path, manifest: Manifest, load_library: bool) -> tuple[bool | Path, list[str]]:
    """Which library computes onnxq's operators here, and why, if it is not the bundle's."""
    if manifest.library is None:
        return False, []
    if load_library:
        if manifest.platform != this_platform():
            raise BadRecipe(
                f"the library of '{folder}' is for {manifest.platform}, and this is {this_platform()}: "
                "export the model there, or leave --load-library out"
            )
        return (folder / manifest.library).resolve(), []
    try:
        own = library.ops_library()
    except MissingRuntime:
        own = None
    if own is not None and entry_of(own).sha256 == manifest.files[manifest.library].sha256:
        return own, []
    why = "is not this installation's" if manifest.platform == this_platform() else f"is for {manifest.platform}"
    return False, [f"the bundle's library {why}: not loaded (--load-library does), the model ran by its functions"]


def _require_agreement(folder: Path, there: Measured, quality: Quality, error: float | None, rest: Quality) -> None:
    """Judge outputs by their distance to float, if it says anything of how good they were; else by what was stored.

    Args:
        quality, rest: agreement with what was stored, of all outputs and of those that have no distance to float.

    Raises:
        CheckFailed: the model computes something else here.
    """
    where, is_other = f"on {there.machine.cpu}", quality.is_another(AGREES_DB)
    if error is not None and there.sqnr is not None and there.sqnr > -MAX_DB:
        if error < there.sqnr - WORSE_DB and quality.is_another(SAME_DB):
            raise CheckFailed(
                f"'{folder}' is further from float here ({error:.1f} dB) than {where} ({there.sqnr:.1f} dB)"
            )
        is_other = not quality.decides_alike or rest.is_another(AGREES_DB)
    if is_other:
        raise CheckFailed(
            f"'{folder}' computes something else here than {where}: {quality.agreement or 0.0:.1f} dB, "
            f"at least {AGREES_DB:g}"
        )


def _differences(there: Measured, here: Machine, kernels: dict[str, int]) -> list[str]:
    notes = []
    if there.machine.onnxruntime != here.onnxruntime:
        notes.append(f"onnxruntime is {here.onnxruntime}; it was {there.machine.onnxruntime}")
    if there.kernels != kernels:
        words = [", ".join(f"{n} {op}" for op, n in each.items()) or "none" for each in (kernels, there.kernels)]
        notes.append(f"other kernels ran: {words[0]}; there: {words[1]}")
    return notes
