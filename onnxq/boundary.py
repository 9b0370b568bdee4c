"""Where exceptions that nobody foresaw become sentences: the Python API and the command line call through here."""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import hashlib
import inspect
import mmap
import numbers
import os
import re
import sys
import types
import typing
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from onnxq.errors import BadModel, BadOutput, BadRecipe, Bug, OnnxqError, OutOfMemory, first_line, is_of_memory
from onnxq.progress import Progress

P = ParamSpec("P")
T = TypeVar("T")
#: What files hold.
_ATOMS = (int, float, str)
#: Sequences of anything that do not run anybody's code; and all that do not.
_LISTS = (list, tuple, deque, array)
_PLAIN = (*_LISTS, range, bytes, bytearray, memoryview)
#: Bytes of address space with which nothing works: the modules of one command take more.
NEXT_TO_NONE = 32 << 20


def bounded(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, of whose exceptions all are `OnnxqError`s, but for KeyboardInterrupt, SystemExit and the like."""
    checked = typed(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return checked(*arguments, **options)
        except (OnnxqError, Warning):  # a warning is raised where the caller asked for that
            raise
        except Exception as error:
            if _is_of_an_interrupt(error):
                raise KeyboardInterrupt from error
            raise as_sentence(error) from error

    return call


def _is_of_an_interrupt(error: BaseException | None) -> bool:
    """Whether a chain of exceptions began with Ctrl-C: libraries in C raise one of their own where it strikes them."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def typed(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, which refuses arguments of other types than it declares; what it raises itself stays as it is.

    Raises:
        BadRecipe: the first such argument, or one that is missing or too many.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            bound = signature.bind(*arguments, **options)
        except TypeError as error:
            raise BadRecipe(f"{function.__name__}(): {error}") from None
        require_types(function, bound.arguments)
        if "progress" in bound.arguments:
            bound.arguments["progress"] = _heard(bound.arguments["progress"])
        return function(*bound.args, **bound.kwargs)

    return call


class _Heard:
    """Somebody else's, whose failures are their own.

    Raises:
        BadRecipe: from its methods, where those of the other fail.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, what: str, total: int | None = None, unit: str = "") -> None:
        _called(self._progress.start, what, total, unit)

    def advance(self, done: int) -> None:
        _called(self._progress.advance, done)


def _called(method: Callable[..., None], *arguments: Any) -> None:
    try:
        method(*arguments)
    except Exception as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise BadRecipe(f"the progress that was given fails in {method.__name__}() with {what}") from error


def _heard(progress: Any) -> Any:
    """What to call in the place of what a caller gave as progress: itself, where it is one of ours."""
    is_ours = type(progress).__module__.partition(".")[0] == "onnxq"
    return _Heard(progress) if isinstance(progress, Progress) and not is_ours else progress


def require_types(declared: Any, given: MutableMapping[str, Any]) -> None:
    """Refuse what is given to a function, or for a class's fields, if it is of another type than was declared; numbers
    and texts of other classes, as numpy's, become plain ones.

    Raises:
        BadRecipe: the first that is.
    """
    hints = _hints(declared)
    for name, value in given.items():
        if name in hints and not _fits(value := _plain(value, hints[name]), hints[name]):
            wanted = getattr(declared, "__annotations__", {}).get(name)
            found = "None" if value is None else f"of type {type(value).__name__}"
            raise BadRecipe(f"{declared.__name__}(): '{name}' is {found}; it takes {wanted}")
        given[name] = value


def _plain(value: Any, hint: Any) -> Any:
    """The same as a number or a text of Python's own, where such is declared: others cannot be written to files."""
    kinds = [hint, *typing.get_args(hint)]
    if isinstance(value, enum.Enum):
        return value
    if isinstance(value, str):
        return str.__str__(value) if str in kinds else value
    if bool in kinds and (type(value).__module__, type(value).__name__.rstrip("_")) == ("numpy", "bool"):
        return bool(value)
    if type(value) in (list, tuple):
        of_many = [each for each in kinds if typing.get_origin(each) in (list, tuple, Sequence)]
        inner = [typing.get_args(each)[0] for each in of_many if typing.get_args(each)]
        return type(value)(_plain(each, inner[0]) for each in value) if inner and inner[0] in _ATOMS else value
    with contextlib.suppress(Exception):  # of a class that is not Python's own: it does not fit, then
        if type(value) in (bool, int, float):
            return value
        if isinstance(value, numbers.Integral) and int in kinds:
            return int(value)
        if isinstance(value, numbers.Real) and float in kinds:
            return float(value)
    return value


@functools.cache
def _hints(declared: Any) -> dict[str, Any]:
    names, found = vars(sys.modules[declared.__module__]), {}
    for name, word in inspect.get_annotations(declared).items():
        with contextlib.suppress(NameError, AttributeError):  # a type that is imported for type checkers alone
            found[name] = eval(word, names) if isinstance(word, str) else word
    return found


def _fits(value: object, hint: Any) -> bool:
    """Whether a value may be of a declared type: what generics hold is looked at in tuples, dicts, and lists of words
    and numbers alone."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is typing.Literal:
        return type(value) in {type(word) for word in inner}  # which words there are is said where they are used
    if origin is tuple and inner[-1] is Ellipsis:
        return isinstance(value, (tuple, list)) and all(_fits(each, inner[0]) for each in value)
    if origin in (list, Sequence) and inner[0] in _ATOMS and isinstance(value, _PLAIN):
        if not isinstance(value, _LISTS):
            return isinstance(value, range) and inner[0] is not str
        return isinstance(value, origin) and all(_fits(each, inner[0]) for each in value)
    of_atoms = origin is Mapping and inner[-1] in _ATOMS and isinstance(value, dict)
    if of_atoms or (origin is dict and inner[-1] is not Any):
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if (origin or hint) in (Path, os.PathLike) and isinstance(value, os.PathLike):
        return _is_path(value)
    if hint is float and isinstance(value, numbers.Real):
        return _is_float(value)
    kind = origin or hint
    kind = {int: numbers.Integral, float: numbers.Real, Path: os.PathLike}.get(kind, kind)
    try:
        return isinstance(value, kind)
    except TypeError:  # Any, protocols
        return True


def _is_float(value: numbers.Real) -> bool:
    """Whether a number is not too large for one."""
    try:
        float(value)
    except Exception:
        return False
    return True


def _is_path(value: os.PathLike[Any]) -> bool:
    """Whether a path says in words which one it is; a class of the caller's may fail."""
    try:
        return isinstance(os.fspath(value), str)
    except Exception:
        return False


#: Say why a file is no legal model; "" if it is one, or that cannot be told. They are asked where all else failed.
judges: list[Callable[[Path], str]] = []
#: What Python says of names that no file can have.
_NO_NAME = re.compile("embedded null|surrogates not allowed")


def as_sentence(error: BaseException) -> OnnxqError:
    """What to tell the user of an exception that is none of ours."""
    if isinstance(error, Warning):  # which Python raises where it was told to
        return OnnxqError(str(error))
    where = _where(error.__traceback__)
    if isinstance(error, (MemoryError, ImportError, RuntimeError, SystemError)) and is_of_memory(error):
        what = first_line(error) if isinstance(error, MemoryError) else "a library or a thread could not be had"
        return OutOfMemory(f"there is not enough memory{where}: {what}")
    if isinstance(error, RecursionError):
        return BadModel(f"the model or a file given with it is nested too deeply to be read{where}")
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return BadOutput(_of_the_system(error))
    if _NO_NAME.search(str(error)):
        return BadRecipe("a name that was given holds a NUL, or half a character, which no file's name does")
    kind = type(error).__name__
    if _is_at_a_limit():
        return OutOfMemory(f"there is not enough memory{where}: {kind} ({first_line(error)})")
    for path in _paths(error.__traceback__) if judges else ():
        if why := next(filter(None, (judge(path) for judge in judges)), ""):
            return BadModel(f"'{path}' is not a legal ONNX model: {why}")
    return Bug(
        f"this is a bug in onnxq: {kind} ({first_line(error)}){where} [{code_of(error)}]; "
        "'onnxq --debug …' shows more, please report it with that"
    )


def _is_at_a_limit() -> bool:
    """Whether the process may have next to no more memory, at which libraries, and Python itself, fail in odd ways."""
    try:
        mmap.mmap(-1, NEXT_TO_NONE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return True
    return False


def _of_the_system(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "no space left on the disk: free some or choose another place"
    if error.errno == errno.EMFILE:
        return "too many files are open: raise the limit ('ulimit -n')"
    name = "" if error.filename is None else f"'{error.filename}': "
    return f"{name}{error.strerror or first_line(error)}"


#: What takes the warnings of a call, in the place of the filters of the whole program.
_taker: ContextVar[Callable[[str, type[Warning]], None] | None] = ContextVar("onnxq_warnings", default=None)


@contextlib.contextmanager
def taking_warnings(take: Callable[[str, type[Warning]], None]) -> Iterator[None]:
    """What `warn` says in here, in this thread, is given to `take`; which may say it again, to who took it before."""
    before = _taker.get()

    def told(sentence: str, category: type[Warning]) -> None:
        token = _taker.set(before)
        try:
            take(sentence, category)
        finally:
            _taker.reset(token)

    token = _taker.set(told)
    try:
        yield
    finally:
        _taker.reset(token)


def warn(sentence: str, category: type[Warning] = RuntimeWarning) -> None:
    """Give a warning at the line that called onnxq: what it is about is written there."""
    if (take := _taker.get()) is not None:
        take(sentence, category)
        return
    ours, level = 1, 1
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        ours = level if _is_ours(frame) else ours
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, category, stacklevel=ours + 1)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).split(".")[0] == "onnxq"


def code_of(error: BaseException) -> str:
    """A short code, the same whenever the same kind of exception comes from the same function of ours."""
    module, function = _place(error.__traceback__)
    digest = hashlib.blake2b(f"{type(error).__name__} {module} {function}".encode(), digest_size=3)
    return f"Q{digest.hexdigest().upper()}"


def _frames(trace: TracebackType | None) -> list[tuple[str, str, dict[str, Any]]]:
    """Module, function and local variables of our functions that were at work, the innermost first."""
    found = []
    while trace is not None:
        frame = trace.tb_frame
        module = frame.f_globals.get("__name__", "")
        if _is_ours(frame) and module != __name__:
            found.append((module, frame.f_code.co_name, frame.f_locals))
        trace = trace.tb_next
    return found[::-1]


def _place(trace: TracebackType | None) -> tuple[str, str]:
    return next(((module, function) for module, function, _ in _frames(trace)), ("", ""))


def _paths(trace: TracebackType | None) -> list[Path]:
    """Of files that functions at work speak of, the innermost first."""
    found = (value for _, _, names in _frames(trace) for value in names.values())
    return list(dict.fromkeys(value for value in found if isinstance(value, Path)))


def _where(trace: TracebackType | None) -> str:
    """What was being done to which node of which file, as the functions at work know it."""
    frames = _frames(trace)
    module, function = _place(trace)
    words = f" in {module.removeprefix('onnxq.')}.{function.strip('_')}" if module else ""
    found = [value for _, _, names in frames for value in names.values()]
    # Numbers and their formats are of use without onnx.
    node_type = getattr(sys.modules.get("onnx_ir"), "Node", ())
    node = next((value for value in found if isinstance(value, node_type)), None)
    path = next(iter(_paths(trace)), None)
    if node is not None:
        words += f" at node '{node.name or node.op_type}' ({node.op_type})"
    return words if path is None else f"{words}, with '{path}'"
