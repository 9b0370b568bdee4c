"""Float16 models stay float16 where they are not shorter, and tables that no kernel multiplies by get shorter too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto

import onnxq
from onnxq.plan import Method
from onnxq.planning.counts.find_counts import REASON as COUNTS
from onnxq.recipe import Recipe, Rule
from onnxq.runtime import native
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")

TEXT = """g (int64[B, S] ids) => (WORD[B, S, 512] y) {
  e = Gather(table, ids)  shape = Shape<start = 1, end = 2>(ids)  zero = Constant<value_ints = [0]>()
  here = Slice(positions, zero, shape)  x = Add(e, here)
  n = LayerNormalization(x, g, b)  h = MatMul(n, w)  a = Relu(h)  t = Transpose(head)  y = MatMul(a, t) }"""


def text_model(folder: Path, dtype: type, *, external: bool = False) -> Path:
    constants = {
        "table": tiny.normal(512, 64, dtype=dtype) * 8,
        "positions": tiny.normal(256, 64, seed=1, dtype=dtype) * 8,
        "g": np.ones(64, dtype),
        "b": np.zeros(64, dtype),
        "w": tiny.normal(64, 256, seed=2, dtype=dtype),
        "head": tiny.normal(512, 256, seed=3, dtype=dtype),
    }
    word = {np.float16: "float16", np.float32: "float"}[dtype]
    proto = tiny.model(TEXT.replace("WORD", word), {k: v.astype(dtype) for k, v in constants.items()})
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=external, location="model.onnx.data", size_threshold=0)
    return path


def ids(batch: int, length: int) -> dict[str, NDArray]:
    return {"ids": np.random.default_rng(length).integers(0, 512, (batch, length))}


@pytest.mark.pairwise
@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external"])
@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnxq"])
@pytest.mark.parametrize("scheme", ["w4a16", "w8a8-dynamic", "fp16"])
def test_nothing_that_was_float16_is_stored_wider(scheme: str, target: str, external: bool, tmp_path: Path) -> None:
    path = text_model(tmp_path, np.float16, external=external)
    # So much quality is asked for that four and eight bits do not suffice, and one node is not to be touched.
    recipe = Recipe(scheme, rules=(Rule("keep", ops=("Add",)),), min_sqnr=45.0)
    result = onnxq.quantize(path, tmp_path / "out.onnx", recipe, target=target)
    assert result.bytes_before == sum(file.stat().st_size for file in tmp_path.glob("model.onnx*"))
    assert result.bytes_after < 1.05 * result.bytes_before
    wide = [t.name for t in onnx.load(result.output).graph.initializer if t.data_type == TensorProto.FLOAT]
    sizes = {t.name: np.prod(t.dims) for t in onnx.load(result.output).graph.initializer}
    assert all(sizes[name] < 128 or "scale" in name for name in wide)
    in_float, quantized = Session(path), Session(result.output)
    for feed in (ids(1, 1), ids(3, 40)):
        assert tiny.sqnr(in_float.run(feed)[0], quantized.run(feed)[0]) > 40


def test_the_plan_says_float16_and_not_float(tmp_path: Path) -> None:
    path = text_model(tmp_path, np.float16)
    result = onnxq.quantize(path, tmp_path / "out.onnx", Recipe("w4a16", min_sqnr=60.0, keep_slow=True))
    assert {choice.half for choice in result.plan} == {"float16"}
    assert not result.plan.those(Method.KEEP)
    assert any(choice.label == "float16 stored" for choice in result.plan)


PLACES = """g (float[B, 64, 96] x, float[B, 128, 2] p)
  => (float[B, 130, 96] y, float[B, 128, 2] q, float[B, 64, 96] z) {
  a = Add(x, learned)  first = Shape<start = 0, end = 1>(x)  rest = Constant<value_ints = [66, 96]>()
  size = Concat<axis = 0>(first, rest)  all = Expand(token, size)  y = Concat<axis = 1>(a, all)
  q = Add(p, anchors)  z = Add(x, turns) }"""


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8-dynamic"])
def test_tables_that_other_operators_read_get_shorter(scheme: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    constants = {
        "learned": tiny.normal(64, 96),
        "token": tiny.normal(1, 66, 96, seed=1),
        "anchors": (rng.integers(0, 1280, (1, 128, 2)) / 2).astype(np.float32),  # half pixels: exact in float16
        "turns": (np.arange(64 * 96, dtype=np.float32) * 0.37).reshape(64, 96),  # angles: float16 would be off by one
    }
    path = tiny.save(tiny.model(PLACES, constants), tmp_path)
    result = onnxq.quantize(path, tmp_path / "out.onnx", Recipe(scheme, keep_slow=True))
    got = {choice.node: (choice.label, choice.reason) for choice in result.plan}
    assert got == {
        "a": ("int8 stored", "'learned' is a table that Add reads: 8 bits a row"),
        "all": ("float16 stored", "'token' is a table that Expand reads: 16 bits"),
        "q": ("float16 stored", "'anchors' is a table that Add reads: 16 bits"),
        "z": ("float", "'turns' is a table that Add reads, with numbers that float16 would round too much"),
    }
    in_float, quantized = Session(path), Session(result.output)
    for batch in (1, 5):
        feed = {
            "x": rng.standard_normal((batch, 64, 96)).astype(np.float32),
            "p": rng.standard_normal((batch, 128, 2)).astype(np.float32),
        }
        for wanted, y in zip(in_float.run(feed), quantized.run(feed), strict=True):
            assert tiny.sqnr(wanted, y) > 40
    assert result.bytes_after < 0.61 * result.bytes_before  # a third of them stay in float; the recipe is in the file


def test_bfloat16_is_too_coarse_for_more_tables(tmp_path: Path) -> None:
    """Positions at 600 were 19 dB, boxes off by 4 pixels. What hides scores is no number that counts."""
    rng = np.random.default_rng(0)
    constants = {
        "learned": tiny.normal(64, 96),
        "token": np.where(rng.random((1, 66, 96)) < 0.5, np.float32(-10000), np.float32(0)),
        "anchors": (rng.integers(0, 2560, (1, 128, 2)) / 2).astype(np.float32),
        "turns": (np.arange(64 * 96, dtype=np.float32) * 0.37).reshape(64, 96),
    }
    path = tiny.save(tiny.model(PLACES, constants), tmp_path)
    for target in ("onnx", "ort-cpu", "onnxq"):
        made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("bf16", keep_slow=True), target=target, force=True)
        coarse = "table that Add reads, with numbers that bfloat16 would round too much"
        assert {c.node for c in made.plan if coarse in c.reason} == {"q", "z"}
        assert {c.node for c in made.plan if c.format == "bfloat16"} == {"a", "all"}


FAINT = """g (float[N, 64] x) => (float[N, 64] y) {
  [first] a = MatMul(x, w) [down] b = MatMul(a, small) [faint] c = MatMul(b, small) d = Relu(c)
  [up] e = MatMul(d, large) [loud] f = MatMul(e, large) g = Relu(f) [last] y = MatMul(g, w) }"""


def test_nodes_whose_numbers_float16_loses_compute_in_float(tmp_path: Path) -> None:
    """Activations near 1e-7, as of networks without normalization, are a few times float16's least number. On
    processors onnxruntime does not round them, so only what does shows it."""
    w = tiny.normal(64, 64) / 8
    path = tmp_path / "model.onnx"
    onnx.save(tiny.model(FAINT, {"w": w, "small": w * np.float32(3e-3), "large": w * np.float32(1e3)}), path)
    result = onnxq.quantize(path, tmp_path / "out.onnx", Recipe("fp16"), target="onnx")
    methods = {name: choice.method for name, choice in result.plan.choices.items()}
    assert methods["first"] == methods["last"] == Method.HALF
    assert Method.STORED in (methods["faint"], methods["up"])
    assert "float16 costs too much accuracy" in "".join(choice.reason for choice in result.plan)
    x = tiny.normal(16, 64, seed=5)
    wanted = tiny.evaluate(onnx.load(path), x=x)[0]
    found = tiny.sqnr(wanted, tiny.evaluate(onnx.load(result.output), x=x)[0])
    assert found > 30
    assert result.check is not None and abs(result.check.sqnr - found) < 12  # on inputs of other kinds


def test_what_overflows_in_float16_computes_in_float(tmp_path: Path) -> None:
    """Squares of a norm that is spelled out, of activations as large as those of many language models."""
    text = """g (float[N, 64] x) => (float[N, 64] y) {
      [first] a = MatMul(x, w) b = Mul(a, a) m = ReduceMean<axes = [-1], keepdims = 1>(b) r = Sqrt(m) n = Div(a, r)
      [last] y = MatMul(n, v) }"""
    path = tmp_path / "model.onnx"
    onnx.save(tiny.model(text, {"w": tiny.normal(64, 64) * 100, "v": tiny.normal(64, 64) / 8}), path)
    result = onnxq.quantize(path, tmp_path / "out.onnx", Recipe("fp16"), target="onnx")
    x = tiny.normal(16, 64, seed=5)
    wanted = tiny.evaluate(onnx.load(path), x=x)[0]
    assert tiny.sqnr(wanted, tiny.evaluate(onnx.load(result.output), x=x)[0]) > 40
    assert result.plan.choices["last"].method is Method.HALF


CONVOLUTIONS = """g (float16[N, 8, H, W] x) => (float16[N, 8, H, W] y) {
  a = Conv<pads = [1, 1, 1, 1]>(x, v, b)  c = Relu(a)  d = Conv<pads = [1, 1, 1, 1]>(c, w, b)  e = Relu(d)
  y = Conv(e, u) }"""


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
def test_regions_of_float16_networks_open_without_anything_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Biases of 160 numbers, which else are float16 in the file with a Cast behind them: kernels want constants."""
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "scalar")  # bf16 regions run by name anywhere
    constants = {
        "v": tiny.normal(160, 8, 3, 3) / 9,
        "w": tiny.normal(160, 160, 3, 3, seed=1) / 40,
        "u": tiny.normal(8, 160, 1, 1, seed=2) / 13,
        "b": tiny.normal(160, seed=3),
    }
    proto = tiny.model(CONVOLUTIONS, {name: array.astype(np.float16) for name, array in constants.items()})
    onnx.save(proto, path := tmp_path / "model.onnx")
    data = [{"x": tiny.normal(1, 8, 12, 12, seed=seed).astype(np.float16)} for seed in range(4)]
    recipe = Recipe("w8a8", rules=(Rule("bf16", nodes="*d*", ops=("Conv",)),), keep_slow=True, min_sqnr=5)
    made = onnxq.quantize(path, tmp_path / "out.onnx", recipe, target="onnxq", data=data)
    assert "Bf16Region" in {node.op_type for node in onnx.load(made.output).graph.node}
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    y = onnxq.session(made.output, options).run(None, data[0])[0]
    assert tiny.sqnr(Session(path).run(data[0])[0], y) > 20


def test_what_onnxruntime_does_not_open_is_said_to_be_compared_with_what_was_prepared_of_it(tmp_path: Path) -> None:
    """A sum of float16 and float32, as exporters write it of models turned to half precision: in float32 it is one."""
    text = "g (float16[n, 64] x) => (y) { m = MatMul (x, w)  s = Add (m, b)  y = MatMul (s, v) }"
    constants = {"w": tiny.normal(64, 64, dtype=np.float16), "b": tiny.normal(64), "v": tiny.normal(64, 64)}
    path = tiny.save(tiny.model(text, constants), tmp_path)
    data = [{"x": tiny.normal(1, 64, seed=seed, dtype=np.float16)} for seed in range(8)]
    check = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a8", keep_slow=True), data=data).check
    assert check is not None and any("does not open" in note and "prepared of it" in note for note in check.notes)


TURNED = """g (int64[N, S] i, float[N, S, 64] x) => (y) {
  p = Cast<to = 1>(i)  q = Unsqueeze(p, last)  a = Mul(q, f)  s = Sin(a)  h = MatMul(x, w)  u = Mul(h, s)
  y = MatMul(u, w) }"""
MEAN = """g (float[N, S, 64] x) => (y) {
  h = MatMul(x, w)  t = ReduceSum<keepdims = 0>(h, one)  n = Shape<start = 1, end = 2>(x)  k = Cast<to = 1>(n)
  m = Div(t, k)  y = MatMul(m, w) }"""
NUMBERS = {
    "w": tiny.normal(64, 64) / 8,
    "f": (1e4 ** -(np.arange(64) / 64)).astype(np.float32),
    "last": np.array([-1]),
    "one": np.array([1]),
}


@pytest.mark.parametrize("target", ["onnx", "ort-cuda"])
@pytest.mark.parametrize("offset", [0, 2500, 60000])
def test_places_are_not_computed_in_float16(offset: int, target: str, tmp_path: Path) -> None:
    path = tiny.save(tiny.model(TURNED, NUMBERS), tmp_path)
    made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("fp16"), target=target)
    feed = {"i": np.arange(offset, offset + 16)[None], "x": tiny.normal(1, 16, 64, seed=3)}
    wanted = tiny.evaluate(onnx.load(path), **feed)[0]
    assert tiny.sqnr(wanted, tiny.evaluate(onnx.load(made.output), **feed)[0]) > 45
    assert any(choice.reason == COUNTS for choice in made.plan)


@pytest.mark.parametrize("length", [60, 66000])
def test_lengths_are_not_divided_by_in_float16(length: int, tmp_path: Path) -> None:
    """66000 is infinite there."""
    path = tiny.save(tiny.model(MEAN, NUMBERS), tmp_path)
    made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("fp16"), target="onnx")
    x = tiny.normal(1, length, 64, seed=3) + 1
    wanted, got = (tiny.evaluate(onnx.load(each), x=x)[0] for each in (path, made.output))
    assert tiny.sqnr(wanted, got) > 45


COUNTED = """g (float[N, 16, 8, 8] x, int64[N, 1, 8, 8] i) => (y) {
  p = Cast<to = 1>(i)  c = Conv<pads = [1, 1, 1, 1]>(x, v)  a = Relu(c)  s = Add(a, p)  t = Sin(s)  y = Conv(t, u) }"""


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.parametrize("target", ["onnx", "onnxq"])
@pytest.mark.parametrize("offset", [0, 300, 2500])
def test_places_are_not_computed_in_bfloat16(
    offset: int, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXQ_FORCE_ISA", "scalar")  # bf16 regions run by name anywhere
    constants = {"v": tiny.normal(64, 16, 3, 3) / 12, "u": tiny.normal(32, 64, 1, 1, seed=1) / 8}
    path = tiny.save(tiny.model(COUNTED, constants), tmp_path)

    def sample(seed: int, first: int) -> dict[str, NDArray]:
        places = np.random.default_rng(seed).integers(first, first + 99, (1, 1, 8, 8))
        return {"x": tiny.normal(1, 16, 8, 8, seed=seed), "i": places}

    data = [sample(seed, 0) for seed in range(4)]
    made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("bf16", keep_slow=True), target=target, data=data)
    ops = {node.op_type for node in onnx.load(made.output).graph.node}
    assert ("Bf16Region" in ops) == (target == "onnxq")
    feed = sample(9, offset)
    assert tiny.sqnr(Session(path).run(feed)[0], Session(made.output).run(feed)[0]) > 40


DEVIATIONS = {
    "rms": "s = Mul(x, x) m = ReduceMean<axes = [-1]>(s)",
    "variance": (
        "e = ReduceMean<axes = [-1]>(x) c = Sub(x, e) s = Mul(c, c) q = ReduceMean<axes = [-1]>(s) "
        "h = Shape(q) m = Reshape(q, h)"
    ),
}


@pytest.mark.parametrize("target", ["onnx", "onnxq", "ort-cuda"])
@pytest.mark.parametrize("mean", DEVIATIONS.values(), ids=DEVIATIONS.keys())
def test_numbers_are_divided_by_their_deviation_where_its_square_is_infinite(
    mean: str, target: str, tmp_path: Path
) -> None:
    """Inputs of 300, as of a series before it is normalized: float16 holds them, and no square of them."""
    text = f"""g (float[N, 64] x) => (float[N, 16] y) {{
      {mean} a = Add(m, epsilon) r = Sqrt(a) n = Div(x, r) f = MatMul(n, w) g = Relu(f) y = MatMul(g, v) }}"""
    constants = {"w": tiny.normal(64, 64), "v": tiny.normal(64, 16, seed=1), "epsilon": np.float32(1e-5)}
    path = tmp_path / "model.onnx"
    onnx.save(tiny.model(text, constants), path)
    result = onnxq.quantize(path, tmp_path / "out.onnx", Recipe("fp16"), target=target, force=True)
    made = onnx.load(result.output)
    casts = [node for node in made.graph.node if node.op_type == "Cast"]
    assert len(casts) <= 4  # of x and back to y, and around what is in float
    x = tiny.normal(16, 64, seed=5) * np.float32(300)
    for large in (x, x * 10):
        assert tiny.sqnr(tiny.evaluate(onnx.load(path), x=large)[0], tiny.evaluate(made, x=large)[0]) > 50
