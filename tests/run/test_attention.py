"""Attention as one node: which spellings are found, that files compute the same with and without the library, and what
decides whether it is used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import onnxq
from onnxq import own_ops, pipeline
from onnxq.errors import BadRecipe
from onnxq.model.types import infer_types
from onnxq.own_ops import Variant
from onnxq.passes.fusing.heads import split_at
from onnxq.plan import Choice, Method, load_plan
from onnxq.recipe import Recipe, Rule
from onnxq.runtime import native
from onnxq.runtime.machine import this_machine
from onnxq.runtime.profile import MachineProfile
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
needs_library = pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")

HEAD = """heads = Constant <value_ints = [0, 0, 2, 16]> ()  eight = Constant <value = float {4}> ()
    eighth = Constant <value = float {0.25}> ()  half = Constant <value = float {0.5}> ()
    low = Constant <value = float {-3.4e38}> ()  zero = Constant <value_ints = [0]> ()
    wide = Constant <value_ints = [0, 0, 32]> ()
    xq = MatMul (x, wq)  xk = MatMul (x, wk)  xv = MatMul (x, wv)
    hq = Reshape (xq, heads)  hk = Reshape (xk, heads)  hv = Reshape (xv, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (hq)  k = Transpose <perm = [0, 2, 1, 3]> (hk)
    v = Transpose <perm = [0, 2, 1, 3]> (hv)
    hidden = Equal (mask, low)  seen = Not (hidden)"""
TAIL = "t = Transpose <perm = [0, 2, 1, 3]> (o)  r = Reshape (t, wide)  y = MatMul (r, wo)"
#: What models write between q, k, v and o.
SPELLINGS = {
    "divided": "kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  s = Div (p, eight)  w = Softmax (s)",
    "multiplied, masked": """kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  s = Mul (eighth, p)
        a = Add (s, mask)  w = Softmax <axis = 3> (a)""",
    "mask first": "kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  a = Add (mask, p)  w = Softmax (a)",
    "turned at once": "kt = Transpose <perm = [0, 2, 3, 1]> (hk)  p = MatMul (q, kt)  w = Softmax <axis = -1> (p)",
    "both scaled": """sq = Mul (q, half)  kt = Transpose <perm = [0, 1, 3, 2]> (k)  sk = Mul (kt, half)
        p = MatMul (sq, sk)  a = Add (p, mask)  w = Softmax (a)""",
    "scaled before it is turned": """sk = Div (k, eight)  kt = Transpose <perm = [0, 1, 3, 2]> (sk)  p = MatMul (q, kt)
        w = Softmax (p)""",
    "not turned": """kt0 = Transpose <perm = [0, 1, 3, 2]> (k)  kt = Abs (kt0)  p = MatMul (q, kt)  w = Softmax (p)""",
    "hidden": """kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  s = Div (p, eight)
        a = Where (seen, s, low)  w = Softmax (a)""",
    "hidden, the other way round": """kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)
        a = Where (hidden, low, p)  w = Softmax (a)""",
    "k of fewer dimensions": """k3 = ReduceMax <keepdims = 0> (k, zero)  kt = Transpose <perm = [0, 2, 1]> (k3)
        p = MatMul (q, kt)  w = Softmax <axis = 3> (p)""",
}
OTHERS = {
    "another axis": "kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  w = Softmax <axis = 2> (p)",
    "an axis that is the last one of k alone": """k3 = ReduceMax <keepdims = 0> (k, zero)
        kt = Transpose <perm = [0, 2, 1]> (k3)  p = MatMul (q, kt)  w = Softmax <axis = 2> (p)""",
    "scaled behind the mask": """kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  a = Add (p, mask)
        s = Div (a, eight)  w = Softmax (s)""",
    "a number that does not hide": """kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)
        a = Where (seen, p, half)  w = Softmax (a)""",
    "no product": "a = Add (q, q)  kt = Transpose <perm = [0, 1, 3, 2]> (a)  p = Add (mask, mask)  w = Softmax (p)",
    "weights that others read": """kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  w = Softmax (p)
        n = ReduceMax <keepdims = 0> (w)""",
    "scores that others read": """kt = Transpose <perm = [0, 1, 3, 2]> (k)  p = MatMul (q, kt)  w = Softmax (p)
        n = ReduceMax <keepdims = 0> (p)""",
}


def write(folder: Path, body: str, head: str = HEAD) -> Path:
    """A layer of attention with two heads of 16, in float32."""
    outputs = "float[B, S, 32] y, float n" if "n = " in body else "float[B, S, 32] y"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[B, S, 32] x, float[S, S] mask) => ({outputs}) {{ {head} {body} o = MatMul (w, v) {TAIL} }}"""
    )
    rng = np.random.default_rng(0)
    for name in ("wq", "wk", "wv", "wo"):
        w = (rng.standard_normal((32, 32)) / 5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(w, name))
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(model, folder / "float.onnx")
    return folder / "float.onnx"


def feed(batch: int, size: int) -> dict[str, NDArray]:
    mask = np.where(np.arange(size) <= np.arange(size)[:, None], 0, np.float32(-3.4e38)).astype(np.float32)
    return {"x": np.random.default_rng(size).standard_normal((batch, size, 32)).astype(np.float32), "mask": mask}


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node if node.domain == own_ops.DOMAIN]


@pytest.mark.parametrize(
    ("spelling", "scheme"), [*((each, "bf16") for each in SPELLINGS), ("divided", "w4a16"), ("hidden", "w4a16")]
)
def test_spellings(spelling: str, scheme: str, tmp_path: Path) -> None:
    """One node in the place of all, which computes what float does: with the library, and by its body without."""
    path, made = write(tmp_path, SPELLINGS[spelling]), tmp_path / "made.onnx"
    onnxq.quantize(path, made, scheme, target="onnxq", check=False)
    assert operators(made).count("Attention") == 1
    left = [node.op_type for node in onnx.load(made).graph.node if node.domain == ""]
    assert "Softmax" not in left
    assert "MatMul" not in left
    if spelling not in ("not turned", "k of fewer dimensions"):
        assert "Transpose" not in left
        assert "Reshape" not in left
    bound = 0.02 if scheme == "bf16" else 0.3
    for batch, size in ((2, 40), (1, 7), (3, 1)):
        x = feed(batch, size)
        (wanted,) = Session(path).run(x)
        bodies = ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, x)
        for (y,) in (bodies, *([Session(made).run(x)] if native.path() is not None else [])):
            assert y.shape == wanted.shape
            assert np.linalg.norm(y - wanted) <= bound * np.linalg.norm(wanted)


#: How models say into which shape heads are split, and whether it is known that rows stay what they are.
SIZES = {
    "of x": (
        """b = Gather (sx, zero0)  s = Gather (sx, one0)  b1 = Unsqueeze (b, zero)  s1 = Unsqueeze (s, zero)
        heads = Concat <axis = 0> (b1, s1, rest, numbers)""",
        True,
    ),
    "all but the last of x": (
        """front = Slice (sx, zero, minus)
        heads = Concat <axis = 0> (front, two, numbers)""",
        True,
    ),
    "by the names of sizes": (
        """sm = Shape (mask)  b1 = Gather (sx, zero)  s1 = Gather (sm, one)
        heads = Concat <axis = 0> (b1, s1, two, rest)""",
        True,
    ),
    "one left open": ("s1 = Gather (sx, one)  heads = Concat <axis = 0> (rest, s1, two, numbers)", True),
    "rows that change": ("s1 = Gather (sx, one)  heads = Concat <axis = 0> (s1, rest, two, numbers)", False),
}


@pytest.mark.parametrize("size", SIZES)
def test_heads_are_left_where_they_lie(size: str, tmp_path: Path) -> None:
    """Where it is known that a Reshape only splits heads, neither it nor its shape is computed."""
    text, is_joined = SIZES[size]
    head = f"""sx = Shape (x)  zero0 = Constant <value_int = 0> ()  one0 = Constant <value_int = 1> ()
        one = Constant <value_ints = [1]> ()  two = Constant <value_ints = [2]> ()
        numbers = Constant <value_ints = [16]> ()  rest = Constant <value_ints = [-1]> ()
        minus = Constant <value_ints = [-1]> ()  zero = Constant <value_ints = [0]> ()
        {text}"""
    body = SPELLINGS["mask first"]
    changed = HEAD.replace("heads = Constant <value_ints = [0, 0, 2, 16]> ()", head, 1)
    changed = changed.replace(
        "low = Constant <value = float {-3.4e38}> ()  zero = Constant <value_ints = [0]> ()",
        "low = Constant <value = float {-3.4e38}> ()",
    )
    path, made = write(tmp_path, body, changed), tmp_path / "made.onnx"
    onnxq.quantize(path, made, "bf16", target="onnxq", check=False)
    left = [node.op_type for node in onnx.load(made).graph.node if node.domain == ""]
    assert ("Transpose" not in left) == is_joined
    assert ("Concat" not in left) == is_joined
    sizes = ((2, 40), (1, 7)) if is_joined else ((7, 7),)
    for batch, rows in sizes:
        x = feed(batch, rows)
        (wanted,), (y,) = Session(path).run(x), Session(made).run(x)
        assert np.linalg.norm(y - wanted) <= 0.02 * np.linalg.norm(wanted)


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_attention_stays(other: str, tmp_path: Path) -> None:
    path, made = write(tmp_path, OTHERS[other]), tmp_path / "made.onnx"
    onnxq.quantize(path, made, "bf16", target="onnxq", check=False)
    assert "Attention" not in operators(made)
    x = feed(2, 9)
    for wanted, y in zip(Session(path).run(x), Session(made).run(x), strict=True):
        assert np.linalg.norm(y - wanted) <= 0.05 * np.linalg.norm(wanted)


def test_where_it_is_not_used(tmp_path: Path) -> None:
    """Where no product is computed by kernels of the domain, in other types than float32, or where the user says so."""
    path = write(tmp_path, SPELLINGS["divided"])
    softmax = next(node.name for node in onnx.load(path).graph.node if node.op_type == "Softmax")

    def method(recipe: Recipe, target: str = "onnxq") -> Method:
        return pipeline.quantize(path, tmp_path / "out.onnx", recipe, target=target, force=True).plan.method(softmax)

    assert method(Recipe("bf16")) is Method.FUSED
    assert method(Recipe("bf16"), "ort-cpu") is Method.KEEP
    assert method(Recipe("fp16")) is Method.KEEP
    assert method(Recipe("bf16", rules=(Rule("keep", ops=("Softmax",)),))) is Method.KEEP


def test_plans_from_files(tmp_path: Path) -> None:
    path = write(tmp_path, SPELLINGS["divided"])
    plan = pipeline.quantize(path, tmp_path / "out.onnx", "bf16", target="onnxq").plan
    (tmp_path / "plan.json").write_text(plan.to_json())
    again = load_plan(tmp_path / "plan.json")
    assert again == plan
    assert [choice.label for choice in plan.those(Method.FUSED)] == ["fused"]
    pipeline.quantize(path, tmp_path / "again.onnx", target="onnxq", plan=again)
    assert operators(tmp_path / "again.onnx") == operators(tmp_path / "out.onnx")
    first = next(iter(plan))
    wrong = plan.replacing([Choice(first.node, first.op, Method.FUSED)])
    with pytest.raises(BadRecipe, match=f"'{first.node}' cannot be fused: only attention on target onnxq is"):
        pipeline.quantize(path, tmp_path / "wrong.onnx", target="onnxq", plan=wrong)
    wrong = plan.replacing([dataclasses.replace(first, op="MoE")])
    with pytest.raises(BadRecipe, match=f"node '{first.node}' is {first.op} in '.*', not MoE"):
        pipeline.quantize(path, tmp_path / "wrong.onnx", target="onnxq", plan=wrong)


@needs_library
def test_auto_decides_by_measured_times(tmp_path: Path) -> None:
    path = write(tmp_path, SPELLINGS["multiplied, masked"])
    here = this_machine()
    measured = MachineProfile(dataclasses.replace(here, isa=f"{here.isa} amx_bf16"))
    pipeline.quantize(path, tmp_path / "measured.onnx", target="onnxq", profile=measured)
    fused = [key for key in measured.kernels if key.rpartition("|")[2].split()[0] == "fused"]
    assert fused, "its time was measured"
    for seconds, method in ((0.1, Method.FUSED), (3.0, Method.KEEP)):
        kernels = {
            key: seconds if key in fused else 0.2 if "bfloat16" in key.rpartition("|")[2] else 1.0
            for key in measured.kernels
        }
        models = dict.fromkeys(measured.models, 20.0)
        profile = MachineProfile(measured.machine, measured.threads, kernels, models, is_closed=True)
        made = pipeline.quantize(path, tmp_path / f"{method}.onnx", target="onnxq", profile=profile)
        assert {c.method for c in made.plan if c.op == "Softmax"} == {method}


def node(variant: Variant, shapes: dict[str, tuple[int, ...]], type: int, scale: float) -> onnx.ModelProto:
    """One attention whose inputs have these shapes."""
    attributes = {"scale": scale, "transK": int(bool(variant.moved)), "activations": "exact"}
    made = helper.make_node(
        "Attention", list(shapes), ["y"], "the/node", domain=own_ops.DOMAIN, overload=variant.overload, **attributes
    )
    values = [helper.make_tensor_value_info(name, type, shape) for name, shape in shapes.items()]
    y = helper.make_tensor_value_info("y", type, None)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(own_ops.DOMAIN, own_ops.VERSION)]
    functions = [own_ops.body(variant, 21)]
    graph = helper.make_graph([made], "g", values, [y])
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


#: Shapes of q, k as rows, v and the mask: heads that are shared, and masks of every kind.
BROADCASTS = [
    ((5, 8), (9, 8), (9, 3), None),
    ((2, 5, 8), (2, 9, 8), (2, 9, 3), (5, 9)),
    ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8), (2, 1, 1, 9)),
    ((2, 3, 5, 8), (2, 1, 9, 8), (1, 3, 9, 8), (3, 5, 9)),
    ((1, 3, 5, 8), (1, 1, 9, 8), (1, 1, 9, 8), (2, 1, 5, 1)),
    ((2, 3, 1, 8), (2, 3, 9, 8), (2, 3, 9, 8), (4, 9)),
    ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8), ()),
    ((2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8), (9,)),
    ((0, 3, 5, 8), (0, 3, 9, 8), (0, 3, 9, 8), (5, 9)),
]


@pytest.mark.parametrize("turned", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_node_and_body_agree(shapes: tuple[tuple[int, ...], ...], turned: bool) -> None:
    """In float32 and float16, against numpy in float64; scales of either sign."""
    q, k, v, mask = shapes
    kept = {"q": q, "k": k if turned else (*k[:-2], k[-1], k[-2]), "v": v} | ({} if mask is None else {"mask": mask})
    variant = Variant(
        own_ops.ATTENTION, "softmax", mask=mask is not None, exact=True, moved=f"turned{len(k)}" if turned else ""
    )
    rng = np.random.default_rng(3)
    for dtype, scale in ((np.float32, 0.3), (np.float16, -0.5)):
        arrays = {name: np.asarray(rng.standard_normal(shape)).astype(dtype) for name, shape in kept.items()}
        model = node(variant, kept, int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), scale)
        wide = {name: array.astype(np.float64) for name, array in arrays.items()}
        scores = wide["q"] @ (wide["k"].swapaxes(-1, -2) if turned else wide["k"]) * scale + wide.get("mask", 0)
        weights = np.exp(scores - scores.max(-1, keepdims=True)) if scores.size else scores
        wanted = weights / weights.sum(-1, keepdims=True) @ wide["v"] if scores.size else np.zeros((*q[:-1], v[-1]))
        bare = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        sessions = [bare, *([onnxq.session(model.SerializeToString())] if native.path() is not None else [])]
        for each in sessions:
            (y,) = each.run(None, arrays)
            assert (y.dtype, y.shape) == (dtype, wanted.shape)
            np.testing.assert_allclose(y, wanted, atol=1e-5 if dtype == np.float32 else 5e-3, rtol=1e-2)


@needs_library
@pytest.mark.parametrize("more", ["k", "mask"])
def test_sizes_that_only_a_run_tells(more: str) -> None:
    """One sequence and several masks: memory was planned for one, and the run refused."""
    dims = {"q": ("B", "H", 5, 8), "k": ("B", "H", 9, 8), "v": ("B", "H", 9, 8), "mask": ("B", 1, 5, 9)}
    model = node(Variant(own_ops.ATTENTION, "softmax", mask=True, exact=True, moved="turned4"), dims, 1, 0.3)
    model.graph.input[[*dims].index(more)].type.tensor_type.shape.dim[0].dim_param = "M"
    model.graph.node.insert(0, helper.make_node("Neg", ["q0"], ["q"]))
    model.graph.node.extend([helper.make_node("MatMul", ["y", "w"], ["t"]), helper.make_node("Abs", ["t"], ["z"])])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    model.graph.input[0].name, model.graph.output[0].name = "q0", "z"
    shapes = {name: (3 if name == more else 1, 1 if name == "mask" else 2, *dims[name][2:]) for name in dims}
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["q0"] = -arrays.pop("q")
    bare = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, arrays)[0]
    np.testing.assert_allclose(onnxq.session(model.SerializeToString()).run(None, arrays)[0], bare, atol=1e-5)
    assert bare.shape == (3, 2, 5, 8)


@pytest.mark.parametrize("joined", [15, 1, 2, 4, 8, 9, 12], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
def test_joined_heads(joined: int, masked: bool) -> None:
    """q, k, v and y as [B, T, heads · numbers], each by itself and all: node and body against numpy in float64."""
    heads, sizes = 3, {"q": (2, 5, 8), "k": (2, 9, 8), "v": (2, 9, 6)}
    rng = np.random.default_rng(joined)
    whole = {name: rng.standard_normal((b, heads, t, d)).astype(np.float32) for name, (b, t, d) in sizes.items()}
    mask = rng.standard_normal((2, 1, 5, 9)).astype(np.float32)

    def merged(x: NDArray) -> NDArray:
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    arrays = {name: merged(x) if joined >> i & 1 else x for i, (name, x) in enumerate(whole.items())}
    arrays |= {"mask": mask} if masked else {}
    variant = Variant(own_ops.ATTENTION, "softmax", mask=masked, exact=True, moved=f"joined{joined}")
    model = node(variant, {name: x.shape for name, x in arrays.items()}, TensorProto.FLOAT, 0.3)
    for name, value in (("heads", heads), ("joined", joined)):
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    q, k, v = (x.astype(np.float64) for x in whole.values())
    scores = q @ k.swapaxes(-1, -2) * 0.3 + (mask if masked else 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    bare = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for each in (bare, *([onnxq.session(model.SerializeToString())] if native.path() is not None else [])):
        np.testing.assert_allclose(each.run(None, arrays)[0], merged(wanted) if joined & 8 else wanted, atol=1e-5)


@needs_library
def test_refusals_of_joined_heads() -> None:
    shapes = {"q": (2, 5, 24), "k": (2, 9, 24), "v": (2, 9, 24)}
    variant = Variant(own_ops.ATTENTION, "softmax", exact=True, moved="joined15")
    for heads, joined, words in (
        (0, 15, "attribute joined"),
        (3, 16, "attribute joined"),
        (5, 15, "the last of 5 heads"),
        (1 << 62, 15, "attribute joined"),  # whose rows would be of 2^64 numbers and more
    ):
        model = node(variant, shapes, TensorProto.FLOAT, 1.0)
        for name, value in (("heads", heads), ("joined", joined)):
            model.graph.node[0].attribute.append(helper.make_attribute(name, value))
        arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        with pytest.raises(Exception, match=f"onnxq node 'the/node': .*{words}"):
            onnxq.session(model.SerializeToString()).run(None, arrays)


@needs_library
def test_inputs_that_spread_to_more_heads_than_numbers_count() -> None:
    """Each of four million numbers, in dimensions of its own: 2^66 heads, which would be none in 64 bits."""
    shapes = {name: (*(1 << 11 if at // 2 == i else 1 for at in range(6)), 1, 1) for i, name in enumerate("qkv")}
    variant = Variant(own_ops.ATTENTION, "softmax", exact=True, moved="turned8")
    model = node(variant, shapes, TensorProto.FLOAT, 1.0)
    session = onnxq.session(model.SerializeToString())
    arrays = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    with pytest.raises(Exception, match="onnxq node 'the/node': there are more heads than any memory holds"):
        session.run(None, arrays)


@needs_library
def test_refusals() -> None:
    """What does not fit together is refused by a sentence that names the node."""
    shapes = {"q": (2, 5, 8), "k": (2, 9, 8), "v": (2, 9, 3), "mask": (5, 9)}
    variant = Variant(own_ops.ATTENTION, "softmax", mask=True, exact=True, moved="turned3")
    model = node(variant, {name: tuple("abcd"[: len(shape)]) for name, shape in shapes.items()}, TensorProto.FLOAT, 1.0)
    for value in model.graph.input:
        for number, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}{number}"
    session = onnxq.session(model.SerializeToString())
    for name, shape, words in (
        ("k", (2, 9, 7), "shapes do not fit together"),
        ("v", (2, 8, 3), "shapes do not fit together"),
        ("mask", (4, 9), "shapes do not fit together"),
        ("k", (3, 9, 8), "cannot be broadcast"),
    ):
        arrays = {each: np.zeros(shape if each == name else shapes[each], np.float32) for each in shapes}
        with pytest.raises(Exception, match=f"onnxq node 'the/node': .*{words}"):
            session.run(None, arrays)
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.append(helper.make_attribute("transK", 2))
    with pytest.raises(Exception, match="attribute transK must be 0 or 1"):
        onnxq.session(model.SerializeToString())


def test_a_shape_that_is_joined_with_itself_is_looked_at_once() -> None:
    """Of nothing, so that no bound on sizes ends it: forty times twice as much work else."""
    chain = " ".join(f"s{i} = Concat <axis = 0> (s{i - 1}, s{i - 1})" for i in range(1, 41))
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2, 5, 24] x) => (float y) {'
    text += f" s0 = Shape <start = 0, end = 0> (x) {chain} y = Reshape (x, s40) }}"
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    assert split_at(model.graph.outputs[0], infer_types(model)) is None
