"""Results that repeat: equal inputs and an equal machine profile give equal bytes, whatever the clocks say."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq import Recipe
from onnxq.cli import main
from onnxq.errors import BadRecipe
from onnxq.output.signature import KEY, PLAN_KEY, read_signature
from onnxq.plan import Method, load_plan
from onnxq.runtime import machine, thresholds, timing
from onnxq.runtime.profile import MachineProfile, load_profile, new_profile, opened
from onnxq.runtime.session import Session
from onnxq.tuning import plan_bench

pytestmark = pytest.mark.usefixtures("quick")
NET = """g (float[N, 64] x) => (float[N, 8] y) {
    [a] h = MatMul(x, u)  r = Relu(h)  [b] k = MatMul(r, v)  s = Relu(k)  [c] y = MatMul(s, w) }"""
SAMPLES = [{"x": tiny.normal(4, 64, seed=n) * 8} for n in range(12)]


def net(folder: Path, seed: int = 0, text: str = NET) -> Path:
    sizes = {"u": (64, 256), "v": (256, 256), "w": (256, 8)}
    weights = {name: tiny.normal(*shape, seed=seed + i) for i, (name, shape) in enumerate(sizes.items())}
    return tiny.save(tiny.model(text, weights), folder, f"net{seed}.onnx")


def run(*words: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "300"})
    assert result.exit_code == exit_code, result.output
    return result.output


@pytest.fixture
def broken_clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, every clock and every timing of a kernel says something else each time."""
    chance = random.Random(0)
    events = Session.node_events

    def lying(session: Session) -> list[tuple[str, str, dict[str, Any]]]:
        return [(n, op, told | {"seconds": 10 ** chance.uniform(-9, 3)}) for n, op, told in events(session)]

    def start() -> None:
        monkeypatch.setattr(timing, "clock_of", lambda threads: lambda: chance.uniform(0, 1e6))
        monkeypatch.setattr(Session, "node_events", lying)

    return start


@pytest.mark.parametrize(
    ("scheme", "data"), [("auto", None), ("w8a8-dynamic", None), ("w8a8", SAMPLES)], ids=["auto", "dynamic", "static"]
)
def test_equal_profiles_give_equal_bytes(
    tmp_path: Path, broken_clocks: Callable[[], None], scheme: str, data: Any
) -> None:
    model, profile = net(tmp_path), new_profile()
    first = onnxq.quantize(model, tmp_path / "a.onnx", scheme, data=data, profile=profile)
    (tmp_path / "device.json").write_text(profile.to_json(), encoding="utf-8")
    broken_clocks()
    for name in "bc":
        again = onnxq.quantize(model, tmp_path / f"{name}.onnx", scheme, data=data, profile=tmp_path / "device.json")
        assert again.plan == first.plan
        assert again.output.read_bytes() == first.output.read_bytes()


def pretend(profile: MachineProfile, factor: float) -> MachineProfile:
    """Another machine, on which every product takes a millisecond in float, and in integers so many times as long."""
    kernels = {key: 1e-3 if key.endswith("| float") else 1e-3 * factor for key in profile.kernels}
    models = dict.fromkeys(profile.models, 3e-3)
    elsewhere = dataclasses.replace(profile.machine, cpu="Another", isa="another")
    return dataclasses.replace(
        profile, machine=elsewhere, kernels=kernels, models=models, plans={}, source="it", is_closed=True
    )


def test_another_machine_decides_otherwise(tmp_path: Path) -> None:
    model, profile = net(tmp_path), new_profile()
    onnxq.quantize(model, tmp_path / "a.onnx", "w8a8-dynamic", profile=profile)
    assert {key.rpartition(" | ")[2] for key in profile.kernels} == {"float", "dynamic int8 ort-cpu"}
    made = {}
    for factor in (1e-3, 1e3):
        made[factor] = onnxq.quantize(
            model, tmp_path / f"{factor}.onnx", "w8a8-dynamic", profile=pretend(profile, factor)
        )
    assert len(made[1e-3].plan.those(Method.DYNAMIC)) == 3
    assert made[1e3].plan.those(Method.DYNAMIC) == []
    for result in made.values():
        assert "times are those of another processor (Another)" in " ".join(result.notes)
        assert result.signature is not None and result.signature.machine.startswith("Another, ")


def test_other_names_and_other_weights_take_the_same_times(tmp_path: Path, broken_clocks: Callable[[], None]) -> None:
    profile = new_profile()
    onnxq.quantize(net(tmp_path), tmp_path / "a.onnx", "w8a8-dynamic", profile=profile)
    closed = pretend(profile, 1.0)
    broken_clocks()
    renamed = NET.replace("[a]", "[other]").replace("[b]", "[names]")
    onnxq.quantize(net(tmp_path, 7, renamed), tmp_path / "b.onnx", "w8a8-dynamic", profile=closed)
    wider = NET.replace("float[N, 8] y", "float[N, 8] y, float[N, 256] k")
    onnxq.quantize(net(tmp_path, 9, wider), tmp_path / "c.onnx", "w8a8-dynamic", profile=closed)


def test_a_profile_says_which_kernels_it_lacks(tmp_path: Path) -> None:
    closed = dataclasses.replace(new_profile(), source="device.json", is_closed=True)
    with pytest.raises(
        BadRecipe, match=r"device\.json lacks 6 of this model's kernels, such as 'MatMul float.4,64. float.64,256."
    ):
        onnxq.quantize(net(tmp_path), tmp_path / "a.onnx", "w8a8", data=SAMPLES, profile=closed)
    assert not (tmp_path / "a.onnx").exists()


@pytest.mark.sweep
def test_profile_measures_what_quantize_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_clocks: Callable[[], None]
) -> None:
    """Without data, w8a8 is measured on made-up ones; nothing is timed afterwards but the saved file."""
    monkeypatch.chdir(tmp_path)
    net(tmp_path)
    said = run("profile", "net0.onnx", "-o", "device.json")
    found = load_profile("device.json")
    assert said == f"device.json: {len(found.kernels)} times of kernels on {found}\n"
    forms = {key.rpartition(" | ")[2] for key in found.kernels}
    assert forms >= {"float", "dynamic int8 ort-cpu", "static int8 ort-cpu", "packed uint4 b32 level 4 ort-cpu"}
    broken_clocks()
    monkeypatch.setattr(plan_bench, "race", None)
    monkeypatch.setattr(plan_bench, "least_seconds", None)
    first = run("quantize", "net0.onnx", "-o", "a.onnx", "--profile", "device.json")
    assert f"plan by kernel times measured on {found}" in " ".join(first.split())
    run("quantize", "net0.onnx", "-o", "b.onnx", "--profile", "device.json", "--save-profile", "same.json")
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert json.loads(Path("same.json").read_text()) == json.loads(Path("device.json").read_text())
    run("quantize", "net0.onnx", "-s", "w8a8-dynamic", "-o", "c.onnx", "--profile", "device.json")


@pytest.mark.parametrize("target", ["onnxq", "ort-cpu"])
def test_a_profile_says_how_its_machine_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Measured here for a new profile; those of a file are taken while a model is made, and make another hash."""
    monkeypatch.setattr(thresholds, "tile_rows", lambda: {"int4": 5})
    given: list[dict[str, int]] = []

    @contextlib.contextmanager
    def taken(rows: dict[str, int]) -> Iterator[None]:
        given.append(rows)
        yield

    monkeypatch.setattr(thresholds, "taken", taken)
    model, profile = net(tmp_path), new_profile()
    first = onnxq.quantize(model, tmp_path / "a.onnx", "w8a8-dynamic", target=target, profile=profile)
    (tmp_path / "device.json").write_text(profile.to_json(), encoding="utf-8")
    other = dataclasses.replace(load_profile(tmp_path / "device.json"), tile_rows={"int4": 13})
    again = onnxq.quantize(model, tmp_path / "b.onnx", "w8a8-dynamic", target=target, profile=tmp_path / "device.json")
    third = onnxq.quantize(model, tmp_path / "c.onnx", "w8a8-dynamic", target=target, profile=other)
    hashes = [made.signature.profile for made in (first, again, third) if made.signature is not None]
    if target == "onnxq":
        assert given == [{"int4": 5}, {"int4": 5}, {"int4": 13}]
        assert hashes[0] == hashes[1] != hashes[2]
    else:
        assert given == [] and profile.tile_rows == {} and len(set(hashes)) == 1
    for spoiled in ({"int4": 0}, {"int4": "5"}):
        table = json.loads(profile.to_json()) | {"tile_rows": spoiled}
        (tmp_path / "bad.json").write_text(json.dumps(table))
        with pytest.raises(BadRecipe, match="is not a profile"):
            load_profile(tmp_path / "bad.json")


def test_a_profile_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net(tmp_path)
    run("profile", "net0.onnx", "-o", "one.json", "-s", "w8a8-dynamic")
    before = load_profile("one.json")
    run("profile", "net0.onnx", "-o", "two.json", "-s", "auto", "--add-to", "one.json")
    after = load_profile("two.json")
    assert before.kernels.items() < after.kernels.items()
    assert before.plans.items() <= after.plans.items()  # whole plans are raced only where kernels leave a doubt
    assert "exists; give --force" in run("profile", "net0.onnx", "-o", "two.json", exit_code=1)
    here = machine.this_machine()
    monkeypatch.setattr("onnxq.runtime.profile.this_machine", lambda: dataclasses.replace(here, cpu="Another"))
    with pytest.raises(BadRecipe, match="is of another machine"):
        opened("one.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threads": 2}, r"was measured on 2 threads, not 1: give --threads 2"),
        ({"onnxq_profile": 2}, r"is of version 2, not 1: measure it again"),
        ({"onnxq_profile": None}, r"is not a profile written by 'onnxq profile'"),
        ({"kernels": {"k": -1.0}}, r"not a profile .*kernels.*: expected float >= 0"),
        ({"kernels": {"k": float("nan")}}, r"not a profile .*kernels"),
        ({"kernels": {"k": float("inf")}}, r"not a profile .*kernels"),
        ({"plans": {"p": {"ratio": "fast", "spread": 0}}}, r"plans.*: expected float, got str"),
        ({"machine": {"cpu": "x"}}, r"machine: object missing required field isa"),
        ({"more": 1}, r"unknown field more"),
    ],
    ids=str,
)
def test_wrong_profiles_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(json.loads(new_profile().to_json()) | change), encoding="utf-8")
    with pytest.raises(BadRecipe, match=says):
        load_profile(path, 1)


def test_a_profile_is_written_and_read_without_loss() -> None:
    rng = np.random.default_rng(0)
    profile = new_profile(4)
    profile.kernels.update({f"k{i}": float(t) for i, t in enumerate(rng.random(50))})
    profile.models["m"] = 1 / 3
    found = json.loads(profile.to_json())
    assert found["kernels"] == profile.kernels and found["models"] == profile.models
    assert str(profile).endswith(", 4 threads") and str(new_profile(0)).endswith(", all threads")


@pytest.mark.parametrize("how", ["tuned", "named", "given", "unchecked"])
def test_like_makes_the_same_bytes(tmp_path: Path, broken_clocks: Callable[[], None], how: str) -> None:
    model, recipe = net(tmp_path), Recipe("w8a8", (onnxq.Rule("w4a16", "c"),), min_sqnr=18)
    options: dict[str, Any] = {"data": SAMPLES}
    if how == "named":
        recipe, options = Recipe("w4a16", block_size=64), {"target": "onnxq"}
    if how == "given":
        options |= {"plan": onnxq.quantize(model, tmp_path / "p.onnx", "w8a8-dynamic").plan}
    if how == "unchecked":
        recipe, options = Recipe("auto"), {"data": SAMPLES, "check": False}
    old = onnxq.quantize(model, tmp_path / "old.onnx", recipe, **options)
    broken_clocks()
    new = onnxq.quantize(model, tmp_path / "new.onnx", like=old.output, data=options.get("data"))
    notes = old.notes
    if how == "unchecked":
        assert [note.partition(":")[0] for note in old.notes] == ["nothing was measured"]
        notes = ("not checked, as the model that it repeats was not",)
    assert new.notes == notes and new.plan == old.plan
    assert new.output.read_bytes() == old.output.read_bytes()


def _differences(result: onnxq.Result) -> list[str]:
    return [note.partition(" (")[0] for note in result.notes if note.startswith("not the same again")]


def test_like_says_what_differs(tmp_path: Path) -> None:
    model = net(tmp_path)
    old = onnxq.quantize(model, tmp_path / "old.onnx", "w8a8", data=SAMPLES).output
    new = onnxq.quantize(model, tmp_path / "new.onnx", like=old, data=SAMPLES[1:])
    assert _differences(new) == ["not the same again: the data are others"]
    new = onnxq.quantize(net(tmp_path, 5), tmp_path / "other.onnx", like=old, data=SAMPLES)
    assert _differences(new) == ["not the same again: the model is another one"]
    proto = onnx.load(old)
    (entry,) = (entry for entry in proto.metadata_props if entry.key == KEY)
    entry.value = json.dumps(json.loads(entry.value) | {"version": "0.0.1", "onnxruntime": "1.0"})
    onnx.save(proto, tmp_path / "older.onnx")
    new = onnxq.quantize(model, tmp_path / "newer.onnx", like=tmp_path / "older.onnx", data=SAMPLES)
    assert ["onnxq is of" in new.notes[0], "onnxruntime is of" in new.notes[1]] == [True, True]


def test_like_on_data_without_a_range_keeps_what_it_cannot_scale(tmp_path: Path) -> None:
    text = NET.replace("r = Relu(h)", "t = Log(x)  [d] l = MatMul(t, u)  r = Add(h, l)")
    model = net(tmp_path, text=text)
    data = [[{"x": sign * (abs(each["x"]) + 0.1)} for each in SAMPLES] for sign in (1, -1)]
    old = onnxq.quantize(model, tmp_path / "old.onnx", Recipe("w8a8", keep_slow=True), data=data[0])
    assert old.plan.method("d") is Method.STATIC
    new = onnxq.quantize(model, tmp_path / "new.onnx", like=old.output, data=data[1])
    assert new.plan.method("d") is Method.STORED and "no range" in new.plan.choices["d"].reason


def test_a_floor_that_like_repeats_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("quantize", net(tmp_path))
    run(*words, "-o", "old.onnx", "-w", "int2", "--keep-slow", "--min-sqnr", "40", "--no-check", exit_code=3)
    said = run(*words, "--like", "old.onnx", "-o", "new.onnx", exit_code=3)
    assert "--min-sqnr was not checked" in said and "not checked, as the model that it repeats was not" in said


@pytest.mark.parametrize("scheme", ["w4a16/../../evil", "", "w4\na16", "x" * 65, ".."])
def test_files_are_not_named_after_what_is_no_scheme(scheme: str, tmp_path: Path) -> None:
    plan = onnxq.quantize(net(tmp_path), tmp_path / "old.onnx", "w4a16").plan
    (tmp_path / "plan.json").write_text(json.dumps(json.loads(plan.to_json()) | {"scheme": scheme}))
    with pytest.raises(BadRecipe, match="is no scheme; example: w8a8"):
        load_plan(tmp_path / "plan.json")


def test_like_takes_no_other_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("quantize", net(tmp_path), "-o", "old.onnx", "-s", "w4a16")
    said = run("quantize", "net0.onnx", "--like", "old.onnx", "-s", "w8a8", exit_code=1)
    assert "--scheme cannot go with --like" in said
    assert "does not say how it was made" in run("quantize", "net0.onnx", "--like", "net0.onnx", exit_code=1)
    run("quantize", "net0.onnx", "--like", "old.onnx", "-o", "new.onnx")
    assert Path("new.onnx").read_bytes() == Path("old.onnx").read_bytes()


@pytest.mark.parametrize(
    ("key", "change"),
    [
        (PLAN_KEY, lambda text: text.replace("packed", "baked")),
        (KEY, lambda text: json.dumps(json.loads(text) | {"asked": "w4a17"})),
        (KEY, lambda text: json.dumps(json.loads(text) | {"held_back": 0})),
        (KEY, lambda text: json.dumps(json.loads(text) | {"held_back": 10**30})),
        (KEY, lambda text: json.dumps(json.loads(text) | {"recipe": {"scheme": "nonsense"}})),
    ],
)
def test_damaged_metadata_are_refused(key: str, change: Callable[[str], str], tmp_path: Path) -> None:
    old = onnxq.quantize(model := net(tmp_path), tmp_path / "old.onnx", "w4a16").output
    proto = onnx.load(old)
    for entry in proto.metadata_props:
        if entry.key == key:
            entry.value = change(entry.value)
    onnx.save(proto, old)
    with pytest.raises(BadRecipe, match="metadata that say how the model was made are damaged"):
        read_signature(old)
    assert "are damaged" in run("inspect", old)
    said = run("quantize", model, "--like", old, "-o", tmp_path / "new.onnx", exit_code=1)
    assert f"'{old}': the metadata that say how the model was made are damaged" in said
    assert not (tmp_path / "new.onnx").exists()


def test_inspect_shows_how_a_model_was_made(tmp_path: Path) -> None:
    result = onnxq.quantize(net(tmp_path), tmp_path / "q.onnx", Recipe("w8a8", prefer="speed"), data=SAMPLES)
    made = read_signature(result.output)
    assert made == result.signature
    shown = run("inspect", result.output)
    for words in (made.plan_hash, made.model, made.data, made.profile, "prefer = speed", machine.this_machine().cpu):
        assert words and words in shown
    assert f"onnxruntime {made.onnxruntime}" in shown
    assert json.loads(result.to_json())["made_by"]["plan"] == made.plan_hash
