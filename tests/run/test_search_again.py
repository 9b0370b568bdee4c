"""What a search has left: its plan is carried out again, a stopped one goes on, and no other one uses its figures."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import searched
from searched import quantized

import onnxq
from onnxq import frontier
from onnxq.errors import OnnxqError
from onnxq.job import open_job
from onnxq.quality import Power, Quality
from onnxq.searching import meter

pytest.importorskip("highspy")
pytestmark = pytest.mark.usefixtures("quick", "few_runs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched.made(tmp_path_factory.mktemp("search"))


def test_the_plan_of_a_search_can_be_carried_out_again(folder: Path, tmp_path: Path) -> None:
    first = quantized(folder, tmp_path / "a.onnx", budget="bits=3")
    (tmp_path / "plan.json").write_text(first.plan.to_json())
    recipe = onnxq.Recipe("w4a16", effort="quick", algorithm="mse")
    again = quantized(folder, tmp_path / "b.onnx", recipe=recipe, plan=onnxq.load_plan(tmp_path / "plan.json"))
    assert [c.label for c in again.plan] == [c.label for c in first.plan]
    like = quantized(folder, tmp_path / "c.onnx", recipe="auto", like=first.output)
    assert [c.label for c in like.plan] == [c.label for c in first.plan]


@pytest.mark.sweep
def test_a_stopped_search_goes_on_and_finds_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantized(folder, tmp_path / "a.onnx", budget="bits=2.9")
    ran, real = [], meter.Figures.of

    def counted(quality: object) -> meter.Figures:
        ran.append(1)
        if len(ran) == 9:
            raise KeyboardInterrupt
        return real(quality)  # type: ignore[arg-type]

    monkeypatch.setattr(meter.Figures, "of", staticmethod(counted))
    with pytest.raises(KeyboardInterrupt):
        quantized(folder, tmp_path / "b.onnx", budget="bits=2.9")
    kept = tmp_path / "b.onnx.search"
    assert len(json.loads(kept.read_text())["plans"]) == 8
    ran[:] = [1] * 10
    again = quantized(folder, tmp_path / "b.onnx", budget="bits=2.9")
    assert [c.label for c in again.plan] == [c.label for c in whole.plan]
    assert not kept.exists()


def test_a_file_of_another_search_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "o.onnx.search").write_text('{"search":"other","plans":{"x":{"harm":0.0,"sqnr":1.0}}}')
    assert quantized(folder, tmp_path / "o.onnx", budget="bits=4").check is not None
    for notes, force in itertools.product(("my notes", ""), (False, True)):
        (tmp_path / "p.onnx.search").write_text(notes)
        with pytest.raises(OnnxqError, match="is where progress is kept, and something else is there"):
            quantized(folder, tmp_path / "p.onnx", budget="bits=4", force=force)
    for name in ("p.onnx.search", folder / "plain.npz", folder / "model.onnx"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(OnnxqError, match="something else is there"):
            front(folder, tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def front(folder: Path, kept: Path) -> onnxq.Frontier:
    how = {"target": "onnxq", "data": folder / "plain.npz", "formats": ("uint2/64", "uint4/32", "int8"), "points": 3}
    return onnxq.search(folder / "model.onnx", onnxq.Recipe(effort="quick", algorithm="mse"), progress_file=kept, **how)


def interrupted(*arguments: object) -> int:
    raise KeyboardInterrupt


def test_a_front_that_is_interrupted_late_goes_on_from_every_plan(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, ran, real = front(folder, kept := tmp_path / "f.search"), [], meter.Figures.of

    def counted(quality: Quality) -> meter.Figures:
        ran.append(1)
        if len(ran) == whole.runs:
            raise KeyboardInterrupt
        return real(quality)

    monkeypatch.setattr(meter.Figures, "of", staticmethod(counted))
    with pytest.raises(KeyboardInterrupt):
        front(folder, kept)
    assert len(json.loads(kept.read_text())["plans"]) == whole.runs - 1
    with monkeypatch.context() as writing:
        writing.setattr(frontier.save, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            front(folder, kept)
    again = front(folder, kept)
    assert (again.points, again.fresh) == (whole.points, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"harm": math.inf},
        {"harm": -1.0},
        {"harm": 1e308},
        {"sqnr": math.nan},
        {"kld": math.inf},
        {"flips": 2.0},
        {"kld": 0.5},
    ],
    ids=str,
)
def test_a_file_with_figures_that_cannot_be_is_not_used(folder: Path, tmp_path: Path, wrong: dict[str, float]) -> None:
    bench, kept = SimpleNamespace(model=open_job(folder / "model.onnx").model), tmp_path / "f.search"
    known = {"a": {"harm": 0.5, "sqnr": 20.0}, "b": {"harm": 0.1, "sqnr": 30.0}}
    for more, count in (({}, 2), (wrong, 0)):
        key = meter.Meter(bench, None, {}, 9)._key
        kept.write_text(json.dumps({"search": key, "plans": known | {"b": known["b"] | more}}))
        assert len(meter.Meter(bench, kept, {}, 9)._known) == count


@pytest.mark.parametrize("noise", [1e280, math.inf])
def test_figures_of_whatever_is_compared_can_be_read_again(noise: float) -> None:
    quality = Quality(labels={"": {"y": Power(signal=1e-300, count=1, noise=noise)}})
    assert meter.Figures.of(quality).are_believable and meter.Figures.of(quality).harm == 1e6
