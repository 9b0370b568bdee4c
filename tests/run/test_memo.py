"""A weight is encoded once for each format, granularity and algorithm, however many plans and ranges are tried."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny

import onnxq
from onnxq import algorithms, analysis, formats
from onnxq.encoding import lazy, memo
from onnxq.encoding.lazy import Encoding
from onnxq.formats import Granularity, QuantizedTensor
from onnxq.recipe import Recipe

pytestmark = pytest.mark.usefixtures("quick")
TEXT = """g (float[N, 64] x) => (float[N, 32] y) {
    a = Gemm(x, v, b)  r = Relu(a)  i = MatMul(r, w)  s = Tanh(i)  y = Gemm<alpha = 0.5>(s, u, c)
}"""
WEIGHTS = {"v": tiny.normal(64, 64), "w": tiny.normal(64, 64, seed=1), "u": tiny.normal(64, 32, seed=2)}
BIASES = {"b": tiny.normal(64, seed=3), "c": tiny.normal(32, seed=4)}
SAMPLES = [{"x": tiny.normal(8, 64, seed=n) * (1 + n % 3)} for n in range(12)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(TEXT, WEIGHTS | BIASES), tmp_path)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[object]:
    """How often each weight, by its bytes, went through each algorithm to each format, by what scales and evidence."""
    found: Counter[object] = Counter()

    def counting(word: str, function: object) -> object:
        def quantize(
            w: np.ndarray,
            format: formats.Format,
            granularity: Granularity,
            *others: np.ndarray | None,
            **by_data: object,
        ) -> object:
            scales = [None if x is None else x.tobytes() for x in others]
            found[word, format.name, granularity, w.tobytes(), by_data.get("layer"), *scales] += 1
            return function(w, format, granularity, *others, **by_data)  # type: ignore[operator]

        return quantize

    def encode(format: formats.Format, w: np.ndarray, granularity: Granularity, *others: object) -> QuantizedTensor:
        found["rtn", format.name, granularity, w.tobytes()] += 1
        return nearest(format, w, granularity, *others)  # type: ignore[arg-type]

    nearest = formats.encode
    monkeypatch.setattr(lazy.formats, "encode", encode)
    for words in ("DATA_FREE", "WITH_DATA"):
        known = getattr(algorithms, words)
        monkeypatch.setattr(algorithms, words, {word: counting(word, function) for word, function in known.items()})
    return found


@pytest.mark.parametrize("room", [None, 1], ids=["in memory", "on disk"])
@pytest.mark.parametrize(
    ("recipe", "target"),
    [
        (Recipe("w8a8", effort="thorough", keep_slow=True), "ort-cpu"),
        (Recipe("w8a8", reduce_range=True, min_sqnr=20), "ort-cpu"),
        (Recipe("w4a16", min_sqnr=30), "onnxq"),
        (Recipe("nf4", min_sqnr=20), "ort-cpu"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.scheme,
)
def test_every_weight_is_encoded_once(
    model: Path, encoded: Counter[object], monkeypatch: pytest.MonkeyPatch, recipe: Recipe, target: str, room: int
) -> None:
    if room is not None:
        monkeypatch.setattr(memo, "MEMORY_BYTES", room)
    onnxq.quantize(model, model.with_name("q.onnx"), recipe, target=target, data=SAMPLES)
    assert len(encoded) >= len(WEIGHTS)
    assert max(encoded.values()) == 1


def test_weights_that_a_pass_works_out_are_known_again(tmp_path: Path, encoded: Counter[object]) -> None:
    """Rows of an LSTM's weights are another tensor in each rewritten model."""
    text = "g (float[T, 1, 16] x) => (float[T, 1, 1, 24] y) { y = LSTM<hidden_size = 24>(x, w, r) }"
    weights = {"w": tiny.normal(1, 96, 16), "r": tiny.normal(1, 96, 24, seed=1)}
    path = tiny.save(tiny.model(text, weights), tmp_path)
    onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a8-dynamic", keep_slow=True))
    assert {key[1] for key in encoded} == {"int8"} and len(encoded) == 2  # type: ignore[index]
    assert max(encoded.values()) == 1


def test_the_analysis_runs_the_model_with_what_it_measured(model: Path, encoded: Counter[object]) -> None:
    found = analysis.analyze_model(model, ["nf4", "int8"], data=SAMPLES)
    assert found.samples and sum(encoded.values()) == 2 * len(WEIGHTS)
    assert max(encoded.values()) == 1


def test_a_file_is_packed_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied weights are looked for by their bytes, which are then written."""
    packed: Counter[int] = Counter()
    part = Encoding.part

    def counting(encoding: Encoding, *how: object) -> ir.LazyTensor:
        made = part(encoding, *how)  # type: ignore[arg-type]
        evaluate = made._func

        def counted() -> ir.TensorProtocol:
            packed[id(made)] += 1
            return evaluate()

        made._func = counted
        return made

    monkeypatch.setattr(Encoding, "part", counting)
    onnxq.quantize(model, model.with_name("q.onnx"), "w4a16", target="onnxq", check=False)
    assert len(packed) >= 2 * len(WEIGHTS) and set(packed.values()) == {1}


@pytest.mark.parametrize("word", formats.names())
def test_what_comes_back_from_disk_is_the_same(word: str) -> None:
    format = formats.get(word)
    granularity = Granularity() if format.scale_type is None else Granularity(1, format.default_block or 32)
    encodings = [Encoding(ir.tensor(tiny.normal(8, 256, seed=n)), format, granularity) for n in range(3)]
    wanted = [encoding.result() for encoding in encodings]
    with memo.remembering(memory=1) as memory:
        for _ in range(3):
            for encoding, before in zip(encodings, wanted, strict=True):
                found = encoding.result()
                assert found.codes.dtype == before.codes.dtype and found.format is format
                np.testing.assert_array_equal(found.dequantize(), before.dequantize())
        assert memory.made == len(encodings)


def test_the_disk_is_bounded_and_may_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    encodings = [Encoding(ir.tensor(tiny.normal(8, 64, seed=n)), formats.get("int8"), Granularity(0)) for n in range(4)]
    with memo.remembering(memory=1, disk=1200) as memory:
        for encoding in encodings * 2:
            encoding.result()
        assert len(encodings) < memory.made < 2 * len(encodings)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memo.pickle, "dump", full)
    with memo.remembering(memory=1) as memory:
        for encoding in encodings * 2:
            encoding.result()
        assert memory.made == 2 * len(encodings)


def test_scales_that_a_bias_asks_for_cost_nothing_where_they_are_large_enough() -> None:
    w = tiny.normal(16, 64)
    w[3] = 0
    own = Encoding(ir.tensor(w), formats.get("int8"), Granularity(0), algorithm="squant")

    def with_least(least: np.ndarray) -> Encoding:
        return Encoding(own.tensor, own.format, own.granularity, lambda: least.astype(np.float32), algorithm="squant")

    small = np.full(16, 1e-6)
    with memo.remembering() as memory:
        finer = with_least(small).result()
        assert finer is not own.result() and finer.scales[3] == np.float32(1e-6) * 1024  # a row of zeros
        np.testing.assert_array_equal(np.delete(finer.scales, 3), np.delete(own.result().scales, 3))
        np.testing.assert_array_equal(finer.codes, own.result().codes)
        small[3] = 0
        assert with_least(small).result() is own.result()
        assert memory.made == 2
        small[5] = 1
        assert with_least(small).result().scales[5] == 1
