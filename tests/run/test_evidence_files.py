"""What data say of layers, in a file: used without the data, gathered in parts, and gone on with after a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxq import Recipe, quantize
from onnxq.calibration import look_at_inputs
from onnxq.calibration import memory as calibration_memory
from onnxq.calibration.layers.pass_samples import FloatWalk
from onnxq.cli import main
from onnxq.errors import BadRecipe
from onnxq.runtime.session import MappedSession
from onnxq.summaries.evidence import Index, add_arrays, add_index
from onnxq.summaries.gram import Gram

pytestmark = pytest.mark.usefixtures("quick")

BODY = "m (float[N, 48] x) => (float[N, 32] y) { h = MatMul(x, W1) r = Relu(h) y = MatMul(r, W2) }"
SAMPLES = 13


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and samples of very different sizes."""
    made = tmp_path_factory.mktemp("evidence")
    tiny.save(tiny.model(BODY, {"W1": tiny.normal(48, 64), "W2": tiny.normal(64, 32, seed=1)}), made)
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((48, 48)) * rng.gamma(1, 1, 48)
    x = rng.standard_normal((SAMPLES, 30, 48)) @ mix * 10.0 ** rng.uniform(-2, 2, (SAMPLES, 1, 1))
    np.savez(made / "data.npz", x=x.astype(np.float32))
    return made


def invoked(folder: Path, evidence: Path, *words: str) -> Result:
    given = ["calibrate", str(folder / "model.onnx"), "--data", str(folder / "data.npz"), "-t", "onnxq"]
    return CliRunner().invoke(main, [*given, "--evidence", str(evidence), *words])


def calibrate(folder: Path, evidence: Path, *words: str) -> None:
    done = invoked(folder, evidence, *words)
    assert done.exit_code == 0, done.output


def merge(output: Path, parts: Sequence[Path]) -> str:
    done = CliRunner().invoke(main, ["calibrate", "--merge", *map(str, parts), "--evidence", str(output)])
    assert not output.exists() or done.exit_code == 0
    return done.output


def arrays(file: Path) -> Mapping[str, NDArray]:
    with np.load(file) as found:
        return dict(found)


def quantized(folder: Path, output: Path, word: str = "int4", **how: object) -> bytes:
    recipe = Recipe(word, algorithm="gptq", balance=False)
    done = quantize(folder / "model.onnx", output, recipe, target="onnxq", check=False, force=True, **how)
    return done.output.read_bytes()


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    calibrate(folder, folder / "whole.npz")
    return folder / "whole.npz"


def test_without_the_data_their_evidence_gives_the_same_file(folder: Path, whole: Path, tmp_path: Path) -> None:
    for word in ("int4", "int3", "nf4"):
        without = quantized(folder, tmp_path / "a.onnx", word, evidence=whole)
        assert without == quantized(folder, tmp_path / "b.onnx", word, data=folder / "data.npz"), word
    quantize(folder / "model.onnx", tmp_path / "c.onnx", Recipe("nf4", algorithm="mse"), target="onnxq", check=False)
    codes = [
        {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / file).graph.initializer}
        for file in ("b.onnx", "c.onnx")
    ]
    assert not all(np.array_equal(codes[0][name], codes[1][name]) for name in codes[1])  # data have a say


def test_three_shards_are_one_run(folder: Path, whole: Path, tmp_path: Path) -> None:
    parts = [tmp_path / f"part{i}.npz" for i in (1, 2, 3)]
    for i, part in enumerate(parts, 1):
        calibrate(folder, part, "--shard", f"{i}/3")
    merge(tmp_path / "merged.npz", [parts[1], parts[2], parts[0]])
    one, three = arrays(whole), arrays(tmp_path / "merged.npz")
    assert one.keys() == three.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], three[name], err_msg=name)
    found = [quantized(folder, tmp_path / "o.onnx", evidence=each) for each in (whole, tmp_path / "merged.npz")]
    assert found[0] == found[1]
    with pytest.raises(BadRecipe, match=r"is of a part of the data: merge all parts by 'onnxq calibrate --merge'"):
        quantized(folder, tmp_path / "p.onnx", evidence=parts[0])
    assert "shard 2 of 3 is missing" in merge(tmp_path / "m.npz", [parts[0], parts[2]])
    assert "shard 1 of 3 is given twice" in merge(tmp_path / "m.npz", [*parts, parts[0]])
    assert "is not a shard" in merge(tmp_path / "m.npz", [whole, *parts])


@pytest.mark.parametrize("memory", ["512MB", "1"], ids=["one-pass", "several-passes"])
@pytest.mark.parametrize("shard", [(), ("--shard", "2/2")], ids=["all", "shard"])
def test_a_stopped_run_goes_on(
    folder: Path, tmp_path: Path, memory: str, shard: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--checkpoint-every", "2", "--max-memory", memory, *shard)
    calibrate(folder, tmp_path / "whole.npz", *words)
    ran, stop = [], [0]

    def counted(values: Iterator[dict[str, NDArray]]) -> Iterator[dict[str, NDArray]]:
        for found in values:
            if len(ran) == stop[0]:
                raise KeyboardInterrupt
            ran.append(1)
            yield found

    whole, through = (
        look_at_inputs.runner,
        FloatWalk.through,
    )  # the model, and a piece of one that is larger than memory
    monkeypatch.setattr(look_at_inputs, "runner", lambda *given: lambda samples: counted(whole(*given)(samples)))
    monkeypatch.setattr(FloatWalk, "through", lambda *given, **how: counted(through(*given, **how)))
    stop[0] = -1
    calibrate(folder, tmp_path / "again.npz", *words)
    usual = len(ran)
    ran.clear()
    stop[0] = usual - 2
    assert invoked(folder, tmp_path / "b.npz", *words).exit_code != 0 and not (tmp_path / "b.npz").exists()
    assert list(tmp_path.glob("b.npz.partial.*"))
    ran.clear()
    stop[0] = -1
    calibrate(folder, tmp_path / "b.npz", *words)
    assert 0 < len(ran) <= 4 < usual
    assert not list(tmp_path.glob("b.npz.partial.*"))
    first, second = arrays(tmp_path / "whole.npz"), arrays(tmp_path / "b.npz")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("wrong", ["kept", "shape", "type", "shard", "version", "turns"])
def test_damaged_parts_are_one_sentence(wrong: str, tmp_path: Path) -> None:
    index = Index("m", "d", ["x"], shard=(3, 2) if wrong == "shard" else (1, 1), version=7 if wrong == "version" else 1)
    good = {
        "gram": np.zeros((1, 3, 3), np.float32 if wrong == "type" else np.float64),
        "rows": np.zeros((4, 1, 2 if wrong == "shape" else 3), np.float32),
        "kept": np.array([9, -5] if wrong == "kept" else [4]),
    }
    add_arrays(tmp_path / "p.npz", 0, good)
    if wrong == "turns":
        index = Index("m", "d", ["x"], shard=(1, 2))
        other = good | {"rows": np.zeros((8, 1, 3), np.float32), "kept": np.array([2, 2, 4])}
        add_arrays(tmp_path / "q.npz", 0, other)
        add_index(tmp_path / "q.npz", Index("m", "d", ["x"], shard=(2, 2)))
    add_index(tmp_path / "p.npz", index)
    said = merge(tmp_path / "o.npz", sorted(tmp_path.glob("*.npz")))
    assert not (tmp_path / "o.npz").exists()
    assert "bug" not in said and len(said.strip().splitlines()) == 1, said


@pytest.mark.parametrize(
    "wrong",
    [
        {"gram": lambda x: x * np.nan},
        {"gram": lambda x: -x},
        {"gram": np.triu},
        {"gram": lambda x: x - 10 * x.max() * np.eye(x.shape[-1], dtype=x.dtype)},
        {"gram": lambda x: x + x.max() * (1 - np.eye(x.shape[-1], dtype=x.dtype)) * 2},
        {"count": lambda x: np.array(1 << 62)},
    ],
)
def test_sums_that_no_rows_have_are_no_evidence(
    wrong: dict[str, Callable[[NDArray], NDArray]], folder: Path, whole: Path, tmp_path: Path
) -> None:
    change = {f"0.{part}": make(x) for part, make in wrong.items() for x in [arrays(whole)[f"0.{part}"]]}
    np.savez(tmp_path / "e.npz", **(dict(arrays(whole)) | change))
    with pytest.raises(BadRecipe, match=r"e\.npz' is not a file of evidence"):
        quantized(folder, tmp_path / "q.onnx", evidence=tmp_path / "e.npz")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e19, 1e25])
@pytest.mark.parametrize("follows", [False, True])
def test_sums_of_any_rows_are_possible(scale: float, follows: bool) -> None:
    """Of numbers whose squares float32 does not hold, too, of channels of very different sizes, and of zeros."""
    rng = np.random.default_rng(0)
    channels = np.r_[np.zeros(3), 10.0 ** rng.uniform(-18, 3, 61)]
    gram = Gram.empty(2, 64, follows=follows)
    for _ in range(20):
        rows = (rng.standard_normal((300, 2, 64)) * channels * scale).astype(np.float32)
        if follows:
            gram.update_pair(rows, rows)
        else:
            gram.update(rows)
    assert gram.rounded().is_possible and gram.is_possible


def test_one_thing_is_written_at_a_time(folder: Path, tmp_path: Path) -> None:
    given = ["calibrate", str(folder / "model.onnx"), "--data", str(folder / "data.npz")]
    for words in ([], ["-o", str(tmp_path / "a.ranges"), "--evidence", str(tmp_path / "a.npz")]):
        done = CliRunner().invoke(main, [*given, *words])
        assert done.exit_code == 1 and "name what to write" in done.output


def test_evidence_of_one_target_serves_others(folder: Path, tmp_path: Path) -> None:
    """Though a target raises the opset, and converting a model changes the order of what it holds."""
    body = """m (float[N, 48] x) => (float[N, 32] y) {
        h = Gemm (x, W1, B1) r = Relu (h) y = Gemm <transB = 1> (r, W2, B2) }"""
    constants = {"W1": tiny.normal(48, 64), "B1": tiny.normal(64), "W2": tiny.normal(32, 64), "B2": tiny.normal(32)}
    path = tiny.save(tiny.model(body, constants), tmp_path)
    words = ["calibrate", str(path), "--data", str(folder / "data.npz"), "--evidence", str(tmp_path / "e.npz")]
    assert CliRunner().invoke(main, words).exit_code == 0
    for target in ("ort-cpu", "onnx", "onnxq"):
        out = tmp_path / f"{target}.onnx"
        quantize(path, out, Recipe("int4"), target=target, evidence=tmp_path / "e.npz", check=False)


PIECES = {
    "deep": BODY,
    "branches": """m (float[N, 48] x) => (float[N, 32] y) {
        a = MatMul(x, W1) s = ReduceSum <keepdims = 0> (a) c = Greater(s, zero)
        b = If (c) <then_branch = t () => (float[N, 64] o) { o = Relu(a) }, else_branch = e () => (float[N, 64] q) {
            p = MatMul(a, W3) q = Abs(p) }>
        y = MatMul(b, W2) }""",
    "sequence": """m (float[N, 48] x) => (float[N, 32] y) {
        a = MatMul(x, W1) s = SequenceConstruct(a, a) b = Relu(a) c = MatMul(b, W3)
        d = ConcatFromSequence <axis = 1> (s) e = Slice(d, zeros, to, one) f = Add(c, e) y = MatMul(f, W2) }""",
}


@pytest.mark.parametrize("kind", PIECES)
def test_a_model_larger_than_memory_says_the_same(kind: str, folder: Path, tmp_path: Path) -> None:
    constants = {"W1": tiny.normal(48, 64), "W2": tiny.normal(64, 32, seed=1), "W3": tiny.normal(64, 64, seed=2)}
    constants |= {"zero": np.float32(0), "zeros": np.array([0]), "to": np.array([64]), "one": np.array([1])}
    proto = tiny.model(PIECES[kind], {name: array for name, array in constants.items() if name in PIECES[kind]})
    (tmp_path / "data.npz").symlink_to(folder / "data.npz")
    tiny.save(proto, tmp_path)
    for memory in ("512MB", "1"):
        calibrate(tmp_path, tmp_path / f"{memory}.npz", "--max-memory", memory)
    whole, pieces = (arrays(tmp_path / f"{memory}.npz") for memory in ("512MB", "1"))
    assert whole.keys() == pieces.keys() and len(whole) > 6
    for name in whole:
        assert whole[name].dtype == pieces[name].dtype
        if name != "onnxq.json":
            np.testing.assert_allclose(whole[name], pieces[name], rtol=1e-4, atol=1e-4 * np.abs(whole[name]).max())
    np.testing.assert_array_equal(whole["onnxq.json"], pieces["onnxq.json"])


def test_weights_of_a_large_model_are_not_copied(folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class Told(MappedSession):
        def __init__(self, *given: object, **how: object) -> None:
            opened.append("mapped")
            super().__init__(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(calibration_memory, "MappedSession", Told)
    monkeypatch.setattr(calibration_memory, "GROUP_BYTES", 1 << 10)
    calibrate(folder, folder / "mapped.npz", "--max-memory", "1MB")
    assert opened
    first, second = arrays(whole), arrays(folder / "mapped.npz")
    assert all(np.allclose(first[name], second[name], rtol=1e-4, atol=1e-3) for name in first if name != "onnxq.json")
