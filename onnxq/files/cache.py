"""Results and parts of remote files by their names, on this machine's disk: never more than so many bytes of them.

A name is a hash of everything that decides the content. A file is written whole and begins with a hash of its name and
the rest, so that what is damaged, or lies under another's name, is as good as not there. What was not asked for longest
goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

from onnxq.errors import BadRecipe

#: Bytes that may be kept, unless `ONNXQ_CACHE_SIZE` says otherwise.
MOST = 8 << 30
_NAME, _STAGED = re.compile("[0-9a-f]{16,64}"), ".onnxq-"
_DIGEST = 20
#: Of a number of bytes.
_DIGITS = 20


def folder() -> Path:
    """Where it lies.

    Raises:
        BadRecipe: nobody knows: this user has no home folder, as in some containers.
    """
    try:
        said = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(said) if os.path.isabs(said) else Path.home() / ".cache"  # others count for nothing, as XDG has it
    except RuntimeError:
        raise BadRecipe("there is no home folder for what is downloaded: set XDG_CACHE_HOME to a folder") from None
    return base / "onnxq" / "content"


def most() -> int:
    """
    Raises:
        BadRecipe: `ONNXQ_CACHE_SIZE` is no number of bytes.
    """
    said = os.environ.get("ONNXQ_CACHE_SIZE", str(MOST))
    if not said.isdecimal() or len(said) > _DIGITS:
        raise BadRecipe(f"ONNXQ_CACHE_SIZE is '{said:.40}', not a number of bytes")
    return int(said)


class Cache:
    """
    Args:
        folder: made when something is kept.
        most: bytes; what is larger is not kept.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most

    def get(self, name: str) -> bytes | None:
        """What was kept under a name; None if there is nothing, or nothing whole."""
        path = self._path(name)
        try:
            content = self._read(path)
            if content[:_DIGEST] != _digest(name, content[_DIGEST:]):
                path.unlink()
                return None
            os.utime(path)
        except OSError:
            return None
        return content[_DIGEST:]

    def remove(self, name: str) -> None:
        """Forget what was kept under a name."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def put(self, name: str, content: bytes) -> None:
        """Keep it, if there is room; a cache that cannot be written to keeps nothing."""
        if len(content) + _DIGEST > self.most:
            return
        path = self._path(name)
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return
            self._make_room(len(content) + _DIGEST)
            number, staged = tempfile.mkstemp(prefix=_STAGED, dir=self.folder)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(_digest(name, content))
                    file.write(content)
                os.replace(staged, path)
            except BaseException:
                os.unlink(staged)
                raise

    def nbytes(self) -> int:
        """What is kept."""
        return sum(size for _, size, _ in self._entries())

    def _read(self, path: Path) -> bytes:
        """
        Raises:
            OSError: it is a link, a pipe, or longer than all that is kept.
        """
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode) or found.st_size > self.most:
                raise OSError(f"'{path}' was not kept here")
            return file.read(found.st_size)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' is no hash")
        return self.folder / name

    def _is_ours(self) -> bool:
        """Whether the folder is this user's, and no link to where others keep things."""
        found = self.folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Files that were kept here, or begun; whatever else lies in the folder is somebody's."""
        found = []
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                with contextlib.suppress(OSError):  # another process has removed it
                    seen = path.lstat()
                    is_named = _NAME.fullmatch(path.name) or path.name.startswith(_STAGED)
                    if is_named and stat.S_ISREG(seen.st_mode):
                        found.append((seen.st_mtime, seen.st_size, path))
        return found

    def _make_room(self, nbytes: int) -> None:
        entries = sorted(self._entries())
        total = nbytes + sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.most:
                return
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                total -= size


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST, key=name.encode()).digest()


def usual() -> Cache:
    """This user's."""
    return Cache(folder(), most())
