"""Networks as people export them × schemes × targets, checked on other batches and lengths than onnxq saw."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tiny
from exports import language, others, vision
from exports.builder import Architecture, Feed
from numpy.typing import NDArray

import onnxq
from onnxq.recipe import Recipe

pytestmark = pytest.mark.usefixtures("quick")

MODELS: dict[str, Architecture] = language.MODELS | vision.MODELS | others.MODELS
#: By scheme, dB that every output must have on sizes never seen: 8 bits on random weights have 30 to 40, of which fixed
#: ranges may lose some at other lengths; 4 bits have 6 dB less for each bit (some 15), which adds up over layers.
FLOORS = {"w8a8": 20.0, "w8a8-dynamic": 20.0, "w4a16": 8.0, "nf4": 8.0, "fp16": 40.0, "auto": 8.0}
TARGETS = ("ort-cpu", "onnx", "onnxq")
ALL = list(itertools.product(MODELS, FLOORS, TARGETS))
#: In every run of the tests: each network in each scheme, on one target after the other.
SOME = {
    (name, scheme, TARGETS[(i + j) % 3])
    for (i, name), (j, scheme) in itertools.product(enumerate(MODELS), enumerate(FLOORS))
}
CASES = [pytest.param(*case, marks=[] if case in SOME else pytest.mark.zoo, id="-".join(case)) for case in ALL]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of an architecture, made once."""
    made: dict[str, Path] = {}

    def export(name: str) -> Path:
        if name not in made:
            made[name] = MODELS[name].make(tmp_path_factory.mktemp(name))
        return made[name]

    return export


def run(path: Path, feeds: list[Feed]) -> list[list[NDArray]]:
    """By onnxruntime alone; the compiled library of ours is not there."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [session.run(None, feed) for feed in feeds]


@pytest.mark.parametrize(("name", "scheme", "target"), CASES)
def test_export(name: str, scheme: str, target: str, exported: Callable[[str], Path], tmp_path: Path) -> None:
    model, path = MODELS[name], exported(name)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    batch, length = model.sizes[0]
    data = [model.draw(rng, batch, length) for _ in range(10)] if scheme in ("w8a8", "auto") else None
    recipe = Recipe(scheme, keep_slow=scheme != "auto")
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, target=target, data=data)
    feeds = [model.draw(rng, *size) for size in model.sizes[1:] for _ in range(2)]
    for wanted, got in zip(run(path, feeds), run(result.output, feeds), strict=True):
        for x, y in zip(wanted, got, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype
            assert np.isfinite(y).all()
            assert x.dtype.kind != "f" or not x.size or tiny.sqnr(x, y) > FLOORS[scheme]
    # What is in float16 already gains nothing from fp16, and may take some nodes more.
    most = 1.05 if name.startswith("half") and scheme == "fp16" else 1.0
    assert result.bytes_after < most * result.bytes_before
    for choice in result.plan:
        assert choice.reason or choice.format is not None or choice.method != "keep", choice
