"""Reports of folders: one of each model in it, and what is to be said of the whole."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from onnxq.checking.layers.result import ByLayer
from onnxq.errors import OnnxqError
from onnxq.folders import options_of_part
from onnxq.folders.compare import FolderCheck, PartCheck, pairs_of
from onnxq.folders.contents import open_folder
from onnxq.folders.messages import OfPart
from onnxq.folders.result import FolderResult, PartResult
from onnxq.job import Environment
from onnxq.report import gather
from onnxq.report.document import Report
from onnxq.samples.sampling import Sampling
from onnxq.version import __version__


def of_result(
    folder: Path, result: FolderResult, sampling: Sampling, environment: Environment, commands: tuple[str, ...]
) -> Report:
    """What `quantize FOLDER` did; `folder` is the float one.

    Args:
        sampling: of the folder: its source is split by part, as when it was quantized.
    """
    files = {part.name: part.file for part in open_folder(folder).parts}
    samplings, _ = options_of_part.samplings_of([part.name for part in result.parts], sampling)
    report = Report("quantize", result.output.resolve().name, str(result.output), __version__, against=str(folder))
    report.scheme, report.target, report.commands = result.scheme, result.target, list(commands)
    report.summary.bytes_before, report.summary.bytes_after = result.bytes_before, result.bytes_after
    if result.shared:
        report.notes.append(f"weights that several parts hold, each with one format in all of them: {result.shared}")
    report.notes += result.notes
    for part in result.parts:
        samples = samplings[part.name]
        subject = _subject(part.name, folder / files[part.name], result.output / part.file, samples, environment)
        report.parts.append(_of_part(part, subject))
    return report


def of_check(found: FolderCheck, environment: Environment, commands: tuple[str, ...]) -> Report:
    """What `check FOLDER FOLDER` found."""
    report = Report(
        "check", found.b.resolve().name, str(found.b), __version__, against=str(found.a), commands=list(commands)
    )
    for folder, names in ((found.a, found.only_a), (found.b, found.only_b)):
        report.notes += [f"only in {folder}: {', '.join(names)}"] if names else []
    report.notes += found.notes
    report.summary.bytes_before = sum(part.bytes_before for part in found.parts)
    report.summary.bytes_after = sum(part.bytes_after for part in found.parts)
    report.parts = [_of_check(part, environment) for part in found.parts]
    return report


def of_models(
    folder: Path, in_float: Path | None, sampling: Sampling, environment: Environment, commands: tuple[str, ...]
) -> Report:
    """The models of a folder as they lie on disk, beside those of the float folder, if that is known.

    Raises:
        BadModel: one of the two is no folder of models.
        BadData: it cannot be told which model the data are for.
    """
    found = open_folder(folder)
    partners: dict[str, Path] = {}
    if in_float is not None:
        before = open_folder(in_float)
        partners = {theirs.name: before.source(ours) for ours, theirs in pairs_of(before, found)}
    names = [part.name for part in found.parts]
    samplings, notes = options_of_part.samplings_of(names, sampling)
    report = Report("model", folder.resolve().name, str(folder), __version__, commands=list(commands))
    report.against = "" if in_float is None else str(in_float)
    report.notes += notes
    for part in found.parts:
        samples = samplings[part.name]
        subject = _subject(part.name, partners.get(part.name), found.source(part), samples, environment)
        report.parts.append(gather.of_model(subject))
        report.parts[-1].title = part.name
    return report


def _of_part(part: PartResult, subject: gather.Subject) -> Report:
    if part.result is None:
        report = Report("quantize", part.name, str(subject.model), __version__, notes=[part.note])
    else:
        try:
            report = gather.of_result(part.result, subject)
        except OnnxqError as error:  # the folder is there; of a part that cannot be looked at less is told
            report = Report("quantize", part.name, str(subject.model), __version__, scheme=part.result.plan.scheme)
            report.notes.append(f"not looked at for this report: {error}")
        report.notes += [part.note] if part.note else []
    report.title = part.name
    report.summary.bytes_before, report.summary.bytes_after = part.bytes_before, part.bytes_after
    return report


def _of_check(part: PartCheck, environment: Environment) -> Report:
    subject = _subject(part.name, part.a, part.b, part.sampling, environment)
    found = part.found
    report = gather.of_layers(found, subject) if isinstance(found, ByLayer) else gather.of_check(found, subject)
    report.title = part.name
    return report


def _subject(name: str, a: Path | None, b: Path, sampling: Sampling, environment: Environment) -> gather.Subject:
    told = dataclasses.replace(environment, progress=OfPart(environment.progress, name))
    data: Sequence[str] = ["--data", str(sampling.source)] if isinstance(sampling.source, (str, Path)) else []
    words = ["check", str(a), str(b)] if a is not None else ["report", str(b)]
    return gather.Subject(b, a, sampling, told, (shlex.join(["onnxq", *words, *data]),))
