"""What training starts from: channels that are matched in closed form, blocks whose inputs are kept, nothing worse."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray

from onnxq import pipeline
from onnxq.recipe import Recipe

torch = pytest.importorskip("torch")
from onnxq.training import Settings, train  # noqa: E402
from onnxq.training import blocks as blocks_module  # noqa: E402
from onnxq.training.blocks import blocks_of, narrow_values  # noqa: E402
from onnxq.training.channels import match, places_of  # noqa: E402
from onnxq.training.graph.module import GraphModule  # noqa: E402
from onnxq.training.loop import Loop  # noqa: E402
from onnxq.training.student import Student  # noqa: E402

torch.set_num_threads(1)
SETTINGS = Settings(steps=1, rate=1e-9, evaluate_every=1, batch=8, held_back=8)
RECIPE = Recipe("w4a8", keep_slow=True, min_sqnr=float("-inf"))
pytestmark = pytest.mark.usefixtures("quick")


def depthwise() -> onnx.ModelProto:
    """Three layers of depthwise kernels, each with a wide and a narrow layer behind it, as small models have them."""
    rng, constants, text, x = np.random.default_rng(5), dict[str, NDArray](), "", "x"
    shapes = {"n": (32, 32, 1, 1), "d": (32, 1, 3, 3), "w": (96, 32, 1, 1), "m": (32, 96, 1, 1)}
    for i in range(3):
        for word in "ndwm":
            shape = shapes[word]
            scale = np.sqrt(2 / np.prod(shape[1:]))
            constants[f"{word}{i}"] = (rng.standard_normal(shape) * scale).astype(np.float32)
            if word == "d":  # one number of each kernel is so large that others are hardly a step
                constants[f"{word}{i}"] = np.abs(constants[f"{word}{i}"])
                constants[f"{word}{i}"][:, :, 1, 1] *= 8
                constants[f"{word}{i}"] /= 8
            constants[f"b{word}{i}"] = (0.1 * rng.standard_normal(shape[0])).astype(np.float32)
            how = " <pads = [1, 1, 1, 1], group = 32>" if word == "d" else ""
            text += f"{word}c{i} = Conv{how} ({x}, {word}{i}, b{word}{i}) "
            x = f"{word}c{i}"
            if word in "dw":
                text += f"{word}r{i} = Relu({x}) "
                x = f"{word}r{i}"
    made = tiny.model(f"g (float[N, 32, 8, 8] x) => (float[N, 32, 8, 8] y) {{ {text} y = Identity({x}) }}", constants)
    for node in made.graph.node:
        node.name = f"layer_{node.output[0]}"
    return made


def samples(count: int = 48) -> list[dict[str, NDArray]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((1, 32, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny.save(depthwise(), tmp_path)


def student_of(path: Path, tmp_path: Path, learn: tuple[str, ...] = ("scales", "biases")) -> tuple[Student, Any]:
    """What training starts from."""
    found = list[tuple[Student, GraphModule]]()

    def seen(job: Any, start: Any, plan: Any, ranges: Any, destination: Path) -> Any:
        found.append((Student(start, plan, ranges, learn), GraphModule(job.model).requires_grad_(False)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.quantize(path, tmp_path / "no.onnx", RECIPE, data=samples(), learn=seen, check=False)
    return found[0]


def weights(path: Path) -> dict[str, bytes]:
    return {each.name: each.SerializeToString() for each in onnx.load(path).graph.initializer}


def test_scales_and_biases_of_channels_that_were_moved_are_found_again(path: Path, tmp_path: Path) -> None:
    """In closed form: the teacher is the student itself, whose channels are stretched and shifted then."""
    student, _ = student_of(path, tmp_path)
    places = places_of(student)
    assert len(places) == 12 and all(place.weight and place.bias for place in places.values())
    feed = {"x": np.concatenate([each["x"] for each in samples(16)])}
    with torch.no_grad():
        wanted = student.module(feed)["y"]
    kept, rng = student.state(), np.random.default_rng(0)

    class AsItWas:
        def run(self, values: Any, names: Any) -> Any:
            now = student.state()
            student.load(kept)
            try:
                return student.module.run(values, names)
            finally:
                student.load(now)

    with torch.no_grad():
        for weight in student.weights.values():
            weight.stretch += torch.from_numpy(rng.uniform(-4, 4, weight.stretch.shape)).float()
        for bias in student.floats.values():
            bias += torch.from_numpy(rng.uniform(-0.3, 0.3, bias.shape)).float()
        far = (student.module(feed)["y"] - wanted).square().mean()
        moved = match(student, AsItWas(), places, [(feed, feed)], ["y"])  # type: ignore[arg-type]
        near = (student.module(feed)["y"] - wanted).square().mean()
    assert moved == 12
    assert near < 0.01 * far  # ranges of activations are as they were
    for name, weight in student.weights.items():
        np.testing.assert_allclose(weight.stretch.detach(), kept[f"scales/{name}"], atol=0.2)


def test_training_begins_nearer_to_float_than_what_quantize_writes(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = train(path, out, RECIPE, data=samples(), settings=SETTINGS, check=False)
    note = next(note for note in result.notes if note.startswith("so distance"))
    before, after = (float(note.split(word)[1].split()[0]) for word in ("went from ", " to "))
    assert after < 0.8 * before
    assert any(note.startswith("channels of ") for note in result.notes)


def test_blocks_make_it_nearer_still_and_a_seed_decides(path: Path, tmp_path: Path) -> None:
    found = dict[str, float]()
    outs = [tmp_path / f"{k}.onnx" for k in range(3)]
    for out, steps in zip(outs, (0, 40, 40), strict=True):
        settings = dataclasses.replace(SETTINGS, block_steps=steps, rate=0.02)
        result = train(path, out, RECIPE, data=samples(), settings=settings, check=False)
        note = next(note for note in result.notes if note.startswith("so distance"))
        found[out.name] = float(note.split(" to ")[1])
    assert found["1.onnx"] == found["2.onnx"] < 0.97 * found["0.onnx"]
    assert weights(outs[1]) == weights(outs[2])


def test_a_block_in_which_only_the_range_of_its_input_is_learned_stays_as_it_was(tmp_path: Path) -> None:
    """What comes in was rounded by the block before: no gradient goes back."""
    text = "g (float[1, 16] x) => (float[1, 6] y) { a = MatMul(x, w)  b = Relu(a)  c = MatMul(b, v)  y = Gemm(c, h) }"
    constants = {"w": tiny.normal(16, 32), "v": tiny.normal(32, 16), "h": tiny.normal(16, 6)}  # too few to be rounded
    path = tiny.save(tiny.model(text, constants), tmp_path)
    feeds = [{"x": tiny.normal(1, 16, seed=i)} for i in range(12)]
    settings = dataclasses.replace(SETTINGS, block_steps=2, batch=2, held_back=3)
    recipe = dataclasses.replace(RECIPE, scheme="w8a8", prefer="speed")
    result = train(path, tmp_path / "q.onnx", recipe, target="qnn", data=feeds, settings=settings)
    assert result.check is not None and result.check.sqnr > 15


@pytest.mark.parametrize("at", [0, 3])
def test_behind_blocks_an_interrupted_run_goes_on_bit_by_bit(
    at: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not gone through again; what is learned end to end has the rates that it had."""
    whole, cut = tmp_path / "whole.onnx", tmp_path / "cut.onnx"
    settings = dataclasses.replace(SETTINGS, block_steps=4, steps=6, rate=0.02, evaluate_every=3, checkpoint_every=2)
    result = train(path, whole, RECIPE, data=samples(), settings=settings, check=False)
    assert any("blocks learned" in note for note in result.notes)
    step = Loop._step

    def interrupted(self: Any, *arguments: Any) -> None:
        if self.history.done == at:
            raise KeyboardInterrupt
        step(self, *arguments)

    monkeypatch.setattr(Loop, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(path, cut, RECIPE, data=samples(), settings=settings, check=False)
    monkeypatch.setattr(Loop, "_step", step)
    monkeypatch.setattr(blocks_module.Walk, "through", None)
    train(path, cut, RECIPE, data=samples(), settings=settings, check=False)
    assert weights(cut) == weights(whole)


def test_a_start_that_is_worse_is_not_kept(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a block, nor of the whole: what is best for each block may be worse for all."""
    plain, same = tmp_path / "plain.onnx", tmp_path / "same.onnx"
    settings = dataclasses.replace(SETTINGS, learn=("scales", "biases"))
    monkeypatch.setattr(blocks_module, "match", lambda *_: 0)
    train(path, plain, RECIPE, data=samples(), settings=settings, check=False)

    def spoil(student: Student, *_: Any) -> int:
        with torch.no_grad():
            for bias in student.floats.values():
                bias += 5
        return 12

    monkeypatch.setattr(blocks_module, "match", spoil)
    for judge in (blocks_module.Walk._distance, lambda self, *_: -float(self.student.floats["bn0"].sum().detach())):
        monkeypatch.setattr(blocks_module.Walk, "_distance", judge)
        result = train(path, same, RECIPE, data=samples(), settings=settings, check=False, force=True)
        assert weights(plain) == weights(same)
        assert not any(note.startswith("channels of ") for note in result.notes)


def test_what_learns_nothing_of_channels_stays(path: Path, tmp_path: Path) -> None:
    student, _ = student_of(path, tmp_path, ("rounding", "ranges"))
    assert not places_of(student)
    student, teacher = student_of(path, tmp_path, ("scales",))  # the biases stay, and so do factors that need them
    assert not places_of(student)
    student, teacher = student_of(path, tmp_path, ("biases",))
    feed = {"x": np.concatenate([each["x"] for each in samples(16)])}
    with torch.no_grad():
        match(student, teacher, places_of(student), [(feed, feed)], ["y"])
        made, true = (each.run(feed, ["dc2"])["dc2"].mean((0, 2, 3)) for each in (student.module, teacher))
    np.testing.assert_allclose(made, true, rtol=0.01, atol=0.02)  # of what is rounded to 8 bits behind that
    assert all(not weight.stretch.any() for weight in student.weights.values())


def test_blocks_do_not_end_in_the_wide_inside_of_a_bottleneck(path: Path, tmp_path: Path) -> None:
    student, _ = student_of(path, tmp_path)
    ends = [block.makes for block in blocks_of(student)]
    sizes = {name: 96 if name[0] == "w" else 32 for name in narrow_values(student)}
    fewer = [block.makes for block in blocks_of(student, sizes)]
    assert [each for each in ends if each[0][0] != "w"] == fewer != ends
    every = {name for block in blocks_of(student) for name in block.learned}
    assert every == {name for block in blocks_of(student, sizes) for name in block.learned}
    (whole,) = blocks_of(student, sizes, most=1)
    assert whole.makes == ("y",) and set(whole.learned) == every
