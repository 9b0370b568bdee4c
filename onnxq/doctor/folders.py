"""`onnxq doctor FOLDER`: each model of a folder, and a new folder without what can be mended in them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxq.boundary import bounded
from onnxq.doctor.examine import examine
from onnxq.doctor.finding import Diagnosis, Severity
from onnxq.doctor.mend import Mended, mend
from onnxq.errors import NothingToDo
from onnxq.files import mirror
from onnxq.files.guard import Guard
from onnxq.folders import options_of_part, placing
from onnxq.folders.contents import open_folder
from onnxq.folders.messages import OfPart, about
from onnxq.job import Environment
from onnxq.output import place, write
from onnxq.progress import QUIET, Progress
from onnxq.samples.sampling import Sampling


@dataclass(frozen=True)
class FolderDiagnosis:
    """What was found in the models of a folder.

    Attributes:
        parts: by name.
        notes: what was not looked at, a sentence each.
    """

    path: str
    parts: dict[str, Diagnosis]
    notes: tuple[str, ...]

    @property
    def worst(self) -> Severity | None:
        return max((part.worst for part in self.parts.values() if part.worst is not None), default=None)

    def to_dict(self) -> dict[str, object]:
        """Everything, for JSON."""
        worst = self.worst
        return {
            "onnxq_doctor": 1,
            "path": self.path,
            "parts": [{"part": name, **found.to_dict()} for name, found in self.parts.items()],
            "notes": list(self.notes),
            "worst": None if worst is None else worst.word,
        }


@dataclass(frozen=True)
class FolderMended:
    """What `mend_folder` did.

    Attributes:
        parts: by name, what became of each model in which something was mended; the others are as they were.
        left_out: files that were not copied, each with the reason.
    """

    output: Path
    parts: dict[str, Mended]
    left_out: dict[Path, str]
    notes: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        """Whether every model that was mended could be compared with what it was."""
        return all(done.check is not None and done.check.is_known for done in self.parts.values())

    def to_json(self) -> str:
        """Everything, for machines."""
        return json.dumps(
            {
                "output": mirror.told(self.output),
                "parts": [{"part": name, **_table(done)} for name, done in self.parts.items()],
                "left_out": {file.as_posix(): why for file, why in self.left_out.items()},
                "notes": list(self.notes),
            },
            indent=1,
        )


@bounded
def examine_folder(
    folder: str | Path,
    *,
    target: str = "ort-cpu",
    sampling: Sampling | None = None,
    ignored: tuple[str, ...] = (),
    progress: Progress = QUIET,
) -> FolderDiagnosis:
    """What is wrong with the models of a folder, whoever made it.

    Args:
        target, ignored: as `examine`.
        sampling: samples by part, as `quantize_folder` takes them; parts without get a made-up input.

    Raises:
        OnnxqError: it is no folder of models, or one of them, or the data, cannot be read; which part it is about.
    """
    found = open_folder(folder)
    samplings, notes = options_of_part.samplings_of([part.name for part in found.parts], sampling)
    parts = {}
    for part in found.parts:
        with about(part.name):
            parts[part.name] = examine(
                found.source(part),
                target=target,
                sampling=samplings[part.name],
                ignored=ignored,
                progress=OfPart(progress, part.name),
            )
    skipped = [(file.as_posix(), why) for file, why in found.left_out.items() if file.suffix == ".onnx"]
    return FolderDiagnosis(str(folder), parts, (*notes, *(f"{file} was not looked at: {why}" for file, why in skipped)))


@bounded
def mend_folder(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    sampling: Sampling | None = None,
    ignored: tuple[str, ...] = (),
    environment: Environment | None = None,
) -> FolderMended:
    """Write a complete folder whose models are without the faults that rules can mend.

    Args:
        output: [default: the folder's name with `mended` in it, in the current folder]
        sampling: samples by part; models without are checked on made-up inputs.
        ignored: words of rules whose faults stay.
        environment: its guard says whether a folder that onnxq wrote may be replaced.

    Raises:
        NothingToDo: there is nothing of that kind in any model, and no output was named, where there would be a copy.
        CheckFailed: a new model gives something else; nothing was kept.
        OnnxqError: a model cannot be read, or the output not be written; nothing is left behind.
    """
    environment = environment or Environment()
    found = open_folder(folder, variants=True)
    samplings, notes = options_of_part.samplings_of([part.name for part in found.parts], sampling)
    destination = Path(output) if output is not None else Path(f"{found.path.resolve().name}.mended")
    seen = place.check_destination(destination, [found.path], environment.guard.force)
    environment.guard.reads(*options_of_part.files_of(None if sampling is None else sampling.source))
    environment.guard.replaces(destination)
    with write.staging(destination) as scratch:
        staged = scratch / "result"
        staged.mkdir()
        parts: dict[str, Mended] = {}
        made: dict[str, Path] = {}
        for number, part in enumerate(found.parts):
            new = scratch / f"part{number}" / part.file.name
            new.parent.mkdir()
            told = Environment(environment.threads, OfPart(environment.progress, part.name), Guard(force=True))
            with about(part.name):
                try:
                    done = mend(
                        found.source(part), new, sampling=samplings[part.name], ignored=ignored, environment=told
                    )
                except NothingToDo:
                    continue
            parts[part.name], made[part.name] = dataclasses.replace(done, output=destination / part.file), new
        if not parts:
            nothing = f"no model of '{folder}' has a fault that --fix could mend"
            if output is None:
                raise NothingToDo(nothing)
            notes = [*notes, f"{nothing}; {output} is a copy of it"]
        files = {part.name: part.file for part in found.parts}
        placing.place_models(found, staged, files, made, found.source)
        placing.copy_others(found, staged)
        result = FolderMended(destination, parts, found.left_out, tuple(notes))
        place.write_report(staged, result.to_json())
        place.publish(staged, destination, seen, environment.guard)
    return result


def _table(done: Mended) -> dict[str, Any]:
    check = None if done.check is None else done.check.to_dict()
    return dataclasses.asdict(done) | {"output": done.output.name, "check": check}
