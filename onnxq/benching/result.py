"""What a benchmark found, and its JSON form. Times are milliseconds, sizes bytes."""

from __future__ import annotations

import json

import msgspec
from msgspec import Struct

from onnxq.runtime.machine import Machine

#: Of the JSON form.
VERSION = 1


class Median(Struct, frozen=True):
    """A median, and the interval in which it lies with a probability of 95 %: of `runs` runs."""

    median: float
    low: float
    high: float
    runs: int


class Cell(Struct, frozen=True):
    """How many samples a second go through a model, several at a time."""

    batch: int
    threads: int
    ms: Median
    samples_per_second: float


class KernelTime(Struct, frozen=True):
    """All kernels of one operator, in one run."""

    op: str
    count: int
    ms: float
    share: float


class Generation(Struct, frozen=True):
    """Token by token: what the model says of the tokens before goes in again."""

    prompt: int
    steps: int
    prompt_ms: float
    step_ms: Median
    tokens_per_second: float


class How(Struct, frozen=True):
    """How models are measured.

    Attributes:
        threads: of one operator, for throughput all of them, else the first.
        batches: samples in one run, for throughput.
        seconds: for which each model is run.
    """

    threads: tuple[int, ...]
    batches: tuple[int, ...]
    seconds: float


class ModelBench(Struct):
    """One model.

    Attributes:
        ratio: time relative to the first model, in the same turns, or of medians where each had a worker of its own;
            None of the first, and of those that were measured on another machine.
        load_ms, first_ms, peak_bytes: opening it and running it once, in a process of its own; None where that failed.
        sqnr: dB of its answers against the first model's; None of the first.
        machine: the one that it was measured on, where a cluster did; empty: that of the report.
    """

    model: str
    nbytes: int
    ms: Median
    ratio: Median | None = None
    load_ms: float | None = None
    first_ms: float | None = None
    peak_bytes: int | None = None
    sqnr: float | None = None
    throughput: list[Cell] = []
    operators: list[KernelTime] = []
    generation: Generation | None = None
    machine: str = ""


class BenchReport(Struct):
    """Several models on the same inputs."""

    models: list[ModelBench]
    inputs: str
    threads: int
    machine: str
    isa: str
    notes: list[str] = []
    onnxq_bench: int = VERSION

    def to_json(self) -> str:
        """Everything, for machines."""
        return json.dumps(msgspec.to_builtins(self), indent=1)

    @staticmethod
    def on(machine: Machine, inputs: str, threads: int) -> BenchReport:
        return BenchReport([], inputs, threads, str(machine), machine.isa)
