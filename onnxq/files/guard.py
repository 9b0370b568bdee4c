"""What a command may write: nothing that it reads, nothing that is there already unless told so, nothing twice."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

from onnxq.errors import BadOutput, without_halves
from onnxq.files import limits, mirror, staging
from onnxq.files.data_files import is_model, locations, own_data
from onnxq.files.publish import publish

#: Files of these kinds in a folder that is read are not what is read in it.
NEVER_SAMPLES = {".onnx", ".ranges", ".partial", ".onnxtxt"}
#: Files that onnxruntime opens, to run what was written, or writes itself.
_BY_THE_RUNTIME = (".onnx", ".onnx_adapter")


#: When each file was read last that no option names. Of a model's data its bytes alone (`locations`) do not tell all:
#: it may be text, or spell its protobuf otherwise than is usual.
_read_at: dict[str, float] = {}
_moments = itertools.count()


def remember(files: Iterable[str | Path], *, for_good: bool = False) -> None:
    """These files are read, though nobody named them: data of a model, what lies beside it, what a table names. No
    command that is at work by now writes there. What it is about to write itself, and looks at, is none of them.

    Args:
        for_good: nor does any later one of this process, which reads them once: a library, modules of the user's.
    """
    moment = math.inf if for_good else next(_moments)
    for file in map(os.path.realpath, files):
        if not for_good and staging.is_staged(file):
            continue
        _read_at[file] = max(moment, _read_at.get(file, 0))


def remember_kind(file: Path) -> None:
    """As `remember`, of a file and of all beside it that have its suffix: more of them are named than are read."""
    remember([file, _kind_of(os.path.realpath(file))])


def _kind_of(file: str) -> str:
    return os.path.join(os.path.dirname(file), f"*{os.path.splitext(file)[1]}")


class Guard:
    """The files of one command. Every file it reads and every file it writes is told to the same guard.

    In whatever order that happens, a conflict raises an error before anything is written.

    Args:
        force: existing files that are not read may be replaced.
    """

    def __init__(self, force: bool = False) -> None:
        self.force = force
        self._begun = next(_moments)
        self._read: dict[Path, None] = {}
        self._written: dict[Path, str] = {}
        self._folders: set[Path] = set()  # of those, what other files are put into
        self._data: dict[str, Path] = {}  # of models that were written, which have names by their bytes

    def reads(self, *sources: object) -> None:
        """Keep these as they are: files, folders with everything in them, `module:function`. Others are no paths.

        Raises:
            BadOutput: one of them is to be written.
        """
        for source in sources:
            if isinstance(source, (str, Path)) and Path(source) not in self._read:
                self._read |= dict.fromkeys(_files_of(source))
        for path, option in self._written.items():
            self._require_unread(path, option)

    def writes(self, path: Path, option: str = "-o", is_progress: Callable[[Path], bool] | None = None) -> None:
        """Check that `path` can be written when its time comes.

        Args:
            option: what the user changes to have it elsewhere.
            is_progress: of a file that keeps progress, says whether one that is there does. That is replaced unasked,
                and nothing else, even by force: nobody named it, nor what a link leads to.

        Raises:
            BadOutput: it is read, there already, written by another option, no file, or its folder cannot be written.
        """
        with staging.as_sentences(path):
            _check_folder(path)
            self._require_unread(path, option)
            self._require_apart(path, option)
            if path.suffix in _BY_THE_RUNTIME:
                limits.require_text_name(path, BadOutput)
            if path.exists() and not path.is_file():  # moving a file there would replace a device
                raise BadOutput(f"'{path}' is not a file; choose another name with {option}")
            if _is_printed_to(path):
                raise BadOutput(f"'{path}' is where what is printed goes; choose another name with {option}")
            if mirror.is_there(path) and not self.force:
                raise BadOutput(f"'{path}' exists; give --force to replace it, or another name with {option}")
            if is_progress is not None:
                _require_progress(path, option, is_progress)
            elif os.path.lexists(path) and not self.force:
                raise BadOutput(f"'{path}' exists; give --force to replace it, or another name with {option}")
        self._written[path] = option
        if self.force:
            mirror.let_replace(path)

    def writes_unnamed(self, path: Path, option: str = "-o") -> None:
        """The same of a file whose name follows from that of an option. It is no link: nobody named what that leads to.

        Raises:
            BadOutput: it is one, or see `writes`.
        """
        if path.is_symlink():
            advice = f"remove it, or choose another name with {option}"
            raise BadOutput(f"'{path}' is a link, and nobody named what it leads to; {advice}")
        self.writes(path, option)

    def makes(self, folder: Path, option: str) -> None:
        """Check that a folder can be made for files of an option: nothing else is written under its name.

        Raises:
            BadOutput: something is, or a file is there.
        """
        with staging.as_sentences(folder):
            if folder.exists() and not folder.is_dir():
                raise BadOutput(f"{option} '{folder}' is a file; name a folder")
            self._folders.add(folder)
            self._require_apart(folder, option)
        self._written[folder] = option

    def writes_beside(self, output: Path, path: Path) -> None:
        """The same of one of several files that an output becomes: it goes where that would go. The output itself may
        be a link.

        Raises:
            BadOutput: see `writes_unnamed`.
        """
        mirror.go_along(path, output)
        if path == output:
            self.writes(path)
        else:
            self.writes_unnamed(path)

    def replaces(self, folder: Path) -> None:
        """Check that nothing that is read or written lies in a folder that another one will take the place of.

        Raises:
            BadOutput: something does.
        """
        there = mirror.whereabouts(folder)
        for source in self._read:
            if lies_in(mirror.whereabouts(source), there) or _leads_into(source, there):
                raise _is_inside(source, folder)
        for path, option in self._written.items():
            place = mirror.whereabouts(path)
            if lies_in(place, there):
                raise BadOutput(f"'{path}' lies where -o puts a folder; choose another name with {option}")

    def require_unread_below(self, folder: Path) -> None:
        """Look again whether a folder may be taken the place of, as what a command reads shows while it reads.

        Raises:
            BadOutput: something in it was read.
        """
        self.replaces(folder)
        there = Path(os.path.realpath(folder))
        read = (Path(name) for name, moment in list(_read_at.items()) if moment > self._begun)
        for place, name in {each.parent: each for each in read}.items():  # thousands of pictures lie in one
            if lies_in(place, there):
                raise _is_inside(name, folder)

    def watch(self, path: str | Path | None, option: str) -> None:
        """A file that is read where there is one, and written where there is none.

        Raises:
            BadOutput: see `reads` and `writes`.
        """
        if path is None:
            return
        if os.path.exists(path):
            self.reads(Path(path))
        else:
            self.writes(Path(path), option)

    def write_text(self, path: Path, text: str) -> None:
        """Write a small file: a plan, a report, ranges.

        Raises:
            BadOutput: it cannot be written, came into being since `writes` was asked, or was read since.
        """
        self.require_unread(path)
        option = self._written.get(path, "-o")
        if model := self._data.get(os.path.realpath(path)):
            raise BadOutput(f"'{path}' holds the data of '{model}'; choose another name with {option}")
        staging.write(path, without_halves(text).encode(), replace=self.force)  # names of files are in it
        mirror.publish(path)

    def require_unread(self, *paths: Path) -> None:
        """Look again whether these can be written, as what a command reads shows while it reads.

        Raises:
            BadOutput: one was read since `writes` was asked.
        """
        for path in paths:
            if self._was_read(path):
                raise _is_read(path, self._written.get(path, "-o"))

    def publish(self, staged: Path, output: Path) -> None:
        """Move a staged model and its data into place.

        Raises:
            BadOutput: it cannot be written, or came into being since `writes` was asked; so for its data, of which the
                names are known by now only.
        """
        self.require_unread(*self._written)  # a report too: better now than when its model is there
        remembered = [Path(file) for file, moment in list(_read_at.items()) if moment > self._begun]
        publish(staged, output, replace=self.force, read=[*self._read, *remembered])
        data = own_data(output)
        self._data |= {os.path.realpath(path): output for path in data}
        mirror.publish(output, tuple(data))

    def _require_unread(self, path: Path, option: str) -> None:
        if self._was_read(path) or any(is_same(path, source) or _holds(source, path) for source in self._read):
            raise _is_read(path, option)

    def _require_apart(self, path: Path, option: str) -> None:
        """
        Raises:
            BadOutput: another option writes there, or would write below what is to be a file.
        """
        for known, other in self._written.items():
            pairs = ((a, b) for a, b in ((known, path), (path, known)) if a not in self._folders)
            if other != option and (is_same(known, path) or any(_is_above(*pair) for pair in pairs)):
                raise BadOutput(f"'{path}' is what {other} writes; choose another name with {option}")

    def _was_read(self, path: Path) -> bool:
        """Whether it is a file that was read since this command began, or for good, though nobody named it; or one that
        is there, of a kind of which others beside it were."""
        real = os.path.realpath(path)
        names = (real, _kind_of(real)) if os.path.exists(real) else (real,)
        return any(_read_at.get(name, -1) > self._begun for name in names)


def _require_progress(path: Path, option: str, is_progress: Callable[[Path], bool]) -> None:
    """
    Raises:
        BadOutput: something else is there than progress of onnxq.
    """
    advice = f"move it away, or choose another name with {option}"
    if path.is_symlink():
        raise BadOutput(f"'{path}' is a link, and progress is not kept through one; {advice}")
    if path.exists() and not is_progress(path):
        raise BadOutput(f"'{path}' is where progress is kept, and something else is there; {advice}")


def _is_inside(source: Path, folder: Path) -> BadOutput:
    return BadOutput(f"'{source}' is read, and lies in '{folder}', the output; choose another folder with -o")


def _leads_into(source: Path, there: Path) -> bool:
    """Whether links in a folder that is read lead to files below another one."""
    if not os.path.isdir(source) or not os.path.isdir(there):
        return False
    files = (os.path.join(place, name) for place, _, names in limits.walk(source) for name in names)
    links = filter(os.path.islink, itertools.islice(files, limits.FOLDER_ENTRIES))
    return any(lies_in(Path(os.path.realpath(link)), there) for link in links)


def _is_read(path: Path, option: str) -> BadOutput:
    return BadOutput(f"'{path}' is read, so it cannot be the output; choose another name with {option}")


def _files_of(source: str | Path) -> list[Path]:
    """The files, or the folder, that a word of the command line names; none if it is another kind of word."""
    path = Path(source)
    if os.path.isfile(path):  # which, unlike `path.is_file()`, has an answer for every word
        return [path, *(_external_files(path) if is_model(path) else ())]
    if os.path.exists(path):
        return [path]
    module, colon, _ = str(source).rpartition(":")
    if not colon:
        return []
    candidates = [module, module.replace(".", "/") + ".py"]  # others are known when they are imported
    return [Path(each) for each in candidates if os.path.isfile(each)]


def _external_files(model: Path) -> list[Path]:
    """The files that the model at `model` says its data lie in."""
    return [path for name in locations(model) if os.path.isfile(path := model.parent / name)]


def lies_in(path: Path, folder: Path) -> bool:
    """Whether it is a folder or below it, by names or, where a folder is mounted or spelled in two ways, as files."""
    return path.is_relative_to(folder) or any(is_same(each, folder) for each in (path, *path.parents))


def is_same(a: Path, b: Path) -> bool:
    """Whether two paths are one file: by links, spelling, or letters that some file systems take for the same."""
    if os.path.exists(a) and os.path.exists(b):
        return os.path.samefile(a, b)
    if os.path.exists(a) or os.path.exists(b):
        return os.path.realpath(a) == os.path.realpath(b)
    return _folded(a) == _folded(b)


def _is_above(folder: Path, path: Path) -> bool:
    """Whether a path leads through another."""
    return Path(_folded(path)).is_relative_to(_folded(folder))


def _folded(path: Path) -> str:
    return unicodedata.normalize("NFC", os.path.realpath(path)).casefold()


def _holds(folder: Path, path: Path) -> bool:
    """Whether a file of `folder` would be lost by writing `path`."""
    if path.suffix in NEVER_SAMPLES or not os.path.isdir(folder) or not os.path.exists(path):
        return False
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        return True
    files = (os.path.join(place, name) for place, _, names in limits.walk(folder) for name in names)
    looked_at = itertools.islice(files, limits.FOLDER_ENTRIES)
    return any(os.path.exists(file) and os.path.samefile(file, path) for file in looked_at)


def _check_folder(path: Path) -> None:
    if "\0" in str(path):
        raise BadOutput(f"the output {str(path)!r} has a NUL in its name; choose another one")
    if path.is_dir():
        raise BadOutput(f"'{path}' is a folder; name a file in it")
    if not path.parent.is_dir():
        raise BadOutput(f"the folder '{path.parent}' does not exist")
    if not may_write_in(path.parent):
        raise BadOutput(f"the folder '{path.parent}' cannot be written to; choose another place")
    if path.is_symlink() and path.suffix != ".onnx":  # a model takes the place of a link, all else that of its target
        target = os.path.realpath(path)
        if os.path.islink(target) or not os.path.isdir(os.path.dirname(target)):
            raise BadOutput(f"'{path}' is a link that leads nowhere; choose another place")


def may_write_in(folder: Path) -> bool:
    """Whether files may be put into a folder that is there."""
    found = os.stat(folder)
    is_made_up = not found.st_size and limits.is_of_the_kernel(found.st_dev)  # to which root may write, so it is said
    return not is_made_up and os.access(folder, os.W_OK)


def _is_printed_to(path: Path) -> bool:
    """Whether this process prints into the file, which would lose it by being replaced."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(stream), os.stat(path)):
                return True
    return False
