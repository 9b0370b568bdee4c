"""Runs hostile cases where they can do no harm: in a forked process with an alarm clock and a limit on memory.

A process that dies takes one case with it. What counts as a defect: an exception that is none of ours (exit code 70), a
process that aborts, a case that takes too long, an input that was changed, a file that is left, words that are no
sentence.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import hashlib
import itertools
import json
import logging
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from click.testing import CliRunner

from onnxq import boundary, cli
from onnxq.bundles import measure
from onnxq.checking import compare, models, saved
from onnxq.files import mirror, storage
from onnxq.runtime import native, supervisor
from onnxq.tuning import plan_bench, timings

#: Seconds of the processor after which a case hangs, and bytes of address space that it may take.
SECONDS, MEMORY = 20, 8 << 30
#: How many times longer it may wait: for others on a busy machine, though not for a pipe.
WAITING = 6
#: Cases run in one process: what one leaves in memory is not to be taken for the fault of another.
BATCH = 40
#: What a command may leave beside its inputs.
OUTPUTS = re.compile(
    r"(out|model)\.onnx\.search|out\.onnx(\.data)?|out\.(gguf|safetensors)|out\.json|out\.ranges(\.partial)?|out/.*"
    r"|bundle(/adapter_(config\.json|model\.safetensors))?",  # named as a page, or a folder
    re.DOTALL,
)
#: How files end that the same command goes on from.
PROGRESS = (".partial", ".search", ".training")
#: What --trace leaves.
TRACED = re.compile(r"([^/]+/)*\d+-[a-z-]+\.onnxtxt")
#: Options that name a file to write.
WRITING = ("-o", "--output", "--html", "--json", "--report", "--save-profile")
#: What Python says to programmers.
INTERNAL = re.compile(
    r"<lambda>|positional argument|has no attribute|NoneType|unhashable|__\w+__| at 0x[0-9a-f]+|Traceback"
    r"|set_int_max|codec can't|surrogates not allowed"
)


#: What a function of the user's own said, quoted: it may say anything.
QUOTED = re.compile(r"failed with \w+: .*")


class Case(Protocol):
    def build(self, folder: Path) -> list[str]:
        """Make the files in `folder`, which is the working folder; the words of the command line."""


@dataclass(frozen=True)
class _WithoutOurs:
    """The same case without kernels of ours, and for a target that has none."""

    case: Case

    def build(self, folder: Path) -> list[str]:
        words = self.case.build(folder)
        native.library = native.path = lambda: None  # type: ignore[assignment]
        return ["onnx" if before == "-t" else word for before, word in zip(["", *words], words, strict=False)]


@dataclass(frozen=True)
class Outcome:
    """What became of a case; `defect` is empty where all is well. `cause` is the same for the same mistake."""

    code: int
    said: str
    defect: str = ""
    cause: str = ""
    seconds: float = 0.0


def run(cases: Sequence[Case], seconds: int = SECONDS) -> Iterator[Outcome]:
    """What becomes of each case, in order."""
    done = 0
    while done < len(cases):
        for outcome in _batch(cases[done : done + BATCH], seconds):
            done += 1
            yield outcome


def _batch(cases: Sequence[Case], seconds: int) -> Iterator[Outcome]:
    """The outcomes of the first cases, up to one that ends the process, or all."""
    folder = tempfile.mkdtemp(prefix="onnxq-attack-")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _work(cases, Path(folder), write, seconds)
    os.close(write)
    finished = 0
    try:
        with os.fdopen(read) as lines:
            for line in lines:
                finished += 1
                yield Outcome(**json.loads(line))
    finally:
        if finished < len(cases):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        said = (Path(folder) / "stderr").read_text(errors="replace")
        shutil.rmtree(folder, ignore_errors=True)
    if finished < len(cases):
        code = os.waitstatus_to_exitcode(status)
        name = signal.Signals(-code).name if code < 0 else f"exit {code}"
        frames = frames_of(said)
        # The command line lives through that, and says so (runtime/supervisor.py). Kernels of ours are another matter,
        # unless it happens without them too.
        words = re.findall(r"^words: (.*)$", said, re.MULTILINE)
        is_below = bool(frames and words) and re.search(r"/onnx(runtime)?/", frames[0][0]) is not None
        if is_below and not isinstance(cases[finished], _WithoutOurs):  # a file may hold nodes of ours, too
            is_below = next(run([_WithoutOurs(cases[finished])], seconds)).code < 0
        if code in (-signal.SIGALRM, -signal.SIGPROF):
            # A model that never ends is onnxruntime's to run, and the user's to end.
            is_endless = is_below and code == -signal.SIGPROF
            yield Outcome(code, said, "" if is_endless else "hang", f"{words[-1:]} in {frames[:2]}", seconds)
            return
        yield Outcome(code, said, "" if is_below else "abort", f"{name} in {frames[:1] or said[-200:]}")


def frames_of(said: str) -> list[tuple[str, str]]:
    """File and function, innermost first, of what was at work in the thread that died; others are listed before it."""
    own = said.rpartition("Current thread ")[2]
    return re.findall(r'File "(.*?)", line \d+ in (\w+)', own)


def _work(cases: Sequence[Case], folder: Path, write: int, seconds: int) -> None:
    """The child: one JSON line a case."""
    code = 1
    try:
        err = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(err, 2)
        sys.stderr = os.fdopen(err, "w", buffering=1)
        faulthandler.enable(sys.stderr)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
            faulthandler.register(number, sys.stderr, all_threads=False, chain=True)
        _be_quick()
        logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # as __main__.py does
        supervisor.is_at_work = lambda: True  # all threads are ours, as in the child of the command line
        for number, case in enumerate(cases):
            place = folder / str(number)
            place.mkdir()
            os.chdir(place)
            os.truncate(folder / "stderr", 0)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.alarm(WAITING * seconds)
            outcome = _one(case, place)
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(write, (json.dumps(outcome.__dict__) + "\n").encode())
            os.chdir(folder)
            shutil.rmtree(place, ignore_errors=True)
        code = 0
    except BaseException:  # a mistake of the cage, or memory that ran out in it
        traceback.print_exc()
    finally:
        os._exit(code)


def _be_quick() -> None:
    """Times are measured for as short as it goes."""
    short = ((timings, "TIMING_SECONDS"), (plan_bench, "PROFILE_SECONDS"), (measure, "SECONDS"), (storage, "PAUSE"))
    for module, name in short:
        if hasattr(module, name):
            setattr(module, name, 0.001)
    for each in (saved, compare):
        if hasattr(each, "check_models"):
            each.check_models = functools.partial(models.check_models, seconds=0.001)  # type: ignore[attr-defined]


def _one(case: Case, folder: Path) -> Outcome:
    for known in (mirror._files, mirror._outputs):  # of the case before: a command line has a process of its own
        known.clear()
    words = case.build(folder)
    before = _contents(folder)
    unforeseen: list[BaseException] = []

    def noting(error: BaseException) -> Exception:
        unforeseen.append(error)
        return of_ours(error)

    of_ours = boundary.as_sentence
    start = os.times().elapsed
    boundary.as_sentence = cli.as_sentence = noting  # type: ignore[assignment,attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(cli.main, words)
    finally:
        boundary.as_sentence = cli.as_sentence = of_ours  # type: ignore[attr-defined]
    code, said, took = result.exit_code, result.stderr, os.times().elapsed - start
    failed = result.exception is not None and not isinstance(result.exception, SystemExit)
    if failed or code == 70:
        error = unforeseen[0] if unforeseen else result.exception
        assert error is not None
        return Outcome(code, "".join(traceback.format_exception(error))[-6000:], "traceback", _cause(error), took)
    after = _contents(folder)
    lost = [name for name, content in before.items() if after.get(name) != content and not OUTPUTS.fullmatch(name)]
    lost = [name for name in lost if code or name not in _replaced(words)]
    asked = set(words) if code == 0 else set()  # for any name, as an output of its own: a file or a folder
    new = [name for name in after if name not in before and asked.isdisjoint({name, _owner(name)})]
    left = [name for name in new if not OUTPUTS.fullmatch(name)]
    left = [] if "." in asked else left  # several files of one output, in the folder itself
    # A trace is of use where something failed.
    traced = "--trace" in words
    left = [name for name in left if not (traced and TRACED.fullmatch(name))]
    # And so is the page of a comparison that misses what it was to reach.
    compared = words[0] == "check" and "--html" in words
    made_in = () if traced or compared else ("out/",)
    made = [name for name in after if name == "out.onnx" or name.startswith(made_in)]
    kept = code == 1 and any(name not in before and not name.endswith(PROGRESS) for name in made)
    lines = [line for line in said.splitlines() if line.strip()]
    if lost or left or kept:
        return Outcome(code, said, "files", f"changed {lost}, left {left}, kept {kept} by {words[0]}", took)
    if code not in (0, 1, 2, 3, *((4, 5) if words[:1] == ["doctor"] else ())):
        return Outcome(code, said, "exit code", str(code), took)
    if code == 1 and (not lines or not all(line.startswith("onnxq: ") for line in lines)):
        return Outcome(code, said, "sentence", f"of {len(lines)} lines: {said[:100]}", took)
    if found := INTERNAL.search(_of_ours(said, words)):
        return Outcome(code, said, "sentence", f"says '{found[0]}': {re.sub(r'[0-9]+', 'N', said[-160:])}", took)
    return Outcome(code, said[:500], seconds=took)


def _of_ours(said: str, words: list[str]) -> str:
    """What was said, without what is quoted of the user's functions and words."""
    for word in sorted({word for word in words if "__" in word}, key=len, reverse=True):
        said = said.replace(word, "")
    return QUOTED.sub("", said)


def _replaced(words: list[str]) -> set[str]:
    """Files that a command was asked to replace, and to do nothing else with."""
    outputs = {word for before, word in itertools.pairwise(words) if before in WRITING}
    is_forced = not {"-f", "--force"}.isdisjoint(words)
    return {word for word in outputs if is_forced and words.count(word) == 1}


def _owner(name: str) -> str:
    """The folder that a file is in; or the model whose data it is."""
    data = re.fullmatch(r"(.*)\.[0-9a-f]{16}\.data", name)
    return data[1] if data else name.partition("/")[0]


def _cause(error: BaseException) -> str:
    """Kind of exception and the last line of ours that was at work."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/onnxq/" in f.filename]
    at = f"{Path(frames[-1].filename).stem}.{frames[-1].name}:{frames[-1].lineno}" if frames else ""
    # Names and numbers are those of the case; onnx_ir prints whole graphs in parentheses.
    said = re.sub(r"'[^']*'|[0-9]+", "N", str(error)).partition("(")[0]
    return f"{type(error).__name__} in {at}: {said[:100]}"


def _contents(folder: Path) -> dict[str, str]:
    """Regular files by name, as hashes; anything else as what it is."""
    found = {}
    for path in folder.rglob("*"):
        if "__pycache__" in path.parts or path.is_dir():
            continue
        name = str(path.relative_to(folder))
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path.lstat().st_mode)
    return found
