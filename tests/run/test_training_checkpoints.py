"""A checkpoint of training that a stranger made is refused before anything of it is taken over."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
from onnxq.errors import BadRecipe  # noqa: E402
from onnxq.training.checkpoint import Checkpoint, Resumed, is_checkpoint, resumed  # noqa: E402

LEARNS = {"codes/w": torch.ones(3, 2), "scales/w": torch.ones(3)}
Arrays = dict[str, NDArray]


def optimizer() -> torch.optim.Adam:
    parameters = [torch.nn.Parameter(x.clone()) for x in LEARNS.values()]
    made = torch.optim.Adam([{"params": [p], "rate": 0.1, "name": "w"} for p in parameters])
    for p in parameters:
        p.grad = torch.ones_like(p)
    made.step()
    return made


def state(**history: object) -> dict[str, Any]:
    usual = {"losses": [(0, 2.0), (4, 1.0)], "best": 1.0, "best_step": 4, "skipped": 0, "done": 5, "why": ""}
    learns = {name: x.clone() for name, x in LEARNS.items()}
    return {
        "student": learns,
        "best": copy.deepcopy(learns),
        "optimizer": optimizer().state_dict(),
        "history": usual | history,
        "in_row": 0,
    }


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "kept.training", "about")


def gone_on(kept: Checkpoint) -> Resumed:
    found = kept.load()
    assert found is not None
    return resumed(found, LEARNS, optimizer(), steps=12)


def test_what_a_run_keeps_is_taken_over_bit_for_bit(kept: Checkpoint) -> None:
    assert kept.load() is None
    before = state()
    kept.save(before)
    assert is_checkpoint(kept.path)
    found, made = gone_on(kept), optimizer()
    made.load_state_dict(found.optimizer)
    assert found.history.done == 5 and found.history.losses == [(0, 2.0), (4, 1.0)]
    assert made.param_groups[0]["rate"] == 0.1
    for part, other in ((found.student, before["student"]), (found.best, before["best"])):
        assert all(torch.equal(x, other[name]) for name, x in part.items())
    for i, moments in before["optimizer"]["state"].items():
        assert all(torch.equal(x, found.optimizer["state"][i][word]) for word, x in moments.items())


@pytest.mark.parametrize("first", [math.inf, 1e300])
def test_a_loss_that_was_no_number_at_first_is_one_to_go_on_from(first: float, kept: Checkpoint) -> None:
    kept.save(state(losses=[(0, first), (4, 1.0)]))
    assert gone_on(kept).history.losses == [(0, first), (4, 1.0)]


SAID: dict[str, Callable[[Arrays, dict[str, Any]], object]] = {
    "no run comes to such losses": lambda a, s: s["history"].update(best=-1e300),
    "no run comes to such": lambda a, s: s["history"].update(losses=[(0, 2.0), (10**9, 1.0)], best_step=10**9),
    "no run comes": lambda a, s: s["history"].update(best=math.nan),
    "a loss is less than the best": lambda a, s: s["history"].update(best=2.0, best_step=0),
    "a loss is less than the": lambda a, s: s["history"].update(losses=[(0, math.nan), (4, 1.0)]),
    "99 steps of 12": lambda a, s: s["history"].update(done=99),
    "history: 5 steps": lambda a, s: s["history"].update(losses=[]),
    "it is of other parameters": lambda a, s: s["names"].pop(),
    "it is of other para": lambda a, s: s.update(names=["codes/w", "codes/w"]),
    "optimizer: it is of other": lambda a, s: s.update(moved=[9]),
    "'student.0' is not in it": lambda a, s: a.pop("student.0"),
    "'step.1' is not in it": lambda a, s: a.pop("step.1"),
    "'best.0' is not numbers of shape [3, 2]": lambda a, s: a.update({"best.0": np.ones((2, 3), np.float32)}),
    "'best.0' is not numbers of": lambda a, s: a.update({"best.0": np.ones((3, 2))}),
    "'best.1' is not numbers": lambda a, s: a.update({"best.1": np.ones(3, np.int64)}),
    "'exp_avg.0' is not numbers of": lambda a, s: a.update({"exp_avg.0": np.ones((2, 3), np.float32)}),
    "'student.1' holds numbers that are infinite": lambda a, s: a["student.1"].put(0, math.nan),
    "0 has negative numbers": lambda a, s: a["exp_avg_sq.0"].put(0, -1),
    "1 has negative numbers": lambda a, s: a["step.1"].put(0, -1),
}


def spoil(kept: Checkpoint, change: Callable[[Arrays, dict[str, Any]], object]) -> None:
    kept.save(state())
    with np.load(kept.path) as file:
        arrays = dict(file)
    said = json.loads(arrays["said"].tobytes())
    change(arrays, said)
    arrays["said"] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    with kept.path.open("wb") as file:
        np.savez(file, **arrays)


@pytest.mark.parametrize("words", SAID)
def test_what_no_run_keeps_is_refused(words: str, kept: Checkpoint) -> None:
    spoil(kept, SAID[words])
    with pytest.raises(ValueError) as found:
        gone_on(kept)
    assert words in str(found.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda a, s: s.pop("in_row"),
        lambda a, s: s.update(in_row="x"),
        lambda a, s: s.update(kind="another"),
        lambda a, s: s.update(more=1),
        lambda a, s: s["history"].update(losses=[(1, "x")]),
        lambda a, s: s["history"].update(losses=[[0] * 30_000] * 100),
        lambda a, s: s.clear(),
    ],
)
def test_what_says_no_state_is_no_checkpoint(
    change: Callable[[Arrays, dict[str, Any]], object], kept: Checkpoint
) -> None:
    spoil(kept, change)
    assert not is_checkpoint(kept.path)
    with pytest.raises(BadRecipe, match="is not a checkpoint of 'onnxq train'"):
        kept.load()


class _Runs:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.mkdir, (Path("made"),)  # type: ignore[return-value]


def test_pickles_in_any_wrapping_are_no_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with an archive behind them, or under names that torch reads in any case."""
    monkeypatch.chdir(tmp_path)
    kept, old = Checkpoint(tmp_path / "kept", "about"), io.BytesIO()
    kept.save(state())
    torch.save(state(), tmp_path / "torch")
    torch.save({}, old, _use_new_zipfile_serialization=False)
    (tmp_path / "old").write_bytes(old.getvalue() + kept.path.read_bytes())
    (tmp_path / "pickle").write_bytes(pickle.dumps(_Runs()))
    for name in ("archive/data.pkl", "archive/DATA.PKL"):
        with zipfile.ZipFile(tmp_path / name[-8:], "w") as runs:
            runs.writestr(name, pickle.dumps(_Runs()))
    objects = io.BytesIO()
    np.save(objects, np.array([_Runs()], object))
    with zipfile.ZipFile(tmp_path / "objects", "w") as runs:
        runs.writestr("said.npy", objects.getvalue())
    (tmp_path / "short").write_bytes(kept.path.read_bytes()[:-40])
    for name in ("torch", "old", "pickle", "data.pkl", "DATA.PKL", "objects", "short"):
        assert not is_checkpoint(tmp_path / name), name
        with pytest.raises(BadRecipe, match="is not a checkpoint of 'onnxq train'"):
            Checkpoint(tmp_path / name, "about").load()
    assert not Path("made").exists()
