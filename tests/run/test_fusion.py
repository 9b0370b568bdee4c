"""docs/fusion.md from the kernels that ran: each row of its table on a tiny model, all of whose nodes are quantized."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq import targets
from onnxq.calibration.calibrate import calibrate
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.passes.rewrite import rewrite
from onnxq.plan import Choice, Plan
from onnxq.planning import int8_regions
from onnxq.planning.first_plan import make_plan
from onnxq.planning.scales import values_to_observe
from onnxq.recipe import Recipe
from onnxq.runtime import known
from onnxq.runtime.session import Session
from onnxq.samples.source import inputs_of, open_data
from onnxq.summaries.ranges import NO_RANGES
from onnxq.tuning.costs import attribute_costs, unfused

#: The weights that the graphs below may read, by name.
WEIGHTS = {
    "f": normal(16, 16, 3, 3),
    "b": normal(16),
    "h": normal(16, 16, 1, 1, seed=1),
    "w": normal(16, 32, seed=2),
    "c": normal(32, seed=3),
    "v": normal(1024, 32, seed=4),
    "k": normal(8, 32, seed=5),
    "square": normal(1024, 1024, seed=6),
    "rows": normal(4, 1024, seed=7),
    "row": normal(1, 1024, seed=8),
    "shape": np.array([1, 16, 16, 4]),
    "two": np.array([2]),
    "three": np.array([3]),
    "twice": np.array([1, 1, 2, 2], np.float32),
    "zero": np.array([0]),
    "none": np.array(0, np.float32),
    "half": np.array(0.5, np.float32),
}
IMAGE = "float[1,16,8,8]"


@dataclass
class Compiled:
    """`kernels` counts those that ran, but for Transposes: those are the layout changes around convolutions.

    `unfused` are the choices that ran in float against the plan.
    """

    plan: Plan
    model: ir.Model
    kernels: Counter[str]
    sqnr: float
    unfused: list[Choice]


def compiled(text: str, scheme: str = "w8a8", target: str = "ort-cpu", **settings: object) -> Compiled:
    """The graph of `text`, carried through with every node quantized, and what ran in onnxruntime."""
    proto = tiny.model(text)
    used = {name for node in proto.graph.node for name in node.input}
    proto = tiny.model(text, {name: x for name, x in WEIGHTS.items() if name in used})
    made, place = tiny.read(proto), targets.get(target)
    recipe = Recipe(scheme, **settings)  # type: ignore[arg-type]
    prepare(made, opset=place.opset_for(scheme), widen=True)
    plan = make_plan(made, recipe, place, infer_types(made))
    shape = [d.dim_value or 4 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = [{"x": np.random.default_rng(i).standard_normal(shape).astype(np.float32)} for i in range(8)]
    observed = values_to_observe(made, plan)
    data = open_data(feeds, inputs_of(made))
    ranges = calibrate(made, observed, data, "minmax") if observed else NO_RANGES
    rewritten = rewrite(made, plan, ranges, recipe, place)
    session = Session(rewritten, profile=True)
    got, wanted = session.run(feeds[0]), Session(ir.from_proto(proto)).run(feeds[0])
    noise = min(tiny.sqnr(a, b) for a, b in zip(wanted, got, strict=True))
    kernels = session.kernels()
    ran = Counter(kernel.op for kernel in kernels if kernel.op != "Transpose")
    return Compiled(plan, rewritten, ran, noise, unfused(made, plan, kernels))


def test_conv() -> None:
    """Without the output's pair or with any other bias, Conv computes in float, without a word."""
    found = compiled(f"g ({IMAGE} x) => (float[1,16,6,6] y) {{ y = Conv(x, f, b) }}")
    assert found.kernels == {"QuantizeLinear": 1, "QLinearConv": 1, "DequantizeLinear": 1}
    assert found.sqnr > 30


@pytest.mark.parametrize("activation", ["Relu(s)", "Clip(s, none, half)", "Clip(s, none)"])
@pytest.mark.parametrize("base", ["Conv", "Add"])
def test_activation_functions_vanish_into_the_kernel_before_them(base: str, activation: str) -> None:
    """A quantized range that does not clip as the function does would make FusedConv in float."""
    before = "s = Conv(x, f, b)" if base == "Conv" else "p = Conv(x, f)  q = Conv(x, f, b)  s = Add(p, q)"
    found = compiled(f"g ({IMAGE} x) => (float[1,16,6,6] z) {{ {before} y = {activation}  z = Conv(y, h) }}")
    convolutions = 2 if base == "Conv" else 3
    assert found.kernels["QLinearConv"] == convolutions
    assert found.kernels["QLinearAdd"] == (base == "Add")
    assert found.kernels.total() == convolutions + (base == "Add") + 2
    assert found.sqnr > 25


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("beta", [1.0, 2.0])
@pytest.mark.parametrize("bias", [", c", ""])
def test_gemm(alpha: float, beta: float, bias: str) -> None:
    """alpha or beta other than 1, or a bias in float, and Gemm computes in float; its output needs no pair."""
    body = f"y = Gemm<alpha={alpha}, beta={beta}>(x, w{bias})"
    found = compiled(f"g (float[4,16] x) => (float[4,32] y) {{ {body} }}")
    assert found.kernels == {"QuantizeLinear": 1, "QGemm": 1}
    assert found.sqnr > 30


@pytest.mark.parametrize("clip", ["Relu(p)", "Clip(p, none, half)", "Clip(p, none)"])
@pytest.mark.parametrize("product", ["p = Gemm(x, w, c)", "m = MatMul(x, w)  p = Add(m, c)"])
def test_gemm_whose_clipped_result_is_float(product: str, clip: str) -> None:
    """A Relu or Clip behind it that nothing rounds would make a Gemm in float."""
    body = f"{product}  r = {clip}  y = Softmax(r)"
    found = compiled(f"g (float[4,16] x) => (float[4,32] y) {{ {body} }}")
    assert found.kernels["QGemm"] == 1 and not found.unfused
    assert found.sqnr > 30


def test_matmul() -> None:
    found = compiled("g (float[2,4,16] x) => (float[2,4,32] y) { y = MatMul(x, w) }")
    assert found.kernels == {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1}
    assert found.sqnr > 30


def test_matmul_and_add_on_matrices() -> None:
    """onnxruntime would fuse the two into a Gemm in float first."""
    found = compiled("g (float[4,16] x) => (float[4,32] y) { p = MatMul(x, w)  y = Add(c, p) }")
    assert found.kernels == {"QuantizeLinear": 1, "QGemm": 1}
    assert found.sqnr > 30


@pytest.mark.parametrize("body", ["p = MatMul(x, w)  y = Add(c, p)", "p = MatMul(x, w)  y = Add(p, c)"])
@pytest.mark.parametrize("sizes", ["2,4", "2,3,4", "n,4"])
def test_matmul_and_add_on_more_dimensions(sizes: str, body: str) -> None:
    """onnxruntime would fuse these as well where it knows all sizes; where not, a vector is good for other things."""
    found = compiled(f"g (float[{sizes},16] x) => (float[{sizes},32] y) {{ {body} }}")
    assert found.kernels == {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1, "Add": 1}
    assert found.sqnr > 30
    (add,) = (node for node in found.model.graph if node.op_type == "Add")
    constants = [value.const_value for value in add.inputs if value is not None and value.const_value is not None]
    assert [len(tensor.shape) for tensor in constants] == [1 if sizes[0] == "n" else 3]


def test_matmul_in_front_of_a_transpose() -> None:
    """As a Gemm without bias, onnxruntime would fuse it with the Transpose, in float."""
    found = compiled("g (float[4,16] x) => (float[32,4] y) { p = MatMul(x, w)  q = Transpose(p)  y = Relu(q) }")
    assert found.kernels == {"QuantizeLinear": 1, "MatMulIntegerToFloat": 1, "Relu": 1}
    assert found.sqnr > 30


OWN_SCALE = {
    "Add": "Add(a, x)",
    "Mul": "Mul(a, x)",
    "Sigmoid": "Sigmoid(a)",
    "LeakyRelu": "LeakyRelu<alpha=0.1>(a)",
    "AveragePool": "AveragePool<kernel_shape=[2,2]>(a)",
    "GlobalAveragePool": "GlobalAveragePool(a)",
    "Concat": "Concat<axis=2>(a, x)",
}


@pytest.mark.parametrize("op", sorted(known.OWN_SCALE))
def test_operators_with_scales_of_their_own(op: str) -> None:
    """Between two convolutions nothing is dequantized."""
    body = f"x1 = Conv(x, h) a = Conv(x1, h) y = {OWN_SCALE[op].replace('x)', 'x1)')} z = Conv(y, h)"
    found = compiled(f"g ({IMAGE} x) => (float[1,16,M,N] z) {{ {body} }}")
    assert found.kernels == {"QuantizeLinear": 1, "QLinearConv": 3, f"QLinear{op}": 1, "DequantizeLinear": 1}
    assert found.sqnr > 20


#: Shape of the output, and what stands behind the convolution that makes `a`.
SAME_SCALE = {
    "MaxPool": ("1,16,7,7", "y = MaxPool<kernel_shape=[2,2]>(a) z = Conv(y, h)"),
    "Reshape": ("1,16,16,4", "y = Reshape(a, shape) z = Conv(y, h)"),
    "Transpose": ("1,16,8,8", "y = Transpose<perm=[0,1,3,2]>(a) z = Conv(y, h)"),
    "Unsqueeze": ("1,16,1,8,32", "y = Unsqueeze(a, two) z = MatMul(y, k)"),
    "Flatten": ("1,32", "y = Flatten(a) z = Gemm(y, v)"),
    "Squeeze": ("16,8,32", "y = Squeeze(a, zero) z = MatMul(y, k)"),
    "Slice": ("1,16,1,8", "y = Slice(a, two, three, two) z = Conv(y, h)"),
    "Split": ("1,16,4,8", "p, q = Split<axis=2>(a) y = Add(p, q) z = Conv(y, h)"),
    "Resize": ("1,16,16,16", 'y = Resize<mode="nearest">(a, , twice) z = Conv(y, h)'),
}


@pytest.mark.parametrize("op", sorted(known.SAME_SCALE))
def test_operators_that_share_one_scale(op: str) -> None:
    """They move uint8: the only conversions are those of the model's input and output."""
    shape, body = SAME_SCALE[op]
    found = compiled(f"g ({IMAGE} x) => (float[{shape}] z) {{ a = Conv(x, h) {body} }}")
    assert op in {choice.op for choice in found.plan if int8_regions.has_no_weights(choice)}
    returns_int8 = "Conv(y" in body
    assert found.kernels["QuantizeLinear"] == 1
    assert found.kernels["DequantizeLinear"] == returns_int8
    assert found.kernels["QLinearConv"] + found.kernels["QGemm"] + found.kernels["MatMulIntegerToFloat"] == 2
    assert found.sqnr > 20


@pytest.mark.parametrize("op", ["Tanh", "Erf", "Sub", "Resize", "Split"])
def test_everything_else_stays_in_float(op: str) -> None:
    """A pair around an operator that is not fused costs two conversions and gives nothing."""
    inputs = {"Sub": "(a, x)", "Resize": '<mode="linear">(a, , twice)', "Split": "<axis=2>(a)"}.get(op, "(a)")
    outputs = "y, unused" if op == "Split" else "y"
    body = f"a = Conv(x, h) {outputs} = {op}{inputs} z = Conv(y, h)"
    found = compiled(f"g ({IMAGE} x) => (float[1,16,M,N] z) {{ {body} }}")
    assert {choice.op for choice in found.plan} == {"Conv"}
    assert found.kernels["QLinearConv"] == 2
    assert found.kernels[op] == 1
    assert found.kernels["DequantizeLinear"] > 1


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8-dynamic"])
def test_stored_weights_are_unpacked_at_load(scheme: str) -> None:
    """As Cast and Mul: no conversion is left, and Conv gets the kernel it has in float, not ConvInteger."""
    found = compiled(f"g ({IMAGE} x) => (float[1,16,6,6] z) {{ y = Conv(x, f, b)  z = Relu(y) }}", scheme)
    assert "DequantizeLinear" not in tiny.ops(found.model)
    assert {"Cast", "Mul"} <= set(tiny.ops(found.model))
    assert found.kernels - Counter(["ReorderInput", "ReorderOutput"]) in ({"Conv": 1}, {"FusedConv": 1})
    assert found.sqnr > 30


@pytest.mark.parametrize("scheme", ["w4a16", "w8a16"])
@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
def test_packed_weights_have_one_kernel(scheme: str, target: str) -> None:
    """DequantizeLinear on blocks along K of a [K, N] weight is fused to the operator that ort-cpu gets written out."""
    found = compiled("g (float[4,1024] x) => (float[4,32] y) { y = MatMul(x, v) }", scheme, target)
    assert ("MatMulNBits" in tiny.ops(found.model)) == (target == "ort-cpu")
    assert found.kernels == {"MatMulNBits": 1}
    assert found.sqnr > (18 if scheme == "w4a16" else 35)


@pytest.mark.parametrize("behind", ["Relu(a)", "Clip(a, none, half)", "Clip(a, , half)", "Clip(a)"])
@pytest.mark.parametrize("product", ["a = MatMul(x, v)", "p = MatMul(x, v)  a = Add(p, c)", "a = Gemm(x, v, c)"])
def test_no_relu_or_clip_keeps_blocks_from_being_fused(product: str, behind: str) -> None:
    """They are spelled as Max and Min where other nodes read them: else DequantizeLinear would run each time."""
    text = f"g (float[4,1024] x) => (z) {{ {product}  r = {behind}  z = Tanh(r) }}"
    found = compiled(text, "w8a16", "onnx")
    assert found.kernels["MatMulNBits"] == 1 and not found.kernels["DequantizeLinear"]
    assert not {"Relu", "Clip"} & set(tiny.ops(found.model))
    assert found.sqnr > 30
    last = compiled(f"g (float[4,1024] x) => (r) {{ {product}  r = {behind} }}", "w8a16", "onnx")
    assert behind.split("(")[0] in tiny.ops(last.model) and last.kernels["MatMulNBits"] == 1


@pytest.mark.parametrize("added", ["x", "rows", "row"])
@pytest.mark.parametrize("shape", ["4,1024", "2,4,1024"])
def test_no_sum_keeps_blocks_from_being_fused(added: str, shape: str) -> None:
    """Add behind a product of matrices would become a Gemm in float, unless it adds a vector."""
    text = f"g (float[{shape}] x) => (z) {{ a = MatMul(x, square)  s = Add({added}, a)  z = Tanh(s) }}"
    found = compiled(text, "w8a16", "onnx")
    assert found.kernels["MatMulNBits"] == 1 and not found.kernels["DequantizeLinear"]
    assert ("Sum" in tiny.ops(found.model)) == (shape == "4,1024") and found.sqnr > 35


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_codes_that_several_nodes_read_are_unpacked_at_load(op: str) -> None:
    """onnxruntime fuses none of them, and would unpack them once for each node in every run."""
    text = f"g (float[4,1024] x) => (z) {{ a = {op}(x, square)  t = Cos(a)  z = {op}(t, square) }}"
    found = compiled(text, "w8a16", "onnx")
    assert found.kernels == {op: 2, "Cos": 1} and found.sqnr > 30
    assert tiny.ops(found.model).count("Cast") == 1
    assert all("several nodes read" in each.reason for each in found.plan)


@pytest.mark.parametrize("level", [0, 4])
def test_accuracy_level_4_rounds_activations(level: int) -> None:
    """With 8-bit weights the rounding of the activations shows."""
    text = "g (float[4,1024] x) => (float[4,32] y) { y = MatMul(x, v) }"
    noise = {n: compiled(text, "w8a16", accuracy_level=n).sqnr for n in (0, 4)}
    assert (noise[level] > noise[4] + 1) == (level == 0)


def test_dynamic_int8() -> None:
    found = compiled("g (float[4,1024] x) => (float[4,32] y) { y = MatMul(x, v) }", "w8a8-dynamic")
    assert found.kernels == {"DynamicQuantizeMatMul": 1}
    assert found.sqnr > 30


@pytest.mark.parametrize("x", ["float[4,16] x", "float[2,4,16] x"])
@pytest.mark.parametrize("behind", ["Add(p, c)", "Mul(p, half)", "Relu(p)"])
def test_fused_kernels_are_known_by_the_name_of_their_node(x: str, behind: str) -> None:
    """Else a product with a bias would seem to cost nothing in float, and never be worth its int8 kernel."""
    text = f"g ({x}) => (z) {{ [n] p = MatMul(x, w)  y = {behind}  z = Relu(y) }}"
    proto = tiny.model(text, {name: WEIGHTS[name] for name in ("w", "c", "half") if f"{name})" in text})
    session = Session(ir.from_proto(proto), profile=True)
    session.run({"x": normal(*(2, 4, 16)[-x.count(",") - 1 :])})
    assert {kernel.name for kernel in session.kernels() if "Gemm" in kernel.op or "MatMul" in kernel.op} == {"n"}


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"])
def test_a_convolution_fused_with_what_follows_has_its_cost(activation: str) -> None:
    """Its kernel has the name of the value behind the activation function."""
    made = tiny.read(tiny.model(f"g ({IMAGE} x) => (z) {{ [n] y = Conv(x, f)  [m] z = {activation}(y) }}", WEIGHTS))
    prepare(made)
    plan = make_plan(made, Recipe("w8a8"), targets.get("ort-cpu"), infer_types(made))
    session = Session(made, profile=True)
    session.run({"x": normal(1, 16, 8, 8)})
    kernels = session.kernels()
    (convolution,) = (kernel for kernel in kernels if kernel.op in ("Conv", "FusedConv"))
    assert attribute_costs(made, plan, kernels, [], {}).float_seconds["n"] == convolution.seconds


def test_what_was_not_fused_is_noticed() -> None:
    """What onnxruntime fused with a float operator behind it ran in float: the plan gives it back."""
    found = compiled("g (float[4,16] x) => (float[M,N] y) { p = Gemm(x, w) q = Transpose(p) y = Tanh(q) }")
    assert [choice.node for choice in found.unfused] == ["p"]
    assert found.kernels["FusedGemm"] + found.kernels["Gemm"] == 1
