"""A checkpoint of training that a stranger made is refused before anything of it is taken over."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from onnxq.errors import BadRecipe  # noqa: E402
from onnxq.training.checkpoint import Checkpoint, is_checkpoint  # noqa: E402
from onnxq.training.resumed import resumed  # noqa: E402

LEARNS = {"codes/w": torch.ones(3, 2), "scales/w": torch.ones(3)}


def optimizer() -> torch.optim.Adam:
    parameters = [torch.nn.Parameter(x.clone()) for x in LEARNS.values()]
    made = torch.optim.Adam([{"params": [p], "rate": 0.1, "name": "w"} for p in parameters])
    for p in parameters:
        p.grad = torch.ones_like(p)
    made.step()
    return made


def state() -> dict[str, Any]:
    history = {"losses": [(0, 2.0), (4, 1.0)], "best": 1.0, "best_step": 4, "skipped": 0, "done": 5, "why": ""}
    learns = {name: x.clone() for name, x in LEARNS.items()}
    return {
        "student": learns,
        "best": copy.deepcopy(learns),
        "optimizer": optimizer().state_dict(),
        "history": history,
        "in_row": 0,
    }


def test_what_a_run_keeps_is_taken_over() -> None:
    made = optimizer()
    found = resumed(state(), LEARNS, made, steps=12)
    made.load_state_dict(found.optimizer)
    assert found.history.done == 5 and found.history.losses == [(0, 2.0), (4, 1.0)]
    assert made.param_groups[0]["rate"] == 0.1


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "got a tensor": lambda s: s.update(student=torch.ones(3)),
    "expected object, got a ten": lambda s: s["history"].update(losses=[(torch.ones(()), 1.0)]),
    "expected object, got a t": lambda s: s["history"].update(why=torch.ones(())),
    "no run comes to such losses": lambda s: s["history"].update(best=-1e300),
    "no run comes to such": lambda s: s["history"].update(losses=[(0, 2.0), (10**9, 1.0)], best_step=10**9),
    "a loss is less than the best": lambda s: s["history"].update(best=2.0, best_step=0),
    "object missing": lambda s: s.pop("in_row"),
    "in_row": lambda s: s.update(in_row="x"),
    "student: it is of other": lambda s: s["student"].pop("codes/w"),
    "'codes/w' is not numbers of shape [3, 2]": lambda s: s["best"].update({"codes/w": torch.ones(1).expand(1 << 40)}),
    "'codes/w' is not numbers of": lambda s: s["best"].update({"codes/w": torch.ones(3, 2, dtype=torch.int64)}),
    "'codes/w' is not numbers": lambda s: s["best"].update({"codes/w": torch.ones(3, 2, device="meta")}),
    "'codes/w' is not num": lambda s: s["best"].update({"codes/w": torch.ones(3, 2).to_sparse()}),
    "infinite or none at all": lambda s: s["student"].update({"scales/w": torch.tensor([1, 2, float("nan")])}),
    "optimizer: it is of other": lambda s: s["optimizer"]["state"].update({9: {}}),
    "1 is not what Adam keeps": lambda s: s["optimizer"]["state"][1].pop("step"),
    "exp_avg_sq of 0 is not numbers of": lambda s: s["optimizer"]["state"][0].update(
        exp_avg_sq=torch.ones(()).expand(3, 2)
    ),
    "exp_avg of 0": lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.ones(2, 3)),
    "negative": lambda s: s["optimizer"]["state"][0]["exp_avg_sq"].neg_(),
    "99 steps of 12": lambda s: s["history"].update(done=99),
    "history: 5 steps": lambda s: s["history"].update(losses=[]),
    "history.losses[0][1]": lambda s: s["history"].update(losses=[(1, "x")]),
}


@pytest.mark.parametrize("said", CHANGES)
def test_what_no_run_keeps_is_refused(said: str) -> None:
    spoiled = state()
    CHANGES[said](spoiled)
    with pytest.raises(ValueError) as found:
        resumed(spoiled, LEARNS, optimizer(), steps=12)
    assert said in str(found.value)


@pytest.mark.parametrize("what", [[], None, {"student": 1}, [1] * 5])
def test_what_is_no_state_is_refused(what: object) -> None:
    with pytest.raises(ValueError, match=r"object"):
        resumed(what, LEARNS, optimizer(), steps=12)


class _Runs:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.mkdir, (Path("made"),)  # type: ignore[return-value]


def test_files_that_run_inflate_or_are_none_are_no_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Checkpoint(tmp_path / "kept", "about")
    kept.save({"a": torch.ones(4)})
    assert is_checkpoint(kept.path) and kept.load() is not None
    with zipfile.ZipFile(kept.path) as whole:
        members = {each.filename: whole.read(each) for each in whole.infolist()}
    with zipfile.ZipFile(tmp_path / "packed", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content if not name.endswith("/0") else bytes(1 << 22))
    with zipfile.ZipFile(tmp_path / "runs", "w") as runs:
        for name, content in members.items():
            runs.writestr(name, pickle.dumps(_Runs()) if name.endswith("data.pkl") else content)
    (tmp_path / "pickle").write_bytes(pickle.dumps(_Runs()))
    torch.save(
        {"kind": "onnxq training", "key": "", "state": {}}, tmp_path / "old", _use_new_zipfile_serialization=False
    )
    (tmp_path / "short").write_bytes(kept.path.read_bytes()[:-40])
    for name in ("packed", "runs", "pickle", "old", "short"):
        assert not is_checkpoint(tmp_path / name), name
        with pytest.raises(BadRecipe, match="is not a checkpoint of 'onnxq train'"):
            Checkpoint(tmp_path / name, "about").load()
    assert not Path("made").exists()


def test_bytes_of_any_length_are_not_made(tmp_path: Path) -> None:
    path = tmp_path / "o.training"
    Checkpoint(path, "a").save({"x": torch.ones(2)})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert is_checkpoint(path)
    (pickled,) = (name for name in members if name.endswith("data.pkl"))
    members[pickled] = b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    tracemalloc.start()
    assert not is_checkpoint(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
