"""Float models with attentions, as exporters write them, become regions of these, and compute the same without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal, sqnr

import onnxq
from onnxq.recipe import Recipe
from onnxq.runtime import native

ort = pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.skipif(native.path() is None, reason="the compiled library was not built"),
]

HEADS = {
    "constant": "sq = Identity(heads)",
    "computed": "s = Shape(x)  n = Gather(s, first)  t = Gather(s, one)  sq = Concat<axis = 0>(n, t, four, eight)",
}
PROJECTED = """q0 = MatMul(x, wq)  q1 = Add(q0, bq)  k0 = MatMul(x, wk)  k1 = Add(k0, bk)
               v0 = MatMul(x, wv)  v1 = Add(v0, bv)
               qr = Reshape(q1, sq)  kr = Reshape(k1, sq)  vr = Reshape(v1, sq)
               q = Transpose<perm = [0, 2, 1, 3]>(qr)  k = Transpose<perm = [0, 2, 3, 1]>(kr)
               v = Transpose<perm = [0, 2, 1, 3]>(vr)"""
SPLIT = """a = MatMul(x, wqkv)  q1, k1, v1 = Split<axis = 2>(a, thirds)
           qr = Reshape(q1, sq)  kr = Reshape(k1, sq)  vr = Reshape(v1, sq)
           q = Transpose<perm = [0, 2, 1, 3]>(qr)  kh = Transpose<perm = [0, 2, 1, 3]>(kr)
           k = Transpose<perm = [0, 1, 3, 2]>(kh)  v = Transpose<perm = [0, 2, 1, 3]>(vr)"""
MASKS = {
    "none": "c = Identity(b)",
    "added": "c = Add(b, mask)",
    "hidden": "c = Where(shown, b, low)",
}
REST = """p = MatMul(q, k)  b = Div(p, root)  {mask}  w = Softmax<axis = -1>(c)  y0 = MatMul(w, v)
          y1 = Transpose<perm = [0, 2, 1, 3]>(y0)  y2 = Reshape(y1, joined)  o = MatMul(y2, wo)  o1 = Add(o, bo)
          r = Add(x, o1)  m = ReduceMean<axes = [-1]>(r)  d = Sub(r, m)  e = Pow(d, two)  f = ReduceMean<axes = [-1]>(e)
          g = Add(f, epsilon)  h = Sqrt(g)  i = Div(d, h)  j = Mul(i, gamma)  l = Add(j, beta)
          u = MatMul(l, wu)  u1 = Add(u, bu)  u2 = Relu(u1)  z = MatMul(u2, wd)  y = Add(z, l)"""


def constants() -> dict[str, NDArray]:
    weights = {name: normal(32, 32, seed=i) / 5 for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    vectors = {name: normal(32, seed=10 + i) / 4 for i, name in enumerate(("bq", "bk", "bv", "bo", "beta"))}
    return {
        **weights,
        **vectors,
        "wqkv": normal(32, 96, seed=5) / 5,
        "wu": normal(32, 64, seed=6) / 5,
        "bu": normal(64, seed=7),
        "wd": normal(64, 32, seed=8) / 5,
        "gamma": 1 + normal(32, seed=9) / 4,
        "heads": np.array([0, 0, 4, 8]),
        "joined": np.array([0, 0, 32]),
        "thirds": np.array([32, 32, 32]),
        "first": np.array([0]),
        "one": np.array([1]),
        "four": np.array([4]),
        "eight": np.array([8]),
        "root": np.float32(np.sqrt(8)),
        "two": np.float32(2),
        "epsilon": np.float32(1e-5),
        "low": np.float32(-3e38),
        "mask": np.triu(np.full((12, 12), -1e9, np.float32), 1),
        "shown": np.tril(np.ones((12, 12), bool)),
    }


def saved(folder: Path, heads: str, projections: str, mask: str) -> Path:
    body = " ".join((HEADS[heads], projections, REST.format(mask=MASKS[mask])))
    used = {name: value for name, value in constants().items() if any(f"{name}{end}" in body for end in ",)")}
    return tiny.save(tiny.model(f"g (float[n, 12, 32] x) => (float[n, 12, 32] y) {{ {body} }}", used), folder)


def quantized(path: Path, target: str = "onnxq") -> Path:
    out = path.with_name(f"{target}.onnx")
    data = [{"x": normal(1, 12, 32, seed=100 + i)} for i in range(8)]
    onnxq.quantize(path, out, Recipe(scheme="w8a8", keep_slow=True), target=target, data=data, check=False)
    return out


def steps(path: Path) -> list[str]:
    model = ir.load(path)
    return [
        line.split()[0]
        for node in model.graph
        if node.op_type == "Region"
        for line in node.attributes["steps"].as_string().split("\n")[1:]
    ]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("heads", "projections"), [("constant", PROJECTED), ("computed", PROJECTED), ("constant", SPLIT)], ids=range(3)
)
def test_a_block_is_one_region(tmp_path: Path, heads: str, projections: str, mask: str) -> None:
    path = saved(tmp_path, heads, projections, mask)
    out = quantized(path)
    made = steps(out)
    assert made.count("attention") == 1
    assert {"layer_norm", "plus"} <= set(made)
    plain = [node.op_type for node in ir.load(out).graph]
    assert not {"Softmax", "MatMul", "ReduceMean"} & set(plain)
    float_, with_, without = (
        ort.InferenceSession(path),
        onnxq.session(out),
        ort.InferenceSession(out),
    )
    for shape in ((1, 12, 32), (3, 12, 32)):
        x = normal(*shape, seed=7)
        (y,), (found,), (body,) = (session.run(None, {"x": x}) for session in (float_, with_, without))
        assert sqnr(y, found) > 25
        assert sqnr(y, body) > 25
        assert sqnr(body, found) > 30  # codes next to a tie


def test_other_targets_keep_attention_as_it_is(tmp_path: Path) -> None:
    out = quantized(saved(tmp_path, "constant", PROJECTED, "added"), "ort-cpu")
    found = [node.op_type for node in onnx.load(out).graph.node]
    assert "Softmax" in found
    assert "ReduceMax" not in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y0 = MatMul(w, v)", "y0 = MatMul(w, v)  z9 = Identity(w)"),
        ("Softmax<axis = -1>", "Softmax<axis = 2>"),
        ("b = Div(p, root)", "b = Div(p, root)  z9 = Relu(b)"),
    ],
)
def test_what_is_no_attention_stays(tmp_path: Path, old: str, new: str) -> None:
    """Where others read what lies inside, or the sum is along another axis."""
    proto = onnx.load(saved(tmp_path, "constant", PROJECTED, "none"))
    body = " ".join((HEADS["constant"], PROJECTED, REST.format(mask=MASKS["none"]))).replace(old, new)
    used = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    outputs = "(float[n, 12, 32] y, float[n, a, b, c] z9)" if "z9" in new else "(float[n, 12, 32] y)"
    path = tiny.save(tiny.model(f"g (float[n, 12, 32] x) => {outputs} {{ {body} }}", used), tmp_path)
    out = quantized(path)
    assert "attention" not in steps(out)
    x = normal(2, 12, 32, seed=7)
    for y, found in zip(
        ort.InferenceSession(path).run(None, {"x": x}), onnxq.session(out).run(None, {"x": x}), strict=True
    ):
        assert sqnr(y, found) > 25


@pytest.mark.parametrize(
    ("inputs", "score"),
    [
        ("float[1, 12, 32] x, float[n, 12, 32] z", "b = Div(p, root)"),
        ("float[n, 12, 32] x, float[m, 12, 32] z", "b = Div(p, root)"),
        ("float[1, 12, 32] x, float[1, 12, 32] z, float[n, 1, 12, 12] m", "s = Div(p, root)  b = Add(s, m)"),
        ("float[1, 12, 32] x, float[1, 12, 32] z, bool[n, 1, 12, 12] m", "s = Div(p, root)  b = Where(m, s, low)"),
    ],
)
def test_what_has_more_matrices_than_its_queries_stays(tmp_path: Path, inputs: str, score: str) -> None:
    body = f"""sq = Identity(heads)
        {PROJECTED.replace("MatMul(x, wk)", "MatMul(z, wk)").replace("MatMul(x, wv)", "MatMul(z, wv)")}
        p = MatMul(q, k)  {score}  w = Softmax<axis = -1>(b)  y0 = MatMul(w, v)
        y1 = Transpose<perm = [0, 2, 1, 3]>(y0)  y2 = Reshape(y1, joined)  y = MatMul(y2, wo)"""
    used = {name: value for name, value in constants().items() if any(f"{name}{end}" in body for end in ",)")}
    path = tiny.save(tiny.model(f"g ({inputs}) => (float[n, 12, 32] y) {{ {body} }}", used), tmp_path)

    def feed(batch: int) -> dict[str, NDArray]:
        shapes = {"x": (1, 12, 32), "z": (batch if "1, 12, 32] z" not in inputs else 1, 12, 32)}
        made = {name: normal(*shape, seed=7) for name, shape in shapes.items()}
        kind = bool if "bool" in inputs else np.float32
        return made | ({"m": np.ones((batch, 1, 12, 12), kind)} if "12] m" in inputs else {})

    out = tmp_path / "out.onnx"
    onnxq.quantize(path, out, Recipe("w8a8", keep_slow=True), target="onnxq", data=[feed(1)] * 4, check=False)
    assert "attention" not in steps(out)
    y, found = (session.run(None, feed(2))[0] for session in (ort.InferenceSession(path), onnxq.session(out)))
    assert sqnr(y, found) > 20


def test_masks_of_more_rows_than_there_are_queries_stay(tmp_path: Path) -> None:
    """One query, the mean of all, for each row of a causal mask that is cut off at the length."""
    body = f"""sq = Identity(heads)  s = Shape(x)  t = Gather(s, one)  d = Slice(mask, first, t, first)
        c = Slice(d, first, t, one)  z = ReduceMean<axes = [1]>(x)
        {PROJECTED.replace("MatMul(x, wq)", "MatMul(z, wq)")}  p = MatMul(q, k)  b = Add(p, c)
        w = Softmax<axis = -1>(b)  y0 = MatMul(w, v)  y1 = Transpose<perm = [0, 2, 1, 3]>(y0)
        y2 = Reshape(y1, joined)  y = MatMul(y2, wo)"""
    used = constants() | {"heads": np.array([0, -1, 4, 8])}
    used = {name: value for name, value in used.items() if any(f"{name}{end}" in body for end in ",)")}
    path = tiny.save(tiny.model(f"g (float[n, t, 32] x) => (float[n, u, 32] y) {{ {body} }}", used), tmp_path)
    out = quantized(path)
    assert "attention" not in steps(out)
    x = normal(2, 9, 32, seed=7)
    y, found = (session.run(None, {"x": x})[0] for session in (ort.InferenceSession(path), onnxq.session(out)))
    assert sqnr(y, found) > 20


def test_regions_in_front_of_onnxs_own_attention_are_opened(tmp_path: Path) -> None:
    """Whose shape inference takes sizes that nobody knows for zeros."""
    if onnx.defs.onnx_opset_version() < 23:
        pytest.skip("onnx has no Attention")
    text = """g (float[B, S, 32] x) => (float[B, S, 32] y) {
        q = MatMul (x, a)  k = MatMul (x, b)  v = MatMul (x, c)
        o = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v)  y = MatMul (o, d)
    }"""
    weights = {name: normal(32, 32, seed=seed) for seed, name in enumerate("abcd")}
    path = tiny.save(tiny.model(text, weights, opset=23, ir_version=10), tmp_path)
    found, x = quantized(path), {"x": normal(2, 7, 32, seed=9)}
    assert steps(found)
    in_float, made = (onnxq.session(each).run(None, x)[0] for each in (path, found))
    assert sqnr(in_float, made) > 25
