"""What a file may ask for, before any work is done for it; and how files that others made are opened.

The limits are far above what real models need, and far below what would stop a machine.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onnxq.errors import BadModel, BadRecipe, OnnxqError, first_line

#: Of a model's own file: what protobuf reads. Weights beside it count extra.
MODEL_BYTES = (1 << 31) - 1
#: Of recipes and plans; and of ranges, which hold a histogram for each activation.
TEXT_BYTES, RANGES_BYTES = 1 << 26, 1 << 30
#: Nodes of all graphs and subgraphs, every call of a local function counted with what it becomes.
NODES = 500_000
#: Subgraphs in subgraphs, and functions that call functions.
DEPTH = 64
#: Dimensions of the shapes of all values, and so many more for each value; and elements that shapes are computed of.
DIMENSIONS, DIMENSIONS_EACH, SHAPE_ELEMENTS = 1 << 20, 64, 1 << 24
#: A dimension beyond this is a mistake or an attack: nothing has so many of anything.
DIMENSION = 1 << 40
#: Elements that a sparse tensor may be made into.
DENSE_ELEMENTS = 1 << 28
#: Bytes of external data may be read by several tensors; all of them together at most so many times, and so many more.
OVERLAP, OVERLAP_BYTES = 16, 1 << 28
#: Of one name in a model, or of a tensor.
NAME_BYTES = 1 << 14
#: Entries of a folder of samples that are looked at.
FOLDER_ENTRIES = 1_000_000
#: Of an image before and after resizing.
PIXELS = 1 << 26
#: Of a member of an archive, and how many times longer than in the archive it may be.
MEMBER_BYTES, INFLATION = 1 << 36, 1100
_OF_THE_KERNEL = frozenset(
    {"proc", "sysfs", "debugfs", "tracefs", "cgroup", "cgroup2", "configfs", "securityfs", "bpf", "efivarfs", "pstore"}
)
#: How a pointer of git-lfs begins, which is shorter than this, by its specification.
_POINTER, POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def require_file(path: str | Path, error: type[OnnxqError] = BadModel, what: str = "") -> int:
    """The length of the regular file at `path`; `what` goes before its name in messages.

    Raises:
        the given kind of error: nothing is there, or a folder, a device, a pipe …, or a pointer of git-lfs.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError as why:
        raise error(f"{what}'{path}' cannot be read: {why.strerror}" if what else f"'{path}': no such file") from None
    except (OSError, ValueError) as why:
        raise error(f"{what}'{path}' cannot be read: {getattr(why, 'strerror', None) or why}") from None
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{what}'{path}' is not a file")
    if not found.st_size and is_of_the_kernel(found.st_dev):  # whose reader may wait for ever
        raise error(f"{what}'{path}' is not a file: the kernel makes up what is in it")
    if found.st_size <= POINTER_BYTES and _is_pointer(path):
        raise error(
            f"{what}'{path}' is a pointer of git-lfs, which stands for the file and is not the file itself: get it by "
            "'git lfs pull' in the repository, or download it"
        )
    return found.st_size


def _is_pointer(path: str | Path) -> bool:
    """Whether the short file at `path` is what Git keeps in the place of a large one."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def _at_once(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def is_of_the_kernel(device: int) -> bool:
    """Whether a file system is one in which files say that they hold nothing, and reading them is a question to the
    kernel: some wait for an answer (/proc/kmsg), in others a question has consequences."""
    place = f"{os.major(device)}:{os.minor(device)}"
    return any(kind in _OF_THE_KERNEL for mounted, _, kind in mounts() if mounted == place)


def mounts() -> Iterator[tuple[str, str, str]]:
    """(device, path, kind of file system) of all that is mounted here, as Linux tells it (proc(5): blanks and the like
    in paths are octal numbers); nothing on other systems."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        known, _, of = line.partition(b" - ")
        words = known.split(b" ")
        if len(words) > 4:
            place = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), words[4])
            yield words[2].decode(), os.fsdecode(place), of.split(b" ")[0].decode()


def require_text_name(path: str | Path, error: type[OnnxqError] = BadModel) -> None:
    """Refuse a path that is no text: onnxruntime is given paths as UTF-8.

    Raises:
        the given kind of error: it holds other bytes.
    """
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise error(f"'{path}': onnxruntime opens only files whose path is text in UTF-8; rename it") from None


def open_file(path: str | Path, error: type[OnnxqError], what: str = "") -> io.BufferedReader:
    """The regular file at `path`, open for reading. Opening never waits, as it would for a pipe.

    Raises:
        the given kind of error: it is none, or cannot be read.
    """
    require_file(path, error, what)
    try:
        return open(path, "rb", opener=_at_once)
    except OSError as why:
        raise error(f"{what}'{path}' cannot be read: {why.strerror}") from None


def read_text(path: str | Path, what: str, most: int = TEXT_BYTES, error: type[OnnxqError] = BadRecipe) -> str:
    """The text of a file that the user gave, UTF-8.

    Raises:
        the given kind of error: there is no such file, or it is too long or no text.
    """
    if require_file(path, error, what) > most:
        raise error(f"{what}'{path}' is longer than {most >> 20} MB")
    try:
        with open_file(path, error, what) as file:
            return file.read(most + 1).decode("utf-8-sig")  # editors on Windows begin files with a mark
    except UnicodeDecodeError:
        raise error(f"{what}'{path}' cannot be read: it is not text in UTF-8") from None
    except OSError as why:
        raise error(f"{what}'{path}' cannot be read: {why.strerror}") from None


def walk(
    folder: str | Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk` gives a folder of samples: in the order of names, through links too, each folder once, however
    often links lead to it."""
    known = set()
    for where, folders, names in os.walk(folder, onerror=onerror, followlinks=True):
        try:
            found = os.stat(where)
        except FileNotFoundError:  # by now
            continue
        if (found.st_dev, found.st_ino) in known:
            folders.clear()
            continue
        known.add((found.st_dev, found.st_ino))
        folders.sort()
        yield where, folders, names


def fault_of_name(name: str) -> str:
    """Why nothing can be called so, in words; "" if it can."""
    return f"the name '{name[:40]}…' has {len(name)} characters" if len(name) > NAME_BYTES else ""


def parse_json(text: str, *, strict: bool = False) -> Any:
    """What the JSON in `text` says.

    Args:
        strict: refuse objects that say something twice, of which others may read the first and we the last, and
            halves of characters, which no file that is written can have in a name.

    Raises:
        ValueError: it is not JSON, nested too deeply, or holds a number of thousands of digits; or `strict` refuses it.
    """
    try:
        found = json.loads(text, object_pairs_hook=_said_once if strict else None)
        if strict and _HALF.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text in it holds half a character") from None
    except ValueError as error:
        raise ValueError(first_line(error)) from None
    return found


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        word, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object says {word!r:.80} twice")
    return table


def json_word(value: object) -> str:
    """What JSON calls a value."""
    words = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return words.get(type(value), "a number")


def in_words(nbytes: int) -> str:
    """A number of bytes for a sentence."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if nbytes < 1000:
            return f"{nbytes} {unit}"
        nbytes //= 1000
    return f"{nbytes} PB" if nbytes < 10**6 else "more than any machine has"
