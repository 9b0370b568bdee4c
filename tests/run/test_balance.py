"""Channels scaled between layers: the float model stays what it is, and few bits serve it better."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onnxq import Recipe, formats, quantize
from onnxq.algorithms import gptq
from onnxq.algorithms.channels import CHANNEL_WAYS, ChannelSizes
from onnxq.calibration.layers import balance_channels
from onnxq.calibration.layers.balance_channels import balanced
from onnxq.calibration.layers.channel_trial import ChannelTrial
from onnxq.formats import Granularity
from onnxq.job import Job, open_job
from onnxq.model.channel_places import channel_places
from onnxq.output import write
from onnxq.passes.scale_channels import scale_channels
from onnxq.summaries.seen_rows import LayerOfRows


def run(path: Path, feed: dict[str, NDArray]) -> NDArray:
    return onnxruntime.InferenceSession(str(path)).run(None, feed)[0]


def vector(n: int = 32, seed: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0.5, 2, n).astype(np.float32)


W, V, U = tiny.normal(32, 32), tiny.normal(32, 48, seed=1), tiny.normal(32, 32, seed=2)
K, D, P = tiny.normal(32, 8, 3, 3, seed=3), tiny.normal(32, 1, 3, 3, seed=4), tiny.normal(16, 32, 1, 1, seed=6)
ROWS, IMAGE = "m (float[N, 32] x) => (float[N, M] y)", "m (float[1, 8, 9, 9] x) => (float[1, A, B, C] y)"
#: (graph, constants, value and number of constants of each place).
PLACES = [
    pytest.param(
        "h = LayerNormalization <axis = -1> (x, G, B) y = MatMul(h, V)",
        {"G": vector(), "B": vector(seed=6), "V": V},
        [("h", 2)],
        id="layer-norm",
    ),
    pytest.param(
        "h = LayerNormalization <axis = -1> (x, G) a = MatMul(h, W) b = MatMul(h, U) y = Mul(a, b)",
        {"G": vector(), "W": W, "U": U},
        [("h", 1)],
        id="two-readers",
    ),
    pytest.param(
        "n = ReduceL2 <axes = [-1]> (x) d = Div(x, n) h = Mul(G, d) y = Gemm <transB = 1> (h, Z)",
        {"G": vector(), "Z": np.ascontiguousarray(V.T)},
        [("h", 1)],
        id="written-out-norm",
    ),
    pytest.param(
        "a = MatMul(x, W) c = Add(a, G) r = Relu(c) y = MatMul(r, V)",
        {"W": W, "G": vector(), "V": V},
        [("r", 2)],
        id="product-bias-relu",
    ),
    pytest.param(
        "a = Gemm <transB = 1> (x, W, G) y = MatMul(a, V)", {"W": W, "G": vector(), "V": V}, [("a", 2)], id="gemm"
    ),
    pytest.param(
        "g = MatMul(x, W) s = Sigmoid(g) u = MatMul(x, U) h = Mul(s, u) y = MatMul(h, V)",
        {"W": W, "U": U, "V": V},
        [("h", 1)],
        id="gate",
    ),
    pytest.param(
        "a = Conv <pads = [1, 1, 1, 1]> (x, K, G) r = Relu(a) p = MaxPool <kernel_shape = [2, 2]> (r)"
        " d = Conv <group = 32> (p, D) q = LeakyRelu(d) y = Conv(q, P)",
        {"K": K, "G": vector(), "D": D, "P": P},
        [("p", 2), ("q", 1)],
        id="convolutions",
    ),
]
#: Where nothing may be scaled.
NONE = [
    pytest.param("h = Mul(x, G) a = MatMul(h, V) b = Abs(h) c = MatMul(b, V) y = Add(a, c)", id="other-reader"),
    pytest.param("a = MatMul(x, W) s = Sigmoid(a) y = MatMul(s, V)", id="not-homogeneous"),
    pytest.param("a = MatMul(x, W) c = Clip(a, one, six) y = MatMul(c, V)", id="clip-above-zero"),
    pytest.param(
        "a = MatMul(x, W) t = ReduceMax(x) s = Squeeze(t) c = Clip(a, zero, s) y = MatMul(c, V)", id="clip-computed"
    ),
    pytest.param(
        "a = MatMul(x, W) c = Clip(a, zero, six) b = Abs(a) d = MatMul(b, V) e = MatMul(c, V) y = Add(d, e)",
        id="clip-beside-others",
    ),
    pytest.param("a = MatMul(x, W) b = Add(a, x) y = MatMul(b, V)", id="residual"),
    pytest.param("a = MatMul(x, W) r = Relu(a) b = MatMul(r, V) c = MatMul(a, V) y = Add(b, c)", id="maker-read-twice"),
    pytest.param("h = LayerNormalization <axis = 0> (x, T) y = MatMul(h, V)", id="norm-of-all"),
    pytest.param("a = Mul(x, one) y = MatMul(a, V)", id="one-factor-for-all"),
    pytest.param("a = RandomUniform<shape = [7, 32]>() y = MatMul(a, V)", id="made-of-nothing"),
]


def model_of(body: str, constants: dict[str, NDArray]) -> onnx.ModelProto:
    interface = IMAGE if "Conv" in body else ROWS
    return tiny.model(f"{interface} {{ {body} }}", constants)


@pytest.mark.parametrize(("body", "constants", "wanted"), PLACES)
def test_the_scaled_float_model_computes_the_same(
    body: str, constants: dict[str, NDArray], wanted: list[tuple[str, int]], tmp_path: Path
) -> None:
    path = tiny.save(model_of(body, constants), tmp_path)
    model = open_job(path, Recipe("int8"), "onnx").model
    places = channel_places(model)
    assert [(place.value, len(place.makers)) for place in places] == wanted
    r = np.random.default_rng(0)
    factors = {place: np.exp2(r.uniform(-6, 6, place.channels)).astype(np.float32) for place in places}
    write.save(scale_channels(model, factors), tmp_path / "scaled.onnx", lambda _: None)
    x = r.standard_normal((1, 8, 9, 9) if "Conv" in body else (7, 32)).astype(np.float32)
    for size in (1.0, 100.0):
        before, after = (run(each, {"x": x * np.float32(size)}) for each in (path, tmp_path / "scaled.onnx"))
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5 * np.abs(before).max())
    counts = [
        sum(x.data_type == onnx.TensorProto.FLOAT for x in onnx.load(file).graph.initializer)
        for file in (path, tmp_path / "scaled.onnx")
    ]
    assert counts[0] == counts[1]  # constants that nobody else reads are replaced


def test_constants_that_are_outputs_stay(tmp_path: Path) -> None:
    text = "m (float[7, 32] x) => (float[7, 48] y, float[32] G, float[32, 48] V) { h = Mul(x, G) y = MatMul(h, V) }"
    path = tiny.save(tiny.model(text, {"G": vector(), "V": V}), tmp_path)
    model = open_job(path, Recipe("int8"), "onnx").model
    factors = {place: np.full(place.channels, 8, np.float32) for place in channel_places(model)}
    assert len(factors) == 1
    write.save(scale_channels(model, factors), tmp_path / "scaled.onnx", lambda _: None)
    session = onnxruntime.InferenceSession(tmp_path / "scaled.onnx", providers=["CPUExecutionProvider"])
    _, g, v = session.run(None, {"x": tiny.normal(7, 32)})
    assert np.array_equal(g, vector()) and np.array_equal(v, V)


@pytest.mark.parametrize("body", NONE)
def test_nothing_is_scaled_where_that_would_show(body: str, tmp_path: Path) -> None:
    constants = {"W": W, "V": V, "G": vector(), "T": np.ones((1, 32), np.float32), "zero": np.float32(0)}
    constants |= {"six": np.float32(6), "one": np.full(1, 2, np.float32)}
    used = {name: np.asarray(x) for name, x in constants.items() if name in body.replace("(", " ").replace(",", " ")}
    model = open_job(tiny.save(model_of(body, used), tmp_path), Recipe("int8"), "onnx").model
    assert channel_places(model) == []


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(CHANNEL_WAYS)), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_factors_are_numbers_to_divide_by(way: str, seed: int, strength: float) -> None:
    r = np.random.default_rng(seed)
    sizes = ChannelSizes(*(np.where(r.random(9) < 0.3, 0, np.exp(r.normal(0, 30, 9))) for _ in range(3)))
    factors, strengths = CHANNEL_WAYS[way]
    for each in (strength, *strengths):
        found = factors(sizes, each)
        assert np.isfinite(found).all() and (found >= 2.0**-11).all() and (found <= 2.0**11).all()


def outliers(rows: int = 40, count: int = 16, seed: int = 0) -> list[dict[str, NDArray]]:
    r = np.random.default_rng(seed)
    return [{"x": r.standard_normal((rows, 64)).astype(np.float32)} for _ in range(count)]


def norm_with_outliers() -> onnx.ModelProto:
    """A normalization whose weight makes two of 64 channels a hundred times as large as the others."""
    gain = np.ones(64, np.float32)
    gain[[7, 31]] = 100
    text = """m (float[N, 64] x) => (float[N, 48] y) {
        h = LayerNormalization <axis = -1> (x, G) a = MatMul(h, W) r = Relu(a) y = MatMul(r, V) }"""
    w = tiny.normal(64, 64)
    w[[7, 31]] /= 100
    return tiny.model(text, {"G": gain, "W": w, "V": tiny.normal(64, 48, seed=1)})


def job_of(folder: Path, scheme: str, **recipe: object) -> Job:
    wanted = dataclasses.replace(Recipe(scheme, keep_slow=True), **recipe)
    return open_job(tiny.save(norm_with_outliers(), folder), wanted, "onnxq", outliers())


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic"])
def test_outlier_channels_are_found_and_the_note_says_so(scheme: str, tmp_path: Path) -> None:
    target = "onnx" if scheme == "w8a8" else "ort-cpu"
    path, feed = tiny.save(norm_with_outliers(), tmp_path), outliers(200, 1, seed=9)[0]
    found = {}
    for balance in (False, True):
        recipe = Recipe(scheme, keep_slow=True, balance=balance, effort="quick")
        plan = open_job(path, recipe, target, outliers()).plan
        result = quantize(
            path, tmp_path / f"{balance}.onnx", recipe, target=target, data=outliers(), plan=plan, check=False
        )
        found[balance] = tiny.sqnr(run(path, feed), run(result.output, feed))
        assert (
            any("channels were scaled between layers: smoothquant at 1 place," in note for note in result.notes)
            == balance
        )
    assert found[True] > found[False] + 5


def test_awq_serves_codes_of_few_bits_and_leaves_others_alone(tmp_path: Path) -> None:
    made = balanced(job_of(tmp_path, "int3", algorithm="mse"))
    assert dict(made.ways) == {"awq": 1} and made.error < 0.8
    assert not balanced(job_of(tmp_path, "int8")).ways
    assert not balanced(job_of(tmp_path, "int3", algorithm="rtn")).ways
    job = job_of(tmp_path, "int3", algorithm="mse")
    named = [dataclasses.replace(choice, algorithm="rtn") for choice in job.plan]  # the plan's own word, as a search's
    assert not balanced(dataclasses.replace(job, plan=job.plan.replacing(named))).ways


@pytest.mark.parametrize("algorithm", ["gptq", None], ids=str)
def test_weights_too_small_for_their_block_are_scaled_before_data_choose_codes(
    algorithm: str | None, tmp_path: Path
) -> None:
    """Of huge channels the weights are tiny: beside others they round to nothing, and no code makes up for that."""
    path, feed, found = tiny.save(norm_with_outliers(), tmp_path), outliers(200, 1, seed=9)[0], {}
    for balance in (False, True):
        recipe = Recipe("int4", balance=balance, algorithm=algorithm, accuracy_level=0)
        result = quantize(path, tmp_path / f"{balance}.onnx", recipe, target="onnxq", data=outliers(), check=False)
        found[balance] = tiny.sqnr(run(path, feed), run(result.output, feed))
        assert any("channels were scaled between layers: awq" in note for note in result.notes) == balance
    assert found[True] > found[False] + 4


def test_the_trial_is_with_the_codes_that_the_layer_will_have() -> None:
    r = np.random.default_rng(0)
    mix = r.standard_normal((64, 64))
    fitted, held_back = ((r.standard_normal((300, 1, 64)) @ mix).astype(np.float32) for _ in range(2))
    sizes, w, form = np.full(64, 9.0), tiny.normal(1, 48, 64), (formats.get("int3"), Granularity(1, 32))
    trial = ChannelTrial(64, [w], [form], [(fitted, held_back)], (-sizes, sizes), None)
    alone, by_data = (each.errors(vector(64)) for each in (trial, dataclasses.replace(trial, by_data=[True])))
    assert by_data[0] < 0.5 * alone[0] and by_data[1] < 0.8 * alone[1]
    codes = gptq.quantize(w[0] * vector(64), *form, layer=LayerOfRows.of(fitted / vector(64), 0)).dequantize()
    noise = held_back[:, 0] @ (codes / vector(64) - w[0]).T
    assert by_data[1] == pytest.approx(np.square(noise).sum() / np.square(held_back[:, 0] @ w[0].T).sum(), rel=1e-3)


def test_activations_of_any_size_are_tried() -> None:
    rows, w = tiny.normal(40, 1, 64), tiny.normal(1, 48, 64)
    found = []
    for size in (1.0, 2.0**80):  # its square is no float32
        x, high = rows * np.float32(size), np.full(64, 9.0)
        trial = ChannelTrial(64, [w], [(formats.get("int4"), Granularity(1, 32))], [(x, x)], (-high, high), None)
        found.append(trial.errors(vector(64)))
    assert found[0] == pytest.approx(found[1]) and found[0][0] > 0


def test_in_little_memory_places_are_looked_at_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gain = np.where(np.arange(64) % 32 == 7, np.float32(100), np.float32(1))
    text = """m (float[N, 64] x) => (float[N, 64] y) {
        h = LayerNormalization <axis = -1> (x, G) a = MatMul(h, W) k = LayerNormalization <axis = -1> (a, G)
        y = MatMul(k, V) }"""
    w = tiny.normal(64, 64) / gain[:, None]
    path = tiny.save(tiny.model(text, {"G": gain, "W": w, "V": w[:, ::-1].copy()}), tmp_path)
    job = open_job(path, Recipe("w8a8"), "onnx", outliers())
    passes, real = [], balance_channels.runner
    monkeypatch.setattr(balance_channels, "runner", lambda *given: passes.append(given[1]) or real(*given))
    both, in_turns = balanced(job), balanced(job, 1000)
    assert passes == [["h", "k"], ["h"], ["k"]]
    assert both.ways == in_turns.ways == {"smoothquant": 2} and both.error == in_turns.error


def test_without_need_or_data_nothing_is_scaled(tmp_path: Path) -> None:
    text = "m (float[N, 64] x) => (float[N, 48] y) { h = LayerNormalization <axis = -1> (x, G) y = MatMul(h, V) }"
    proto = tiny.model(text, {"G": np.ones(64, np.float32), "V": np.sign(tiny.normal(64, 48))})
    path = tiny.save(proto, tmp_path)
    job = open_job(path, Recipe("w8a8"), "onnx", outliers())
    assert balanced(job).job is job
    assert not balanced(open_job(path, Recipe("w8a8-dynamic"), "ort-cpu")).ways


def test_a_file_of_ranges_is_of_the_model_as_it_is(tmp_path: Path) -> None:
    path, kept = tiny.save(norm_with_outliers(), tmp_path), tmp_path / "kept.ranges"
    recipe = Recipe("w8a8", keep_slow=True, effort="quick")
    options = {"target": "onnx", "data": outliers(), "check": False, "ranges": kept}
    for name in "ab":
        result = quantize(path, tmp_path / f"{name}.onnx", recipe, **options)
        assert not any("channels" in note for note in result.notes)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_readers_with_other_kernels_see_other_rows(tmp_path: Path) -> None:
    text = """m (float[1, 8, 9, 9] x) => (float[1, 16, 9, 9] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, K, G) r = Relu(a) b = Conv <pads = [1, 1, 1, 1]> (r, Q) c = Conv(r, P)
        d = Conv <group = 32, pads = [1, 1, 1, 1]> (r, D) e = Conv(d, O) f = Add(b, c) y = Add(e, f) }"""
    k = K * np.where(np.arange(32) < 2, 50, 1).astype(np.float32).reshape(-1, 1, 1, 1)
    proto = tiny.model(text, {"K": k, "G": vector(), "Q": tiny.normal(16, 32, 3, 3), "P": P, "O": 2 * P, "D": D})
    data = [{"x": tiny.normal(1, 8, 9, 9, seed=i)} for i in range(12)]
    job = open_job(tiny.save(proto, tmp_path), Recipe("w8a8"), "onnx", data)
    (place, _) = channel_places(job.model)
    assert (place.value, len(place.readers)) == ("r", 3)
    made = balanced(job)
    assert made.ways["smoothquant"] >= 1 and made.error < 0.8


EXPAND, DEPTHWISE, PROJECT = (
    tiny.normal(64, 8, 1, 1),
    tiny.normal(64, 1, 3, 3, seed=1),
    tiny.normal(16, 64, 1, 1, seed=2),
)


def block_with_relu6(clip: str = "Clip(a, zero, six)") -> onnx.ModelProto:
    """A block as those of MobileNetV2: of 64 channels two reach the 6, one is always 0, and others are small."""
    sizes = np.exp2(np.random.default_rng(0).uniform(-3, 1, 64)).astype(np.float32)
    sizes[[3, 4]], sizes[5] = 40, 0
    expand, depthwise = EXPAND * sizes.reshape(-1, 1, 1, 1), np.abs(DEPTHWISE) / 9
    project = PROJECT / np.sqrt(np.maximum(sizes, 0.1)).reshape(1, -1, 1, 1)
    text = f"""m (float[1, 8, 12, 12] x) => (float[1, 16, 12, 12] y) {{
        a = Conv (x, K) c = {clip} b = Conv <group = 64, pads = [1, 1, 1, 1]> (c, D) d = Clip(b, zero, six)
        y = Conv (d, P) }}"""
    constants = {"K": expand, "D": depthwise, "P": project, "zero": np.float32(0), "six": np.float32(6)}
    return tiny.model(text, constants)


def images(count: int, seed: int = 0) -> list[dict[str, NDArray]]:
    return [{"x": tiny.normal(1, 8, 12, 12, seed=seed + i)} for i in range(count)]


def test_channels_are_scaled_through_a_clip_that_stays_out_of_their_way(tmp_path: Path) -> None:
    path = tiny.save(block_with_relu6(), tmp_path)
    job = open_job(path, Recipe("w8a8", keep_slow=True), "onnx", images(24))
    assert [(each.value, each.low, each.high, each.is_bounded) for each in channel_places(job.model)] == [
        ("c", 0.0, 6.0, True),
        ("d", 0.0, 6.0, True),
    ]
    made = balanced(job)
    assert dict(made.ways) == {"smoothquant": 2} and made.error < 0.5
    # What the float model computes is the same, where channels are full too.
    write.save(made.job.model, tmp_path / "scaled.onnx", lambda _: None)
    for feed in images(8, seed=100):
        before, after = (run(each, feed) for each in (path, tmp_path / "scaled.onnx"))
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5 * np.abs(before).max())
    constants = {name: value.const_value.numpy() for name, value in made.job.model.graph.initializers.items()}
    gains = np.abs(constants["K"]).max(axis=(1, 2, 3)) / np.maximum(np.abs(EXPAND).max(axis=(1, 2, 3)), 1e-9)
    assert gains[3] == gains[4] == 40 and gains[5] == 0  # they reach the clip, or are nothing
    others = np.delete(gains, [3, 4, 5])
    assert others.max() / others.min() < 2.0**3  # of 2^4 before
    # Numbers twice as large as any that calibration saw still pass.
    hidden = tiny.model(
        "m (float[1, 8, 12, 12] x) => (float[1, 64, 12, 12] a) { a = Conv (x, K) }", {"K": constants["K"]}
    )
    tiny.save(hidden, tmp_path, "hidden.onnx")
    assert job.data is not None
    seen, _ = job.data.split(job.sampling.held_back)
    largest = np.max([run(tmp_path / "hidden.onnx", feed).max(axis=(0, 2, 3)) for feed in seen], axis=0)
    assert (np.delete(largest, [3, 4]) <= 3.01).all()


def test_networks_with_relu6_gain_by_it_on_what_they_did_not_see(tmp_path: Path) -> None:
    path, found = tiny.save(block_with_relu6(), tmp_path), {}
    for balance in (False, True):
        recipe = Recipe("w8a8", keep_slow=True, balance=balance, effort="quick")
        plan = open_job(path, recipe, "ort-cpu", images(24)).plan
        result = quantize(path, tmp_path / f"{balance}.onnx", recipe, data=images(24), plan=plan, check=False)
        found[balance] = np.mean([tiny.sqnr(run(path, f), run(result.output, f)) for f in images(8, seed=100)])
        assert any("smoothquant at 2 places" in note for note in result.notes) == balance
    assert found[True] > found[False] + 4


@pytest.mark.parametrize("scheme", ["w8a8-dynamic", "int4"])
def test_channels_in_float_are_not_scaled_through_a_clip(scheme: str, tmp_path: Path) -> None:
    """Larger numbers than samples have would be cut off there that now pass."""
    text = "m (float[N, 64] x) => (float[N, 48] y) { a = MatMul(x, W) c = Clip(a, zero, six) y = MatMul(c, V) }"
    w = tiny.normal(64, 64) * np.where(np.arange(64) < 2, np.float32(0.5), np.float32(0.001))
    proto = tiny.model(text, {"W": w, "V": tiny.normal(64, 48), "zero": np.float32(0), "six": np.float32(6)})
    job = open_job(tiny.save(proto, tmp_path), Recipe(scheme, algorithm=None), "ort-cpu", outliers())
    assert [place.is_bounded for place in channel_places(job.model)] == [True]
    assert not balanced(job).ways
    assert balanced(open_job(tmp_path / "model.onnx", Recipe("w8a8"), "ort-cpu", outliers())).ways


@pytest.mark.parametrize("bounds", [(0, 0), (-1, 0), (0, -1)])
def test_channels_behind_a_clip_that_leaves_hardly_anything_are_left_alone(
    bounds: tuple[float, float], tmp_path: Path
) -> None:
    text = "m (float[N, 64] x) => (float[N, 48] y) { a = MatMul(x, W) c = Clip(a, low, high) y = MatMul(c, V) }"
    constants = {name: np.float32(x) for name, x in zip(("low", "high"), bounds, strict=True)}
    path = tiny.save(tiny.model(text, constants | {"W": tiny.normal(64, 64), "V": tiny.normal(64, 48)}), tmp_path)
    assert not balanced(open_job(path, Recipe("w8a8"), "ort-cpu", outliers())).ways


def test_both_ends_of_a_clip_are_kept_away_from(tmp_path: Path) -> None:
    text = "m (float[N, 64] x) => (float[N, 48] y) { a = MatMul(x, W) c = Clip(a, low, high) y = MatMul(c, V) }"
    w = tiny.normal(64, 64) * np.exp2(np.random.default_rng(3).uniform(-9, -3, 64)).astype(np.float32)
    constants = {"W": w, "V": tiny.normal(64, 48), "low": np.float32(-2), "high": np.float32(50)}
    path = tiny.save(tiny.model(text, constants), tmp_path)
    job = open_job(path, Recipe("w8a8"), "ort-cpu", outliers())
    made = balanced(job)
    assert dict(made.ways) == {"smoothquant": 1}
    scaled = made.job.model.graph.initializers["W"].const_value.numpy()
    lowest = min((feed["x"] @ scaled).min() for feed in outliers())
    assert lowest > -1.3  # some way from -2, also on samples held back
    write.save(made.job.model, tmp_path / "scaled.onnx", lambda _: None)
    feed = outliers(200, 1, seed=9)[0]
    np.testing.assert_allclose(run(tmp_path / "scaled.onnx", feed), run(path, feed), rtol=1e-3, atol=1e-5)
