"""Files of stores as paths on this machine, so that everything else knows paths only.

A file that is read by ranges lies here as a sparse file of its whole length, into which each range is fetched before
it is read; whoever lets a library read the file has it made whole first. What is to be written somewhere else is
written here, and moved there when it is published, the model last.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import posixpath
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from onnxq.errors import BadData, BadModel, BadOutput, OnnxqError
from onnxq.files import limits, staging, storage
from onnxq.files.data_files import locations, own_data
from onnxq.files.publish import StoredFolder
from onnxq.files.storage import Known

#: Files that a folder may hold.
MOST_FILES = 100_000
#: Readings at a time.
READERS = 8

T = TypeVar("T")

_lock = threading.RLock()
_closing = contextlib.ExitStack()
_root: Path | None = None


@dataclass
class _Mirrored:
    """A file of a store, of which these ranges are here."""

    url: str
    known: Known
    error: type[OnnxqError]
    ranges: list[tuple[int, int]] = field(default_factory=list)


_files: dict[Path, _Mirrored] = {}
#: By path here, where it is published; and those that were.
_outputs: dict[Path, str] = {}
_published: set[Path] = set()
#: Of paths here, those that may take the place of what is there. No other one does, whatever has written it.
_replacing: set[Path] = set()
#: By path of a folder here that takes the place of a whole one, what was there.
_folders: dict[Path, StoredFolder] = {}
#: What stands for a version that a store does not tell.
_unknown = uuid.uuid4().hex
#: By path here, what the user gave.
_given: dict[Path, str] = {}


def local(url: str, error: type[OnnxqError] = BadModel) -> Path:
    """The path of a file or folder of a store; of a model's data only what is read is fetched, and all of other files.

    Raises:
        the given kind of error: there is no such file, or it cannot be read.
    """
    here = storage.path_here(url)
    if here is not None:
        return here
    path = _place(url)
    _given[path] = url
    storage.forget(url)
    if storage.is_folder(url, error):
        return _local_folder(url)
    with _lock:
        _mirror(path, url, error)
        ensure(path)
        for name in sorted(locations(path)) if path.suffix == ".onnx" else ():
            _mirror_data(path, url, name)
    return path


def read_and_written(model: str | Path, output: str | Path | None, data: T) -> tuple[Path, Path | None, T | str]:
    """These, as paths of this machine where they are addresses."""
    read = local(model) if isinstance(model, str) and storage.is_url(model) else Path(model)
    written = None if output is None else Path(output)
    if isinstance(output, str) and storage.is_url(output):
        written = destination(output)
    seen = str(local(data, BadData)) if isinstance(data, str) and storage.is_url(data) else data
    return read, written, seen


def stand_in(path: Path, url: str, known: Known) -> None:
    """Let `path` stand for a file of a store, of which nothing is here yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(known.size)
    _files[path] = _Mirrored(url, known, BadModel)


def destination(url: str) -> Path:
    """A path to write to in the place of `url`, where `publish` moves it; an address of this machine is one itself."""
    here = storage.path_here(url)
    if here is not None:
        return here
    path = _place(url)
    with contextlib.suppress(OSError):  # of an earlier call
        if path.is_dir():
            shutil.rmtree(path)
        for each in (*own_data(path), path):
            each.unlink()
    _outputs[path] = url
    for known in (_published, _replacing):
        known.difference_update([each for each in known if each.is_relative_to(path)])
    _folders.pop(path, None)
    return path


def is_there(path: Path) -> bool:
    """Whether what would be published from `path` would replace something."""
    url = _address(path, _outputs)
    return url is not None and storage.exists(url)


def let_replace(path: Path) -> None:
    """What is published from `path`, or from below it, may take the place of what is there: nothing does unasked."""
    if _address(path, _outputs) is not None:
        _replacing.add(path)


def go_along(path: Path, output: Path) -> None:
    """Let a file beside an output be published beside it."""
    if output in _outputs:
        destination(storage.beside(_outputs[output], path.name))  # of which the path here is this one


def _address(path: Path, known: dict[Path, str]) -> str | None:
    """That of a path here, or of the folder of these that it lies in, with what comes behind."""
    found = next((each for each in (path, *path.parents) if each in known), None) if known else None
    return None if found is None else storage.inside(known[found], path.relative_to(found).as_posix())


def replaced(folder: Path, report: str) -> frozenset[str] | None:
    """The files of a store that a folder would take the place of, by their paths in it; None: of what is no folder.

    Args:
        report: the one by which a folder is known to have been written here; the only one that is looked for where a
            server does not tell which there are.

    Raises:
        BadOutput: nobody can tell.
    """
    url = _outputs.get(folder)
    if url is None:
        return frozenset()
    there = StoredFolder.at(url, report)
    if not there.files and not storage.is_http(url) and storage.exists(url) and not storage.is_folder(url, BadOutput):
        return None
    _folders[folder] = there
    return frozenset(there.files)


def text_in(folder: Path, name: str, most: int) -> str:
    """As `StoredFolder.text`, of a folder that `replaced` looked at."""
    return _folders[folder].text(name, most)


def publish(path: Path, data: tuple[Path, ...] = ()) -> None:
    """Move a file that was written here to where it belongs, the data that it refers to first. What is there stays,
    unless this process put it there, or `let_replace` was told that it may go.

    Raises:
        BadOutput: it cannot be written, or is there and may not go.
    """
    url = _address(path, _outputs)
    if url is None:
        return
    for each in data:  # called by their content
        storage.write(each, storage.beside(url, each.name))
    may_go = path in _published or any(each in _replacing for each in (path, *path.parents))
    storage.write(path, url, replace=may_go)
    _published.add(path)


def publish_rest() -> None:
    """Move there what a command has written in another way than by a guard: files, and folders with all files in them,
    some of which take the place of a whole one.

    Raises:
        BadOutput: it cannot be written, or something came into being there, or was changed.
    """
    for path in _outputs:
        if path in _published or not path.exists():
            continue
        if path.is_file():
            publish(path, tuple(own_data(path)))
            continue
        if path in _folders:
            _folders[path].become(path)
        else:
            for each in sorted(path.rglob("*"), key=lambda each: (each.suffix == ".onnx", each)):
                if each.is_file() and each not in _published:
                    publish(each)
        _published.add(path)


def whereabouts(path: Path) -> Path:
    """Where a file or folder lies, or is to lie: its address, or its path without links; to tell what lies in what."""
    here = Path(os.path.abspath(path))
    for each in (here, *here.parents) if _root is not None else ():
        url = _outputs.get(each) or (_files[each].url if each in _files else _given.get(each))
        if url is not None:
            return Path(storage.canonical(url).partition("?")[0], here.relative_to(each))
    return Path(os.path.realpath(path))


def url_of(path: str | Path) -> str | None:
    """Where a file of this machine comes from, if from a store."""
    found = _files.get(Path(os.path.abspath(path)))
    return None if found is None else found.url


def given(path: str | Path) -> str:
    """The address that a path of this machine stands for, or is published at; the path itself, if for none."""
    here = Path(os.path.abspath(path))
    return _address(here, _given) or _address(here, _outputs) or str(path)


def told(path: str | Path) -> str:
    """The same for files that others see, who are not to have the keys of a store."""
    return storage.without_secrets(given(path))


def version_of(path: str | Path) -> Known | None:
    """What the store says of a file that comes from one."""
    found = _files.get(Path(os.path.abspath(path)))
    return None if found is None else found.known


def identity_of(path: str | Path) -> tuple[int, int | str]:
    """Numbers that are others, once the file's content is.

    Of a file here the time of its last change of any kind, which, unlike that of its content, nobody can set. A store
    that does not say is asked anew by each process.
    """
    known = version_of(path)
    if known is None:
        return os.path.getsize(path), os.stat(path).st_ctime_ns
    return known.size, known.version or _unknown


def ensure(path: str | Path, start: int = 0, stop: int | None = None) -> None:
    """Fetch this part of a file that comes from a store, unless it is here.

    Raises:
        OnnxqError: it cannot be read.
    """
    if not _files:
        return
    where = Path(os.path.abspath(path))
    with _lock:
        found = _files.get(where)
        if found is None:
            return
        stop = found.known.size if stop is None else min(stop, found.known.size)
        for first, last in _missing(found.ranges, start, stop):
            with open(where, "r+b") as file:
                for at, content in _fetched(found, first, last):
                    file.seek(at)
                    file.write(content)
            found.ranges.append((first, last))


def _fetched(file: _Mirrored, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """(place, bytes), several readings at a time."""
    places = range(first, last, storage.CHUNK)
    with ThreadPoolExecutor(READERS) as threads:
        for start in range(0, len(places), READERS):
            some = places[start : start + READERS]
            yield from zip(some, threads.map(lambda at: _chunk(file, at, last), some), strict=True)


def _chunk(file: _Mirrored, at: int, last: int) -> bytes:
    return storage.fetch(file.url, file.known, at, min(last, at + storage.CHUNK), file.error)


def ensure_with_data(model: str | Path) -> None:
    """Fetch all of a model and of its data."""
    if not _files:
        return
    where = Path(os.path.abspath(model))
    if where in _files:
        for name in locations(where):
            ensure(where.parent / name)
        ensure(where)


def as_given(text: str, worded: Callable[[str], str] = str) -> str:
    """A text with the addresses that the user gave, as `worded` has them, in the place of paths of this machine."""
    if _root is not None and str(_root) in text:
        shown = {str(path): each.url for path, each in _files.items()}
        shown |= {str(path): url for path, url in (*_given.items(), *_outputs.items())}
        for path in sorted(shown, key=len, reverse=True):
            text = text.replace(path, worded(shown[path]))
    return text


def _local_folder(url: str) -> Path:
    path = _place(url)
    every = storage.files_in(url)
    if len(every) > MOST_FILES:
        raise BadData(f"'{url}' holds more than {MOST_FILES} files")
    with _lock:
        before = {each for each in _files if each.is_relative_to(path)}
        for inside, each in every.items():
            where = _below(path, inside)
            if where is not None:
                before.discard(where)
                _mirror(where, each, BadData)
                ensure(where)
        for gone in before:
            _drop(gone)
    return path


def _drop(path: Path) -> None:
    """Have nothing here of a file of an earlier call that its store has no more."""
    _files.pop(path, None)
    path.unlink(missing_ok=True)


def _mirror_data(model: Path, url: str, name: str) -> None:
    """A file of data beside a model; one that is not there is told of when the model is read.

    Raises:
        BadModel: nobody can tell.
    """
    where = _below(model.parent, name)
    if where is None:
        return
    try:
        _mirror(where, storage.beside(url, name), BadModel)
    except BadModel as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        _drop(where)


def _below(folder: Path, name: str) -> Path | None:
    """The path of this name in a folder, or None if it would lie outside."""
    where = Path(os.path.normpath(folder / name))
    is_inside = not os.path.isabs(name) and "\0" not in name and where.is_relative_to(folder) and where != folder
    return where if is_inside else None


def _mirror(path: Path, url: str, error: type[OnnxqError]) -> None:
    known = storage.known(url, error)
    if path in _files and _files[path].known == known and known.version:
        return
    if path.suffix == ".onnx" and known.size > limits.MODEL_BYTES:
        raise error(f"'{url}' is longer than 2 GB, which no ONNX model is: large weights lie in files of their own")
    try:
        stand_in(path, url, known)
    except (OSError, OverflowError):
        raise error(f"'{url}' is {known.size} bytes long, says its store: no file in {path.parent} can be") from None
    _files[path].error = error


def _missing(ranges: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """What of a range is in none of these."""
    for first, last in sorted(ranges):
        if last > start and first < stop:
            if first > start:
                yield start, first
            start = max(start, last)
    if start < stop:
        yield start, stop


def _place(url: str) -> Path:
    """Where a file of a store lies here: each folder of it has one of its own."""
    global _root
    with _lock:
        if _root is None:
            _root = _closing.enter_context(staging.scratch())
            atexit.register(_closing.close)
    url = storage.canonical(url)
    address = url.partition("?")[0].rstrip("/")
    folder = hashlib.blake2b(storage.beside(url.rstrip("/"), "").encode(), digest_size=8).hexdigest()
    name = posixpath.basename(address)
    path = _root / folder / ("file" if name in ("", ".", "..") else name)
    path.parent.mkdir(exist_ok=True)
    return path
