"""Passes that change types, versions and names, or bring values out: the model computes the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.origin import STORED_TYPE
from onnxq.passes.normalize.change_float_type import ChangeFloatType
from onnxq.passes.normalize.name_cast_types import NameCastTypes
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.passes.opsets.raise_opset import SMALL_BYTES, RaiseOpset
from onnxq.passes.prepare import prepare
from onnxq.passes.quantize.convert_to_half import ConvertToHalf
from onnxq.plan import Choice, Method, Plan

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
W16 = normal(8, 8, dtype=np.float16)


def names(made: ir.Model) -> list[str | None]:
    return [node.name for node in graph.nodes(made)]


def test_cast_like_becomes_cast() -> None:
    text = "g (float16[N,4] x) => (float16[N,4] y) { [n] c = CastLike(k, x)  y = Add(x, c) }"
    made = tiny.read(tiny.model(text, {"k": normal(4)}))
    assert NameCastTypes()(made).modified
    assert not NameCastTypes()(made).modified
    assert tiny.ops(made) == ["Cast", "Add"]
    assert names(made)[0] == "n"
    assert graph.attribute_int(tiny.find(made, "Cast"), "to", 0) == HALF


def test_what_is_of_the_type_already_is_not_cast() -> None:
    """Others are, and what is unknown, and what nobody else could be returned for."""
    text = """g (float[N,4] x, float16[N,4] h, int64[N,4] i) => (float[N,4] y, float[N,4] z, float[N,4] o) {
        s = Softmax(x)  a = Cast<to=1>(s)  b = Cast<to=1>(a)  c = Cast<to=10>(b)  d = Cast<to=1>(c)  e = Cast<to=1>(h)
        j = Cast<to=1>(i)  u = com.microsoft.Unknown(x)  v = Cast<to=1>(u)
        t = Sum(b, d, e, j, v)  y = Cast<to=1>(t)  z = Cast<to=1>(x)  o = Cast<to=1>(s) }"""
    made = tiny.read(tiny.model(text))
    assert NameCastTypes()(made).modified
    assert not NameCastTypes()(made).modified
    assert tiny.ops(made) == ["Softmax", *["Cast"] * 4, "Unknown", "Cast", "Sum", "Cast"]
    assert [out.name for out in made.graph.outputs] == ["y", "z", "o"]
    softmax = tiny.find(made, "Softmax").outputs[0]
    assert softmax.name == "o" and softmax.is_graph_output()


def test_cast_like_something_unknown_stays() -> None:
    """`modified` says what was done, not what was looked at."""
    text = "g (float[N,4] x) => (y) { u = com.microsoft.Unknown(x)  y = CastLike(x, u) }"
    made = tiny.read(tiny.model(text))
    assert not NameCastTypes()(made).modified
    assert tiny.ops(made) == ["Unknown", "CastLike"]


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w)",
        "h = MatMul(x, w)  y = Relu(h)",
        "y = MatMul(x, x)",
        "f = Cast<to=1>(x)  g = MatMul(f, v)  h = Cast<to=10>(g)  y = MatMul(h, w)",
        "k = ConstantOfShape<value = float16[1] {2}>(n)  y = Mul(x, k)",
        "y = If(c) <then_branch = t () => (float16[8,8] p) { p = MatMul(x, w) },"
        " else_branch = e () => (float16[8,8] q) { q = Identity(x) }>",
    ],
    ids=["MatMul", "chain", "no-weight", "mixed", "tensor-attribute", "If"],
)
def test_halves_compute_in_float_behind_the_same_interface(body: str) -> None:
    constants: dict[str, NDArray] = {"w": W16, "v": normal(8, 8, seed=1), "n": np.array([8, 8]), "c": np.array(True)}
    text = f"g (float16[8,8] x) => (float16[8,8] y) {{ {body} }}"
    made = tiny.read(tiny.model(text, constants))
    assert ChangeFloatType(HALF, FLOAT)(made).modified
    assert [(v.name, v.dtype) for v in (*made.graph.inputs, *made.graph.outputs)] == [("x", HALF), ("y", HALF)]
    x = normal(8, 8, dtype=np.float16, seed=2)
    (got,) = tiny.evaluate(made, x=x)
    (wanted,) = tiny.evaluate(tiny.model(text, constants), x=x)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), atol=4e-3)


def test_widened_weights_remember_their_type() -> None:
    made = tiny.read(tiny.model("g (float16[N,8] x) => (float16[N,8] y) { y = MatMul(x, w) }", {"w": W16}))
    ChangeFloatType(HALF, FLOAT)(made)
    weight = tiny.find(made, "MatMul").inputs[1]
    assert weight is not None
    assert weight.meta[STORED_TYPE] is HALF
    np.testing.assert_array_equal(tiny.array(weight), W16.astype(np.float32))


def test_a_model_without_the_type_is_left_alone() -> None:
    made = tiny.read(tiny.model("g (float[N,8] x) => (float[N,8] y) { y = MatMul(x, w) }", {"w": normal(8, 8)}))
    assert not ChangeFloatType(HALF, FLOAT)(made).modified


def halved(text: str, constants: dict[str, NDArray], plan: Plan) -> ir.Model:
    made = tiny.read(tiny.model(text, constants))
    UniqueNames()(made)
    originals = {node.name or "" for node in graph.nodes(made)}
    assert ConvertToHalf(plan, originals)(made).modified
    return made


CHAIN = "g (float[N,8] x) => (float[N,8] y) { [one] t = MatMul(x, w)  [two] u = Relu(t)  [three] y = MatMul(u, w) }"


def dtypes(made: ir.Model) -> dict[str, str]:
    """Of what each node makes; of a Cast, what it casts to."""
    types = {}
    for node in graph.nodes(made):
        kind = ir.DataType(graph.attribute_int(node, "to", 0)) if node.op_type == "Cast" else node.outputs[0].dtype
        types[node.name or ""] = "half" if kind is HALF else "float"
    return types


def choices(**methods: Method) -> dict[str, Choice]:
    return {name: Choice(name, "MatMul", method) for name, method in methods.items()}


@pytest.mark.parametrize(
    ("scheme", "methods", "wanted"),
    [
        ("fp16", {"one": Method.HALF, "three": Method.HALF}, {"one": "half", "two": "half", "three": "half"}),
        ("fp16", {"one": Method.HALF, "three": Method.KEEP}, {"one": "half", "two": "half", "three": "float"}),
        ("w4a16", {"one": Method.HALF, "three": Method.KEEP}, {"one": "half", "two": "float", "three": "float"}),
        ("fp16", {"one": Method.HALF, "two": Method.KEEP}, {"one": "half", "two": "float", "three": "float"}),
        (
            "fp16",
            {"one": Method.HALF, "two": Method.KEEP, "three": Method.HALF},
            {"one": "half", "two": "float", "three": "half"},
        ),
        ("fp16", {"one": Method.KEEP, "three": Method.HALF}, {"one": "float", "two": "float", "three": "half"}),
    ],
    ids=["all", "one-kept", "one-by-rule", "weightless-kept", "half-behind-kept", "between"],
)
def test_half_goes_as_far_as_the_plan(scheme: str, methods: dict[str, Method], wanted: dict[str, str]) -> None:
    made = halved(CHAIN, {"w": normal(8, 8)}, Plan(scheme, "onnx", choices(**methods)))
    assert dtypes(made).items() >= wanted.items()
    assert [value.dtype for value in (*made.graph.inputs, *made.graph.outputs)] == [FLOAT, FLOAT]
    x = normal(4, 8, seed=1)
    wanted_y = tiny.evaluate(tiny.model(CHAIN, {"w": normal(8, 8)}), x=x)[0]
    np.testing.assert_allclose(tiny.evaluate(made, x=x)[0], wanted_y, atol=1e-2)


@pytest.mark.parametrize(
    "middle",
    [
        "[two] u = Pow(t, k)",
        "[two] u = Add(t, big)",
        "[two] u = com.microsoft.Gelu(t)",
        '[two] u = ScatterElements<reduction = "add">(t, places, t)',
        '[two] u = ScatterND<reduction = "max">(t, rows, row)',
        "[two] u = MeanVarianceNormalization<axes = [1]>(t)",
    ],
    ids=["too-narrow", "too-large", "not-standard", "no-kernel", "no-kernel-of-slices", "no-function"],
)
def test_what_half_cannot_hold_stays_in_float(middle: str) -> None:
    text = CHAIN.replace("[two] u = Relu(t)", middle)
    constants = {"w": normal(8, 8), "k": np.float32(2), "big": np.float32(1e6)}
    constants |= {"places": np.zeros((4, 8), np.int64), "rows": np.array([[1]]), "row": normal(1, 8)}
    made = halved(text, constants, Plan("fp16", "onnx", choices(one=Method.HALF, three=Method.HALF)))
    kinds = dtypes(made)
    assert (kinds["one"], kinds["three"]) == ("half", "half")
    (two,) = (node for node in graph.nodes(made) if node.name == "two")
    assert two.outputs[0].dtype is not HALF


@pytest.mark.parametrize(("perm", "is_half"), [([1, 0, 2], False), ([0, 2, 1], True)], ids=["batch", "matrix"])
def test_a_transpose_that_crashes_the_runtime_stays_in_float(perm: list[int], is_half: bool) -> None:
    body = f"t = Relu(x) u = Transpose<perm={perm}>(t) [two] y = MatMul(u, w)"
    body = f"g (float[8, 8, 8] x) => (float[8, 8, 8] y) {{ {body} }}"
    made = halved(body, {"w": normal(8, 8)}, Plan("fp16", "onnx", choices(two=Method.HALF)))
    assert (tiny.find(made, "Transpose").outputs[0].dtype == HALF) == is_half


def test_the_model_that_was_cloned_keeps_its_types() -> None:
    made = tiny.read(tiny.model(CHAIN, {"w": normal(8, 8)}))
    plan = Plan("fp16", "onnx", choices(one=Method.HALF, three=Method.HALF))
    ConvertToHalf(plan, {"one", "two", "three"})(made.clone())
    assert made.graph.outputs[0].dtype is FLOAT


def test_without_half_choices_nothing_is_converted() -> None:
    made = tiny.read(tiny.model(CHAIN, {"w": normal(8, 8)}))
    assert not ConvertToHalf(Plan("fp16", "onnx", choices(one=Method.STORED)), {"one", "two", "three"})(made).modified


def test_the_opset_is_raised_by_rewriting() -> None:
    """Unsqueeze's axes were an attribute before opset 13; weights do not go through the converter."""
    text = "g (float[N,40] x) => (float[N,1,40] z) { y = MatMul(x, w)  z = Unsqueeze<axes=[1]>(y) }"
    w = normal(40, 40)
    assert w.nbytes > SMALL_BYTES
    made = tiny.read(tiny.model(text, {"w": w}, opset=11, ir_version=6))
    tensor = made.graph.initializers["w"].const_value
    assert RaiseOpset(13)(made).modified
    assert not RaiseOpset(13)(made).modified
    assert graph.opset(made) == 13
    assert made.ir_version >= 7
    assert made.graph.initializers["w"].const_value is tensor
    assert [value.name for value in made.graph.inputs] == ["x"]
    x = normal(3, 40, seed=1)
    np.testing.assert_allclose(tiny.evaluate(made, x=x)[0], (x @ w)[:, None], rtol=1e-5)


def test_an_opset_that_cannot_be_raised_is_refused_and_nothing_lost() -> None:
    text = "g (float[1,300,4,4] x) => (z) { y = Dropout<is_test=0>(x)  z = Add(y, w) }"
    made = tiny.read(tiny.model(text, {"w": normal(1, 300, 4, 4)}, opset=6, ir_version=3))
    with pytest.raises(BadModel, match="ONNX's converter cannot raise opset 6 to 21: Attribute is_test"):
        RaiseOpset(21)(made)
    assert graph.opset(made) == 6
    np.testing.assert_array_equal(tiny.array(made.graph.initializers["w"]), normal(1, 300, 4, 4))
    assert prepare(made, opset=21).startswith("ONNX's converter cannot raise opset 6 to 21")


BRANCHES = (
    "g (float[4] x, bool c) => (y) { y = If(c) <then_branch = t () => (p) { h = Neg(x)  p = Relu(h) },"
    " else_branch = e () => (p) { h = Abs(x)  p = Relu(h) }> }"
)


def test_names_are_unique_across_bodies() -> None:
    made = tiny.read(tiny.model(BRANCHES))
    assert UniqueNames()(made).modified
    assert not UniqueNames()(made).modified
    values = [output.name for node in graph.nodes(made) for output in node.outputs]
    assert len(set(values)) == len(values) == 5
    assert len(set(names(made))) == 5
    assert names(made)[0] == "y"
    for c, wanted in ((True, [0, 2]), (False, [1, 2])):
        np.testing.assert_array_equal(tiny.evaluate(made, x=np.float32([1, -2, 0, 0]), c=np.array(c))[0][:2], wanted)


def test_the_interface_keeps_its_names() -> None:
    """Even where a body has a value of the same name, or a node is called like a value."""
    made = tiny.read(tiny.model(BRANCHES.replace("h", "x2").replace("(p)", "(y)").replace("p =", "y =")))
    UniqueNames()(made)
    assert [value.name for value in (*made.graph.inputs, *made.graph.outputs)] == ["x", "c", "y"]


def test_values_come_out() -> None:
    made = tiny.read(tiny.model("g (float[4] x) => (z) { y = Neg(x)  z = Relu(y) }"))
    expose = ExposeValues(["y", "x", "z"])
    assert expose(made).modified
    assert expose.outputs[0] == "y"
    assert expose.outputs[2] == "z"
    z, y, x = tiny.evaluate(made, x=np.float32([1, -2, 3, 0]))
    np.testing.assert_array_equal(y, [-1, 2, -3, 0])
    np.testing.assert_array_equal(x, [1, -2, 3, 0])
    np.testing.assert_array_equal(z, [0, 2, 0, 0])
    assert not ExposeValues(["y", "z"])(made).modified


@pytest.mark.parametrize("c", [True, False])
def test_values_of_a_branch_come_out_where_it_is_taken(c: bool) -> None:
    then, otherwise = BRANCHES.split("else_branch")
    made = tiny.read(tiny.model(then + "else_branch" + otherwise.replace("h =", "k =").replace("(h)", "(k)")))
    UniqueNames()(made)
    expose = ExposeValues(["h", "k"])
    assert expose(made).modified
    _, h, k = tiny.evaluate(made, x=np.float32([1, -2, 3, 0]), c=np.array(c))
    np.testing.assert_array_equal(h, [-1, 2, -3, 0] if c else [])
    np.testing.assert_array_equal(k, [] if c else [1, 2, 3, 0])


def test_of_a_loop_the_extremes_of_each_turn_come_out() -> None:
    text = (
        "g (float[2] x, bool c, int64 n) => (y) "
        "{ y = Loop(n, c, x) <body = b (int64 i, bool go, float[2] s) => (go2, s2)"
        " { go2 = Identity(go)  t = Add(s, s)  s2 = Neg(t) }> }"
    )
    made = tiny.read(tiny.model(text))
    expose = ExposeValues(["t"])
    assert expose(made).modified
    _, extremes = tiny.evaluate(made, x=np.float32([1, -3]), c=np.array(True), n=np.array(3))
    np.testing.assert_array_equal(extremes, [[-6, 2], [-4, 12], [-24, 8]])


def test_masks_that_half_cannot_hold_are_made_in_float() -> None:
    """As exporters write them: ConstantOfShape with the lowest number of float32."""
    text = """g (float[8] x) => (float[8] y) {
      [shape] s = Shape(x)  [mask] m = ConstantOfShape<value = float[1] {-3.0e38}>(s)  [one] y = Add(x, m) }"""
    made = halved(text, {}, Plan("fp16", "onnx", choices(one=Method.HALF)))
    assert tiny.find(made, "ConstantOfShape").outputs[0].dtype is not HALF
    assert tiny.find(made, "Add").inputs[1] is not tiny.find(made, "ConstantOfShape").outputs[0]
