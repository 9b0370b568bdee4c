"""What can go wrong, in one sentence each: what, where, what to do.

Every exception a user may see is an `OnnxqError`; the command line prints its text and turns `exit_code` into the
exit status. Anything else that escapes is a bug of ours, and becomes a `Bug` (`boundary.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

#: Words of dynamic linkers and of threads for want of memory; and of Python, where it had none for a MemoryError.
#: Where linkers have none left for the reason either, all they say is what they could not make.
_OF_MEMORY = re.compile(
    "failed to map segment|cannot map|cannot allocate|out of memory|cannot create (shared object|scope|search|cache"
    "|TLS|RUNPATH|HWCAP|capability)|cannot extend global scope|can't start new thread|without exception set"
    "|without setting an exception",
    re.IGNORECASE,
)
#: What Python and the C library say of texts that they cannot read, by their own functions, and what it means.
_MEANS = (
    (re.compile(r"Exceeds the limit \(\d.*"), "a number has thousands of digits"),
    (re.compile(r"maximum recursion depth.*"), "it is nested too deeply"),
    (re.compile(r"invalid literal for int\(\).*|could not convert string to float.*"), "a number is none"),
    (re.compile(r"^sto(i|l|ll|ul|ull|f|d)$"), "a number is none"),
    (re.compile(r"'\S+' codec can't .*"), "a text in it is not UTF-8"),
)


class Exit(IntEnum):
    """What the command line ends with."""

    DONE = 0
    CANNOT = 1  # it cannot be done: the model, the data, or a format, rule or file that was named is to blame
    USAGE = 2  # the command line does not parse: an unknown option, a missing argument, none of the choices listed
    UNCHECKED = 3  # done, but a check could not run, or the runtime that it is for breaks it, or wants more of the user
    WARNINGS, ERRORS = 4, 5  # what `onnxq doctor` found in the model, at the worst
    BUG = 70  # of onnxq, or of a library below it
    INTERRUPTED = 130  # Ctrl-C
    KILLED = 137  # the kernel ended it, mostly for want of memory
    UNREAD = 141  # whoever read what was printed went away; files that were written stay


class OnnxqError(Exception):
    """A failure the user can act on; `str(error)` is one sentence, without line breaks."""

    exit_code: int = Exit.CANNOT

    def __init__(self, sentence: str = "") -> None:
        super().__init__(one_line(str(sentence)))


class BadModel(OnnxqError):
    """The input is not a model that can be read, checked or run."""


class BadData(OnnxqError):
    """The calibration data do not fit the model's inputs."""


class BadRecipe(OnnxqError):
    """A word, rule or file the user gave is not understood."""


class BadOutput(OnnxqError):
    """The result cannot be written where the user asked."""


class CheckFailed(OnnxqError):
    """The saved file does not load, does not run or is too far from the float model; it was not kept."""


class UnusedOption(RuntimeWarning):
    """Something that was asked for has no effect."""


class MissingRuntime(OnnxqError):
    """A package that this step needs is not installed."""


class NothingToDo(OnnxqError):
    """The model holds nothing that this scheme and target could quantize. Not a failure, unless a file was named that
    is not written then (`cli/_commands.py`)."""

    exit_code: int = Exit.DONE


class OutOfMemory(OnnxqError):
    """What the model or the data ask for does not fit into memory."""


class Bug(OnnxqError):
    """A mistake of onnxq's own; `__cause__` is what happened."""

    exit_code: int = Exit.BUG


#: What a terminal would take for more than a letter: line breaks, escape sequences, marks that turn the writing around.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
#: Bytes of a file's name that are no text, as Python keeps them: no terminal's encoding has them.
_NO_TEXT = re.compile("[\ud800-\udfff]")
#: Characters of a sentence; names in hostile models are megabytes long.
LONGEST = 2000


def one_line(text: str) -> str:
    """`text` as one line that a terminal can show: names from a model's file may hold anything."""
    line = _CONTROLS.sub(" ", without_halves(text.strip()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 4 :]}"


def listed(names: Sequence[str], most: int) -> str:
    """The first `most` of them, and how many others there are."""
    return ", ".join(names[:most]) + (f" and {amount(len(names) - most, 'other')}" if len(names) > most else "")


def amount(n: int, noun: str) -> str:
    """`n` of what `noun` calls one of them: 1 sample, 3 samples."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def without_halves(text: str) -> str:
    """`text` without what no encoding has, such as bytes in a file's name that are no UTF-8."""
    return _NO_TEXT.sub("\ufffd", text)


def printable(text: str, *, lines: bool = False) -> str:
    """`text` without what a terminal would obey, each such character a space; with `lines`, line breaks stay."""
    text = without_halves(text)
    return _CONTROLS.sub(lambda found: "".join(c if lines and c == "\n" else " " for c in found[0]), text)


def root_cause(error: BaseException) -> BaseException:
    """Where a chain of "raised from" began; of ours, if one of the chain is an `OnnxqError`."""
    while error.__cause__ is not None and not isinstance(error, OnnxqError):
        error = error.__cause__
    return error


def is_of_memory(error: BaseException | None) -> bool:
    """Whether something could not be done for want of memory, be it only that nothing is left to find out with."""
    try:
        while error is not None:
            if isinstance(error, MemoryError) or _OF_MEMORY.search(str(error)):
                return True
            error = error.__cause__ or error.__context__
    except MemoryError:
        return True
    return False


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, for use inside a sentence of ours."""
    try:
        raw = error.args[0] if error.args else None
        text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(error)
    except Exception:  # of a class that is not ours
        text = ""
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    for pattern, words in _MEANS:
        line = pattern.sub(words, line)
    return line
