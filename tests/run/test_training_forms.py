"""What training sees is what the file computes, in whatever form that has the weights."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray

from onnxq import formats, pipeline
from onnxq.errors import OutOfMemory
from onnxq.formats import Granularity
from onnxq.job import Job
from onnxq.plan import Plan
from onnxq.recipe import Recipe, Rule
from onnxq.request import Learned
from onnxq.runtime.session import Session
from onnxq.summaries.ranges import Ranges

torch = pytest.importorskip("torch")
from onnxq.training import Settings, train  # noqa: E402
from onnxq.training.learned import LearnedWeight  # noqa: E402
from onnxq.training.student import Student  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick")

SQUARE = {"w": tiny.normal(64, 64), "v": tiny.normal(64, 64, seed=2)}
BIASED = SQUARE | {"b": tiny.normal(64, seed=4)}
LAYERS = {
    "square": ("g (float[N, 64] x) => (float[N, 64] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }", SQUARE),
    "oblong": (
        "g (float[N, 64] x) => (float[N, 40] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }",
        {"w": tiny.normal(64, 96), "v": tiny.normal(96, 40, seed=2)},
    ),
    "blocks over rows": (
        "g (float[N, 50] x) => (float[N, 46] y) { h = MatMul(x, w) r = Relu(h) y = Gemm<transB=1>(r, v) }",
        {"w": tiny.normal(50, 70), "v": tiny.normal(46, 70, seed=2)},
    ),
    "alpha": (
        "g (float[N, 64] x) => (float[N, 64] y)"
        " { h = Gemm<alpha=0.25>(x, w, b) r = Relu(h) y = Gemm<transB=1, alpha=3.0, beta=2.0>(r, v, b) }",
        BIASED,
    ),
    "alpha of one reader": (
        "g (float[N, 64] x) => (float[N, 64] y) { h = Gemm<alpha=0.25>(x, w, b) r = Relu(h) y = MatMul(r, w) }",
        BIASED,
    ),
    "alpha of all readers": (
        "g (float[N, 64] x) => (float[N, 64] y)"
        " { h = Gemm<alpha=0.25>(x, w, b) r = Relu(h) y = Gemm<alpha=0.25>(r, w) }",
        BIASED,
    ),
    "both ways": (
        "g (float[N, 64] x) => (float[N, 64] y)"
        " { h = Gemm(x, w, b) r = Relu(h) s = Gemm<transB=1>(r, w) t = Relu(s) y = MatMul(t, w) }",
        BIASED,
    ),
    "kernels": (
        "g (float[N, 8, 9, 9] x) => (float[N, 12, 5, 5] y)"
        " { h = Conv<kernel_shape=[3, 3]>(x, w, b) r = Relu(h) y = Conv<kernel_shape=[3, 3]>(r, v) }",
        {"w": tiny.normal(16, 8, 3, 3), "b": tiny.normal(16, seed=4), "v": tiny.normal(12, 16, 3, 3, seed=2)},
    ),
    "directions": (
        "g (float[N, 1, 32] x) => (float[N, 2, 1, 32] y)"
        ' { y, h, c = LSTM<hidden_size=32, direction="bidirectional">(x, w, r) }',
        {"w": tiny.normal(2, 128, 32) / 8, "r": tiny.normal(2, 128, 32, seed=3) / 8},
    ),
}


def written(
    name: str, recipe: str, target: str, folder: Path, rules: tuple[Rule, ...] = ()
) -> tuple[NDArray, NDArray, Student]:
    """What a student computes whose scales have moved, and the file that is made of it."""
    model = tiny.model(*LAYERS[name])
    for node in model.graph.node:
        node.name = f"layer_{node.output[0]}"
    sizes = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    x = np.random.default_rng(3).standard_normal((24, *sizes)).astype(np.float32)
    seen: list[tuple[NDArray, Student]] = []

    def learn(job: Job, start: Job, plan: Plan, ranges: Ranges, destination: Path) -> Learned:
        student = Student(start, plan, ranges, ("rounding", "scales"))
        with torch.no_grad():
            for weight in student.weights.values():
                weight.stretch += torch.linspace(-1, 1, weight.stretch.numel()).reshape(weight.stretch.shape)
            seen.append((student.module({"x": x})["y"].numpy(), student))
        return student.result()

    out = folder / "out.onnx"
    options = Recipe(recipe, rules, keep_slow=True)
    data = [{"x": row[None]} for row in x]
    pipeline.quantize(
        tiny.save(model, folder), out, options, target=target, data=data, limit=None, check=False, learn=learn
    )
    ((found, student),) = seen
    return found, Session(out).run({"x": x}, ["y"])[0], student


@pytest.mark.parametrize(
    ("recipe", "target"),
    [
        ("nf4", "ort-cpu"),
        ("w8a8-dynamic", "ort-cpu"),
        ("nf4", "onnxq"),
        ("w4a16", "ort-cpu"),
        ("int4", "onnx"),
        ("q4_k", "onnxq"),
        ("w8a8", "ort-cpu"),
        ("float8_e4m3", "onnx"),
    ],
    ids=lambda word: word,
)
@pytest.mark.parametrize("name", LAYERS)
def test_a_student_computes_what_its_file_does(name: str, recipe: str, target: str, tmp_path: Path) -> None:
    seen, found, _ = written(name, recipe, target, tmp_path)
    assert tiny.sqnr(found, seen) > 35  # kernels round activations to 8 bits; wrong or float weights leave 22 and less


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *((name, "nf4") for name in ("square", "alpha", "alpha of one reader", "blocks over rows")),
        ("kernels", "int4"),
        ("both ways", "int4"),
    ],
)
def test_codes_that_lie_otherwise_in_the_file_learn(name: str, recipe: str, tmp_path: Path) -> None:
    _, _, student = written(name, recipe, "ort-cpu", tmp_path)
    assert (len(student.weights), student.frozen) == (2, {})


def initializers(folder: Path) -> dict[str, NDArray]:
    return {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(folder / "out.onnx").graph.initializer}


def test_a_weight_that_several_read_alike_is_stored_once(tmp_path: Path) -> None:
    _, _, student = written("alpha of all readers", "int4", "onnx", tmp_path)
    assert list(student.weights) == ["w"]
    assert [name for name in initializers(tmp_path) if "int4" in name] == ["w_int4"]


def test_what_data_say_of_a_weight_they_say_of_its_copies(tmp_path: Path) -> None:
    _, _, student = written("alpha of one reader", "int4", "onnx", tmp_path)
    evidence = student.job.evidence
    assert set(student.weights) == {"w", "w_alpha"} and evidence["w_alpha"] is evidence["w"]


@pytest.mark.parametrize("name", ["oblong", "kernels", "alpha", "both ways"])
@pytest.mark.parametrize(("word", "target"), [("int4+rank8", "ort-cpu"), ("nf4+rank8", "ort-cpu")])
def test_what_makes_up_for_codes_stays_beside_them(name: str, word: str, target: str, tmp_path: Path) -> None:
    seen, found, student = written(name, word.partition("+")[0], target, tmp_path, (Rule(word),))
    assert tiny.sqnr(found, seen) > 35
    assert student.weights and all(weight.beside is not None for weight in student.weights.values())
    factors = [x for key, x in initializers(tmp_path).items() if "low_rank" in key]
    assert len(factors) == 2 * len(student.weights) and all(x.any() for x in factors)


def test_a_rank_of_one_reader_is_not_that_of_another(tmp_path: Path) -> None:
    rules = (Rule("int4+rank8", nodes="layer_h"),)
    seen, found, student = written("alpha of all readers", "int4", "onnx", tmp_path, rules)
    assert tiny.sqnr(found, seen) > 35
    assert {name: weight.beside is None for name, weight in student.weights.items()} == {"w": False, "w_again": True}


def test_samples_of_a_generator_serve_calibration_and_training(tmp_path: Path) -> None:
    path, seen = tiny.save(tiny.model(*LAYERS["both ways"]), tmp_path), np.zeros((1, 64), np.float32)

    def rows() -> Iterator[dict[str, NDArray]]:  # of one buffer that is filled again and again
        for row in np.random.default_rng(3).standard_normal((24, 64)).astype(np.float32):
            seen[:] = row
            yield {"x": seen}

    settings = Settings(steps=2, evaluate_every=1, batch=4, held_back=6)
    done = [
        train(path, tmp_path / f"{i}.onnx", "int4", data=data, settings=settings, check=False)
        for i, data in enumerate((rows(), [{"x": each["x"].copy()} for each in rows()]))
    ]
    files = [onnx.load(each.output).graph.initializer for each in done]
    assert [x.SerializeToString() for x in files[0]] == [x.SerializeToString() for x in files[1]]
    assert any(
        "1 weight that nodes read in several ways learned in each of them: the file has one" in note
        for note in done[0].notes
    )


def endless() -> Iterator[dict[str, NDArray]]:
    rng = np.random.default_rng(3)
    while True:
        yield {"x": rng.standard_normal((1, 64)).astype(np.float32)}


class Once:
    """Gives one iterator again and again, as wrappers of loaders do."""

    def __init__(self, rest: Iterator[dict[str, NDArray]]) -> None:
        self.rest = rest

    def __iter__(self) -> Iterator[dict[str, NDArray]]:
        return self.rest


def test_samples_without_an_end_are_limited_or_refused(tmp_path: Path) -> None:
    path, settings = tiny.save(tiny.model(*LAYERS["both ways"]), tmp_path), Settings(steps=1, batch=4, held_back=6)
    train(path, tmp_path / "a.onnx", "int4", data=endless(), settings=settings, limit=16, check=False)
    some = itertools.islice(endless(), 16)
    train(path, tmp_path / "b.onnx", "int4", data=Once(some), settings=settings, check=False)
    few = dataclasses.replace(settings, memory=100_000)
    with pytest.raises(OutOfMemory, match="the samples leave no room to train: say how many there may be, --samples"):
        train(path, tmp_path / "c.onnx", "int4", data=endless, settings=few, limit=16, check=False)


def test_a_file_has_the_scales_that_were_learned_of_a_turned_matrix(tmp_path: Path) -> None:
    _, _, student = written("alpha", "nf4", "ort-cpu", tmp_path)
    made = initializers(tmp_path)
    for name, weight in student.weights.items():
        learned = weight.scales.detach().numpy()
        assert np.array_equal(made[f"{name}_absmax"], learned.reshape(-1))


@pytest.mark.parametrize("word", ["uint8", "int8", "uint4"])
def test_one_scale_of_all_weights_learns(word: str) -> None:
    w = tiny.normal(8, 16)
    start = formats.quantize(w, word, Granularity())
    made = LearnedWeight(start, w, moves=1.0, codes=True, scales=True)
    assert np.array_equal(made.result().codes, start.codes) and made.result().scales == start.scales
    assert np.allclose(made().detach().numpy(), start.dequantize(), rtol=1e-6)
