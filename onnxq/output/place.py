"""Where the result of a folder goes: refused early, moved there in one step at the end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from onnxq.errors import BadOutput, OnnxqError
from onnxq.files import faults, limits, mirror, staging
from onnxq.files.guard import Guard, lies_in
from onnxq.output import write

#: A file of each folder that was written here: what was done, as JSON. Only such folders are ever replaced.
REPORT = "onnxq.json"
#: What reports say, each at least the words of one of these: of folders, of checkpoints, of bundles.
_SAID = ({"left_out", "parts"}, {"checkpoint", "tensors"}, {"onnxq_bundle"})
#: Bytes of a report; it speaks of every node.
MOST = 1 << 28
#: The C library's function by which two folders exchange their names; Linux has one.
EXCHANGE = "renameat2"

#: What tells a folder from what it becomes when anything is put into it, or taken out: its files and folders, and of
#: files number, length and time. Nothing of a folder that is empty, or not there.
Seen = frozenset[tuple[str, int, int, int]]


def check_destination(output: Path, sources: Iterable[Path], force: bool, report: str = REPORT) -> Seen:
    """Refuse early what could not be written later.

    Args:
        report: the file by which a folder is known to have been written by onnxq.

    Returns:
        What is there, which is all that `publish` may replace.

    Raises:
        BadOutput: the output is there already (without `force`, or not written by onnxq), is or holds a source, or
            lies in it.
    """
    here = mirror.whereabouts(output)
    for source in sources:
        there = mirror.whereabouts(source)
        if lies_in(here, there) or lies_in(there, here):
            raise BadOutput(f"of '{output}' and '{source}', one contains the other; choose another folder with -o")
    real = Path(os.path.realpath(output))
    if not real.parent.is_dir():
        raise BadOutput(f"the folder '{output.parent}' does not exist")
    if not os.access(real.parent, os.W_OK):
        raise BadOutput(f"the folder '{output.parent}' cannot be written to; choose another place")
    is_here = False
    in_store = mirror.replaced(output, report)
    if in_store is None or output.is_symlink() or (output.exists() and not output.is_dir()):
        raise BadOutput(f"'{output}' is not a folder; choose another name with -o")
    with contextlib.suppress(FileNotFoundError):  # of a working folder that was removed
        is_here = Path.cwd().is_relative_to(real)
    if is_here:
        raise BadOutput(f"'{output}' is the folder you are in; choose another name with -o")
    with staging.as_sentences(output):
        seen = _seen(output)
    if seen or in_store:
        if not _is_ours(output, report, is_stored=report in in_store):
            raise BadOutput(f"'{output}' holds files that onnxq did not write there; choose another name with -o")
        if not force:
            raise BadOutput(f"'{output}' exists; give --force to replace it, or another name with -o")
        if mounted := _mounted_below(real):
            raise BadOutput(f"'{mounted}', in '{output}', is where something is mounted; choose another name with -o")
    return seen


def _mounted_below(folder: Path) -> str:
    """A place in a folder where Linux shows what lies elsewhere, and would go with the folder; or ""."""
    names = (Path(name) for _, name, _ in limits.mounts())
    return next((str(name) for name in names if name != folder and name.is_relative_to(folder)), "")


def _is_ours(folder: Path, report: str, *, is_stored: bool) -> bool:
    """Whether there is a report that says what those say that are written here: others call files so, too."""
    try:
        text = mirror.text_in(folder, report, MOST) if is_stored else limits.read_text(folder / report, "", MOST)
        said = limits.parse_json(text)
    except (OnnxqError, ValueError):
        return False
    return isinstance(said, dict) and any(words <= said.keys() for words in _SAID)


def _seen(folder: Path) -> Seen:
    def refuse(error: OSError) -> None:
        raise error  # else a folder that cannot be read is like an empty one

    found = []
    for where, folders, files in os.walk(folder, onerror=refuse) if folder.exists() else ():
        found += [(os.path.join(where, name), 0, 0, 0) for name in folders]
        for path in (os.path.join(where, name) for name in files):
            with contextlib.suppress(FileNotFoundError):
                of = os.lstat(path)
                found.append((path, of.st_ino, of.st_size, of.st_mtime_ns))
    return frozenset(found)


def publish(staged: Path, output: Path, seen: Seen, guard: Guard) -> None:
    """Move a folder that lies in the staging folder of `output` into place; what was there before goes.

    A reader finds the old folder or the new one. Where the system cannot exchange two folders in one step, it finds
    none for the moment between two renames; a process that is killed in that leaves the old one as `OUTPUT.old-…`.

    Args:
        seen: what `check_destination` found there, which may go.
        guard: knows what was read.

    Raises:
        BadOutput: something else is there by now, or something of what is there was read.
    """
    guard.require_unread_below(output)
    for where, _, files in os.walk(staged):
        faults.point("folder.sync")
        for name in files:
            staging.sync(Path(where, name))
        staging.sync_folder(Path(where))
    faults.point("folder.move")
    try:
        os.rename(staged, output)  # which of folders replaces empty ones only
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if output.is_symlink() or not output.is_dir() or _seen(output) != seen:
            what = "was changed" if seen else "came into being"
            raise BadOutput(f"'{output}' {what} meanwhile, and stays as it is; choose another name with -o") from None
        if not _exchanged(staged, output):  # or the old one is in the staging folder now, with which it is removed
            _replace(staged, output)
    faults.point("folder.moved")
    staging.sync_folder(output.parent)


def _exchanged(a: Path, b: Path) -> bool:
    """Let two folders take each other's names; False where the system has no such thing."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), EXCHANGE, None) if EXCHANGE else None
    if rename is None:
        return False
    here = -100  # AT_FDCWD
    if rename(here, os.fsencode(a), here, os.fsencode(b), 2) == 0:  # RENAME_EXCHANGE
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(b))


def _replace(staged: Path, output: Path) -> None:
    """In two steps, with the old folder beside the new one in between."""
    old = Path(tempfile.mkdtemp(prefix=f"{output.name}.old-", dir=output.parent))
    faults.point("folder.aside")
    os.rename(output, old)
    try:
        faults.point("folder.aside_moved")
        os.rename(staged, output)
    except BaseException:
        os.rename(old, output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_report(folder: Path, text: str) -> None:
    """Leave in the folder what was done to it; not where, as it may be moved.

    Raises:
        BadOutput: it holds a file of that name.
    """
    if os.path.lexists(folder / REPORT):
        raise BadOutput(f"the models have data in '{REPORT}', where it is said what was done; give them another name")
    table = json.loads(text)
    table.pop("output")
    write.write_text(folder / REPORT, json.dumps(table, indent=1) + "\n")
