"""What a bundle says of itself: `manifest.json`, written here and read as the file of a stranger."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from onnxq.errors import BadModel
from onnxq.files import limits, schemas
from onnxq.files.data_files import locations
from onnxq.progress import Progress
from onnxq.runtime.session import THREADS

MANIFEST, SUMS, SAMPLES = "manifest.json", "SHA256SUMS", "samples.npz"
#: Of what the file holds; raised when readers of the old one would misunderstand it.
VERSION = 1
#: Files of a bundle.
MOST_FILES = 4096
_CHUNK = 1 << 20
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


class Entry(Struct, forbid_unknown_fields=True):
    """A file of the bundle."""

    bytes: schemas.Count
    sha256: Digest


class Value(Struct, forbid_unknown_fields=True):
    """An input of the model. A dimension that is not fixed has a name, or none."""

    name: str
    type: str
    shape: list[int | str | None] | None


class Measured(Struct, forbid_unknown_fields=True):
    """What was found when the samples were run on the machine that made the bundle.

    Attributes:
        samples: how many; `on` says what they are, `proves` whether they were the user's.
        outputs: those that are stored and compared.
        sqnr: dB against the float model; None: none was given.
        milliseconds: of one run of the first sample.
        kernels: that ran on integers or packed weights, by operator.
    """

    machine: schemas.MachineFile
    threads: Annotated[int, Meta(ge=0, le=1 << 16)]
    samples: Annotated[int, Meta(ge=1, le=64)]
    on: str
    proves: bool
    outputs: Annotated[list[str], Meta(min_length=1, max_length=4096)]
    milliseconds: schemas.Amount
    kernels: dict[str, schemas.Count]
    sqnr: Annotated[float, Meta(ge=-1e3, le=1e3)] | None = None


class Manifest(Struct, forbid_unknown_fields=True):
    """
    Attributes:
        onnxq_bundle: `VERSION`.
        onnxq: the version that made it.
        platform: of the machine that made it, and of `library`.
        model, library: names of files; no library: the model needs none.
        files: all but the manifest itself and `SUMS`, by name.
        opsets: by domain.
        measured: None: nothing was run.
    """

    onnxq_bundle: int
    onnxq: str
    target: str
    platform: str
    model: Name
    library: Name | None
    files: Annotated[dict[Name, Entry], Meta(max_length=MOST_FILES)]
    inputs: list[Value]
    opsets: dict[str, schemas.Count]
    measured: Measured | None = None

    @property
    def threads(self) -> int:
        return THREADS if self.measured is None else self.measured.threads

    @property
    def data(self) -> list[str]:
        """Files of external data of the model."""
        return sorted(name for name in self.files if name.startswith(f"{self.model}.") and name.endswith(".data"))


def this_platform() -> str:
    """System and processor family, which a compiled library is for."""
    return f"{platform.system().lower()}-{platform.machine().lower()}"


def entry_of(path: Path) -> Entry:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return Entry(path.stat().st_size, digest.hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Leave it in `folder`, with the checksums of all files, its own too, as `sha256sum --check` reads them."""
    raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    (folder / MANIFEST).write_bytes(raw)
    sums = {name: entry.sha256 for name, entry in manifest.files.items()} | {MANIFEST: hashlib.sha256(raw).hexdigest()}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    (folder / SUMS).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """What a bundle says; nothing that it names was looked at yet.

    Raises:
        BadModel: it is none, damaged, or of a later version.
    """
    path = folder / MANIFEST
    if not folder.is_dir() or not os.path.lexists(path):
        raise BadModel(f"'{folder}' is not a bundle: it has no {MANIFEST}; 'onnxq export' makes one")
    try:
        table = limits.parse_json(limits.read_text(path, "", error=BadModel))
        version = table.get("onnxq_bundle") if isinstance(table, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise BadModel(f"'{folder}' is a bundle of version {version}, made by a later onnxq: install that one")
        if isinstance(version, int) and version < 1:
            raise ValueError(f"there is no version {version} of bundles")
        manifest = schemas.checked(table, Manifest)
    except ValueError as error:
        raise BadModel(f"'{path}' is damaged: {error}") from None
    for name in (manifest.model, manifest.library, SAMPLES if manifest.measured else None):
        if name is not None and name not in manifest.files:
            raise BadModel(f"'{path}' is damaged: '{name}' is not among its files")
    if "/" in manifest.model:
        raise BadModel(f"'{path}' is damaged: the model '{manifest.model}' lies in a folder")
    for name in manifest.files:
        _require_inside(folder, name)
    return manifest


def require_whole(folder: Path, manifest: Manifest, progress: Progress) -> int:
    """Compare every file with what the manifest says of it; the bytes that they have together.

    Raises:
        BadModel: one is missing, a link, longer or shorter, or another one; or the model reads what is not listed.
    """
    progress.start("reading checksums", sum(entry.bytes for entry in manifest.files.values()))
    for name, entry in manifest.files.items():  # before anything long is read
        size = os.lstat(folder / name).st_size
        if size != entry.bytes:
            raise BadModel(
                f"'{folder / name}' has {size} bytes, the manifest says {entry.bytes}: copy the bundle again"
            )
    for name, entry in manifest.files.items():
        digest = hashlib.sha256()
        for chunk in _chunks(folder / name):
            digest.update(chunk)
            progress.advance(len(chunk))
        if digest.hexdigest() != entry.sha256:
            raise BadModel(f"'{folder / name}' is not the file that was exported: its SHA-256 is another one")
    for name in sorted(locations(folder / manifest.model)):
        if name not in manifest.files:
            raise BadModel(f"the model of '{folder}' reads '{name}', which is not among the files of the bundle")
    return sum(entry.bytes for entry in manifest.files.values())


def _require_inside(folder: Path, name: str) -> None:
    """Refuse a name that leads out of the bundle, or to what is not a plain file in it."""
    parts = PurePosixPath(name).parts
    if "\\" in name or "\0" in name or ":" in name or name != "/".join(parts) or {"..", "/"}.intersection(parts):
        raise BadModel(f"the manifest of '{folder}' names '{name}', which is no place in the bundle")
    try:
        found = os.lstat(folder / name)
    except (OSError, ValueError):
        raise BadModel(f"'{folder}' lacks '{name}': copy the bundle again") from None
    is_inside = os.path.realpath(folder / name) == os.path.join(os.path.realpath(folder), name)
    if not stat.S_ISREG(found.st_mode) or not is_inside:
        raise BadModel(f"'{folder / name}' is a link or no file: copy the bundle again")


def _chunks(path: Path) -> Iterator[bytes]:
    with limits.open_file(path, BadModel) as file:
        while chunk := file.read(_CHUNK):
            yield chunk
