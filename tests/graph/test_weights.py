"""The walker sees every weight, wherever a legal model may keep one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.weights import MIN_ELEMENTS, Weight, find_weights, other_constants
from onnxq.passes.prepare import prepare

W = normal(32, 16)


def weights(text: str, constants: dict[str, np.ndarray], **options: object) -> list[Weight]:
    """Those of the prepared model."""
    made = tiny.read(tiny.model(text, constants, **options))  # type: ignore[arg-type]
    prepare(made)
    return list(find_weights(made))


def roles(found: list[Weight]) -> list[tuple[str, int, int, int]]:
    return [(w.node.op_type, w.role.index, w.role.channel, w.role.contraction) for w in found]


@pytest.mark.parametrize(
    ("node", "shape", "role"),
    [
        ("MatMul(x, w)", (32, 16), (1, 1, 0)),
        ("MatMul(w, x)", (32, 16), (0, 0, 1)),
        ("MatMul(x, w)", (3, 32, 16), (1, 2, 1)),
        ("MatMul(w, x)", (3, 32, 16), (0, 1, 2)),
        ("Gemm(x, w)", (32, 16), (1, 1, 0)),
        ("Gemm<transB=1>(x, w)", (16, 32), (1, 0, 1)),
        ("Gemm<transA=1, alpha=0.5, beta=2.0>(x, w)", (32, 16), (1, 1, 0)),
        ("Gemm(w, x)", (16, 32), (0, 0, 1)),
        ("Gemm<transA=1>(w, x)", (32, 16), (0, 1, 0)),
        ("Gather(w, i)", (32, 16), (0, 0, 1)),
        ("Conv(x, w)", (16, 8, 3, 3), (1, 0, 1)),
        ("Conv(x, w)", (32, 8, 3), (1, 0, 1)),
        ("ConvTranspose(x, w)", (8, 16, 3, 3), (1, 1, 0)),
        ("GRU<hidden_size=8>(x, w, r)", (1, 24, 32), (1, 1, 2)),
        ("com.microsoft.Attention<num_heads=2>(x, w, b)", (16, 48), (1, 1, 0)),
        ("Gather(w, i)", (8, 8, 8), (0, 0, 2)),
    ],
)
def test_each_operator_has_its_axes(node: str, shape: tuple[int, ...], role: tuple[int, int, int]) -> None:
    """`role` is input, axis of the outputs, axis summed over."""
    found = weights(
        f"g (float[A,B] x, int64[N] i, float[1,24,8] r, float[48] b) => (y) {{ y = {node} }}", {"w": normal(*shape)}
    )
    assert roles(found) == [(found[0].node.op_type, *role)]
    assert found[0].shape == shape


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("Gather<axis=1>(w, i)", (32, 16)),
        ("Gather<axis=1>(w, i)", (8, 8, 8)),
        ("MatMul(x, w)", (512,)),
        ("MatMul(x, w)", (16, 15)),
        ("Mul(x, w)", (32, 16)),
        ("com.microsoft.MatMul(x, w)", (32, 16)),
    ],
)
def test_what_is_no_weight_is_left_alone(node: str, shape: tuple[int, ...]) -> None:
    assert not weights(f"g (float[A,B] x, int64[N] i) => (y) {{ y = {node} }}", {"w": normal(*shape)})


def test_small_constants_are_parameters() -> None:
    """The limit is a number of elements."""
    assert MIN_ELEMENTS == 256
    assert weights("g (float[A,16] x) => (y) { y = MatMul(x, w) }", {"w": normal(16, 16)})
    assert not weights("g (float[A,17] x) => (y) { y = MatMul(x, w) }", {"w": normal(17, 15)})


@pytest.mark.parametrize(
    "body",
    [
        "y = If(c) <then_branch = t () => (p) { p = MatMul(x, w) }, else_branch = e () => (q) { q = MatMul(x, v) }>",
        "y = Loop(n, c, x) <body = b (int64 i, bool go, float[A,16] s) => (go2, s2) "
        "{ go2 = Identity(go)  t = MatMul(s, w)  s2 = MatMul(t, v) }>",
        "z, y = Scan(x, x) <num_scan_inputs = 1, body = b (float[A,16] s, float[16] r) => (s2, s3) "
        "{ t = MatMul(s, w)  s2 = MatMul(t, v)  s3 = Identity(s2) }>",
        "y = If(c) <then_branch = t () => (p) { p = If(c) <then_branch = tt () => (pp) { pp = MatMul(x, w) }, "
        "else_branch = ee () => (pq) { pq = MatMul(x, v) }> }, else_branch = e () => (q) { q = Identity(x) }>",
    ],
    ids=["If", "Loop", "Scan", "If-in-If"],
)
def test_bodies_are_searched(body: str) -> None:
    constants = {"w": normal(16, 16), "v": normal(16, 16, seed=1)}
    found = weights(f"g (float[A,16] x, bool c, int64 n) => (y) {{ {body} }}", constants)
    assert [w.value.name for w in found] == ["w", "v"]


def test_initializers_of_bodies_are_seen() -> None:
    made = tiny.read(
        tiny.model(
            "g (float[A,16] x, bool c) => (y) { y = If(c) <then_branch = t () => (p) { p = MatMul(x, x) }, "
            "else_branch = e () => (q) { q = Identity(x) }> }"
        )
    )
    body = next(each for each in graph.graphs(made) if each.name == "t")
    w = graph.add_constant(body, "w", ir.tensor(normal(16, 16)))
    body[0].replace_input_with(1, w)
    prepare(made)
    assert [(weight.value.graph.name, weight.value.name) for weight in find_weights(made)] == [("t", "w")]


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_local_functions_are_searched(opset: int) -> None:
    """Also those written in another opset than the model, 17."""
    layer = (
        f'<domain: "local", opset_import: ["" : {opset}]> layer <k>(a, b) => (c) '
        "{ d = MatMul(a, b)  c = LeakyRelu<alpha: float = @k>(d) }"
    )
    text = "g (float[A,32] x) => (float[A,16] z) { y = local.layer<k=0.5>(x, v)  z = local.layer<k=0.1>(y, w) }"
    proto = tiny.model(text, {"v": normal(32, 32), "w": W}, functions=layer)
    made = tiny.read(proto)
    prepare(made)
    assert [w.value.name for w in find_weights(made)] == ["v", "w"]
    assert not made.functions
    leaky = [node for node in graph.nodes(made) if node.op_type == "LeakyRelu"]
    assert [graph.attribute_float(node, "alpha", 0) for node in leaky] == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize("opset", [17, 18])
def test_functions_of_functions_are_searched(opset: int) -> None:
    imports = f'domain: "local", opset_import: ["" : {opset}, "local" : 1]'
    functions = (
        f"<{imports}> inner (a, b) => (c) {{ c = MatMul(a, b) }}"
        f"<{imports}> outer (a, b) => (c) {{ d = local.inner(a, b)  c = Relu(d) }}"
    )
    proto = tiny.model("g (float[A,32] x) => (float[A,16] y) { y = local.outer(x, w) }", {"w": W}, functions=functions)
    made = tiny.read(proto)
    prepare(made)
    assert [w.node.op_type for w in find_weights(made)] == ["MatMul"]
    x = normal(2, 32, seed=2)
    np.testing.assert_allclose(tiny.evaluate(made, x=x)[0], tiny.evaluate(proto, x=x)[0], rtol=1e-6)


def test_functions_that_call_each_other_in_a_circle_are_refused() -> None:
    functions = "".join(
        f'<domain: "local", opset_import: ["" : 17, "local" : 1]> {one} (a) => (c) {{ c = local.{other}(a) }}'
        for one, other in (("f", "h"), ("h", "f"))
    )
    made = tiny.read(tiny.model("g (float[A,32] x) => (float[A,32] y) { y = local.f(x) }", functions=functions))
    with pytest.raises(BadModel, match="cannot be prepared: Cyclic dependency"):
        prepare(made)


@pytest.mark.parametrize(
    ("steps", "stored"),
    [
        ("w = Constant<value = float[1] {0}>()", W),
        ("w = Identity(s)", W),
        ("w = Transpose<perm=[1,0]>(s)", np.ascontiguousarray(W.T)),
        ("n = Constant<value_ints=[32,16]>()  w = Reshape(s, n)", W.reshape(8, 64)),
        ("w = Cast<to=1>(s)", W.astype(np.float64)),
        ("w = CastLike(s, x)", W.astype(np.float64)),
        ("t = Transpose<perm=[1,0]>(s)  u = Identity(t)  w = Cast<to=1>(u)", W.T.astype(np.float64)),
    ],
    ids=["Constant", "Identity", "Transpose", "Reshape", "Cast", "CastLike", "chain"],
)
def test_weights_are_seen_behind_other_nodes(steps: str, stored: np.ndarray) -> None:
    proto = tiny.model(f"g (float[A,32] x) => (float[A,16] y) {{ {steps}  y = MatMul(x, w) }}", {"s": stored})
    if "value =" in steps:
        proto.graph.node[0].attribute[0].t.CopyFrom(proto.graph.initializer[0])
    made = tiny.read(proto)
    prepare(made)
    (weight,) = find_weights(made)
    np.testing.assert_array_equal(weight.tensor.numpy(), W)


def test_a_shared_weight_is_found_for_each_reader() -> None:
    found = weights("g (float[A,16] x) => (z) { y = MatMul(x, w)  z = MatMul(y, w) }", {"w": normal(16, 16)})
    assert len(found) == 2
    assert found[0].value is found[1].value


def test_a_tied_weight_has_two_roles() -> None:
    """An embedding whose transpose is the head of a language model, as exporters write it."""
    text = "g (int64[A] i) => (y) { x = Gather(w, i)  t = Transpose<perm=[1,0]>(w)  y = MatMul(x, t) }"
    found = weights(text, {"w": W})
    assert roles(found) == [("Gather", 0, 0, 1), ("MatMul", 1, 1, 0)]
    np.testing.assert_array_equal(found[0].tensor.numpy().T, found[1].tensor.numpy())


def test_equal_weights_of_two_names_become_one() -> None:
    found = weights("g (float[A,32] x) => (y, z) { y = MatMul(x, v)  z = MatMul(x, w) }", {"v": W, "w": W.copy()})
    assert found[0].value is found[1].value


def test_unnamed_nodes_get_telling_names() -> None:
    found = weights("g (float[A,16] x) => (z) { y = MatMul(x, w)  z = MatMul(y, w) }", {"w": normal(16, 16)})
    assert [w.node.name for w in found] == ["y", "z"]


def test_nodes_of_one_name_get_two() -> None:
    found = weights("g (float[A,16] x) => (z) { [n] y = MatMul(x, w)  [n] z = MatMul(y, w) }", {"w": normal(16, 16)})
    assert [w.node.name for w in found] == ["n", "n_2"]


@pytest.mark.parametrize(("ir_version", "others", "is_weight"), [(3, 0, True), (9, 0, True), (9, 1, False)])
def test_initializers_that_are_inputs(ir_version: int, others: int, is_weight: bool) -> None:
    """Listing all is a habit of exporters; listing one of several makes it the caller's to override."""
    text = "g (float[A,32] x, float[32,16] w) => (y) { t = MatMul(x, w)  y = Add(t, b) }"
    if not others:
        text = text.replace("w)", "w, float[16] b)", 1)
    found = weights(text, {"w": W, "b": normal(16)}, ir_version=ir_version)
    assert bool(found) is is_weight


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_every_float_type_counts(dtype: type) -> None:
    word = {"float32": "float", "float64": "double"}.get(np.dtype(dtype).name, np.dtype(dtype).name)
    proto = tiny.model(f"g ({word}[A,32] x) => ({word}[A,16] y) {{ y = MatMul(x, w) }}")
    proto.graph.initializer.append(ir.to_proto(ir.tensor(W.astype(dtype), name="w")))
    made = tiny.read(proto)
    prepare(made)
    computes_in = np.float32 if dtype is ml_dtypes.bfloat16 else dtype
    assert [w.tensor.dtype.numpy() for w in find_weights(made)] == [np.dtype(computes_in)]


def test_integers_are_no_weights() -> None:
    assert not weights("g (int32[A,32] x) => (y) { y = MatMul(x, w) }", {"w": np.ones((32, 16), np.int32)})


def test_tables_without_a_role_are_found_apart() -> None:
    text = "g (float[32,16] x) => (z) { y = Add(x, t)  z = MatMul(u, y) }"
    made = tiny.read(tiny.model(text, {"t": W, "u": normal(8, 32)}))
    prepare(made)
    assert [(each.node.op_type, each.value.name) for each in other_constants(made)] == [("Add", "t")]
    assert [w.value.name for w in find_weights(made)] == ["u"]
