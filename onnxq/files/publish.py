"""Moves what belongs together into place: a model and its data, so that a model is never there with data that are not
its own, and folders of stores, which no two runs fill by halves unnoticed."""

from __future__ import annotations

import filecmp
import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxq.errors import BadOutput
from onnxq.files import data_files, faults, staging, storage
from onnxq.files.storage import Known


def publish(staged: Path, output: Path, *, replace: bool = True, read: Iterable[Path] = ()) -> None:
    """Move a staged model and its data into place; the data of the model that it replaces go.

    Args:
        staged: a model in a folder of `staging.staging(output)`.
        replace: whether a model that is there by now is replaced.
        read: files that stay as they are, whoever refers to them.

    Raises:
        BadOutput: it cannot be written, or is there and `replace` is off; so for its data, where other bytes are.
    """
    kept = [path for path in read if path.exists()]
    with staging.as_sentences(output):
        new = data_files.own_data(staged)
        for file in new:
            _require_free(file, output.with_name(file.name), kept, replace=replace)
        for file in (*new, staged):
            faults.point("publish.sync")
            staging.sync(file)
        with staging.alone_in(output.parent) as alone:
            old = [file for file in data_files.own_data(output) if not any(_is_same(file, path) for path in kept)]
            if new or old:
                faults.point("publish.journal")
                ours = [file for file in new if not output.with_name(file.name).exists()]
                data_files.write_journal(staged.parent, [*ours, *old])
            for file in new:
                faults.point("publish.data")
                if not _is_there(file, output.with_name(file.name)):
                    staging.move(file, output.with_name(file.name))
            faults.point("publish.data_moved")
            staging.sync_folder(output.parent)
            faults.point("publish.model")
            staging.move(staged, output, replace=replace)
            faults.point("publish.model_moved")
            staging.sync_folder(output.parent)
            if alone:
                data_files.settle(staged.parent, is_own=True)


def _require_free(staged: Path, target: Path, kept: Iterable[Path], *, replace: bool) -> None:
    """Of data, that a file of the same name holds the same bytes, or may be replaced: it was damaged, or is somebody
    else's."""
    if not os.path.lexists(target) or _is_there(staged, target):
        return
    if not replace or any(_is_same(target, path) for path in kept):
        advice = "remove it, or choose another name with -o"
        raise BadOutput(f"'{target}', which is to hold the model's data, exists with other bytes in it; {advice}")


def _is_same(a: Path, b: Path) -> bool:
    """Whether both are there, and one file."""
    try:
        return a.samefile(b)
    except OSError:  # one has gone since it was read
        return False


def _is_there(staged: Path, target: Path) -> bool:
    return target.is_file() and filecmp.cmp(staged, target, shallow=False)


@dataclass(frozen=True)
class StoredFolder:
    """A folder of a store, as it was when it was looked at.

    Attributes:
        report: the file by which it is known to have been written here.
        files: what was in it, by paths in it; of a web server, which does not tell, the report at most.
    """

    url: str
    report: str
    files: dict[str, Known]

    @classmethod
    def at(cls, url: str, report: str) -> StoredFolder:
        """
        Raises:
            BadOutput: nobody can tell what is there.
        """
        if storage.is_http(url):
            is_there = storage.exists(storage.inside(url, report))
            return cls(url, report, {report: Known(0, "")} if is_there else {})
        storage.forget(url)
        return cls(url, report, {name: storage.known(storage.inside(url, name), BadOutput) for name in _names(url)})

    def text(self, name: str, most: int) -> str:
        """What a file in it says, in its first bytes.

        Raises:
            BadOutput: it cannot be read.
        """
        url = storage.inside(self.url, name)
        size = storage.known(url, BadOutput).size
        return storage.read(url, 0, min(most, size), BadOutput).decode("utf-8", "replace")

    def become(self, folder: Path) -> None:
        """Let the files of a folder here take the place of these.

        The report comes first, by which the next run knows whose the folder is where this one breaks off, and of two
        runs that make a new folder at once the later one stops before it has put anything there. Models come last.

        Raises:
            BadOutput: it cannot be written, or somebody else has changed it: what is there stays then, unless both
                wrote at once.
        """
        files = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*") if each.is_file()}
        if self.files and StoredFolder.at(self.url, self.report) != self:
            raise BadOutput(f"'{self.url}' was changed meanwhile, and stays as it is; choose another name with -o")
        put = dict[str, Known]()
        for name in sorted(files, key=lambda name: (name != self.report, name.endswith(".onnx"), name)):
            try:
                put[name] = storage.write(files[name], storage.inside(self.url, name), replace=bool(self.files))
            except BadOutput as error:
                if not put:
                    raise
                raise BadOutput(f"{error}; '{self.url}' holds a part of the result: --force replaces it") from None
        for name in self.files.keys() - files.keys():
            storage.remove(storage.inside(self.url, name))
        if not storage.is_http(self.url) and not self._holds(put, files):
            raise BadOutput(
                f"somebody else wrote to '{self.url}' at the same time, and it may hold files of both; "
                "give --force to write it again, or another name with -o"
            )

    def _holds(self, put: Mapping[str, Known], files: Mapping[str, Path]) -> bool:
        """Whether the folder is what was put there, and nothing else, by now.

        Each of two who write at once looks when it has put all, so the later one sees what is left of both. Where a
        store tells no versions, files of one length are told by their bytes; data are called by theirs.
        """
        return StoredFolder.at(self.url, self.report).files == put and all(
            known.version
            or data_files.is_called_by_content(posixpath.basename(name))
            or storage.holds(storage.inside(self.url, name), files[name])
            for name, known in put.items()
        )


def _names(url: str) -> list[str]:
    """Paths of the files in a folder of a store, without marks of folders; none if there is no folder."""
    found = storage.files_in(url, BadOutput) if storage.is_folder(url, BadOutput) else ()
    return [name for name in found if name and name[-1] != "/"]
