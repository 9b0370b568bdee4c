"""Targets whose runtimes are not here: what they write keeps documented rules, and each rule finds what breaks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from tiny import normal

from onnxq import OnnxqError, Recipe, quantize, targets
from onnxq.checking.rules import check_rules
from onnxq.cli import main
from onnxq.pipeline import Result
from onnxq.runtime.consumers import open_in, version_of
from onnxq.runtime.session import Session
from onnxq.targets import rules
from onnxq.targets.rules import Finding, findings

DIGITS = Path(__file__).parents[2] / "models/digits_cnn.onnx"
pytestmark = pytest.mark.usefixtures("quick")
#: A residual block, a product of activations, a bias, functions, and a product whose sum nobody computes in int8.
NET = """g (float[2, 8, 12, 12] x) => (float[2, 64] y, float[2, 8, 12, 12] z) {
    a = Conv <pads = [1, 1, 1, 1]> (x, k, b)  r = Relu (a)
    c = Conv <pads = [1, 1, 1, 1]> (r, l)  s = Add (c, r)  t = Relu (s)
    d = Conv <pads = [1, 1, 1, 1]> (t, k)  z = Erf (d)
    e = GlobalAveragePool (t)  f = Flatten (e)  m = MatMul (f, w)  n = Sigmoid (m)  y = MatMul (n, v)
}"""
WEIGHTS = {
    "k": normal(8, 8, 3, 3),
    "l": normal(8, 8, 3, 3, seed=1),
    "b": normal(8, seed=2),
    "w": normal(8, 128, seed=3),
    "v": normal(128, 64, seed=4),
}
PRODUCTS = "g (float[n, 128] x) => (float[n, 64] y) { h = MatMul (x, a)  r = Relu (h)  y = MatMul (r, b) }"
MATRICES = {"a": normal(128, 128), "b": normal(128, 64, seed=1)}
#: Besides what was given: types and shapes of codes of all kinds.
I8, U8 = np.int8, np.uint8


def made(folder: Path, target: str, scheme: str, text: str = NET, weights: Mapping[str, NDArray] = WEIGHTS) -> Result:
    model = tiny.save(tiny.model(text, dict(weights)), folder)
    shape = (1, 2, 8, 12, 12) if text == NET else (1, 4, 128)
    x = np.random.default_rng(0).standard_normal((8, *shape[1:])).astype(np.float32)
    np.savez(folder / "data.npz", x=x[:, None] if x.ndim < len(shape) else x)
    recipe, data = Recipe(scheme, min_sqnr=-np.inf), folder / "data.npz" if "w8a" in scheme else None
    return quantize(model, folder / f"{target}.{scheme}.onnx", recipe, target=target, data=data, force=True)


def broken(target: str, text: str, constants: Mapping[str, NDArray], opset: int = 21) -> set[tuple[str, str, bool]]:
    """Rule, node and severity of all that is found in a graph."""
    model = tiny.read(tiny.model(text, dict(constants), opset=opset, ir_version=10))
    for number, node in enumerate(model.graph):
        node.name = node.name or f"{node.outputs[0].name}"
        assert number < 50
    return {(found.rule, found.node, found.refuses) for found in findings(model, target)}


def ops_of(done: Result) -> list[onnx.NodeProto]:
    return list(onnx.load(done.output).graph.node)


def constants_of(done: Result) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load(done.output).graph.initializer}


def refused(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.refuses]


@pytest.mark.parametrize("target", ["tensorrt", "qnn", "ort-cuda", "coreml", "webgpu", "openvino"])
def test_what_is_written_keeps_the_rules(tmp_path: Path, target: str) -> None:
    done = made(tmp_path, target, "w8a8")
    assert done.check is not None and done.check.sqnr > 25
    assert refused(check_rules(done.output, target)) == []
    if target != "openvino":
        consumer = targets.get(target).consumer
        assert f"rules only: not run in {consumer}, which is not installed here" in done.check.notes
        assert version_of(consumer) == "" and open_in(consumer, done.output, 1) is None


def test_tensorrt_is_symmetric_and_rounds_inputs_only(tmp_path: Path) -> None:
    done = made(tmp_path, "tensorrt", "w8a8")
    assert check_rules(done.output, "tensorrt") == []
    constants, nodes = constants_of(done), ops_of(done)
    made_by = {name: node for node in nodes for name in node.output}
    quantize = [node for node in nodes if node.op_type == "QuantizeLinear"]
    zeros = [onnx.numpy_helper.to_array(constants[node.input[2]]) for node in quantize]
    assert quantize and all(zero.dtype == I8 and not zero.any() for zero in zeros)
    convolutions = {node.name: node for node in nodes if node.op_type == "Conv"}
    assert [made_by.get(name) for name in convolutions["a"].input][2] is None  # a bias in floats
    assert "b" in convolutions["a"].input
    # The sum reads a convolution as it is and the other operand rounded, and what a function reads is not rounded.
    add = next(node for node in nodes if node.op_type == "Add")
    assert sorted(made_by[name].op_type for name in add.input) == ["Conv", "DequantizeLinear"]
    assert made_by[next(node for node in nodes if node.op_type == "Erf").input[0]].op_type == "Conv"
    assert {choice.label for choice in done.plan if choice.op == "Conv"} == {"int8"}


def test_tensorrt_has_int4_in_blocks_of_64_or_128(tmp_path: Path) -> None:
    done = made(tmp_path, "tensorrt", "w4a16", PRODUCTS, MATRICES)
    nodes, constants = ops_of(done), constants_of(done)
    blocks = [node for node in nodes if node.op_type == "DequantizeLinear"]
    assert {a.i for node in blocks for a in node.attribute if a.name == "block_size"} == {128} and len(blocks) == 2
    assert {constants[node.input[0]].data_type for node in blocks} == {onnx.TensorProto.INT4}
    assert check_rules(done.output, "tensorrt") == [] and done.check is not None and done.check.sqnr > 12
    short = {"a": normal(128, 96), "b": normal(96, 64, seed=1)}  # rows of 96 are no whole blocks of 64
    other = made(tmp_path, "tensorrt", "w4a16", PRODUCTS, short)
    assert [choice.label for choice in other.plan] == ["int4 b128", "uint4 b32 stored"]


@pytest.mark.parametrize(("scheme", "type"), [("w8a8", np.uint8), ("w8a16", np.uint16)])
def test_qnn_is_in_integers_throughout(tmp_path: Path, scheme: str, type: type) -> None:
    done = made(tmp_path, "qnn", scheme)
    nodes, constants = ops_of(done), constants_of(done)
    zeros = [onnx.numpy_helper.to_array(constants[n.input[2]]) for n in nodes if n.op_type == "QuantizeLinear"]
    assert len(zeros) > 8 and {zero.dtype for zero in zeros} == {np.dtype(type)}
    # All but Erf, which it does not have, is between DequantizeLinear and QuantizeLinear.
    assert {finding.node for finding in check_rules(done.output, "qnn")} == {"z"}
    labels = {choice.node: choice.label for choice in done.plan}
    assert labels["m"] == "int8 tensor" and labels["a"] == labels["n"] == labels["s"] == "int8"
    assert done.check is not None and done.check.sqnr > (30 if scheme == "w8a8" else 35)


def test_qnn_multiplies_activations_in_integers(tmp_path: Path) -> None:
    """Attention, of which one weight lies behind a Transpose."""
    text = """g (float[2, 6, 64] x) => (float[2, 6, 64] y) {
        wt = Transpose <perm = [1, 0]> (w)  q = MatMul (x, wt)  k = MatMul (x, v)
        kt = Transpose <perm = [0, 2, 1]> (k)  s = MatMul (q, kt)  p = Softmax <axis = -1> (s)
        o = MatMul (p, k)  y = Add (o, x)
    }"""
    model = tiny.save(tiny.model(text, {"w": normal(64, 64), "v": normal(64, 64, seed=1)}), tmp_path)
    np.savez(tmp_path / "data.npz", x=normal(8, 2, 6, 64, seed=2) * 8)
    recipe = Recipe("w8a8", min_sqnr=-np.inf)
    done = quantize(model, tmp_path / "q.onnx", recipe, target="qnn", data=tmp_path / "data.npz")
    assert check_rules(done.output, "qnn") == [] and done.check is not None and done.check.sqnr > 25
    labels = {choice.node: choice.label for choice in done.plan}
    assert labels["q"] == labels["k"] == "int8 tensor" and labels["s"] == labels["o"] == labels["p"] == "int8"


def test_wide_activations_need_data(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(PRODUCTS, MATRICES), tmp_path)
    with pytest.raises(OnnxqError, match="w8a16 on qnn rounds activations to 16 bits: give --data, or --scheme fp16"):
        quantize(model, tmp_path / "q.onnx", "w8a16", target="qnn")


def test_gpu_targets_have_packed_weights_and_no_int8(tmp_path: Path) -> None:
    for target in ("ort-cuda", "webgpu"):
        done = made(tmp_path, target, "w4a16", PRODUCTS, MATRICES)
        assert [node.op_type for node in ops_of(done)] == ["MatMulNBits", "Relu", "MatMulNBits"]
        assert check_rules(done.output, target) == []
    nf4 = {target: ops_of(made(tmp_path, target, "nf4", PRODUCTS, MATRICES)) for target in ("ort-cuda", "webgpu")}
    assert "MatMulBnb4" in {node.op_type for node in nf4["ort-cuda"]}
    assert "MatMulBnb4" not in {node.op_type for node in nf4["webgpu"]}
    half = made(tmp_path, "ort-cuda", "fp16", PRODUCTS, MATRICES)
    assert {tensor.data_type for tensor in constants_of(half).values()} == {onnx.TensorProto.FLOAT16}


def test_auto_stands_for_what_the_runtime_is_fast_in(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(PRODUCTS, MATRICES), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((8, 4, 128)).astype(np.float32))
    for target, with_data, without in (("ort-cuda", "w4a16", "w4a16"), ("tensorrt", "w8a8", "fp16")):
        for data, scheme in ((tmp_path / "data.npz", with_data), (None, without)):
            done = quantize(model, tmp_path / "q.onnx", "auto", target=target, data=data, force=True)
            assert done.plan.scheme == scheme


PAIR = "q = QuantizeLinear (x, s, zero)  d = DequantizeLinear (q, s, zero)"
S, ZERO8, ZEROU = np.float32(0.1), np.array(0, I8), np.array(0, U8)
SCALES, ZEROS = np.full(4, 0.1, np.float32), np.zeros(4, I8)
CODES = np.ones((4, 4), I8)


@pytest.mark.parametrize(
    ("rule", "node", "refuses", "text", "constants"),
    [
        (
            "operators_it_parses",
            "y",
            True,
            "g (float[2, 4] x) => (float[2, 4] y) { y = com.microsoft.FastGelu (x) }",
            {},
        ),
        (
            "types_of_codes",
            "q",
            True,
            f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  y = Relu (d) }}",
            {"s": S, "zero": ZEROU},
        ),
        (
            "no_zero_points",
            "d",
            True,
            f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  y = Relu (d) }}",
            {"s": S, "zero": np.array(3, I8)},
        ),
        (
            "one_scale_for_activations",
            "q",
            True,
            "g (float[2, 4] x) => (float[2, 4] y) { q = QuantizeLinear <axis = 1> (x, s, zero)"
            "  y = DequantizeLinear <axis = 1> (q, s, zero) }",
            {"s": SCALES, "zero": ZEROS},
        ),
        (
            "scales_along_outputs",
            "y",
            True,
            f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  w = DequantizeLinear <axis = 0> (c, t, zeros)"
            "  y = MatMul (d, w) }",
            {"s": S, "zero": ZERO8, "c": CODES, "t": SCALES, "zeros": ZEROS},
        ),
        (
            "both_operands",
            "y",
            False,
            "g (float[2, 4] x) => (float[2, 4] y) { w = DequantizeLinear <axis = 1> (c, t, zeros)  y = MatMul (x, w) }",
            {"c": CODES, "t": SCALES, "zeros": ZEROS},
        ),
        (
            "both_operands",
            "y",
            False,
            f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  y = MatMul (d, w) }}",
            {"s": S, "zero": ZERO8, "w": normal(4, 4)},
        ),
        (
            "biases_stay_floats",
            "y",
            True,
            f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  b = DequantizeLinear (i, t)  y = Gemm (d, w, b) }}",
            {"s": S, "zero": ZERO8, "w": normal(4, 4), "i": np.ones(4, np.int32), "t": S},
        ),
        (
            "residual_inputs",
            "c",
            False,
            "g (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y) { c = Conv (x, k)  q = QuantizeLinear (c, s, zero)"
            "  d = DequantizeLinear (q, s, zero)  r = QuantizeLinear (x, s, zero)  e = DequantizeLinear (r, s, zero)"
            "  y = Add (d, e) }",
            {"s": S, "zero": ZERO8, "k": normal(4, 4, 1, 1)},
        ),
        (
            "no_lonely_outputs",
            "q",
            False,
            "g (float[2, 4] x) => (float[2, 4] y) { h = MatMul (x, w)  q = QuantizeLinear (h, s, zero)"
            "  d = DequantizeLinear (q, s, zero)  y = Erf (d) }",
            {"s": S, "zero": ZERO8, "w": normal(4, 4)},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() and len(value) > 2 else "",
)
def test_each_rule_of_tensorrt_finds_what_breaks_it(
    rule: str, node: str, refuses: bool, text: str, constants: Mapping[str, NDArray]
) -> None:
    assert (rule, node, refuses) in broken("tensorrt", text, constants)


def test_rules_of_blocks_find_wrong_lengths_and_plain_scales() -> None:
    """int4 of blocks of 32, float4 whose scales are floats; and the form that is documented breaks nothing."""
    text = (
        "g (float[2, 32] x) => (y) {{ {made}  w = DequantizeLinear <axis = 0, block_size = {b}> (c, t)"
        "  y = MatMul (x, w) }}"
    )
    model = tiny.model(text.format(made="", b=32), opset=21, ir_version=10)
    model.graph.initializer.append(onnx.helper.make_tensor("c", onnx.TensorProto.INT4, (32, 4), [1] * 128))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((1, 4), 0.1, np.float32), "t"))
    assert [finding.rule for finding in findings(tiny.read(model), "tensorrt")] == ["blocks_of_weights"]
    for scales, wrong in (("t = Identity (f)", ["double_scales"]), ("t = DequantizeLinear (e, one)", [])):
        model = tiny.model(text.format(made=scales, b=16), opset=23, ir_version=11)
        types = onnx.TensorProto
        model.graph.initializer.append(onnx.helper.make_tensor("c", types.FLOAT4E2M1, (32, 16), [1.0] * 512))
        model.graph.initializer.append(onnx.helper.make_tensor("e", types.FLOAT8E4M3FN, (2, 16), [1.0] * 32))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 16), np.float32), "f"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.1), "one"))
        assert [finding.rule for finding in findings(tiny.read(model), "tensorrt")] == wrong


def test_each_rule_of_qnn_finds_what_breaks_it() -> None:
    given = {"s": S, "zero": ZERO8}
    assert ("fixed_sizes", "x", True) in broken("qnn", "g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }", {})
    text = "g (float[2, 4] x) => (float[2, 4] y) { y = Shrink (x) }"
    assert broken("qnn", text, {}) == {("operators_it_has", "y", False)}
    text = f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  h = Relu (d)  y = QuantizeLinear (h, s, zero) }}"
    assert ("types_of_activations", "q", True) in broken(
        "qnn", text.replace("(float[2, 4] y)", "(int8[2, 4] y)"), given
    )
    weights = {"s": S, "zero": ZEROU, "c": CODES, "t": SCALES, "zeros": ZEROS}
    text = f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  w = DequantizeLinear (c, t, zeros)  y = MatMul (d, w) }}"
    found = broken("qnn", text, weights)
    assert {("symmetric_channels", "y", True), ("whole_units", "y", False)} == found
    assert ("products_are_rounded", "y", False) in broken(
        "qnn", "g (float[2, 4] x) => (float[2, 4] y) { y = MatMul (x, w) }", {"w": normal(4, 4)}
    )
    text = (
        "g (float[2, 4] x) => (float[2, 4] y) { q = QuantizeLinear (x, s, u)  d = DequantizeLinear (q, s, u)"
        "  r = QuantizeLinear (x, s, v)  e = DequantizeLinear (r, s, v)  y = Add (d, e) }"
    )
    mixed = {"s": S, "u": ZEROU, "v": np.array(0, np.uint16)}
    assert ("equal_widths", "y", True) in broken("qnn", text, mixed)
    text = (
        "g (float[2, 32] x) => (float[2, 4] y) { w = DequantizeLinear <axis = 0, block_size = 16> (c, t)"
        "  y = MatMul (x, w) }"
    )
    blocks = {"c": np.ones((32, 4), I8), "t": np.ones((2, 4), np.float32)}
    assert ("blocks_of_weights", "w", True) in broken("qnn", text, blocks)


def test_rules_of_other_providers_find_what_breaks_them() -> None:
    text = (
        "g (float[2, 64] x) => (float[2, 4] y) { y = com.microsoft.MatMulNBits <K = 64, N = 4, bits = %d, "
        "block_size = %d> (x, c, t) }"
    )
    packed = {"c": np.zeros((4, 2, 12), U8), "t": np.ones((4, 2), np.float32)}
    assert broken("ort-cuda", text % (3, 32), packed) == {("packed_products", "y", True)}
    assert broken("ort-cuda", text % (2, 512), packed) == {("packed_products", "y", True)}
    assert broken("webgpu", text % (2, 32), packed) == {("packed_weights", "y", True)}
    assert broken("ort-cuda", text % (4, 32), packed) == broken("webgpu", text % (8, 32), packed) == set()
    pair = f"g (float[2, 4] x) => (float[2, 4] y) {{ {PAIR}  y = Relu (d) }}"
    assert broken("ort-cuda", pair, {"s": S, "zero": ZERO8}) == {("no_int8", "q", False)}
    assert broken("webgpu", pair, {"s": S, "zero": ZERO8}) == {("operators_it_has", "q", False)}
    experts = (
        "g (float[2, 32] x, float[2, 4] p) => (float[2, 32] y) { y = com.microsoft.QMoE <k = 1, block_size = 32>"
        " (x, p, c, t, , c, t) }"
    )
    codes = {"c": np.zeros((4, 32, 12), U8), "t": np.ones((4, 32, 1), np.float32)}
    assert {(rule, refuses) for rule, _, refuses in broken("ort-cuda", experts, codes)} == {("experts", True)}
    fp8 = (
        "g (float[2, 4] x) => (float[2, 4] y) { y = com.microsoft.MatMulBlockQuantizedFp8Weight <block_size = 8>"
        " (x, c, t) }"
    )
    found = [each.rule for each in findings(tiny.read(tiny.model(fp8, {"c": CODES, "t": SCALES})), "ort-cuda")]
    assert found == ["float_blocks"] * 2
    text = "g (float[1, 4, 4, 4] x, float[4] b) => (float[1, 4, 4, 4] y) { y = Conv (x, k, b) }"
    assert broken("coreml", text, {"k": normal(4, 4, 1, 1)}) == {("constant_inputs", "y", False)}
    text = "g (float[1, 4, 4, 4, 4] x) => (float[1, 4, 4, 4, 4] y) { y = Conv (x, k) }"
    assert broken("coreml", text, {"k": normal(4, 4, 1, 1, 1)}) == {("forms_it_has", "y", False)}
    assert broken("webgpu", text, {"k": normal(4, 4, 1, 1, 1)}) == {("plain_convolutions", "y", False)}
    assert broken("coreml", pair, {"s": S, "zero": ZERO8}) == {("operators_it_has", n, False) for n in ("q", "d")}
    sums = (
        "g (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y) { c = Conv (x, k)  q = QuantizeLinear (c, s, zero)"
        "  d = DequantizeLinear (q, s, zero)  y = Add (d, e) }"
    )
    given = {"s": S, "zero": ZEROU, "k": normal(4, 4, 1, 1), "e": normal(4, 1, 1)}
    assert broken("openvino", sums, given) == {("sums_without_rounding", "c", False)}


def test_what_is_computed_of_constants_breaks_no_rule() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { f = Cast <to = 1> (c)  w = Mul (f, t)  y = MatMul (x, w) }"
    assert broken("webgpu", text, {"c": CODES, "t": SCALES}) == set()


def test_check_holds_any_file_against_the_rules(tmp_path: Path) -> None:
    done = made(tmp_path, "qnn", "w8a8")
    run = CliRunner().invoke
    good = run(main, ["check", str(made(tmp_path, "tensorrt", "w8a8").output), "--target", "tensorrt"])
    assert good.exit_code == 0 and "keeps the rules of tensorrt; rules only: not run" in good.output
    bad = run(main, ["check", str(done.output), "-t", "tensorrt", "--json"])
    assert bad.exit_code == 1
    found = json.loads(bad.stdout)["findings"]
    assert {"types_of_codes", "biases_stay_floats"} <= {finding["rule"] for finding in found if finding["refuses"]}
    table = run(main, ["check", str(done.output), "-t", "tensorrt"])
    assert "tensorrt would refuse" in table.stderr
    assert table.exit_code == 1 and "TensorRT has no codes of type uint8" in table.output.replace("\n", " ")
    for arguments in ([str(done.output)], [str(done.output), str(done.output), "-t", "qnn"]):
        assert run(main, ["check", *arguments]).exit_code == 2
    with pytest.raises(OnnxqError, match="there are no rules for 'onnx'; choose one of coreml, openvino"):
        check_rules(done.output, "onnx")


def test_a_file_that_its_runtime_would_refuse_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(view: rules.View) -> object:
        yield next(iter(view.nodes)), "nobody takes it", True

    monkeypatch.setattr("onnxq.targets.rules.tensorrt.RULES", (never,))
    with pytest.raises(OnnxqError, match=r"the saved model breaks a rule for tensorrt: '.*': nobody takes it"):
        made(tmp_path, "tensorrt", "w4a16", PRODUCTS, MATRICES)
    assert not list(tmp_path.glob("tensorrt*"))


def test_a_provider_of_onnxruntime_is_run_where_there_is_one(tmp_path: Path) -> None:
    """By the one that is always there."""
    model = tiny.save(tiny.model(PRODUCTS, MATRICES), tmp_path)
    opened = open_in("CPUExecutionProvider", model, 1)
    assert opened is not None and version_of("CPUExecutionProvider")
    feed = {"x": np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32)}
    np.testing.assert_array_equal(opened.run(feed)[0], Session(model).run(feed)[0])
    assert opened.outputs == ["y"] and dict(opened.precisions()) == {"CPU": 2}
