"""Functions of the user's own: found by `module:function`, called, and what goes wrong in them told in a sentence."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from onnxq.errors import BadData, OnnxqError, first_line
from onnxq.files import guard
from onnxq.runtime import supervisor
from onnxq.runtime.process.endings import Ended, calls_the_users

_NAME = r"[^\W\d]\w*"
_WORD = re.compile(rf"({_NAME}(?:\.{_NAME})*):({_NAME})")
_IN_FILE = re.compile(rf"(.+\.py):({_NAME})", re.DOTALL)
#: Parameters that a message lists, and characters of a value.
LISTED, SHOWN = 8, 40


def import_function(source: str, what: str, error: type[OnnxqError] = BadData) -> Callable[..., Any]:
    """The function that `module:function` names, or `path/of/file.py:function`; modules of the current folder are found
    first.

    Args:
        what: how messages call it: the option and its word.

    Raises:
        the given kind of error: there is none, or its module fails.
    """
    in_file = _IN_FILE.fullmatch(source)
    matched = _WORD.fullmatch(source) if in_file is None else in_file
    if matched is None:
        raise error(f"{what} is not spelled module:function, the names of a module and of a function in it")
    module, name = matched.groups()
    if in_file is not None and not Path(module).is_file():
        raise error(f"{what}: there is no file '{module}'")
    folder = "" if in_file is None else str(Path(module).resolve().parent)
    sys.path.insert(0, folder)
    try:
        with failing(what, error), _remembering(module):  # by its name: it may be imported by now
            imported = importlib.import_module(module) if in_file is None else _run_file(Path(module).resolve())
            function = getattr(imported, name, None)
            names = [each for each in vars(imported) if not each.startswith("_")]
    finally:
        with contextlib.suppress(ValueError):  # it was removed meanwhile
            sys.path.remove(folder)
    if function is None:
        near = difflib.get_close_matches(name, names, 1)
        raise error(f"{what}: '{module}' has no '{name}'{f'; it has {near[0]!r}' if near else ''}")
    if not callable(function):
        raise error(f"{what} is not a function")
    return function


@contextlib.contextmanager
def _remembering(module: str) -> Iterator[None]:
    """Nothing is written where this module lies, and the packages that it lies in."""
    try:
        yield
    finally:
        parts = module.split(".")
        _remember({Path(module).stem, *(".".join(parts[: number + 1]) for number in range(len(parts)))})


def _remember(modules: Iterable[str]) -> None:
    """Nothing is written where these modules lie."""
    found = (sys.modules.get(name) for name in modules)
    holders = (vars(each) for each in found if isinstance(each, ModuleType))  # attributes may be made up
    files = (each.get("__file__") for each in holders)
    guard.remember((file for file in files if isinstance(file, str)), for_good=True)


def _run_file(path: Path) -> ModuleType:
    """The module that a file holds, whatever else of its name is installed; once in a process."""
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # by which its classes are found, where nothing else has the name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise
    return module


@contextlib.contextmanager
def failing(what: str, error: type[OnnxqError] = BadData) -> Iterator[None]:
    """Code of the user's own is at work: whatever it raises becomes a sentence, as does `sys.exit`; who presses Ctrl-C
    or ends this process is heard. How numpy takes errors is as before afterwards; under the command line, so is where
    things are printed.

    Raises:
        the given kind of error: it failed, or left this process in another folder or without its streams.
    """
    process, folder, modules = os.getpid(), _folder(), set(sys.modules)
    streams = (sys.stdout, sys.stderr)
    supervisor.calling(what)
    calls_the_users()
    try:
        with np.errstate():
            yield
    except (KeyboardInterrupt, Ended):
        raise
    except BaseException as failure:
        raise error(f"{what} failed with {_class_name(failure)}: {first_line(failure)}") from failure
    finally:
        if os.getpid() != process:  # a copy that the function made of us, and let go on as if it were us
            os._exit(0)
        supervisor.calling("")
        _remember(sys.modules.keys() - modules)
        # In a program of the user's own, other threads of it may have done that, or count on it.
        changed = _put_back(folder, streams) if supervisor.is_at_work() else _moved(folder)
    if changed:
        raise error(f"{what} {changed}")


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _moved(folder: str) -> str:
    """What is wrong where paths are relative to another folder now, or ""."""
    is_same = not folder or _folder() == folder
    return "" if is_same else "ran while the working folder changed, in which paths of the call may lie"


def _put_back(folder: str, streams: tuple[Any, Any]) -> str:
    """Go back to the folder that paths are relative to, and see that what is printed goes where it did.

    Returns:
        What was wrong, or "".
    """
    sys.stdout, sys.stderr = streams
    said = ""
    if _moved(folder):
        said = "changed the working folder, in which paths of the command lie: give it paths of its own instead"
        os.chdir(folder)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # the next file that is opened would get its number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            said = f"closed {name}"
        stream = getattr(sys, name)
        if number and stream is not None and stream.closed:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", errors="replace", closefd=False))
    return said


def require_call(
    function: Callable[..., Any], what: str, gets: Sequence[str] = (), error: type[OnnxqError] = BadData
) -> None:
    """Refuse a function that cannot be called with so many arguments; one of C may not say what it takes.

    Args:
        gets: what each argument is, in words.

    Raises:
        the given kind of error: it takes more, fewer or others.
    """
    try:
        signature = inspect.signature(function)
    except Exception:
        return
    try:
        signature.bind(*gets)
    except TypeError:
        takes = [_spelled(each) for each in signature.parameters.values()]
        takes = takes if len(takes) <= LISTED else [*takes[:LISTED], "more"]
        raise error(f"{what} is called {_with(gets)}, but takes {_listed(takes) or 'nothing'}") from None


def call(
    function: Callable[..., Any],
    what: str,
    gets: Sequence[str],
    arguments: Sequence[object],
    error: type[OnnxqError] = BadData,
) -> Any:
    """What the function gives for these arguments, of which `gets` says what they are.

    Raises:
        the given kind of error: it does not take them, or fails.
    """
    require_call(function, what, gets, error)
    with failing(f"{what}, called {_with(gets)},", error):
        return function(*arguments)


def shown(value: object) -> str:
    """What a function gave, for a message: of numbers and texts the begin, of all else the type."""
    with contextlib.suppress(Exception):  # of integers with more digits than Python prints; of the user's own classes
        if value is None or type(value) in (bool, int, float, complex, str, bytes) or isinstance(value, np.generic):
            text = repr(value)
            return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"something of type {_class_name(value)}"


def _class_name(value: object) -> str:
    """Of the class as Python has it: one that the user wrote may say anything of itself, or fail."""
    return str(vars(type)["__name__"].__get__(type(value)))


def _spelled(parameter: inspect.Parameter) -> str:
    """Its name, with the stars of one that takes many."""
    bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
    return f"'{bare}{'=…' if parameter.kind is parameter.KEYWORD_ONLY else ''}'"


def _with(gets: Sequence[str]) -> str:
    return f"with {_listed(gets)}" if gets else "without anything"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
