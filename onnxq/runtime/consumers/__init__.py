"""Other runtimes that models are written for, as far as this project needs them: sessions that look like onnxruntime's.

One file each; the file name is the word that a target names, and the class inside is called `Session`; if it
tells the time of kernels, that has `kernels`. Execution
providers of onnxruntime are named as it names them. None of them is needed: what is not installed is not run, and the
result says so.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from numpy.typing import NDArray

from onnxq.errors import MissingRuntime
from onnxq.runtime.consumers import provider
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.session import Feed


class Consumer(Protocol):
    """A model opened in such a runtime."""

    threads: int

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""

    def run(self, feed: Feed) -> list[NDArray]:
        """The outputs for one sample."""

    def precisions(self) -> Counter[str]:
        """How many convolutions and products compute in which type, by the runtime's own word."""


def open_in(consumer: str, model: Path, threads: int) -> Consumer | None:
    """The model at `model` in that runtime; None if it is not installed.

    Args:
        threads: of all its work; 0 leaves it to the runtime.

    Raises:
        BadModel: it does not take the model.
    """
    try:
        if is_provider(consumer):
            return provider.Session(model, threads, consumer)
        found: Consumer = importlib.import_module(f"onnxq.runtime.consumers.{consumer}").Session(model, threads)
    except MissingRuntime:
        return None
    return found


def kernels_in(consumer: str, model: Path, threads: int, feed: Feed, seconds: float) -> list[Kernel] | None:
    """The time of each kernel of the model at `model` in that runtime; None where it is not installed or does not tell.

    Args:
        seconds: for which it is run.

    Raises:
        BadModel: it does not take the model.
    """
    if is_provider(consumer):
        return None
    try:
        module = importlib.import_module(f"onnxq.runtime.consumers.{consumer}")
        found: list[Kernel] = module.Session(model, threads, profile=True).kernels(feed, seconds)
    except MissingRuntime:
        return None
    return found


def in_order(session: Consumer, names: Sequence[str]) -> Callable[[Feed], list[NDArray]]:
    """What gives a model's outputs in that runtime in the order of `names`; by place, where names got lost."""
    known = session.outputs
    order = [known.index(name) for name in names] if set(names) <= set(known) else list(range(len(names)))

    def run(feed: Feed) -> list[NDArray]:
        outputs = session.run(feed)
        return [outputs[index] for index in order]

    return run


def is_provider(consumer: str) -> bool:
    """Whether it is one of onnxruntime's execution providers."""
    return consumer.endswith("ExecutionProvider")


def version_of(consumer: str) -> str:
    """Of the runtime that is installed; empty if there is none."""
    try:
        if is_provider(consumer):
            return provider.version(consumer)
        return str(importlib.import_module(f"onnxq.runtime.consumers.{consumer}").version())
    except MissingRuntime:
        return ""
