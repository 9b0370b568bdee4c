"""Every odd model through every scheme: the numbers are right, or the user is told why nothing was done."""

from __future__ import annotations

import functools
import itertools
import tempfile
from pathlib import Path

import numpy as np
import odd
import onnx
import pytest
import tiny
from numpy.typing import NDArray

import onnxq
from onnxq.errors import BadModel, NothingToDo
from onnxq.model.load import load_model
from onnxq.passes.prepare import prepare
from onnxq.quality import Quality, arrays_of
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session
from onnxq.schemes import SCHEMES, STATIC_SCHEMES

pytestmark = pytest.mark.usefixtures("quick")

#: Each scheme on one target or the other, in turn; fp16 always on the one where it changes the whole graph.
TARGETS = ("ort-cpu", "onnx")
PAIRS = [
    (name, scheme, "onnx" if scheme == "fp16" else TARGETS[(i + j) % 2])
    for (i, name), (j, scheme) in itertools.product(enumerate(odd.MODELS), enumerate(SCHEMES))
    if name != "2000 nodes" or scheme in ("w4a16", "fp16", "bf16")  # the others take as long as all other models
]
#: Schemes that go much the same way through all passes, with other numbers or, every other one, another operator: each
#: model takes one of them, and marker `night` the others. Of those that are left the sweep takes every other one.
TWINS = (("w8a16", "nf4", "w4a16", "fp4"), ("w8a8", "w4a8"), ("fp16", "bf16"), ("auto", "w8a8-dynamic"))


def marks_of(name: str, scheme: str) -> list[pytest.MarkDecorator]:
    if name == "2000 nodes":
        return [] if scheme == "w4a16" else [pytest.mark.sweep]
    i = list(odd.MODELS).index(name)
    twins = next((twins for twins in TWINS if scheme in twins), (scheme,))
    if (twins.index(scheme) - i) % len(twins):
        return [pytest.mark.night]
    return [pytest.mark.sweep] if (i + list(SCHEMES).index(twins[0])) % 2 else []


PARAMETERS = [pytest.param(*pair, id="-".join(pair), marks=marks_of(*pair[:2])) for pair in PAIRS]
#: dB: four bits on matrices of a few hundred weights have about 18; a wrong axis, row or sign leaves none. With one
#: scale a channel less, as where an output is a sign.
LEAST_DB = {"w4a8": 11.0}


@functools.cache
def in_float(name: str) -> list[list[NDArray]]:
    """The float model's outputs on three samples."""
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.save(odd.MODELS[name].proto(), Path(folder))
        try:
            session = Session(path, optimize=False)
        except BadModel:  # too old, or in bfloat16: what `prepare` makes of it runs
            model = load_model(path)
            prepare(model, opset=13, widen=True)
            session = Session(model, optimize=False)
    return [session.run(feed) for feed in odd.MODELS[name].feeds(3)]


@pytest.mark.parametrize(("name", "scheme", "target"), PARAMETERS)
def test_odd_model(name: str, scheme: str, target: str, tmp_path: Path) -> None:
    model = odd.MODELS[name]
    path, output = tiny.save(model.proto(), tmp_path), tmp_path / "quantized.onnx"
    before, feeds = path.read_bytes(), model.feeds(3)
    recipe = Recipe(scheme, keep_slow=scheme != "auto")
    data = feeds if scheme in STATIC_SCHEMES or model.feed else None
    if model.refusal:
        with pytest.raises((NothingToDo, BadModel)) as refused:
            onnxq.quantize(path, output, recipe, target=target, data=data, strict=True)
        assert model.refusal in str(refused.value)
        assert list(tmp_path.iterdir()) == [path]
        return
    result = onnxq.quantize(path, output, recipe, target=target, data=data)
    if result.copied:  # so small a model gains nothing
        assert output.read_bytes() == before
        kept = Recipe(scheme, keep_slow=True)
        result = onnxq.quantize(path, output, kept, target=target, data=data, force=True)
    assert path.read_bytes() == before
    assert set(tmp_path.iterdir()) == {path, output}
    assert result.plan.changes_anything
    saved, original = onnx.load(output), onnx.load(path)
    if name != "unknown rank":  # which ONNX's checker takes in no model
        onnx.checker.check_model(saved)
    assert interface(saved) == interface(original)
    session, quality = Session(output), Quality(ignored=frozenset({"r"}))  # "random output" has one of that name
    for feed, wanted in zip(feeds, in_float(name), strict=True):
        got = session.run(feed)
        quality.add(session.outputs, wanted, got)
        for x, y in zip(arrays_of(wanted), arrays_of(got), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert x.dtype.kind in "fV" or np.array_equal(x, y)
    assert quality.sqnr > LEAST_DB.get(scheme, 14.0)


@pytest.mark.parametrize("target", TARGETS)
def test_external_data_in_a_subfolder(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model" / "data").mkdir(parents=True)
    proto, path = odd.MODELS["one node"].proto(), tmp_path / "model" / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="data/weights.bin", size_threshold=0)
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    assert len(before) == 2
    monkeypatch.chdir(tmp_path)
    result = onnxq.quantize("model/model.onnx", recipe="w4a16", target=target)
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [result.output.name]
    assert result.check is not None and result.check.sqnr > 14.0


def interface(model: onnx.ModelProto) -> list[tuple[str, bytes]]:
    """Names and types of what a caller gives and gets."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in defaults]
    return [(value.name, value.type.SerializeToString()) for value in (*inputs, *model.graph.output)]
