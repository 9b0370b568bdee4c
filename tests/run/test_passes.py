"""Passes that write operators of com.microsoft, or that only onnxruntime can run, compared with the float model."""

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
from onnxq.conversion.restore import restore_all
from onnxq.model import graph
from onnxq.passes.normalize.fold_batchnorm import FoldBatchNorm
from onnxq.passes.prepare import prepare
from onnxq.passes.quantize.quantize_dynamically import QuantizeDynamically
from onnxq.passes.quantize.quantize_gathers import QuantizeGathers
from onnxq.passes.quantize.replace_matmuls import ReplaceMatMuls
from onnxq.passes.quantize.store_weights import StoreWeights
from onnxq.plan import Choice, Method, Plan
from onnxq.recipe import Recipe, Rule
from onnxq.runtime.session import Feed, Session

pytestmark = pytest.mark.usefixtures("quick")

GEMMS = {
    "plain": "Gemm(x, w, b)",
    "transB": "Gemm<transB=1>(x, wt, b)",
    "transA": "Gemm<transA=1>(xt, w, b)",
    "everything": "Gemm<alpha=0.5, beta=2.0, transA=1, transB=1>(xt, wt, b)",
    "matrix-bias": "Gemm<beta=0.5>(x, w, m)",
    "free-bias": "Gemm<beta=3.0>(x, w, f)",
    "MatMul": "MatMul(x, w)",
}
LEAST = {"uint4": 18, "int8": 40, "nf4": 17, "fp4": 15}


def choice(op: str, method: Method, format: str = "int8", block: int | None = None) -> Plan:
    return Plan("", "ort-cpu", {"n": Choice("n", op, method, format, block)})


def applied(pass_: ir.passes.InPlacePass, proto: onnx.ModelProto, feed: Feed) -> tuple[ir.Model, float]:
    """The model after the pass, and the worst SQNR of its outputs; a second run of the pass finds nothing to do."""
    made = tiny.read(proto)
    prepare(made)
    assert pass_(made).modified
    assert not pass_(made).modified
    wanted, got = (Session(each).run(feed) for each in (ir.from_proto(proto), made))
    return made, min(sqnr(a, b) for a, b in zip(wanted, got, strict=True))


@pytest.mark.pairwise
@pytest.mark.parametrize("k", [33, 64, 72])
@pytest.mark.parametrize("form", GEMMS)
@pytest.mark.parametrize(("word", "block"), [("uint4", 32), ("uint4", 16), ("int8", 32), ("nf4", 64), ("fp4", 16)])
def test_packed_products(word: str, block: int, form: str, k: int) -> None:
    """K fills the last block, or not, or leaves a nibble over."""
    w, x, m = normal(k, 24), normal(6, k, seed=3) * 5, normal(6, 24, seed=2)
    constants: dict[str, NDArray] = {"w": w, "wt": np.ascontiguousarray(w.T), "b": normal(24, seed=1), "m": m}
    feed = {"x": x, "xt": np.ascontiguousarray(x.T), "f": m}
    node = GEMMS[form]
    read = node.partition("(")[2].rstrip(")").split(", ")
    inputs = ", ".join(
        f"float[{a},{b}] {name}" for name, (a, b) in ((n, v.shape) for n, v in feed.items()) if name in read
    )
    used = {name: array for name, array in constants.items() if name in read}
    proto = tiny.model(f"g ({inputs}) => (float[6,24] y) {{ [n] y = {node} }}", used)
    plan = choice(node.partition("(")[0].partition("<")[0], Method.PACKED, word, block)
    pass_ = ReplaceMatMuls(plan, contrib=True, accuracy_level=0)
    made, quality = applied(pass_, proto, {name: array for name, array in feed.items() if name in read})
    assert quality > LEAST[word]
    made_op = "MatMulBnb4" if word in ("nf4", "fp4") else "MatMulNBits"
    assert tiny.find(made, made_op).name == "n"
    assert made.opset_imports["com.microsoft"] == 1


def test_half_precision_is_packed_as_it_is() -> None:
    proto = tiny.model(
        "g (float16[6,64] x) => (float16[6,24] y) { [n] y = MatMul(x, w) }", {"w": normal(64, 24, dtype=np.float16)}
    )
    pass_ = ReplaceMatMuls(choice("MatMul", Method.PACKED, "uint4", 32), contrib=True, accuracy_level=0)
    made, quality = applied(pass_, proto, {"x": normal(6, 64, seed=1, dtype=np.float16)})
    assert quality > 18
    assert tiny.array(tiny.find(made, "MatMulNBits").inputs[2]).dtype == np.float16


@pytest.mark.parametrize("width", [32, 33, 40, 47])
@pytest.mark.parametrize(("word", "block"), [("uint4", 32), ("uint4", 16), ("int8", 32)])
def test_packed_embeddings(word: str, block: int, width: int) -> None:
    if word == "uint4" and width % 2:
        pytest.skip("rows of odd length do not fill whole bytes: the plan gives them 8 bits")
    proto = tiny.model(f"g (int64[N] i) => (float[N,{width}] y) {{ [n] y = Gather(w, i) }}", {"w": normal(50, width)})
    pass_ = QuantizeGathers(choice("Gather", Method.PACKED, word, block))
    made, quality = applied(pass_, proto, {"i": np.array([0, 49, 7, 7, -1])})
    assert quality > LEAST[word]
    assert len(tiny.find(made, "GatherBlockQuantized").inputs) == 4


@pytest.mark.parametrize(
    ("word", "k", "nbytes"),
    [
        ("uint4", 13, 8),
        ("uint4", 20, 16),
        ("nf4", 16, 8),
        ("int8", 16, 16),
        ("uint4", 8, 4),
        ("nf4", 6, 3),
        ("int8", 7, 7),
    ],
)
def test_rows_shorter_than_a_block_are_not_filled_up_to_it(word: str, k: int, nbytes: int) -> None:
    """Stored in blocks of 64, rows of 16 would take four times their bytes: more than float16."""
    proto = tiny.model(f"g (int64[N] i) => (float[N,{k}] y) {{ [n] y = Gather(w, i) }}", {"w": normal(50, k)})
    made, quality = applied(StoreWeights(choice("Gather", Method.STORED, word, 64)), proto, {"i": np.arange(50)})
    assert quality > LEAST[word]
    (codes,) = (v.const_value for n, v in made.graph.initializers.items() if n == f"w_{word}")
    assert codes is not None and codes.nbytes == 50 * nbytes
    restore_all(made)  # whoever reads the file finds a weight in blocks again
    assert [node.op_type for node in made.graph] == ["Gather"]


def test_a_format_with_blocks_of_its_own_keeps_them() -> None:
    proto = tiny.model("g (int64[N] i) => (float[N,16] y) { [n] y = Gather(w, i) }", {"w": normal(50, 16)})
    made, quality = applied(StoreWeights(choice("Gather", Method.STORED, "q4_0", 32)), proto, {"i": np.arange(50)})
    (codes,) = (v.const_value for n, v in made.graph.initializers.items() if n == "w_q4_0")
    assert codes is not None and codes.nbytes == 50 * 16 and quality > 15


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_dynamic_lstm(direction: str) -> None:
    """Directions, optional inputs and outputs survive."""
    d = 1 + (direction == "bidirectional")
    text = (
        f"g (float[5,2,24] x, float[{d},2,16] h) => (float[5,{d},2,16] y, float[{d},2,16] c) "
        f'{{ [n] y, , c = LSTM<hidden_size=16, direction="{direction}">(x, w, r, b, , h) }}'
    )
    proto = tiny.model(text, {"w": normal(d, 64, 24), "r": normal(d, 64, 16, seed=1), "b": normal(d, 128, seed=2)})
    feed = {"x": normal(5, 2, 24, seed=3) * 5, "h": normal(d, 2, 16, seed=4)}
    made, quality = applied(QuantizeDynamically(choice("LSTM", Method.DYNAMIC)), proto, feed)
    assert tiny.ops(made) == ["DynamicQuantizeLSTM"]
    assert quality > 30


@pytest.mark.parametrize("groups", [1, 2])
def test_normalization_goes_into_a_transposed_convolution(groups: int) -> None:
    """ONNX's reference has no groups there."""
    constants = {"w": normal(4, 8 // groups, 3, 3), "v": np.abs(normal(8, seed=1)) + 1}
    norm = "BatchNormalization(c, v, v, v, v)"
    text = f"g (float[1,4,6,6] x) => (y) {{ c = ConvTranspose<group={groups}>(x, w)  y = {norm} }}"
    made = tiny.read(tiny.model(text, constants))
    assert FoldBatchNorm()(made).modified
    assert tiny.ops(made) == ["ConvTranspose"]
    feed = {"x": normal(1, 4, 6, 6, seed=2)}
    wanted, got = (Session(each).run(feed)[0] for each in (tiny.read(tiny.model(text, constants)), made))
    assert sqnr(wanted, got) > 100


def quantized(
    proto: onnx.ModelProto, folder: Path, recipe: Recipe, feed: Feed, **options: object
) -> tuple[onnxq.Result, float]:
    result = onnxq.quantize(tiny.save(proto, folder), folder / "quantized.onnx", recipe, **options)  # type: ignore[arg-type]
    (wanted, *_), (got, *_) = (Session(model).run(feed) for model in (ir.from_proto(proto), result.output))
    assert wanted.dtype == got.dtype
    return result, sqnr(wanted, got)


@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic", "w4a16", "nf4", "fp16", "bf16"])
def test_float64_models(tmp_path: Path, scheme: str, target: str) -> None:
    text = "g (double[N,64] x) => (double[N,32] y) { h = MatMul(x, v)  r = Relu(h)  y = MatMul(r, w) }"
    constants = {"v": normal(64, 64, dtype=np.float64), "w": normal(64, 32, seed=1, dtype=np.float64)}
    feeds = [{"x": np.random.default_rng(i).standard_normal((4, 64))} for i in range(8)]
    data = feeds if scheme == "w8a8" else None
    result, quality = quantized(
        tiny.model(text, constants), tmp_path, Recipe(scheme), feeds[0], target=target, data=data
    )
    assert {choice.method for choice in result.plan} == {Method.STORED}
    assert result.bytes_after < 0.4 * result.bytes_before
    assert quality > 17


def test_an_embedding_of_odd_width_has_8_bits(tmp_path: Path) -> None:
    proto = tiny.model("g (int64[N] i) => (float[N,33] y) { y = Gather(w, i) }", {"w": normal(50, 33)})
    result, quality = quantized(proto, tmp_path, Recipe("w4a16"), {"i": np.arange(8)})
    assert result.check is not None
    assert result.check.kernels == {"GatherBlockQuantized": 1}
    assert quality > 40


@pytest.mark.parametrize("opset", [10, 13, 18])
def test_weights_that_were_int8_already(tmp_path: Path, opset: int) -> None:
    """DequantizeLinear of a constant, below the opset from which on ONNX's reference knows it."""
    codes = np.random.default_rng(0).integers(-128, 128, (64, 32)).astype(np.int8)
    text = "g (float[N,64] x) => (float[N,32] y) { w = DequantizeLinear(q, s)  y = MatMul(x, w) }"
    proto = tiny.model(text, {"q": codes, "s": np.float32(0.01)}, opset=opset)
    recipe = Recipe("w8a16", accuracy_level=0, keep_slow=True)
    result, quality = quantized(proto, tmp_path, recipe, {"x": normal(4, 64, seed=1)})
    assert result.check is not None
    assert result.check.kernels == {"MatMulNBits": 1}
    assert quality > 40


@pytest.mark.parametrize("opset", [13, 18])
def test_functions_in_another_opset(tmp_path: Path, opset: int) -> None:
    functions = (
        f'<domain: "local", opset_import: ["" : {opset}]> layer (a, b) => (c) {{ d = MatMul(a, b)  c = Relu(d) }}'
    )
    text = "g (float[N,64] x) => (float[N,32] z) { y = local.layer(x, v)  z = local.layer(y, w) }"
    proto = tiny.model(text, {"v": normal(64, 64), "w": normal(64, 32, seed=1)}, functions=functions)
    result, quality = quantized(proto, tmp_path, Recipe("w8a16", accuracy_level=0), {"x": normal(4, 64, seed=2)})
    assert result.check is not None
    assert result.check.kernels == {"MatMulNBits": 2}
    assert quality > 40


@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
@pytest.mark.parametrize(
    ("scheme", "rule", "opset", "labels"),
    [
        ("w4a16", "w8a8", 11, ["uint4 b32", "int8"]),
        ("w8a8", "w4a16", 11, ["int8", "uint4 b32"]),
        ("nf4", "w8a8-dynamic", 10, [None, "int8 dynamic"]),
        ("fp16", "w4a16", 17, [None, "uint4 b32"]),
        ("w4a16", "fp16", 17, ["uint4 b32", None]),
        ("w8a16", "bf16", 17, ["int8 b32", "bfloat16 stored"]),
    ],
)
def test_a_scheme_that_only_a_rule_sets(
    tmp_path: Path, scheme: str, rule: str, opset: int, labels: list[str | None], target: str
) -> None:
    """The opset is raised for it, data is used for it."""
    text = "g (float[N,64] x) => (float[N,32] y) { [one] h = MatMul(x, v)  r = Sigmoid(h)  [two] y = MatMul(r, w) }"
    proto = tiny.model(text, {"v": normal(64, 64), "w": normal(64, 32, seed=1)}, opset=opset)
    feeds = [{"x": np.random.default_rng(i).standard_normal((4, 64)).astype(np.float32)} for i in range(8)]
    data = feeds if "w8a8" in (scheme, rule) else None
    recipe = Recipe(scheme, (Rule(rule, "two"),), keep_slow=True, accuracy_level=0, min_sqnr=10)
    result, quality = quantized(proto, tmp_path, recipe, feeds[0], data=data, target=target)
    for found, wanted in zip(result.plan, labels, strict=True):
        assert wanted in (None, found.label)
    assert quality > 15


def test_half_for_one_node_leaves_the_others_in_float(tmp_path: Path) -> None:
    text = "g (float[N,64] x) => (float[N,32] y) { [one] h = MatMul(x, v)  [act] r = Relu(h)  [two] y = MatMul(r, w) }"
    proto = tiny.model(text, {"v": normal(64, 64), "w": normal(64, 32, seed=1)})
    recipe = Recipe("w4a16", (Rule("fp16", "two"), Rule("keep", "one")))
    result, quality = quantized(proto, tmp_path, recipe, {"x": normal(4, 64, seed=2)}, target="onnx")
    saved = ir.load(result.output)
    casts = [node for node in graph.nodes(saved) if node.op_type == "Cast"]
    assert tiny.ops(saved) == ["MatMul", "Relu", "Cast", "MatMul", "Cast"]
    assert [graph.attribute_int(node, "to", 0) for node in casts] == [ir.DataType.FLOAT16, ir.DataType.FLOAT]
    assert quality > 50
