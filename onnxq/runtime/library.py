"""The compiled operators of the `onnxq` domain, for programs that run quantized models."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxq.boundary import bounded, warn
from onnxq.errors import BadModel, BadRecipe, MissingRuntime
from onnxq.files import limits
from onnxq.runtime import native
from onnxq.runtime.ort import installed
from onnxq.runtime.ort.wrong_rules import wrong_rules

if TYPE_CHECKING:
    import onnxruntime

_NOT_BUILT = "onnxq was installed without its compiled library: install a C++ compiler and reinstall onnxq"
_registered: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


@bounded
def ops_library() -> Path:
    """The shared library that onnxruntime 1.17 or later takes in any language (in Python by
    `SessionOptions.register_custom_ops_library`).

    Where the installed onnxruntime has the CUDA provider, and onnxq was built with a CUDA compiler, the one that holds
    the GPU's operators beside the processor's.

    Raises:
        MissingRuntime: it was not built.
    """
    path = _with_cuda() or native.path()
    if path is None:
        raise MissingRuntime(_NOT_BUILT)
    return path


def _with_cuda() -> Path | None:
    path = native.cuda_path()
    if path is None:
        return None
    return path if "CUDAExecutionProvider" in installed.providers() else None


@bounded
def session(
    model: str | os.PathLike[str] | bytes,
    options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Any] | None = None,
) -> onnxruntime.InferenceSession:
    """A session that runs `model` with the compiled operators.

    Without the library a model still runs where it carries function bodies, only slower; a warning says so.

    Args:
        model: a path, or a serialized model.
        options: yours; the library is registered with them.
        providers: as onnxruntime takes them; by default CUDA where it is available, and the processor.

    Raises:
        BadModel: onnxruntime refuses the model.
        BadRecipe: no such provider; or the library was registered with `options` before, by another call than this one.
        MissingRuntime: onnxruntime is not installed.
    """
    ort = installed.require()
    if options is None:
        options = ort.SessionOptions()
    if not isinstance(options, ort.SessionOptions):
        raise BadRecipe(f"session(): 'options' is of type {type(options).__name__}; it takes SessionOptions")
    if native.path() is None:
        warn(f"{_NOT_BUILT}; until then models run slower")
    else:
        register(options)
    tried = _tried(providers, ort.get_available_providers())
    source = model if isinstance(model, bytes) else os.fspath(model)
    if isinstance(source, str):
        limits.require_text_name(source)
        limits.require_file(source)
    try:
        for each in tried[:-1]:
            with contextlib.suppress(Exception):  # one that is listed, and cannot be loaded
                return _opened(source, options, each)
        return _opened(source, options, tried[-1])
    except Exception as error:  # onnxruntime's exceptions share no base class
        if "Domain already set in registry" in str(error):
            raise BadRecipe(
                "these options have onnxq's library already: make new ones, with which session() registers it"
            ) from None
        raise BadModel(f"onnxruntime refuses the model: {installed.reason(error)}") from None


def _tried(providers: Sequence[Any] | None, available: Sequence[str]) -> list[list[Any]]:
    """What sessions are opened with, one after the other until one opens; what the caller names is all there is.

    Raises:
        BadRecipe: one of them is not in this onnxruntime, or its options are no dict.
    """
    if providers is None:
        usual = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
        return [usual[i:] for i in range(len(usual))]
    named = [providers] if isinstance(providers, str) else list(providers)  # letters are no providers
    for each in named:
        name = each[0] if isinstance(each, tuple) and len(each) == 2 else each
        if name not in available:
            raise BadRecipe(f"there is no provider {name!r} in this onnxruntime; it has {', '.join(available)}")
        if each is not name and not isinstance(each[1], dict):
            raise BadRecipe(f"the options of {name} are of type {type(each[1]).__name__}, not a dict")
    return [named]


def _opened(source: str | bytes, options: Any, providers: Sequence[Any]) -> Any:
    """Without onnxruntime's own way out where a provider fails: it forgets which optimizers are off."""
    rules = wrong_rules(source)
    return installed.require().InferenceSession(
        source, options, providers=providers, disabled_optimizers=rules, enable_fallback=0
    )


def register(options: Any) -> None:
    """Register the library with these options, once: onnxruntime refuses a domain that comes twice."""
    with _lock:  # sessions may be opened in threads
        if options not in _registered:
            options.register_custom_ops_library(str(ops_library()))
            _registered.add(options)
