"""`onnxq train`: what it writes is what it measured, it goes on where it was interrupted, and says what is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq.checking.logits import classes_of
from onnxq.cli import main
from onnxq.errors import BadData, BadModel, BadRecipe, OutOfMemory
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session

torch = pytest.importorskip("torch")
from onnxq import formats, training  # noqa: E402
from onnxq.training import Settings, train  # noqa: E402
from onnxq.training import loop as loop_of  # noqa: E402
from onnxq.training.learned import LearnedWeight  # noqa: E402
from onnxq.training.losses import Distillation, OwnLoss  # noqa: E402

torch.set_num_threads(1)
SETTINGS = Settings(steps=12, evaluate_every=4, batch=4, held_back=6, checkpoint_every=4)
pytestmark = pytest.mark.usefixtures("quick")


def net(nodes: str = "h = MatMul(x, w) r = Relu(h) s = Add(r, b) y = MatMul(s, v)") -> onnx.ModelProto:
    constants = {"w": tiny.normal(64, 64), "b": tiny.normal(64, seed=1), "v": tiny.normal(64, 64, seed=2)}
    made = tiny.model(f"g (float[N, 64] x) => (float[N, 64] y) {{ {nodes} }}", constants)
    for node in made.graph.node:
        node.name = f"layer_{node.output[0]}"
    return made


def samples(count: int = 40) -> list[dict[str, NDArray]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((1, 64)).astype(np.float32)} for _ in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny.save(net(), tmp_path)


def weights(path: Path) -> dict[str, bytes]:
    """Every number of a file."""
    return {each.name: each.SerializeToString() for each in onnx.load(path).graph.initializer}


@pytest.mark.parametrize(
    ("recipe", "target"),
    [("int4", "onnx"), ("uint2", "onnxq"), ("nf4", "onnxq"), ("w8a8", "onnx")],
    ids=lambda word: word,
)
def test_the_file_measures_what_training_measured(recipe: str, target: str, path: Path, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, report=tmp_path / "losses.json", steps=40, evaluate_every=10, rate=0.01)
    out = tmp_path / "out.onnx"
    train(path, out, Recipe(recipe, keep_slow=True), data=samples(), settings=settings, target=target, limit=None)
    told = json.loads((tmp_path / "losses.json").read_text())
    held = np.linspace(0, 39, 8)[1:-1].astype(int)
    feeds = [samples()[k] for k in held]
    feed = {"x": np.concatenate([each["x"] for each in feeds])}
    in_float, found = (torch.from_numpy(Session(each).run(feed, ["y"])[0]) for each in (path, out))
    loss = Distillation(classes_of(tiny.read(onnx.load(path))))
    several = ((slice(0, 4), 4), (slice(4, 6), 2))  # as batches of four see them
    measured = sum(float(loss({"y": found[part]}, {"y": in_float[part]})) * n for part, n in several) / 6
    assert measured == pytest.approx(told["best"], rel=0.05)
    assert told["best"] < told["held_back"][0][1]


@pytest.mark.parametrize(
    ("word", "how"),
    [("uint2", (0, 16)), ("uint2", (1, 7)), ("int4", (1, 24)), ("int8", (1, None)), ("int8", (None, None))],
    ids=str,
)
def test_a_learned_weight_is_what_its_codes_and_scales_say_with_gradients(
    word: str, how: tuple[int | None, int | None]
) -> None:
    rng, granularity = np.random.default_rng(0), formats.Granularity(*how)
    w, seen = (rng.standard_normal((48, 24)).astype(np.float32) for _ in range(2))
    start = formats.encode(formats.get(word), w, granularity, "w")
    made = LearnedWeight(start, w, moves=None, codes=True, scales=True)
    found = made()
    assert np.allclose(found.detach(), start.dequantize(), rtol=1e-6, atol=1e-7)
    found.backward(torch.from_numpy(seen))
    scales = granularity.spread(start.scales, w.shape)
    assert np.allclose(made.place.grad, seen * scales, rtol=1e-5)
    # A tenth of a scale's logarithm moves all that share it by a tenth of themselves.
    for place in zip(*(rng.integers(0, n, 5) for n in start.scales.shape), strict=True) if start.scales.ndim else [()]:
        chosen = np.zeros_like(start.scales)
        chosen[place] = 0.1
        wanted = (seen * start.dequantize() * granularity.spread(chosen, w.shape)).sum()
        assert float(made.stretch.grad[place]) == pytest.approx(wanted, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("word", "at"), [("_step", 7), ("_look", 4), ("_look", 12)])
def test_a_run_that_was_interrupted_ends_bit_by_bit_as_one_that_was_not(
    word: str, at: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut, done = tmp_path / "whole.onnx", tmp_path / "cut.onnx", getattr(loop_of.Loop, word)
    first, second = (dataclasses.replace(SETTINGS, report=tmp_path / name) for name in ("whole.json", "cut.json"))
    train(path, whole, "int4", data=samples(), settings=first, check=False)

    def interrupted(self: Any, *arguments: Any) -> None:
        if self.history.done == at:
            raise KeyboardInterrupt
        done(self, *arguments)

    monkeypatch.setattr(loop_of.Loop, word, interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(path, cut, "int4", data=samples(), settings=second, check=False)
    kept = tmp_path / "cut.onnx.training"
    assert kept.exists() and not cut.exists()
    monkeypatch.undo()
    train(path, cut, "int4", data=samples(), settings=second, check=False)
    assert weights(cut) == weights(whole) and not kept.exists()
    assert (tmp_path / "cut.json").read_text() == (tmp_path / "whole.json").read_text()


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_weights_that_are_made_of_those_in_the_file_learn(dtype: str, tmp_path: Path) -> None:
    numpy_type = np.float16 if dtype == "float16" else np.float64
    constants = {"w": tiny.normal(64, 64).astype(numpy_type), "b": np.zeros(64, numpy_type)}
    nodes = "t = Transpose(w) h = MatMul(x, t) y = Add(h, b)"
    path = tiny.save(tiny.model(f"g ({dtype}[N, 64] x) => ({dtype}[N, 64] y) {{ {nodes} }}", constants), tmp_path)
    data = [{"x": each["x"].astype(numpy_type)} for each in samples()]
    settings = dataclasses.replace(SETTINGS, report=tmp_path / "losses.json", rate=0.002, learn=("weights", "scales"))
    settings = dataclasses.replace(settings, steps=60)
    train(path, tmp_path / "out.onnx", Recipe("int4", keep_slow=True), data=data, settings=settings, check=False)
    told = json.loads((tmp_path / "losses.json").read_text())
    assert 0 < told["best"] < told["held_back"][0][1]


def test_a_seed_decides(path: Path, tmp_path: Path) -> None:
    outs = [tmp_path / f"{k}.onnx" for k in range(3)]
    for out, seed in zip(outs, (1, 1, 2), strict=True):
        train(path, out, "int4", data=samples(), settings=dataclasses.replace(SETTINGS, seed=seed), check=False)
    assert weights(outs[0]) == weights(outs[1]) != weights(outs[2])


def test_a_checkpoint_of_other_settings_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    kept = dataclasses.replace(SETTINGS, checkpoint=tmp_path / "kept")
    step = loop_of.Loop._step
    monkeypatch.setattr(loop_of.Loop, "_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=kept, check=False)
    monkeypatch.setattr(loop_of.Loop, "_step", step)
    other = dataclasses.replace(kept, rate=0.1)
    with pytest.raises(BadRecipe, match="other settings"):
        train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=other, check=False)


def test_blocks_learn_before_the_whole(path: Path, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, block_steps=10)
    result = train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)
    assert any("of 3 blocks learned" in note for note in result.notes)


@pytest.mark.parametrize("first", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_before_training_is_no_best_one(
    first: float, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_back = loop_of.Loop.held_back
    monkeypatch.setattr(loop_of.Loop, "held_back", lambda loop: held_back(loop) if loop.history.losses else first)
    settings = dataclasses.replace(SETTINGS, report=tmp_path / "losses.json")
    train(path, tmp_path / "out.onnx", "int4", data=samples(), settings=settings, check=False)
    told = json.loads((tmp_path / "losses.json").read_text())
    assert told["held_back"][0] == [0, None]
    assert told["best_step"] > 0 and told["best"] == min(loss for _, loss in told["held_back"][1:])


def test_labels_and_an_own_loss_are_learned_from(path: Path, tmp_path: Path) -> None:
    labelled = [each | {"z": np.array([k % 64])} for k, each in enumerate(samples())]
    settings = dataclasses.replace(SETTINGS, labels="z")
    result = train(path, tmp_path / "a.onnx", "int4", data=labelled, settings=settings, check=False, logits=("y",))
    assert any("loss 4." in note or "loss 5." in note for note in result.notes)  # near log 64

    def own(outputs: Any, labels: Any, feed: Any) -> Any:
        assert labels is None and set(feed) == {"x"}
        return outputs["y"].square().mean()

    settings = dataclasses.replace(SETTINGS, loss=own)
    train(path, tmp_path / "b.onnx", "int4", data=samples(), settings=settings, check=False)


def test_what_a_loss_gave_is_not_asked_what_it_is() -> None:
    class Liar:
        __class__ = property(lambda self: 1 / 0)

    with pytest.raises(BadRecipe, match="gave something of type Liar, not one number"):
        OwnLoss(lambda outputs, labels, feed: Liar())({}, None, {})


def test_labels_of_another_length_are_told(path: Path, tmp_path: Path) -> None:
    labelled = [each | {"z": np.array([1, 2, 3])} for each in samples()]
    settings = dataclasses.replace(SETTINGS, labels="z")
    with pytest.raises(BadData, match=r"3 labels 'z' for 1 decisions of output 'y'"):
        train(path, tmp_path / "a.onnx", "int4", data=labelled, settings=settings, check=False, logits=("y",))
    assert not (tmp_path / "a.onnx").exists()


def test_losses_that_are_not_finite_are_skipped_and_then_stop_it_with_the_layers_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def once(outputs: Any, labels: Any, feed: Any) -> Any:
        calls.append(1)
        bad = float("nan") if len(calls) == 9 else 1.0  # of a step, behind looks
        return outputs["y"].square().mean() * bad

    settings = dataclasses.replace(SETTINGS, loss=once)
    result = train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)
    assert any("1 step was skipped: its loss was not finite" in note for note in result.notes)

    step = loop_of.Loop._step

    def broken(self: Any, *arguments: Any) -> None:
        with torch.no_grad():
            self.student.weights["v"].stretch.fill_(1e6)
        step(self, *arguments)

    monkeypatch.setattr(loop_of.Loop, "_step", broken)
    with pytest.raises(BadRecipe, match=r"layer 'layer_y' \(MatMul\) makes is not finite, 5 steps in a row"):
        train(path, tmp_path / "b.onnx", "int4", data=samples(), settings=SETTINGS, check=False)
    short = dataclasses.replace(SETTINGS, steps=2)
    with pytest.raises(BadRecipe, match="is not finite, 2 steps in a row"):  # and no step is left
        train(path, tmp_path / "c.onnx", "int4", data=samples(), settings=short, check=False)


def test_after_losses_that_are_not_finite_what_is_advised_works(path: Path, tmp_path: Path) -> None:
    factor = float("nan")
    kept = tmp_path / "kept"

    def own(outputs: Any, labels: Any, feed: Any) -> Any:
        is_step = outputs["y"].requires_grad
        return outputs["y"].square().mean() * (factor if is_step else 1.0)

    settings = dataclasses.replace(SETTINGS, loss=own, checkpoint=kept)
    with pytest.raises(BadRecipe, match=r"mend the loss and go on, or delete the checkpoint '.*kept' and give"):
        train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)
    factor = 1.0  # mended
    train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)
    assert not kept.exists()


def test_where_no_look_saw_a_number_nothing_is_written(path: Path, tmp_path: Path) -> None:
    def own(outputs: Any, labels: Any, feed: Any) -> Any:
        return outputs["y"].square().mean() * (1.0 if outputs["y"].requires_grad else float("nan"))

    settings = dataclasses.replace(SETTINGS, loss=own, checkpoint=tmp_path / "kept")
    with pytest.raises(BadRecipe, match="the loss is not finite on the samples held back, in 4 looks: nothing says"):
        train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)
    assert os.listdir(tmp_path) == [path.name]


def test_settings_that_lead_nowhere_leave_no_checkpoint(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distance = Distillation.__call__
    monkeypatch.setattr(Distillation, "__call__", lambda *of: distance(*of) * float("nan"))
    settings = dataclasses.replace(SETTINGS, checkpoint=tmp_path / "kept")
    with pytest.raises(BadRecipe, match="in a row; give a lower --rate, or keep"):
        train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)
    monkeypatch.undo()
    lower = dataclasses.replace(settings, rate=settings.rate / 10)
    train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=lower, check=False)


def test_too_little_memory_is_told_before_it_starts(path: Path, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, memory=100_000)
    with pytest.raises(OutOfMemory, match=r"training takes about .* --batch"):
        train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)


def test_no_path_for_a_gradient_is_told(tmp_path: Path) -> None:
    path = tiny.save(net("h = MatMul(x, w) r = Round(h) y = Identity(r)"), tmp_path)
    settings = dataclasses.replace(SETTINGS, learn=("rounding",))
    with pytest.raises(BadModel, match=r"no gradient reaches 'w'.*'layer_r' \(Round\)"):
        train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)


def test_training_never_ends_worse_than_it_began(path: Path, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, rate=3.0, report=tmp_path / "told.json", patience=2, steps=40)
    train(path, tmp_path / "a.onnx", "int4", data=samples(), settings=settings, check=False)
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["best"] <= told["held_back"][0][1]
    assert told["done"] < 40 and "saw nothing better" in told["why"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"learn": ("all",)}, "unknown"),
        ({"steps": 0}, "nothing is trained"),
        ({"batch": 0}, "at least 1"),
        ({"block_steps": 10**400}, "--block-steps: at most 1,000,000,000"),
        ({"seed": -1}, "--seed -1: at least 0"),
        ({"warmup": np.nan}, "--warmup nan: at least 0 and at most 1"),
        ({"clip": np.nan}, "--clip nan: at least 0$"),
        ({"minutes": np.nan}, "--minutes nan: at least 0$"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRecipe, match=words):
        Settings(**wrong)


def test_a_device_without_numbers_is_none(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="'meta': torch has no such device here"):
        train(path, tmp_path / "a.onnx", data=samples(), settings=dataclasses.replace(SETTINGS, device="meta"))


def test_layers_of_torch_export_as_standard_pairs_with_the_same_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 5)
    )
    training.replace_layers(made)
    x = torch.randn(3, 1, 8, 8)
    with pytest.raises(BadRecipe, match="calibrating"):
        training.export(made, tmp_path / "early.onnx", x)
    with training.calibrating(made):
        made(x)
    assert made(x).sum().backward() is None and made[0].weight.grad.abs().sum() > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own exporter
        training.export(made, tmp_path / "made.onnx", x)
    ops = [node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node]
    assert ops.count("DequantizeLinear") == 4
    (found,) = Session(tmp_path / "made.onnx").run({"x": x.numpy()}, ["y"])
    wanted = made(x).detach().numpy()
    assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize("bits", [8, 4])
def test_exported_layers_hold_codes_and_take_any_size(bits: int, tmp_path: Path) -> None:
    """Of a weight that two layers share there is one copy."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
    second.weight = first.weight
    made = training.replace_layers(torch.nn.Sequential(first, torch.nn.ReLU(), second), bits=bits)
    with training.calibrating(made):
        made(torch.randn(8, 16))
    made.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own exporter
        axes = {"tokens": {0: "n", 1: "t"}}
        path = training.export(
            made, tmp_path / "made.onnx", torch.randn(2, 3, 16), input_names=["tokens"], dynamic_axes=axes
        )
    assert made.training and not any(layer.is_exporting for layer in made if hasattr(layer, "is_exporting"))
    constants = [onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer]
    (codes,) = [x for x in constants if x.shape == (16, 16)]
    most = (1 << bits - 1) - 1
    assert codes.dtype == np.int8 and codes.max() <= most and codes.min() >= -most and np.abs(codes).max() == most
    x = torch.randn(5, 7, 16)
    (found,) = Session(path).run({"tokens": x.numpy()}, ["y"])
    np.testing.assert_allclose(found, made(x).detach().numpy(), atol=2e-5)


def test_the_python_of_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    blocks = re.findall(r"^```python\n([\s\S]*?)^```", (root / "docs" / "training.md").read_text(), re.MULTILINE)
    shutil.copy(root / "models" / "digits_cnn.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own exporter
        for block in blocks:
            exec(compile(block, "docs/training.md", "exec"), {})
    assert len(blocks) == 2 and (tmp_path / "net.qdq.onnx").exists()


def test_the_command_prints_what_it_learned(path: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.concatenate([each["x"] for each in samples()]))
    words = f"train {path} --data {tmp_path / 'data.npz'} -w int4 -t onnx --steps 4 --evaluate-every 2 --batch 4"
    result = CliRunner().invoke(main, [*words.split(), "-o", str(tmp_path / "out.onnx"), "--learn", "scales,biases"])
    assert result.exit_code == 0, result.output
    assert "trained 4 steps on" in result.output
    again = CliRunner().invoke(main, f"quantize {path} --like {tmp_path / 'out.onnx'} -o {tmp_path / 'c.onnx'}".split())
    assert again.exit_code == 1 and "out.onnx' was trained" in again.output and not (tmp_path / "c.onnx").exists()
    wrong = CliRunner().invoke(main, [*words.split(), "-o", str(tmp_path / "b.onnx"), "--learn", "all"])
    assert wrong.exit_code == 1 and "--learn 'all': unknown" in wrong.output
