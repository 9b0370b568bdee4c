"""How a file gets to its place: written whole into a folder beside it, flushed to the disk, then moved in one step.

A process that is killed leaves its staging folder behind. Each holds a file on which its process has a lock, so the
next run in the same place sees whose process is gone, and sweeps it. Folders in which files are moved are locked for
that moment, which keeps runs from sweeping what another one is just placing. Where a file system has no such locks,
everything is written all the same, and nothing is swept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxq.errors import BadOutput
from onnxq.files import data_files, faults

PREFIX = ".onnxq-"
#: Folders that this process made, whatever their names.
made_here = set[str]()
LOCK = "lock"
#: Seconds to wait for another process that moves files in the same folder.
PATIENCE = 5.0
#: Descriptors that removing a folder takes, with folders inside.
REMOVING = 5


@contextlib.contextmanager
def as_sentences(output: Path) -> Iterator[None]:
    """What the system says of `output`, as an error for its user."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BadOutput(
                f"no space left on the disk of '{output.parent}'; free some or choose another place"
            ) from None
        if error.errno == errno.ENOENT and _is_read(error.filename, output):
            raise BadOutput(f"'{error.filename}' is read, and is there no more") from None
        raise BadOutput(f"'{output}' cannot be written: {error.strerror or error}") from None


def _is_read(file: object, output: Path) -> bool:
    """Whether a file is neither the output, nor staged for it, nor where it is to be."""
    in_staging = any(part.startswith(PREFIX) for part in Path(str(file)).parts)
    return isinstance(file, str) and not in_staging and Path(file) not in (output, *output.parents)


def is_staged(file: str | Path) -> bool:
    """Whether a file lies in a folder that this process made to write into."""
    real = os.path.realpath(file)
    return any(real.startswith(f"{folder}{os.sep}") for folder in tuple(made_here))


@contextlib.contextmanager
def as_told_of(staged: Path, output: Path) -> Iterator[None]:
    """What is said of files in the folder `staged`, said of `output`, where they are to be.

    Raises:
        BadOutput: one cannot be written.
    """
    try:
        yield
    except BadOutput as error:
        raise BadOutput(str(error).replace(str(staged), str(output))) from None


@contextlib.contextmanager
def staging(output: Path) -> Iterator[Path]:
    """A folder beside `output` to write into; gone afterwards, with whatever is still in it.

    Raises:
        BadOutput: the disk is full, or the folder cannot be written to.
    """
    with as_sentences(output):
        parent = output.parent.absolute()  # wherever this process is when it is removed
        folder, lock, spare = _open(parent)
    try:
        with as_sentences(output):
            yield folder
    finally:
        for each in spare:
            os.close(each)
        made_here.discard(os.path.realpath(folder))
        with contextlib.suppress(OSError):
            faults.point("staging.remove")
            with alone_in(parent) as alone:
                _remove(folder, alone)
        os.close(lock)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what is of no use afterwards, where the system keeps such; those of killed runs are swept first.

    They lie in a folder that is its owner's alone; where that is somebody else's, nothing is swept.

    Raises:
        BadOutput: the disk is full, or there is no place to write to.
    """
    parent = Path(tempfile.gettempdir()) / f"onnxq-{os.geteuid()}"
    with as_sentences(parent):
        with contextlib.suppress(FileExistsError):
            parent.mkdir(mode=0o700)
        found = parent.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        with staging(parent / "scratch") as folder:
            yield folder
        return
    with as_sentences(parent), tempfile.TemporaryDirectory(prefix="onnxq-") as name:
        yield Path(name)


def write(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write a file whole, as `whole` does.

    Raises:
        BadOutput: it cannot be written, or is there and `replace` is off.
    """
    with whole(path, replace=replace) as staged:
        staged.write_bytes(content)


@contextlib.contextmanager
def whole(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A place to write a file at, which is then moved to `path`: at any time the old one or the new one is there; the
    new one is on the disk afterwards. What else is left in the folder of that place goes.

    A link stays one: the file it leads to is replaced.

    Raises:
        BadOutput: it cannot be written, or is there and `replace` is off.
    """
    with as_sentences(path):
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
    with staging(target) as folder:
        # Any name but those of what tells whose the folder is.
        staged = folder / (f"new.{target.name}" if target.name in (LOCK, data_files.JOURNAL) else target.name)
        faults.point("write.begin")
        yield staged
        faults.point("write.sync")
        sync(staged)
        faults.point("write.move")
        move(staged, target, replace=replace)
        faults.point("write.moved")
        sync_folder(target.parent)


def move(staged: Path, target: Path, *, replace: bool = True) -> None:
    """Put a file into its place in one step, with the permissions of the one it replaces.

    Raises:
        BadOutput: there is one and `replace` is off.
    """
    if replace:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(staged, target.stat().st_mode & 0o777)
        os.replace(staged, target)
        return
    try:
        os.link(staged, target)  # which, unlike a rename, replaces nothing
    except OSError:  # perhaps of a file system without hard links
        if os.path.lexists(target):
            said = f"'{target}' came into being meanwhile; give --force to replace it, or another name"
            raise BadOutput(said) from None
        os.replace(staged, target)
    else:
        staged.unlink()


def move_set(moves: Sequence[tuple[Path, Path]], *, replace: bool = True) -> None:
    """Put files that belong together into their places, each (staged, target), of which the last names the others.

    Several names cannot change in one step: where they replace others, those go first, the last of them at once. A
    process that is killed in between leaves files without the one that names them, and never some of each.

    Raises:
        BadOutput: one is there and `replace` is off.
    """
    for staged, _ in moves:
        sync(staged)
    targets = [Path(os.path.realpath(target)) if target.is_symlink() else target for _, target in moves]
    if len(moves) > 1 and replace:
        for target in reversed(targets):
            faults.point("set.remove")
            target.unlink(missing_ok=True)
        sync_folder(targets[-1].parent)
    for (staged, _), target in zip(moves, targets, strict=True):
        faults.point("set.move")
        move(staged, target, replace=replace)
    faults.point("set.moved")
    sync_folder(targets[-1].parent)


def sync(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where its file system can say so."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES):
            raise


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Hold off other runs that move files in `folder`; False if that cannot be had."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder to write to, but not to read
        yield False
        return
    try:
        until = time.monotonic() + PATIENCE
        while (held := _lock(opened)) is None and time.monotonic() < until:
            time.sleep(0.005)
        yield bool(held)
    finally:
        os.close(opened)


def _lock(opened: int) -> bool | None:
    """Whether the lock is ours now; None: another process holds it, False: there are no locks here."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return False
    return True


def _open(parent: Path) -> tuple[Path, int, list[int]]:
    """A new staging folder, its open lock, and descriptors that are kept for its removal, whatever the process opens;
    after those of processes that are gone are swept."""
    with alone_in(parent) as alone:
        if alone:
            _sweep(parent)
        faults.point("staging.make")
        # Made while the folder around it is locked: one without a lock in it belongs to nobody.
        tag = "-".join(_machine()) if alone else "unlocked"
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{tag}-", dir=parent))
        opened = list[int]()
        try:
            faults.point("staging.lock")
            opened.append(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            opened += (os.dup(opened[0]) for _ in range(REMOVING))
        except BaseException:
            for each in opened:
                os.close(each)
            (folder / LOCK).unlink(missing_ok=True)  # which, unlike rmtree(), takes no descriptors
            folder.rmdir()
            raise
        _lock(opened[0])
        made_here.add(os.path.realpath(folder))
        return folder, opened[0], opened[1:]


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*-*-*"):
        with contextlib.suppress(OSError):
            if _is_abandoned(folder):
                faults.point("staging.sweep")
                _remove(folder, alone=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether it was made by us on this machine, whose locks can be believed, and its process is gone."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    made_by = folder.name.removeprefix(PREFIX).split("-")[:2]
    if not any(a == b for a, b in zip(made_by, _machine(), strict=True)):
        return False
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        return _lock(lock) is True
    finally:
        os.close(lock)


@functools.cache
def _machine() -> tuple[str, str]:
    """What names this machine: since it was started (in all its containers), and by its name (after a restart)."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        started = socket.gethostname()
    return tuple(hashlib.blake2b(word.encode(), digest_size=4).hexdigest() for word in (started, socket.gethostname()))  # type: ignore[return-value]


def _remove(folder: Path, alone: bool) -> None:
    """A staging folder, after what its process may have left outside of it."""
    if not (folder / data_files.JOURNAL).exists() or (alone and data_files.settle(folder)):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():  # the journal stays for the next run
        if path.name not in (LOCK, data_files.JOURNAL):
            path.unlink()
