"""What every export has to stand: quantized as on the command line, run on sizes that onnxq has not seen."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tiny
from exports.builder import Architecture, Feed
from numpy.typing import NDArray

import onnxq
from onnxq.checking.nodes.check_nodes import BROKEN_DB
from onnxq.recipe import Recipe

#: By scheme, dB that every output must have on sizes never seen: 8 bits on random weights have 30 to 40, of which fixed
#: ranges may lose some at other lengths; 4 bits have 6 dB less for each bit (some 15), which adds up over layers.
FLOORS = {"w8a8": 20.0, "w8a8-dynamic": 20.0, "w4a16": 8.0, "nf4": 8.0, "fp16": 40.0, "auto": 8.0}
TARGETS = ("ort-cpu", "onnx", "onnxq")


def run(path: Path, feeds: list[Feed]) -> list[list[NDArray]]:
    """By onnxruntime alone; the compiled library of ours is not there."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [session.run(None, feed) for feed in feeds]


def check(
    name: str, model: Architecture, path: Path, scheme: str, target: str, folder: Path, effort: str = "normal"
) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    recipe = Recipe(scheme, keep_slow=scheme != "auto", effort=effort)
    result = quantized(model, path, folder, recipe, target, rng)
    compare(model, path, result, rng, FLOORS[scheme])
    # What is in float16 already gains nothing from fp16, and may take some nodes more.
    most = 1.05 if name.startswith("half") and scheme == "fp16" else 1.0
    assert result.bytes_after - tables_of(result.output) < most * result.bytes_before


def tables_of(path: Path) -> int:
    """Bytes of the tables by which regions look up functions of each channel: 256, however few weights it has."""
    initializers = onnx.load(path, load_external_data=False).graph.initializer
    shapes = [tuple(x.dims) for x in initializers if x.name.startswith("region_constant")]
    return sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2 and shape[1] == 256)


def check_first_plan(name: str, model: Architecture, path: Path, scheme: str, target: str, folder: Path) -> None:
    """The same of what a scheme and a target make of a network before anything is measured: every node is quantized
    that may be. That takes a fraction of the time, and has no decibels to be held to but those of what is broken."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    recipe = Recipe(scheme, keep_slow=True, effort="quick")
    result = quantized(model, path, folder, recipe, target, rng, check=False, limit=4)
    compare(model, path, result, rng, BROKEN_DB)


def quantized(
    model: Architecture, path: Path, folder: Path, recipe: Recipe, target: str, rng: np.random.Generator, **options: Any
) -> onnxq.Result:
    data = [model.draw(rng, *model.sizes[0]) for _ in range(10)] if recipe.scheme in ("w8a8", "auto") else None
    return onnxq.quantize(path, folder / "q.onnx", recipe, target=target, data=data, **options)


def compare(model: Architecture, path: Path, result: onnxq.Result, rng: np.random.Generator, floor: float) -> None:
    """On sizes that onnxq has not seen."""
    feeds = [model.draw(rng, *size) for size in model.sizes[1:] for _ in range(2)]
    for wanted, got in zip(run(path, feeds), run(result.output, feeds), strict=True):
        for x, y in zip(wanted, got, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype
            assert np.isfinite(y).all()
            assert x.dtype.kind != "f" or not x.size or tiny.sqnr(x, y) > floor
    for choice in result.plan:
        assert choice.reason or choice.format is not None or choice.method != "keep", choice
