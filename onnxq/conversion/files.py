"""Shared by the conversions: the quantized model that is read, and what the written one says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_ir as ir

from onnxq.job import Environment
from onnxq.model.load import external_tensors, load_model
from onnxq.output.signature import KEY, PLAN_KEY
from onnxq.version import __version__


def opened(path: Path, output: Path, environment: Environment) -> tuple[ir.Model, int]:
    """The model at `path`, and the bytes of its files; none of them is written, nor is `output` without leave.

    Raises:
        BadModel: it cannot be read.
        BadOutput: the output cannot be written, or is read.
    """
    environment.guard.reads(path)
    environment.guard.writes(output)
    return _loaded(path, environment)


def read(path: Path, environment: Environment) -> tuple[ir.Model, int]:
    """The same of a model beside which nothing is written yet.

    Raises:
        BadModel: it cannot be read.
        BadOutput: one of its files is to be written.
    """
    environment.guard.reads(path)
    return _loaded(path, environment)


def _loaded(path: Path, environment: Environment) -> tuple[ir.Model, int]:
    environment.progress.start("loading")
    model = load_model(path)
    data = {Path(tensor.path) for tensor in external_tensors(model)}
    environment.guard.reads(*data)
    return model, sum(file.stat().st_size for file in {path, *data})


def sign(model: ir.Model, said: dict[str, object]) -> None:
    """Let a model say what it is by now, and not by what plan it was made before."""
    model.metadata_props.pop(PLAN_KEY, None)
    model.metadata_props[KEY] = json.dumps({"version": __version__} | said, sort_keys=True)
    model.producer_name, model.producer_version = "onnxq", __version__
