"""Blocks of transformers as exporters write them: what of them target onnxq makes regions of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from exports import language
from exports.builder import Graph
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node
from tiny import sqnr

import onnxq
from onnxq.plan import Method
from onnxq.runtime import native
from onnxq.tuning.halves import in_half

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("quick")
WIDTH, HEADS = 32, 4
GELUS = {
    "erf": [
        make_node("Div", ["f1", "root"], ["g0"]),
        make_node("Erf", ["g0"], ["g1"]),
        make_node("Add", ["g1", "one"], ["g2"]),
        make_node("Mul", ["f1", "g2"], ["g3"]),
        make_node("Mul", ["g3", "half"], ["g"]),
    ],
    "tanh": [
        make_node("Pow", ["f1", "three"], ["g0"]),
        make_node("Mul", ["g0", "cubed"], ["g1"]),
        make_node("Add", ["f1", "g1"], ["g2"]),
        make_node("Mul", ["g2", "slope"], ["g3"]),
        make_node("Tanh", ["g3"], ["g4"]),
        make_node("Add", ["g4", "one"], ["g5"]),
        make_node("Mul", ["f1", "g5"], ["g6"]),
        make_node("Mul", ["g6", "half"], ["g"]),
    ],
}
NUMBERS = {
    "root": 2**0.5,
    "one": 1,
    "half": 0.5,
    "three": 3,
    "cubed": 0.044715,
    "slope": 0.7978846,
    "two": 2,
    "eps": 1e-5,
}


def normalized(x: str, y: str, whole: bool | None) -> list[onnx.NodeProto]:
    """A normalization of rows, as one node or as older operator sets write it; or (None) by the mean of squares."""
    if whole:
        return [make_node("LayerNormalization", [x, "gamma", "beta"], [y], axis=-1)]
    if whole is None:
        return [
            make_node("Pow", [x, "two"], [f"{y}_s"]),
            make_node("ReduceMean", [f"{y}_s"], [f"{y}_v"], axes=[-1]),
            make_node("Add", [f"{y}_v", "eps"], [f"{y}_e"]),
            make_node("Sqrt", [f"{y}_e"], [f"{y}_d"]),
            make_node("Div", [x, f"{y}_d"], [f"{y}_n"]),
            make_node("Mul", [f"{y}_n", "gamma"], [y]),
        ]
    return [
        make_node("ReduceMean", [x], [f"{y}_m"], axes=[-1]),
        make_node("Sub", [x, f"{y}_m"], [f"{y}_c"]),
        make_node("Pow", [f"{y}_c", "two"], [f"{y}_s"]),
        make_node("ReduceMean", [f"{y}_s"], [f"{y}_v"], axes=[-1]),
        make_node("Add", [f"{y}_v", "eps"], [f"{y}_e"]),
        make_node("Sqrt", [f"{y}_e"], [f"{y}_d"]),
        make_node("Div", [f"{y}_c", f"{y}_d"], [f"{y}_n"]),
        make_node("Mul", [f"{y}_n", "gamma"], [f"{y}_g"]),
        make_node("Add", [f"{y}_g", "beta"], [y]),
    ]


def projected(x: str, word: str, y: str, at: int) -> list[onnx.NodeProto]:
    """A MatMul and its bias, which exporters put on either side."""
    read = [f"b{word}", f"{y}_p"]
    return [make_node("MatMul", [x, f"w{word}"], [f"{y}_p"], name=word), make_node("Add", read[:: 1 - 2 * at], [y])]


def transformer(folder: Path, gelu: str = "erf", whole: bool | None = True, scaled: bool = False) -> Path:
    """One block: attention and feed-forward, each behind a normalization, each added to what was there, `scaled` by a
    number for each channel or as it is."""
    rng = np.random.default_rng(0)
    sizes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"1": (WIDTH, 4 * WIDTH), "2": (4 * WIDTH, WIDTH)}
    constants = {f"w{word}": rng.standard_normal(size) / size[0] ** 0.5 for word, size in sizes.items()}
    constants |= {f"b{word}": rng.standard_normal(size[1]) / 4 for word, size in sizes.items()}
    constants |= {"gamma": rng.uniform(0.5, 2, WIDTH), "beta": rng.standard_normal(WIDTH) / 4, **NUMBERS}
    constants["less"] = rng.standard_normal(WIDTH)
    parted = [
        node
        for i, word in enumerate("qkv")
        for node in (
            *projected("n1", word, f"{word}0", i % 2),
            make_node("Reshape", [f"{word}0", "heads"], [f"{word}1"]),
            make_node("Transpose", [f"{word}1"], [f"{word}2"], perm=[0, 2, 3, 1] if word == "k" else [0, 2, 1, 3]),
        )
    ]
    nodes = [
        *normalized("x", "n1", whole),
        *parted,
        make_node("MatMul", ["q2", "k2"], ["s0"]),
        make_node("Mul", ["s0", "half"], ["s1"]),
        make_node("Softmax", ["s1"], ["s2"], axis=-1),
        make_node("MatMul", ["s2", "v2"], ["a0"]),
        make_node("Transpose", ["a0"], ["a1"], perm=[0, 2, 1, 3]),
        make_node("Reshape", ["a1", "rows"], ["a2"]),
        *projected("a2", "o", "a3", 1),
        *[make_node("Mul", ["less", "a3"], ["a4"])] * scaled,
        make_node("Add", ["x", "a4" if scaled else "a3"], ["r"]),
        *normalized("r", "n2", whole),
        *projected("n2", "1", "f1", 1),
        *GELUS[gelu],
        *projected("g", "2", "f2", 0),
        *[make_node("Mul", ["f2", "less"], ["f3"])] * scaled,
        make_node("Add", ["r", "f3" if scaled else "f2"], ["z"]),
        *normalized("z", "n3", whole),
        make_node("MatMul", ["n3", "wo"], ["y"]),
    ]
    initializers = [numpy_helper.from_array(np.asarray(w, np.float32), name) for name, w in constants.items()]
    for name, shape in (("heads", [0, 0, HEADS, WIDTH // HEADS]), ("rows", [0, 0, WIDTH])):
        initializers.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "t", WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "block", values[:1], values[1:], initializers)
    path = folder / "block.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def samples(count: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 9, WIDTH)).astype(np.float32)} for _ in range(count)]


def regions_of(path: Path) -> list[list[str]]:
    """The words of the steps of each."""
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "Region"]
    texts = [next(a.s.decode() for a in node.attribute if a.name == "steps") for node in nodes]
    return [[line.split()[0] for line in text.split("\n")[1:]] for text in texts]


@pytest.mark.parametrize("whole", [True, False, None], ids=["normalization", "its parts", "by squares"])
@pytest.mark.parametrize("gelu", GELUS)
def test_a_block_is_one_region(tmp_path: Path, gelu: str, whole: bool | None) -> None:
    path, out = transformer(tmp_path, gelu, whole), tmp_path / "out.onnx"
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    made = onnxq.quantize(path, out, recipe, target="onnxq", data=samples(), check=False)
    part = ["layer_norm", "product", "product", "product", "attention", "sums", "plus"]
    assert regions_of(out) == [
        ["read", *part, "layer_norm", "product", "table", "sums", "plus", "layer_norm", "gemm"],
    ]
    # What a normalization of rows computes is not rounded on the way.
    assert {c.op for c in made.plan.those(Method.STATIC)} == {"MatMul", "Mul", "Softmax"}
    x = np.random.default_rng(2).standard_normal((3, 17, WIDTH)).astype(np.float32)
    wanted = ort.InferenceSession(str(path)).run(None, {"x": x})[0]
    body = ort.InferenceSession(str(out)).run(None, {"x": x})[0]
    assert sqnr(wanted, body) > 27
    if native.path() is not None:
        found = onnxq.session(str(out)).run(None, {"x": x})[0]
        assert sqnr(wanted, found) > 27 and sqnr(body, found) > 34


def test_positions_of_a_table_that_is_cut_off_are_turned_in_the_region(tmp_path: Path) -> None:
    """As exporters write rotary positions: rows of cos and sin, and a mask, for as many tokens as there are."""
    g = Graph(7)
    x = g.input("x", TensorProto.FLOAT, "B", "S", language.WIDTH)
    angles = tuple(g.Slice(g.const(table), g.ints(0), g.length(x), g.ints(0)) for table in language.rotary_tables())
    h = g.layer_norm(x, language.WIDTH)
    parts = [g.heads(g.linear(h, language.WIDTH, language.WIDTH, False), language.HEADS, language.SIZE) for _ in "qkv"]
    turned = [language.rotate(g, part, angles) for part in parts[:2]]
    mixed = g.attend(*turned, parts[2], language.WIDTH, language.SIZE, g.causal(x))
    y = g.Add(x, g.linear(mixed, language.WIDTH, language.WIDTH, False))
    g.output(g.linear(g.layer_norm(y, language.WIDTH), language.WIDTH, 32, False), "y", "B", "S", 32)
    path, out = g.save(tmp_path), tmp_path / "out.onnx"
    rng = np.random.default_rng(1)
    data = [{"x": rng.standard_normal((1, n, language.WIDTH)).astype(np.float32)} for n in (5, 12, 12, 30)]
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False)
    (steps,) = regions_of(out)
    assert steps.count("rotary") == 2 and steps.count("attention") == 1
    for shape in ((1, 1), (2, 9), (1, 64)):
        x = rng.standard_normal((*shape, language.WIDTH)).astype(np.float32)
        wanted, body = (ort.InferenceSession(str(each)).run(None, {"x": x})[0] for each in (path, out))
        assert sqnr(wanted, body) > 25
        if native.path() is not None:
            assert sqnr(body, onnxq.session(str(out)).run(None, {"x": x})[0]) > 30


def test_numbers_that_what_is_added_is_multiplied_with_are_part_of_products(tmp_path: Path) -> None:
    """As of a LayerScale, negative ones too."""
    path, out = transformer(tmp_path, scaled=True), tmp_path / "out.onnx"
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    onnxq.quantize(path, out, recipe, target="onnxq", data=samples(), check=False)
    (steps,) = regions_of(out)
    assert steps.count("sums") == steps.count("plus") == 2
    assert [node.op_type for node in onnx.load(out).graph.node if node.op_type == "Mul"] == []
    x = np.random.default_rng(2).standard_normal((3, 17, WIDTH)).astype(np.float32)
    wanted, body = (ort.InferenceSession(str(each)).run(None, {"x": x})[0] for each in (path, out))
    assert sqnr(wanted, body) > 27
    if native.path() is not None:
        assert sqnr(body, onnxq.session(str(out)).run(None, {"x": x})[0]) > 34


@pytest.mark.parametrize("gelu", GELUS)
def test_products_and_attentions_may_be_bfloat16_among_others_in_int8(tmp_path: Path, gelu: str) -> None:
    """In files of older operators too, whose bodies have no Gelu."""
    path, out = transformer(tmp_path, gelu), tmp_path / "out.onnx"
    recipe, data = onnxq.Recipe("w8a8", keep_slow=True), samples()
    made = onnxq.quantize(path, out, recipe, target="onnxq", data=data, check=False)
    halves = [c for c in made.plan.those(Method.STATIC) if c.node in ("q", "1", "2") or c.op == "Softmax"]
    plan = made.plan.replacing(map(in_half, halves))
    onnxq.quantize(path, out, "w8a8", target="onnxq", data=data, plan=plan, check=False, force=True)
    model = onnx.load(out)
    used = Counter(node.op_type for node in model.graph.node if node.domain == "onnxq")
    assert (used["DenseMatMul"], used["Attention"]) == (3, 1) and used["Region"] >= 2
    assert {each.version for each in model.opset_import if not each.domain} == {17}
    x = np.random.default_rng(2).standard_normal((3, 17, WIDTH)).astype(np.float32)
    wanted, body = (ort.InferenceSession(str(each)).run(None, {"x": x})[0] for each in (path, out))
    assert sqnr(wanted, body) > 27
    if native.path() is not None:
        assert sqnr(body, onnxq.session(str(out)).run(None, {"x": x})[0]) > 30


def test_what_a_scan_makes_by_products_in_bfloat16_has_a_rank(tmp_path: Path) -> None:
    """Without one onnxruntime does not run it, and an operator cannot tell of sizes without names."""
    text = """m (float[t, n, 32] x, float[n, 32] s) => (float[n, 32] last, float[t, n, 32] y) {
        last, y = Scan <num_scan_inputs = 1, body = b (float[m, 32] h, float[k, 32] xi) => (next, out) {
            p = MatMul (h, w)  a = Add (p, xi)  next = Tanh (a)  out = MatMul (next, v) }> (s, x)
    }"""
    weights = {"w": tiny.normal(32, 32) / 6, "v": tiny.normal(32, 32, seed=1) / 6}
    path, out = tiny.save(tiny.model(text, weights), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(3, 2, 32, seed=i), "s": tiny.normal(2, 32, seed=i)} for i in range(4)]
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    made = onnxq.quantize(path, out, recipe, target="onnxq", data=data, check=False)
    plan = made.plan.replacing(map(in_half, made.plan.those(Method.STATIC)))
    onnxq.quantize(path, out, "w8a8", target="onnxq", data=data, plan=plan, check=False, force=True)
    body = next(a.g for node in onnx.load(out).graph.node for a in node.attribute if a.HasField("g"))
    assert [node.op_type for node in body.node].count("DenseMatMul") == 2
    feed = {"x": tiny.normal(5, 3, 32, seed=9), "s": tiny.normal(3, 32, seed=9)}
    wanted = ort.InferenceSession(path).run(None, feed)
    for session in (ort.InferenceSession(out), onnxq.session(str(out))):
        assert all(sqnr(*each) > 35 for each in zip(wanted, session.run(None, feed), strict=True))


@pytest.mark.usefixtures("twice_as_fast")
def test_tuned_plans_have_them_too(tmp_path: Path) -> None:
    path, out = transformer(tmp_path), tmp_path / "out.onnx"
    onnxq.quantize(path, out, onnxq.Recipe("w8a8"), target="onnxq", data=samples(8), check=False)
    found = [step for region in regions_of(out) for step in region]
    assert found.count("gemm") + found.count("product") >= 4
    x = samples(1)[0]["x"]
    wanted, body = (ort.InferenceSession(str(each)).run(None, {"x": x})[0] for each in (path, out))
    assert sqnr(wanted, body) > 20


def test_other_targets_keep_biases_as_they_are(tmp_path: Path) -> None:
    path, out = transformer(tmp_path), tmp_path / "out.onnx"
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="ort-cpu", data=samples(), check=False)
    biases = [each for each in onnx.load(out).graph.initializer if each.data_type == TensorProto.INT32]
    assert not biases and not regions_of(out)


def test_products_in_a_branch_read_matrices_around_it(tmp_path: Path) -> None:
    """What the branches multiply is made codes of outside of them; it is no image there either."""
    text = """m (float[b, t, 32] x, bool c) => (float[b, t, 32] y) {
        h = Relu (x)
        y = If (c) <
            then_branch = one () => (float[b, t, 32] p) { f = MatMul (h, u)  g = Relu (f)  p = MatMul (g, v) },
            else_branch = two () => (float[b, t, 32] q) { q = MatMul (h, w) }>
    }"""
    weights = {"u": tiny.normal(32, 48), "v": tiny.normal(48, 32, seed=1), "w": tiny.normal(32, 32, seed=2)}
    path = tiny.save(tiny.model(text, weights), tmp_path)
    rng = np.random.default_rng(0)
    data = [
        {"x": rng.standard_normal((2, 5, 32)).astype(np.float32), "c": np.array(number % 2 == 0)} for number in range(8)
    ]
    result = onnxq.quantize(
        path, tmp_path / "q.onnx", onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False
    )
    options = ort.SessionOptions()
    session, in_float = onnxq.session(result.output, options), ort.InferenceSession(path)
    for feed in data[:2]:
        assert sqnr(in_float.run(None, feed)[0], session.run(None, feed)[0]) > 25
    branches = [a.g for node in onnx.load(result.output).graph.node for a in node.attribute if a.HasField("g")]
    if native.path() is not None:
        assert any(node.op_type == "Region" for branch in branches for node in branch.node)
