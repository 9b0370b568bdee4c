"""Inputs that are more than float16 holds are scaled in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny import normal

import onnxq
from onnxq.passes.prepare import prepare
from onnxq.planning.counts.raw_inputs import REASON, raw_in
from onnxq.runtime.session import Session

CONSTANTS = {
    "means": np.array([50000, 3, 0.5, -70000], np.float32),
    "near": np.array([123.7, 116.3, 103.5, 1], np.float32),
    "deviations": np.array([40000, 2, 1, 30000], np.float32),
    "share": np.float32(1 / 65535),
    "byte": np.float32(255),
    "ones": np.ones(4, np.float32),
    "squares": np.array([1e9, 1, 1, 1e9], np.float32),
    "first": np.array([0, 1]),
    "last": np.array([-1]),
    "two": np.float32(2),
    "w": normal(4, 8),
}
CASES = {
    "columns": ("[a] p = Sub(x, means) [b] q = Div(p, deviations) z = MatMul(q, w) y = Relu(z)", "ab"),
    "on-the-way": ("[a] p = Unsqueeze(x, first) [b] q = Sub(p, means) [c] r = Mul(q, two) y = Tanh(r)", "abc"),
    "pictures-of-16-bits": ("[a] p = Mul(x, share) z = MatMul(p, w) y = Relu(z)", "a"),
    "normalized": ("[a] p = BatchNormalization(x, ones, ones, means, squares) z = Tanh(p) y = MatMul(z, w)", "a"),
    "that-comes-out": ("[a] y = Sub(x, means)", "a"),
    "of-two-readers": (
        "[a] p = Sub(x, means) [b] q = Div(p, deviations) s = Softmax(p) t = Add(s, q) y = Relu(t)",
        "ab",
    ),
    "joined": ("[a] c = Concat<axis = -1>(x, v) [b] p = Sub(c, means) z = Tanh(p) y = Relu(z)", "ab"),
    "scaled-apart": (
        """[a] p = Sub(x, means) [b] q = Add(v, two) [c] c = Concat<axis = -1>(p, q) z = Tanh(c) y = Relu(z)""",
        "ac",
    ),
    "beside-computed": ("t = Tanh(v) c = Concat<axis = -1>(x, t) p = Sub(c, means) y = Relu(p)", ""),
    "counted": ("[a] f = Cast<to = 1>(i) [b] p = Div(f, deviations) y = Tanh(p)", "ab"),
    "of-float64": ("[a] f = Cast<to = 1>(d) [b] p = Sub(f, means) y = Tanh(p)", "ab"),
    "whether": ("f = Cast<to = 1>(flags) p = Sub(f, means) y = Tanh(p)", ""),
    "pictures": ("p = Sub(x, near) q = Div(p, byte) z = MatMul(q, w) y = Relu(z)", ""),
    "activations": ("p = Relu(x) q = Sub(p, means) y = MatMul(q, w)", ""),
    "beside-others": ("p = Add(x, x) q = Sub(p, means) y = MatMul(q, w)", ""),
}


@pytest.mark.parametrize(("nodes", "wanted"), CASES.values(), ids=CASES.keys())
def test_what_scales_inputs_is_found(nodes: str, wanted: str) -> None:
    inputs = "float[N, 4] x, float[N, 4] v, int64[N, 4] i, double[N, 4] d, bool[N, 4] flags"
    made = tiny.read(tiny.model(f"g ({inputs}) => (y) {{ {nodes} }}", CONSTANTS))
    prepare(made)
    assert {node.name for node in raw_in(made)} == set(wanted)


def test_large_columns_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    """Of float16 each column beyond 65504 would be infinite, or all products be given up for its sake."""
    text = """g (float[N, 64] x) => (float[N, 256] y) {
        c = Sub(x, mean) z = Div(c, deviation) a = MatMul(z, w) b = Relu(a) y = MatMul(b, v) }"""
    mean, deviation = np.full(64, 60000, np.float32), np.full(64, 50000, np.float32)
    constants = {"mean": mean, "deviation": deviation, "w": normal(64, 256), "v": normal(256, 256, seed=1)}
    path = tiny.save(tiny.model(text, constants), tmp_path)
    plan = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("fp16", keep_slow=True), target="onnx").plan
    assert {choice.node for choice in plan if choice.reason == REASON} == {"c", "z"}
    feed = {"x": np.random.default_rng(0).uniform(0, 2e5, (8, 64)).astype(np.float32)}
    assert tiny.sqnr(Session(path).run(feed)[0], Session(tmp_path / "q.onnx").run(feed)[0]) > 60


@pytest.mark.parametrize(
    ("inputs", "first"),
    [
        ("float[N, 24] p, float[N, 40] q", "x = Concat<axis = 1>(p, q)"),
        ("double[N, 64] p", "x = Cast<to = 1>(p)"),
        ("int64[N, 64] p", "x = Cast<to = 1>(p)"),
    ],
    ids=["joined", "float64", "whole"],
)
def test_large_columns_in_any_form_stay_finite(inputs: str, first: str, tmp_path: Path) -> None:
    text = f"""g ({inputs}) => (float[N, 256] y) {{ {first}
        c = Sub(x, mean) z = Div(c, deviation) a = MatMul(z, w) b = Relu(a) y = MatMul(b, v) }}"""
    mean, deviation = np.full(64, 60000, np.float32), np.full(64, 50000, np.float32)
    constants = {"mean": mean, "deviation": deviation, "w": normal(64, 256), "v": normal(256, 256, seed=1)}
    path = tiny.save(tiny.model(text, constants), tmp_path)
    onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("fp16", keep_slow=True), target="onnx")
    columns = np.random.default_rng(0).uniform(0, 2e5, (8, 64)).astype(np.float32)
    kind = {"double": np.float64, "int64[": np.int64}.get(inputs[:6], np.float32)
    feed = {"p": columns.astype(kind)} if "q" not in inputs else {"p": columns[:, :24], "q": columns[:, 24:]}
    assert tiny.sqnr(Session(path).run(feed)[0], Session(tmp_path / "q.onnx").run(feed)[0]) > 60


def test_without_data_it_is_said_which_inputs_float16_may_not_hold(tmp_path: Path) -> None:
    """Not of pictures, nor where only weights are stored in it, nor with data, by which what is harmed stays."""
    text = "g ({}) => (float[N, 16] y) {{ p = {} h = MatMul(p, w) r = Relu(h) y = MatMul(r, v) }}"
    weights = {"w": normal(64, 128), "v": normal(128, 16)}
    path = tiny.save(tiny.model(text.format("float[N, 64] x", "Identity(x)"), weights), tmp_path)
    rows = [{"x": np.random.default_rng(i).random((4, 64), np.float32) * 1e6} for i in range(8)]
    image = text.format("float[N, 3, 4, 16] image", "ReduceMean<axes = [1, 2], keepdims = 0>(image) q = Relu(p)")
    image = image.replace("MatMul(p, w)", "MatMul(p, u)")
    other = tiny.save(tiny.model(image, weights | {"u": normal(16, 128)}), tmp_path, "image.onnx")
    said = "'x' becomes float16, in which numbers beyond 65504 are infinite"
    for model, target, data in (
        (path, "ort-cuda", None),
        (path, "ort-cpu", None),
        (path, "ort-cuda", rows),
        (other, "ort-cuda", None),
    ):
        found = onnxq.quantize(model, tmp_path / "q.onnx", "fp16", target=target, data=data, force=True)
        assert found.check is not None
        is_said = any("becomes float16" in note for note in found.check.notes)
        assert is_said == ((model, target, data) == (path, "ort-cuda", None)), (target, found.check.notes)
        assert not is_said or any(note.startswith(said) for note in found.check.notes)
        if data:
            y, z = (Session(each).run(rows[0])[0] for each in (path, found.output))
            assert np.isfinite(z).all() and tiny.sqnr(y, z) > 50
