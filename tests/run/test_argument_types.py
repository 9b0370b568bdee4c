"""Arguments of a wrong type are named in a sentence, at once: nothing of them is a bug of onnxq."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from array import array
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tiny

import onnxq
from onnxq import algorithms, collectors, formats, targets
from onnxq.analysis.synthetic import Made
from onnxq.boundary import bounded
from onnxq.calibration.find_ranges import Effort
from onnxq.checkpoints import tensors
from onnxq.errors import BadData, BadModel, BadRecipe
from onnxq.job import Environment
from onnxq.runtime import native
from onnxq.samples.sampling import Sampling
from onnxq.searching.budget import Budget
from onnxq.training.settings import Settings

pytestmark = pytest.mark.usefixtures("quick")
FEEDS = [{"x": np.ones((1, 64), np.float32)}] * 9


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = tiny.model("g (float[n, 64] x) => (float[n, 64] y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)})
    (tmp_path / "in").mkdir()
    tiny.save(made, tmp_path / "in")
    return tiny.save(made, tmp_path)


class Failing(os.PathLike):  # type: ignore[type-arg]
    def __fspath__(self) -> str:
        raise ValueError("mine")


def quantize(**options: object) -> object:
    return onnxq.quantize("model.onnx", "out.onnx", "w8a8", **{"data": FEEDS, **options})  # type: ignore[arg-type]


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "model": (lambda: onnxq.quantize(5), "quantize\\(\\): 'model' is of type int; it takes str | Path"),
    "no model": (lambda: onnxq.quantize(None), "'model' is None"),
    "bytes": (lambda: onnxq.quantize(b"model.onnx"), "'model' is of type bytes"),
    "output": (lambda: onnxq.quantize("model.onnx", 7), "'output' is of type int"),
    "recipe": (lambda: onnxq.quantize("model.onnx", "out.onnx", 3), "'recipe' is of type int"),
    "plan": (lambda: quantize(plan="plan.json"), "'plan' is of type str; it takes Plan"),
    "ranges": (lambda: quantize(ranges=4), "'ranges' is of type int"),
    "numbers as formats": (lambda: onnxq.search("model.onnx", formats=array("f", [1])), "'formats' is of type array"),
    "formats in a deque": (lambda: onnxq.search("model.onnx", formats=deque([1])), "'formats' is of type deque"),
    "path that fails": (lambda: onnxq.session(Failing()), "'model' is of type Failing; it takes str | os.PathLike"),
    "effort": (lambda: quantize(effort="thorough"), "'effort' is of type str; it takes Effort"),
    "threads": (lambda: quantize(threads="all"), "'threads' is of type str"),
    "limit": (lambda: quantize(limit="all"), "'limit' is of type str"),
    "negative limit": (lambda: quantize(limit=-1), "limit is -1"),
    "negative seed": (lambda: quantize(limit=3, seed=-1), "seed -1"),
    "data": (lambda: quantize(data=3), "'data' is of type int"),
    "word that is none": (
        lambda: quantize(nonsense=1),
        "quantize\\(\\): got an unexpected keyword argument 'nonsense'",
    ),
    "folder": (lambda: onnxq.quantize_folder(None), "'folder' is None"),
    "recipe of a folder": (lambda: onnxq.quantize_folder("in", "out", 3), "'recipe' is of type int"),
    "word of a folder": (lambda: onnxq.quantize_folder("in", "out", "w8a16", nonsense=1), "argument 'nonsense'"),
    "held back": (lambda: quantize(held_back=-1), "held_back=-1: at least one sample"),
    "data as bytes": (lambda: quantize(data=b"data.npz"), "is of type bytes, neither a list of dicts"),
    "arrays of objects": (lambda: quantize(data=[{"x": np.full((4, 64), None)}]), "has type objects, the model"),
    "folder of a session": (lambda: onnxq.session("in"), "'in' is not a file"),
    "plan file": (lambda: onnxq.load_plan(None), "'path' is None"),
    "recipe file": (lambda: onnxq.load_recipe(3), "'path' is of type int"),
    "scheme": (lambda: onnxq.Recipe(3), "Recipe\\(\\): 'scheme' is of type int"),
    "scheme in a list": (lambda: onnxq.Recipe(["w8a8"]), "'scheme' is of type list"),
    "rules": (lambda: onnxq.Recipe(rules=["keep"]), "'rules' is of type list"),
    "floor": (lambda: onnxq.Recipe(min_sqnr="high"), "'min_sqnr' is of type str"),
    "rule": (lambda: onnxq.Rule(None), "Rule\\(\\): 'set' is None"),
    "pattern": (lambda: onnxq.Rule("w8a16", None), "'nodes' is None"),
    "operators": (lambda: onnxq.Rule("w8a16", "*", 3), "'ops' is of type int"),
    "choices": (lambda: onnxq.Plan("w8a16", "ort-cpu", 3), "'choices' is of type int"),
    "a choice": (
        lambda: onnxq.Plan("w8a16", "ort-cpu", {"node": None}),
        "'choices' is of type dict; it takes dict\\[str, Choice\\]",
    ),
    "progress": (
        lambda: quantize(progress=print),
        "'progress' is of type builtin_function_or_method; it takes Progress",
    ),
    "data that fail": (lambda: quantize(data=(1 / 0 for _ in "a")), "given samples failed with ZeroDivisionError"),
    "session": (lambda: onnxq.session(None), "session\\(\\): 'model' is None"),
    "options of a session": (lambda: onnxq.session("model.onnx", 3), "'options' is of type int"),
    "format": (lambda: formats.get(None), "get\\(\\): 'name' is None"),
    "format in a list": (lambda: formats.get([]), "'name' is of type list"),
    "array in a format": (lambda: formats.quantize([1.0], None), "quantize\\(\\): 'word' is None"),
    "granularity": (lambda: formats.quantize([1.0], "int8", "channel"), "'granularity' is of type str"),
    "algorithm": (lambda: algorithms.quantize([1.0], "int8", None, 3), "'algorithm' is of type int"),
    "target": (lambda: targets.get(None), "'name' is None"),
    "collector": (lambda: collectors.get(3), "'name' is of type int"),
    "collector in a list": (lambda: collectors.get([]), "'name' is of type list"),
    "checkpoint": (lambda: tensors.open_checkpoint(None), "'path' is None"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_type_is_named(name: str, tmp_path: Path) -> None:
    call, says = CASES[name]
    with pytest.raises((BadRecipe, BadData, BadModel), match=says):
        call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "model.onnx"]


def test_what_python_takes_for_the_same_is_taken(tmp_path: Path) -> None:
    onnxq.Recipe(min_sqnr=np.float32(20), rules=[onnxq.Rule("keep")])  # type: ignore[arg-type]
    result = onnxq.quantize(
        tmp_path / "model.onnx", recipe="w8a8", data=iter(FEEDS), limit=np.int64(5), check=False, threads=True
    )
    assert result.output.exists()


ODD = (None, True, -1, 2.5, math.nan, 10**30, "", "3", b"x", [], ["x"], (1,), {"x": "y"}, np.array(3), Decimal(2), len)
OF_SETTINGS = (Effort, Environment, Sampling, Settings, Made, Budget)


@pytest.mark.parametrize("kind", OF_SETTINGS, ids=lambda kind: kind.__name__)
def test_a_setting_of_another_type_is_refused_where_it_is_set(kind: type) -> None:
    usual: dict[type, dict[str, object]] = {Made: {"maker": "gaussian"}, Budget: {"quantity": "size", "amount": 0.5}}
    for each in dataclasses.fields(kind):
        for value in ODD:
            with contextlib.suppress(BadRecipe):
                kind(**usual.get(kind, {}) | {each.name: value})
        with pytest.raises(BadRecipe, match=rf"^{kind.__name__}\(\): '{each.name}' is of type Odd; it takes "):
            kind(**usual.get(kind, {}) | {each.name: type("Odd", (), {})()})


def test_mistakes_inside_are_still_ours() -> None:
    @bounded
    def wrong(path: str) -> None:
        len(3)  # type: ignore[arg-type]

    with pytest.raises(onnxq.Bug, match="TypeError"):
        wrong("a")


class Word(str):
    """A text of somebody else's."""

    def __str__(self) -> str:
        raise RuntimeError("mine")


def test_numbers_of_numpy_are_numbers() -> None:
    recipe = onnxq.Recipe("w4a16", block_size=np.int64(64), symmetric=np.bool_(True), min_sqnr=np.float32(3))  # type: ignore[arg-type]
    assert (type(recipe.block_size), type(recipe.symmetric), type(recipe.min_sqnr)) == (int, bool, float)
    options = {"force": True, "threads": np.int64(1), "held_back": np.int64(3), "shard_size": np.int64(1000)}
    done = onnxq.quantize(Word("model.onnx"), "out.onnx", recipe, data=FEEDS, **options)  # type: ignore[arg-type]
    assert json.loads(done.to_json())["scheme"] == "w4a16"
    assert json.loads(json.dumps(onnxq.check("model.onnx", "out.onnx", threads=np.int64(1)).to_dict()))  # type: ignore[arg-type]


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
def test_a_session_registers_the_library_once() -> None:
    options = onnxruntime.SessionOptions()
    for providers in ("CPUExecutionProvider", ["CPUExecutionProvider"]):
        assert onnxq.session("model.onnx", options, providers).get_providers() == ["CPUExecutionProvider"]
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(onnxq.ops_library()))
    with pytest.raises(BadRecipe, match="these options have onnxq's library already"):
        onnxq.session("model.onnx", options)
