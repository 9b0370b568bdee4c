"""Biases that make up for what rounding weights does to the mean of an output."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxq import Recipe, pipeline, quantize
from onnxq.calibration.layers import correct_biases
from onnxq.calibration.layers.correct_biases import Corrected, biases_corrected
from onnxq.job import open_job
from onnxq.output import write
from onnxq.plan import Method
from onnxq.runtime.session import Session
from onnxq.summaries.ranges import NO_RANGES

TEXT = """m (float[1, 8, 9, 9] x) => (float[1, 16, 9, 9] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, K, B) r = Relu(a) d = Conv <group = 64, pads = [1, 1, 1, 1]> (r, D)
    s = Relu(d) y = Conv (s, P) }"""


def model(folder: Path) -> Path:
    constants = {"K": tiny.normal(64, 8, 3, 3), "B": tiny.normal(64), "D": tiny.normal(64, 1, 3, 3, seed=1)}
    return tiny.save(tiny.model(TEXT, constants | {"P": tiny.normal(16, 64, 1, 1, seed=2)}), folder)


def samples(count: int = 16, seed: int = 0) -> list[dict[str, NDArray]]:
    r = np.random.default_rng(seed)
    return [{"x": (r.random((1, 8, 9, 9)) + 1).astype(np.float32)} for _ in range(count)]


def run(path: Path, feed: dict[str, NDArray]) -> NDArray:
    return onnxruntime.InferenceSession(str(path)).run(None, feed)[0]


def test_the_mean_of_each_output_is_that_of_the_float_layer(tmp_path: Path) -> None:
    path = model(tmp_path)
    job = open_job(path, Recipe("int8", algorithm="mse"), "onnx", samples())
    assert len(job.plan.those(Method.STORED)) == 3  # one of them in float16
    made = biases_corrected(job, job.plan, NO_RANGES)
    assert made.notes == ("biases of 2 convolutions make up for how their weights are rounded",)
    before, after = job.rewritten(job.plan, NO_RANGES), made.job.rewritten(job.plan, NO_RANGES)
    outputs = {}
    for name, each in (("before", before), ("after", after)):
        write.save(each, tmp_path / f"{name}.onnx", lambda _: None)
        outputs[name] = np.mean([run(tmp_path / f"{name}.onnx", x) for x in samples(30, seed=5)], axis=(0, 1, 3, 4))
    wanted = np.mean([run(path, x) for x in samples(30, seed=5)], axis=(0, 1, 3, 4))
    assert np.abs(outputs["after"] - wanted).mean() < 0.5 * np.abs(outputs["before"] - wanted).mean()


def test_files_are_nearer_to_float_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = model(tmp_path), {}
    recipe = Recipe("int8", algorithm="mse")
    plan = open_job(path, recipe, "onnx", samples()).plan
    result = quantize(path, tmp_path / "q.onnx", recipe, target="onnx", data=samples(), plan=plan, check=False)
    assert sum("biases of 2 convolutions make up for" in note for note in result.notes) == 1
    monkeypatch.setattr(pipeline, "biases_corrected", lambda job, *_: Corrected(job))
    plain = quantize(path, tmp_path / "p.onnx", recipe, target="onnx", data=samples(), plan=plan, check=False)
    assert not any("make up for" in note for note in plain.notes)
    for name, each in (("q", result), ("p", plain)):
        noise = [run(path, x) - run(each.output, x) for x in samples(10, seed=5)]
        found[name] = float(np.abs(np.mean(noise, axis=(0, 1, 3, 4))).mean())
    assert found["q"] < 0.7 * found["p"]


def test_where_the_whole_model_is_not_nearer_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = open_job(model(tmp_path), Recipe("int8", algorithm="mse"), "onnx", samples())
    assert biases_corrected(job, job.plan, NO_RANGES).job is not job
    monkeypatch.setattr(correct_biases, "GAIN", 0.0)
    assert biases_corrected(job, job.plan, NO_RANGES).job is job


@pytest.mark.parametrize(
    ("size", "seconds", "wanted", "judged_on"),
    [(96, 0.0, 9 + 3, 3), (96, 4.0, 50, 3), (40, 0.0, 15 + 6, 3), (8, 0.0, 50, 6)],
)
def test_only_as_many_samples_run_as_tell_a_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, seconds: float, wanted: int, judged_on: int
) -> None:
    """Where a run takes long, of large images every so many-th one, of small ones all; and of the six that are held
    back every second one at least."""
    monkeypatch.setattr(correct_biases, "SECONDS", seconds)
    text = f"m (float[1, 8, {size}, {size}] x) => (float[1, 64, h, w] y) {{ y = Conv <group = 2> (x, K) }}"
    path = tiny.save(tiny.model(text, {"K": tiny.normal(64, 4, 3, 3)}), tmp_path)
    r = np.random.default_rng(0)
    data = [{"x": (r.random((1, 8, size, size)) + number).astype(np.float32)} for number in range(50)]
    seen, runner = list[int](), correct_biases.runner

    def watched(*given: Any) -> Any:
        return lambda feeds: runner(*given)(seen.append(int(feed["x"].min())) or feed for feed in feeds)

    monkeypatch.setattr(correct_biases, "runner", watched)
    runs = list[object]()

    class Counted(Session):
        def run(self, *given: Any) -> Any:
            runs.append(self)
            return super().run(*given)

    monkeypatch.setattr(correct_biases, "Session", Counted)
    job = open_job(path, Recipe("int8", algorithm="mse"), "onnx", data)
    assert biases_corrected(job, job.plan, NO_RANGES).notes
    assert len(seen) - 1 == len({*seen}) == wanted  # the first one tells how many rows a sample has
    assert min(seen) <= 1 and max(seen) >= (40 if wanted == 12 else 48)
    assert len(runs) == 3 * judged_on  # in float, without the biases, and with them


def test_groups_of_a_convolution_have_biases_of_their_own(tmp_path: Path) -> None:
    text = "m (float[1, 8, 9, 9] x) => (float[1, 64, 7, 7] y) { y = Conv <group = 2> (x, K) }"
    path = tiny.save(tiny.model(text, {"K": tiny.normal(64, 4, 3, 3)}), tmp_path)
    job = open_job(path, Recipe("int8", algorithm="mse"), "onnx", samples())
    made = biases_corrected(job, job.plan, NO_RANGES)
    assert made.notes
    noise = {}
    for name, each in (("before", job), ("after", made.job)):
        write.save(each.rewritten(job.plan, NO_RANGES), tmp_path / f"{name}.onnx", lambda _: None)
        errors = [run(tmp_path / f"{name}.onnx", x) - run(path, x) for x in samples(30, seed=5)]
        noise[name] = np.abs(np.mean(errors, axis=(0, 1, 3, 4)))
    assert (noise["after"] < noise["before"] + 1e-5).mean() > 0.9
    assert noise["after"].mean() < 0.3 * noise["before"].mean()


def test_rows_that_are_all_nan_correct_nothing(tmp_path: Path) -> None:
    text = "m (float[1, 8, 9, 9] x) => (float[1, 64, 7, 7] y) { z = Neg (x)  s = Sqrt (z)  y = Conv (s, K) }"
    path = tiny.save(tiny.model(text, {"K": tiny.normal(64, 8, 3, 3)}), tmp_path)
    job = open_job(path, Recipe("int8", algorithm="mse"), "onnx", samples())
    assert biases_corrected(job, job.plan, NO_RANGES).job is job


def test_rtn_leaves_biases_as_they_are(tmp_path: Path) -> None:
    job = open_job(model(tmp_path), Recipe("int8", algorithm="rtn"), "onnx", samples())
    assert biases_corrected(job, job.plan, NO_RANGES).job is job
    job = open_job(model(tmp_path), Recipe("int8", algorithm="mse"), "onnx", samples())
    named = job.plan.replacing([dataclasses.replace(choice, algorithm="rtn") for choice in job.plan])
    assert biases_corrected(job, named, NO_RANGES).job is job


def test_without_data_or_a_shift_nothing_changes(tmp_path: Path) -> None:
    path = model(tmp_path)
    job = open_job(path, Recipe("int8"), "onnx")
    assert biases_corrected(job, job.plan, NO_RANGES).job is job
    constants = {"K": np.sign(tiny.normal(64, 8, 3, 3)), "B": tiny.normal(64), "D": np.ones((64, 1, 3, 3), np.float32)}
    exact = tiny.save(tiny.model(TEXT, constants | {"P": np.ones((16, 64, 1, 1), np.float32)}), tmp_path, "exact.onnx")
    job = open_job(exact, Recipe("int8"), "onnx", samples())
    made = biases_corrected(job, job.plan, NO_RANGES)
    assert made.job is job and not made.notes


def test_a_bias_that_others_read_stays_and_one_that_was_missing_is_made(tmp_path: Path) -> None:
    text = """m (float[1, 8, 9, 9] x) => (float[1, 16, 9, 9] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, K, B) b = Conv <pads = [1, 1, 1, 1]> (x, J, B) y = Add(a, b) }"""
    constants = {"K": tiny.normal(16, 8, 3, 3), "J": tiny.normal(16, 8, 3, 3, seed=1), "B": tiny.normal(16)}
    path = tiny.save(tiny.model(text, constants), tmp_path)
    recipe = Recipe("int8", algorithm="mse")
    result = quantize(path, tmp_path / "q.onnx", recipe, target="onnx", data=samples(), check=False)
    made = onnx.load(result.output)
    biases = {i.name: numpy_helper.to_array(i) for i in made.graph.initializer if i.name.endswith("bias")}
    convolutions = [node for node in made.graph.node if node.op_type == "Conv"]
    assert len({node.input[2] for node in convolutions}) == 2 and len(biases) == 2
    for bias in biases.values():
        assert 0 < np.abs(bias - constants["B"]).max() < 0.05
