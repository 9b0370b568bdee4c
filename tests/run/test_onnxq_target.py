"""Files for target onnxq: they open with the compiled library and without it, whatever the graph around the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tiny
from numpy.typing import NDArray
from sweeps import swept
from tiny import normal

import onnxq
from onnxq import Recipe, formats
from onnxq.output import write
from onnxq.runtime import native
from onnxq.runtime.session import Session
from onnxq.targets import get as get_target

pytestmark = pytest.mark.usefixtures("quick")
#: With and without the library; without it where it was not built.
LIBRARY = [False, True] if native.path() is not None else [False]
W, E, B = normal(70, 33), normal(40, 100, seed=1), normal(33, seed=2)
GRAPHS: dict[str, tuple[str, dict[str, NDArray]]] = {
    "If": (
        """g (float[M,70] x, bool c) => (float[M,33] y) {
            y = If (c) <then_branch = t () => (float[M,33] a) { a = MatMul(x, w) },
                        else_branch = e () => (float[M,33] b) { n = Neg(x)  b = MatMul(n, w) }>
        }""",
        {"w": W},
    ),
    "Loop": (
        """g (float[3,70] x) => (float[3,33] y) {
            n = Constant <value = int64 {2}> ()  go = Constant <value = bool {1}> ()
            last, all = Loop (n, go, x) <
                body = b (int64 i, bool d, float[3,70] s) => (bool c, float[3,70] r, float[3,33] p) {
                    c = Identity(d)  r = Neg(s)  p = MatMul(s, w)
                }>
            first = Constant <value = int64 {0}> ()  y = Gather(all, first)
        }""",
        {"w": W},
    ),
    "Gemm": (
        """g (float[70,3] x) => (float[3,33] y) { y = Gemm <alpha = 0.5, beta = 2.0, transA = 1> (x, w, b) }""",
        {"w": W, "b": B},
    ),
    "Reshape": (  # of a shape that shape inference does not know, computed from a product
        """g (float[M,70] x) => (float[P,33,Q] y) {
            p = MatMul(x, w)  s = Shape(p)  rest = Constant <value_ints = [-1]> ()
            one = Constant <value_ints = [1]> ()  two = Constant <value_ints = [2]> ()
            n = Slice(s, one, two)  shape = Concat <axis = 0> (rest, n, one)  y = Reshape(p, shape)
        }""",
        {"w": W},
    ),
    "Gather": ("g (int64[M] i) => (float[M,100] y) { y = Gather(e, i) }", {"e": E}),
    "tied": (
        "g (int64[M] i) => (float[M,40] y) { x = Gather(e, i)  t = Transpose <perm = [1, 0]> (e)  y = MatMul(x, t) }",
        {"e": E},
    ),
    "half": (
        """g (float16[M,70] x, int64[M] i) => (float16[M,33] y, float16[M,100] z) {
            y = Gemm(x, w, b)  z = Gather(e, i)
        }""",
        {"w": W.astype(np.float16), "b": B.astype(np.float16), "e": E.astype(np.float16)},
    ),
    "double": ("g (double[M,70] x) => (double[M,33] y) { y = MatMul(x, w) }", {"w": W.astype(np.float64)}),
    "left": ("g (float[100,3] x) => (float[40,3] y) { y = MatMul(e, x) }", {"e": E}),
}


def feed_of(model: onnx.ModelProto) -> dict[str, NDArray]:
    """Random inputs; M is 3."""
    rng, feed = np.random.default_rng(0), {}
    for value in model.graph.input:
        shape = [d.dim_value or 3 for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        x = rng.integers(0, 2, shape) if dtype.kind in "bi" else rng.standard_normal(shape)
        feed[value.name] = np.asarray(x).astype(dtype)
    return feed


WORDS = ["uint4", "q8_0", "nf4", "nf4_dq", "int4_dq64", "mxfp4", "q5_1", "int3", "uniform6", "q3_k", "q4_k", "nvfp4"]


@pytest.mark.parametrize(
    ("graph", "word"),
    [
        # Each graph with a sixth of the formats, each format with a sixth of the graphs; the sweep takes the rest.
        (swept if (i + j) % 6 else pytest.param)(graph, word)
        for i, graph in enumerate(GRAPHS)
        for j, word in enumerate(WORDS)
    ],
)
def test_graphs(tmp_path: Path, graph: str, word: str) -> None:
    """Same outputs with the library, without it, and without onnxruntime's optimizer, but for int8 activations."""
    text, constants = GRAPHS[graph]
    proto = tiny.model(text, constants)
    path, feed = tiny.save(proto, tmp_path), feed_of(proto)
    recipe = onnxq.Recipe(word, min_sqnr=8, keep_slow=True)  # so small a file may be none the better for it
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, target="onnxq")
    assert result.check is not None and result.check.sqnr > 10
    assert word in {choice.format for choice in result.plan}
    saved = onnx.load(result.output)
    onnx.checker.check_model(saved, full_check=True)
    assert {node.domain for node in saved.graph.node} <= {"", "onnxq"}
    outputs = [
        Session(result.output, library=library, optimize=optimize).run(feed)
        for library in LIBRARY
        for optimize in (True, False)
    ]
    for other in outputs[1:]:
        for a, b in zip(outputs[0], other, strict=True):
            assert a.dtype == b.dtype
            assert tiny.sqnr(a, b) > 33


@pytest.mark.parametrize("graph", ["If", "Loop", "Gemm", "Reshape", "half", "double", "left"])
def test_bfloat16(tmp_path: Path, graph: str) -> None:
    """float32 products are computed in bfloat16, others in the type of the model; without the library all are."""
    text, constants = GRAPHS[graph]
    proto = tiny.model(text, constants)
    path, feed = tiny.save(proto, tmp_path), feed_of(proto)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("bf16", keep_slow=True), target="onnxq")
    assert result.check is not None and result.check.sqnr > 40
    saved = onnx.load(result.output)
    onnx.checker.check_model(saved, full_check=True)
    assert bool(saved.functions) == (graph not in ("half", "double", "left"))
    outputs = [
        Session(result.output, library=library, optimize=optimize).run(feed)
        for library in LIBRARY
        for optimize in (True, False)
    ]
    for other in outputs[1:]:
        for a, b in zip(outputs[0], other, strict=True):
            assert a.dtype == b.dtype
            assert tiny.sqnr(a, b) > 40


def test_a_table_that_is_multiplied_by_is_stored_once(tmp_path: Path) -> None:
    proto = tiny.model(*GRAPHS["tied"])
    result = onnxq.quantize(tiny.save(proto, tmp_path), tmp_path / "q.onnx", "w4a16", target="onnxq")
    product, table = (
        next(node for node in onnx.load(result.output).graph.node if node.op_type == op)
        for op in ("MatMulNBits", "GatherNBits")
    )
    assert list(product.input[1:4]) == list(table.input[:3])


@pytest.mark.parametrize("k", [1, 8, 16])
@pytest.mark.parametrize("scheme", ["nf4", "w4a16", "w8a16"])
def test_a_narrow_table_is_smaller_than_in_8_bits_a_row(scheme: str, k: int, tmp_path: Path) -> None:
    """Or it has 16 bits, which are fewer than a scale for each row."""
    table, i = normal(4000, k), np.arange(0, 4000, 7)
    proto = tiny.model(f"g (int64[M] i) => (float[M,{k}] y) {{ y = Gather(e, i) }}", {"e": table})
    result = onnxq.quantize(tiny.save(proto, tmp_path), tmp_path / "q.onnx", scheme, target="onnxq")
    taken = sum(tensor.raw_data.__len__() for tensor in onnx.load(result.output).graph.initializer)
    assert taken <= 4000 * min(k + 4, 2 * k)
    for library in LIBRARY:
        (y,) = Session(result.output, library=library).run({"i": i})
        assert tiny.sqnr(table[i], y) > 18


def test_external_data_are_aligned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read the tiles where they lie, in lines of 64 bytes."""
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 1000)
    path = tiny.save(tiny.model(*GRAPHS["If"]), tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", "w4a16", target="onnxq")
    saved = onnx.load(result.output, load_external_data=False)
    offsets = [
        int(entry.value)
        for tensor in saved.graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert offsets and all(offset % 64 == 0 for offset in offsets)
    assert result.check is not None and result.check.sqnr > 18


def test_quantized_files_are_recognized_and_can_be_continued(tmp_path: Path) -> None:
    text = "g (float[4,64] x) => (float[4,32] z) { [first] y = MatMul(x, v)  [second] z = MatMul(y, w) }"
    path = tiny.save(tiny.model(text, {"v": normal(64, 64), "w": normal(64, 32)}), tmp_path)
    half = onnxq.Recipe("w4a16", (onnxq.Rule("keep", "second"),))
    first = onnxq.quantize(path, tmp_path / "a.onnx", half, target="onnxq").output
    with pytest.raises(onnxq.OnnxqError, match=r"is quantized already \(1 MatMulNBits\)"):
        onnxq.quantize(first, tmp_path / "b.onnx", "nf4", target="onnxq")
    second = onnxq.quantize(
        first, tmp_path / "b.onnx", onnxq.Recipe("nf4", requantize=True, min_sqnr=8), target="onnxq"
    )
    saved = onnx.load(second.output)
    assert [node.overload for node in saved.graph.node] == ["int4_zp", "nf4"]
    assert {f.overload for f in saved.functions} == {"int4_zp", "nf4"}
    assert second.check is not None and second.check.sqnr > 18


def test_what_it_costs_without_the_library_is_said(tmp_path: Path) -> None:
    path = tiny.save(tiny.model(*GRAPHS["Gemm"]), tmp_path)
    for word, note in [("uint4", "MatMulNBits computes 1 product"), ("nf4", "weights of 1 product become floats when")]:
        check = onnxq.quantize(path, tmp_path / f"{word}.onnx", word, target="onnxq").check
        assert check is not None
        assert any(f"without onnxq's library, {'onnxruntime' if word == 'uint4' else 'the'}" in n for n in check.notes)
        assert any(note in text for text in check.notes)
        assert (check.bare_sqnr > 18) == (native.path() is not None)


#: What onnxruntime would fuse with a product in float, and then unpack the weight in every run.
AROUND = {
    "relu": "m = MatMul (x, w)  r = Relu (m)  y = Tanh (r)",
    "biased": "m = MatMul (x, w)  s = Add (m, b)  r = Relu (s)  y = Tanh (r)",
    "clip": "m = MatMul (x, w)  r = Clip (m, low, high)  y = Tanh (r)",
    "residual": "m = MatMul (x, w)  s = Add (m, x)  y = Tanh (s)",
    "shared": "m = MatMul (x, w)  t = Tanh (m)  n = MatMul (t, w)  y = Tanh (n)",
    "branches": """y = If (c) <then_branch = one () => (float[M,64] p) { p = MatMul (x, w) },
                               else_branch = two () => (float[M,64] q) { n = Neg (x)  q = MatMul (n, w) }>""",
}


@pytest.mark.parametrize("word", ["uint4", "int8"])
@pytest.mark.parametrize("around", AROUND)
def test_no_weight_is_unpacked_in_every_run_without_the_library(around: str, word: str, tmp_path: Path) -> None:
    """A Relu behind a product made it ten times slower than float."""
    body = AROUND[around]
    constants = {"w": normal(64, 64), "b": normal(64, seed=1)}
    constants |= {"low": np.array(-1, np.float32), "high": np.array(6, np.float32)}
    text = f"g (float[M,64] x, bool c) => (float[M,64] y) {{ {body} }}"
    model = tiny.model(text, {name: x for name, x in constants.items() if f" {name})" in body or f" {name}," in body})
    result = onnxq.quantize(
        tiny.save(model, tmp_path), tmp_path / "q.onnx", Recipe(word, keep_slow=True, min_sqnr=10), target="onnxq"
    )
    Session(result.output, library=False, save_optimized=tmp_path / "optimized.onnx")
    ran = tiny.ops(ir.load(tmp_path / "optimized.onnx"))
    assert "DequantizeLinear" not in ran
    products = body.count("MatMul")
    assert ran.count("MatMulNBits") == (0 if around == "shared" else products)
    if native.path() is not None:
        costs = "become floats" if around == "shared" else f"computes {products} product"
        assert result.check is not None and any(costs in note for note in result.check.notes)


#: Each word on one or two of the targets that run here; the sweep takes the rest.
WORDS_ON_TARGETS = [
    (swept if (i + j) % 6 or target in tiny.ELSEWHERE else pytest.param)(word, target)
    for i, word in enumerate([*formats.names(), "uniform4"])
    for j, target in enumerate([*tiny.HERE, *tiny.ELSEWHERE])
]


@pytest.mark.parametrize(("word", "target"), WORDS_ON_TARGETS)
def test_every_word_on_every_target(tmp_path: Path, word: str, target: str) -> None:
    """A file that is checked, or a refusal that names the targets which can."""
    text = "g (int64[M] i) => (float[M,32] y) { x = Gather(e, i)  y = MatMul(x, w) }"
    path = tiny.save(tiny.model(text, {"e": normal(40, 64), "w": normal(64, 32)}), tmp_path)
    recipe = onnxq.Recipe(word, min_sqnr=4)
    reason = get_target(target).refusal(word)
    if reason:
        with pytest.raises(onnxq.OnnxqError, match=f"{target} cannot hold {word} weights: .*; give --target .*onnxq"):
            onnxq.quantize(path, tmp_path / "q.onnx", recipe, target=target)
        return
    ids = [{"i": np.random.default_rng(seed).integers(0, 40, 12)} for seed in range(8)]
    data = ids if get_target(target).rounds_activations(word) else None  # whose ranges are found by samples
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, target=target, data=data)
    bits = formats.get(word).bits
    assert word in {choice.format for choice in result.plan}
    assert result.check is not None
    # 6 dB a bit, less what a block or channel of normal numbers loses against a full range, of two matrices in a row;
    # on the worst of several kinds of words, and powers of two are the coarsest way to use 4 bits.
    loss = 12 if word == "pow2_int4" else 11
    assert result.check.sqnr > (6 * min(bits, 8) - loss if not word.startswith("float8") else 20)


@pytest.mark.parametrize("word", ["q4_0", "int4", "nf4"])
def test_the_user_s_algorithm_is_the_one_that_is_used(word: str, tmp_path: Path) -> None:
    """rtn gives the codes of the format's own rule; what is chosen otherwise has other ones, of less error."""
    w = tiny.normal(64, 32)
    path = tiny.save(tiny.model("g (float[N, 64] x) => (float[N, 32] y) { y = MatMul(x, w) }", {"w": w}), tmp_path)
    own = formats.quantize(np.ascontiguousarray(w.T), word).dequantize().T
    errors = {}
    for algorithm in (None, "rtn", "mse"):
        recipe = Recipe(word, algorithm=algorithm, accuracy_level=0)
        result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, target="onnxq", check=False, force=True)
        (got,) = onnxq.session(result.output).run(None, {"x": np.eye(64, dtype=np.float32)})
        errors[algorithm] = float(np.square(got - w).sum())
        if algorithm == "rtn":
            # Scales of float32 formats are stored as float16.
            np.testing.assert_allclose(got, own, rtol=1e-6 if word == "q4_0" else 1e-3, atol=1e-6)
    assert errors["mse"] == errors[None] < errors["rtn"]


@pytest.mark.parametrize("scheme", ["w4a16", "w8a16", "nf4", "bf16"])
def test_attention_reads_what_functions_make(scheme: str, tmp_path: Path) -> None:
    text = """g (float[b, 6, 64] x) => (float[b, 6, 64] y) { q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
        o = Attention<q_num_heads = 4, kv_num_heads = 4>(q, k, v)  y = MatMul(o, wo) }"""
    weights = {name: tiny.normal(64, 64, seed=i) for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    path = tiny.save(tiny.model(text, weights, opset=23, ir_version=10), tmp_path)
    out = tmp_path / "out.onnx"
    onnxq.quantize(path, out, Recipe(scheme, keep_slow=True, min_sqnr=0.0), target="onnxq", check=False)
    x = {"x": tiny.normal(2, 6, 64, seed=9)}
    y, found = (ort.InferenceSession(each).run(None, x)[0] for each in (path, out))
    assert tiny.sqnr(y, found) > 10
