"""Passes of `prepare` that take nodes away: what they leave computes the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.fold_batchnorm import FoldBatchNorm
from onnxq.passes.normalize.fold_constants import EAGER_BYTES, FoldConstants
from onnxq.passes.normalize.forget_exporter import ForgetExporter
from onnxq.passes.normalize.remove_identities import RemoveIdentities
from onnxq.passes.normalize.remove_unused import RemoveUnused

STATISTICS = {
    "gamma": normal(8, seed=1) + 2,
    "beta": normal(8, seed=2),
    "mean": normal(8, seed=3),
    "var": np.abs(normal(8, seed=4)) + 0.5,
}
NORM = "BatchNormalization<epsilon=0.01>(c, gamma, beta, mean, var)"
PER_CHANNEL = normal(8, 1, 1, seed=5)


def apply(
    once: Callable[[], ir.passes.InPlacePass], text: str, constants: dict[str, NDArray], **options: int
) -> ir.Model:
    """The model after the pass, which says that it changed something, and then that it does not any more."""
    made = tiny.read(tiny.model(text, constants, **options))
    assert once()(made).modified
    assert not once()(made).modified
    return made


def assert_untouched(once: Callable[[], ir.passes.InPlacePass], text: str, constants: dict[str, NDArray]) -> None:
    made = tiny.read(tiny.model(text, constants))
    before = tiny.ops(made)
    assert not once()(made).modified
    assert tiny.ops(made) == before


@pytest.mark.parametrize(
    "follower",
    [
        f"y = {NORM}",
        "y = Mul(c, k)",
        "y = Add(k, c)",
        f"d = {NORM}  e = Mul(d, k)  y = Add(e, k)",
        "y = Mul(c, one)",
        "y = Add(cube, c)",
    ],
    ids=["BatchNormalization", "Mul", "Add", "all", "scalar", "scalar-of-rank-4"],
)
@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        ("Conv(x, w)", (8, 4, 3, 3)),
        ("Conv(x, w, b)", (8, 4, 3, 3)),
        ("Conv<group=2>(x, w, b)", (8, 2, 3, 3)),
        ("ConvTranspose(x, w, b)", (4, 8, 3, 3)),
    ],
)
def test_what_follows_a_convolution_goes_into_it(conv: str, shape: tuple[int, ...], follower: str) -> None:
    constants = STATISTICS | {"w": normal(*shape), "b": normal(8, seed=6), "k": PER_CHANNEL}
    constants |= {"one": np.float32([[1.5]]), "cube": np.float32([[[[2.5]]]])}
    text = f"g (float[1,4,6,6] x) => (float[1,8,M,N] y) {{ c = {conv}  {follower} }}"
    made = apply(FoldBatchNorm, text, constants)
    assert tiny.ops(made) == [conv.partition("<")[0].partition("(")[0]]
    x = normal(1, 4, 6, 6, seed=7)
    wanted = tiny.evaluate(tiny.model(text, constants), x=x)[0]
    np.testing.assert_allclose(tiny.evaluate(made, x=x)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        (f"c = Conv(x, w)  y = {NORM}", "y, c"),
        (f"c = Conv(x, w)  y = {NORM}  z = Relu(c)", "y, z"),
        ("c = Conv(x, w)  y = Mul(c, c)", "y"),
        ("c = Conv(x, w)  y = Mul(c, x8)", "y"),
        ("c = Conv(x, w)  y = Add(c, row)", "y"),
        ("c = Conv(x, w)  y = Mul(c, map)", "y"),
        ("c = Conv(x, w)  y = Mul(c, deep)", "y"),
        (f"c = Conv(x, x8)  y = {NORM}", "y"),
        ("c = Conv(x, w, x1)  y = Mul(c, k)", "y"),
        (f"c = Relu(x)  y = {NORM}", "y"),
    ],
    ids=[
        "output",
        "read",
        "square",
        "activation",
        "row",
        "map",
        "deeper",
        "free-weight",
        "free-bias",
        "no-convolution",
    ],
)
def test_what_must_not_go_into_a_convolution_stays(steps: str, outputs: str) -> None:
    text = f"g (float[1,4,3,8] x, float[8,4,1,1] x8, float[8] x1) => ({outputs}) {{ {steps} }}"
    constants = {"w": normal(8, 4, 1, 1), "k": PER_CHANNEL, "row": normal(8), "map": normal(8, 3, 8)}
    assert_untouched(FoldBatchNorm, text, STATISTICS | constants | {"deep": normal(1, 1, 1, 1, 1)})


def test_a_shared_weight_is_scaled_for_one_reader_only() -> None:
    text = f"g (float[1,8,3,3] x) => (y, z) {{ c = Conv(x, w)  y = {NORM}  z = Conv(x, w) }}"
    constants = STATISTICS | {"w": normal(8, 8, 1, 1)}
    made = apply(FoldBatchNorm, text, constants)
    x = normal(1, 8, 3, 3, seed=7)
    for wanted, got in zip(tiny.evaluate(tiny.model(text, constants), x=x), tiny.evaluate(made, x=x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


Q = np.random.default_rng(0).integers(-128, 128, (40, 16)).astype(np.int8)
FOLDED = {
    "Transpose": ("w = Transpose<perm=[1,0]>(s)", {"s": normal(16, 40)}, 17),
    "Reshape": ("w = Reshape(s, n)", {"s": normal(16, 40), "n": np.array([40, 16])}, 17),
    "Cast": ("w = Cast<to=1>(s)", {"s": normal(40, 16, dtype=np.float16)}, 17),
    "DequantizeLinear-10": ("w = DequantizeLinear(q, t)", {"q": Q, "t": np.float32(0.1)}, 10),
    "DequantizeLinear-13": ("w = DequantizeLinear<axis=1>(q, t, z)", {"q": Q, "t": np.abs(normal(16)), "z": Q[0]}, 13),
    "DequantizeLinear-18": ("w = DequantizeLinear<axis=0>(q, t)", {"q": Q, "t": np.abs(normal(40))}, 18),
    "DequantizeLinear-19": ("w = DequantizeLinear<axis=0>(q, t)", {"q": Q, "t": np.abs(normal(40))}, 19),
    "DequantizeLinear-21": ("w = DequantizeLinear<axis=0>(q, t)", {"q": Q, "t": np.abs(normal(40))}, 21),
}


@pytest.mark.parametrize("name", FOLDED)
def test_nodes_of_constants_become_constants(name: str) -> None:
    step, constants, opset = FOLDED[name]
    made = apply(
        FoldConstants, f"g (float[N,40] x) => (float[N,16] y) {{ {step}  y = MatMul(x, w) }}", constants, opset=opset
    )
    assert tiny.ops(made) == ["MatMul"]
    newer = max(opset, 19) if "Dequantize" in name else opset  # the reference has no older DequantizeLinear
    alone = tiny.model(f"g () => (float[40,16] w) {{ {step} }}", constants, opset=newer)
    np.testing.assert_array_equal(tiny.array(tiny.find(made, "MatMul").inputs[1]), tiny.evaluate(alone)[0])


def test_large_constants_are_folded_when_they_are_read() -> None:
    w = normal(160, 120)
    assert w.nbytes > EAGER_BYTES
    made = apply(
        FoldConstants, "g (float[N,120] x) => (y) { t = Transpose<perm=[1,0]>(s)  y = MatMul(x, t) }", {"s": w}
    )
    value = tiny.find(made, "MatMul").inputs[1]
    assert value is not None
    assert isinstance(value.const_value, ir.LazyTensor)
    np.testing.assert_array_equal(tiny.array(value), w.T)


def test_equal_derivations_are_made_once() -> None:
    text = (
        "g (float[N,16] x, bool c) => (y) { y = If(c) "
        "<then_branch = t () => (p) { a = Transpose<perm=[1,0]>(s)  p = MatMul(x, a) },"
        " else_branch = e () => (q) { b = Transpose<perm=[1,0]>(s)  q = MatMul(x, b) }> }"
    )
    made = apply(FoldConstants, text, {"s": normal(40, 16)})
    readers = [node for node in made.graph.all_nodes() if node.op_type == "MatMul"]
    assert readers[0].inputs[1] is readers[1].inputs[1]


@pytest.mark.parametrize(
    ("step", "constants"),
    [
        ("w = Expand(s, n)", {"s": normal(1, 16), "n": np.array([4000, 16])}),
        ("w = RandomNormalLike(s)", {"s": normal(40, 16)}),
        ("w = com.microsoft.Gelu(s)", {"s": normal(40, 16)}),
        ("w = Add(s, x)", {"s": normal(40, 16)}),
    ],
    ids=["would-grow", "random", "not-standard", "not-constant"],
)
def test_other_nodes_stay(step: str, constants: dict[str, NDArray]) -> None:
    assert_untouched(FoldConstants, f"g (float[N,40] x) => (y) {{ {step}  y = MatMul(x, w) }}", constants)


def test_a_constant_that_is_an_output_stays_one() -> None:
    assert_untouched(FoldConstants, "g () => (float[16,4] y) { y = Transpose<perm=[1,0]>(s) }", {"s": normal(4, 16)})


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("g (float[4] x) => (z) { y = Identity(x)  z = Relu(y) }", ["Relu"]),
        ("g (float[4] x) => (z) { y = Relu(x)  z = Identity(y) }", ["Relu"]),
        ("g (float[4] x) => (z) { y = Dropout(x)  z = Relu(y) }", ["Relu"]),
        ("g (float[4] x) => (z) { y, mask = Dropout(x, r, f)  z = Relu(y) }", ["Relu"]),
        ("g (float[4] x) => (y, z) { y = Relu(x)  t = Identity(y)  z = Neg(t) }", ["Relu", "Neg"]),
    ],
)
def test_what_does_nothing_goes(text: str, left: list[str]) -> None:
    constants = {"r": np.float32(0.5), "f": np.array(False)}
    made = apply(RemoveIdentities, text, constants)
    assert tiny.ops(made) == left
    x = np.float32([-2, -1, 1, 2])
    for wanted, got in zip(tiny.evaluate(tiny.model(text, constants), x=x), tiny.evaluate(made, x=x), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4] x) => (y) { y = Identity(x) }",
        "g (float[4] x) => (y, z) { y = Relu(x)  z = Identity(y) }",
        "g (float[4] x) => (z) { y, mask = Dropout(x, r, yes)  z = Relu(y) }",
        "g (float[4] x) => (z, mask) { y, mask = Dropout(x)  z = Relu(y) }",
        "g (float[4] x, bool c) => (y) { y = If(c) <then_branch = t () => (p) { p = Identity(x) },"
        " else_branch = e () => (q) { q = Relu(x) }> }",
    ],
    ids=["input", "two-outputs", "training", "mask", "body"],
)
def test_what_does_something_stays(text: str) -> None:
    assert_untouched(RemoveIdentities, text, {"r": np.float32(0.5), "yes": np.array(True)})


def test_what_nobody_reads_goes() -> None:
    text = (
        "g (float[4] x, bool c) => (z) { u = Neg(x)  y = If(c) <then_branch = t () => (p) { d = Neg(x)  p = Relu(x) },"
        " else_branch = e () => (q) { q = Identity(w) }>  z = Add(y, v) }"
    )
    made = apply(RemoveUnused, text, {"w": normal(4), "v": normal(4), "unread": normal(4)})
    assert tiny.ops(made) == ["If", "Relu", "Identity", "Add"]
    assert set(made.graph.initializers) == {"w", "v"}


def test_a_loop_keeps_the_condition_that_is_left_out() -> None:
    """onnxruntime refuses one of a single input."""
    text = (
        "g (float[4] x, int64 n, bool k) => (z) { u = Identity(k)  z = Loop(n, u) <body = b (int64 i, bool c) =>"
        " (bool d, float[4] t) { d = Identity(c)  t = Relu(x) }> }"
    )
    proto = tiny.model(text)
    proto.graph.node[1].input[1] = ""
    made = RemoveUnused()(tiny.read(proto)).model
    assert tiny.ops(made)[0] == "Loop" and len(tiny.find(made, "Loop").inputs) == 2


def test_what_only_removed_bodies_read_is_unused() -> None:
    text = (
        "g (float[4] x, bool c) => (z) { u = Neg(x)  y = If(c) <then_branch = t () => (p) { d = If(c) <then_branch ="
        " r () => (m) { m = Add(u, w) }, else_branch = s () => (n) { n = Neg(u) }>  p = Relu(d) },"
        " else_branch = e () => (q) { q = Abs(u) }>  z = Exp(x) }"
    )
    made = apply(RemoveUnused, text, {"w": normal(4)})
    assert tiny.ops(made) == ["Exp"] and not made.graph.initializers
    (x, c) = made.graph.inputs
    assert [use.node.op_type for use in x.uses()] == ["Exp"] and not c.uses()


@pytest.mark.parametrize(
    ("ir_version", "inputs", "left"),
    [
        (3, "float[4] x, float[4] w, float[4] v", ["x"]),
        (3, "float[4] x, float[4] w", ["x"]),
        (8, "float[4] x, float[4] w, float[4] v", ["x"]),
        (8, "float[4] x, float[4] w", ["x", "w"]),
        (8, "float[4] x", ["x"]),
    ],
)
def test_initializers_listed_out_of_habit_are_no_inputs(ir_version: int, inputs: str, left: list[str]) -> None:
    text, constants = f"g ({inputs}) => (z) {{ y = Add(x, w)  z = Mul(y, v) }}", {"w": normal(4), "v": normal(4)}
    made = tiny.read(tiny.model(text, constants, ir_version=ir_version))
    assert DropInitializerInputs()(made).modified is (len(left) <= inputs.count(","))
    assert [value.name for value in made.graph.inputs] == left
    assert not DropInitializerInputs()(made).modified
    assert ir_version >= 4 or made.ir_version == 4


def test_traces_of_the_exporter_go_and_the_users_words_stay() -> None:
    proto = tiny.model("g (float[4] x) => (y) { y = Relu(x) }")
    proto.doc_string = "my model"
    proto.graph.node[0].doc_string = "File model.py, line 3"
    made = tiny.read(proto)
    assert ForgetExporter()(made).modified
    assert not ForgetExporter()(made).modified
    assert made.doc_string == "my model"
    assert not tiny.find(made, "Relu").doc_string
