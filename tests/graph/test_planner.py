"""What a plan says of each node, and why: every refusal has its words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq import targets
from onnxq.errors import BadRecipe
from onnxq.model.types import infer_types
from onnxq.passes.prepare import prepare
from onnxq.plan import Choice, Method, Plan, finer, in_float, load_plan
from onnxq.planning import int8_regions
from onnxq.planning.first_plan import make_plan
from onnxq.recipe import KEEP, Recipe, Rule, parse_set

NODES = {
    "MatMul": ("MatMul(x, w)", (64, 32)),
    "left": ("MatMul(w, x)", (32, 64)),
    "batched": ("MatMul(x, w)", (2, 64, 32)),
    "Gemm": ("Gemm(x, w)", (64, 32)),
    "Conv": ("Conv(x, w)", (32, 8, 3, 3)),
    "free-bias": ("Conv(x, w, free)", (32, 8, 3, 3)),
    "ConvTranspose": ("ConvTranspose(x, w)", (8, 32, 3, 3)),
    "Gather": ("Gather(w, i)", (64, 32)),
    "odd": ("Gather(w, i)", (64, 33)),
    "LSTM": ("LSTM<hidden_size=8>(x, w, r)", (1, 32, 16)),
    "half-LSTM": ("LSTM<hidden_size=8>(x, w, free)", (1, 32, 16)),
    "layout": ("LSTM<hidden_size=8, layout=1>(x, w, r)", (1, 32, 16)),
    "GRU": ("GRU<hidden_size=8>(x, w, r3)", (1, 24, 16)),
    "Attention": ("com.microsoft.Attention<num_heads=2>(x, w, b)", (32, 96)),
    "table": ("Add(x, w)", (64, 32)),
}
UNPACKED = ": unpacked when the model loads"


def planned(
    node: str,
    shape: tuple[int, ...],
    recipe: Recipe,
    target: str = "ort-cpu",
    dtype: type = np.float32,
    opset_note: str = "",
) -> Choice:
    """The choice for the one node of a model."""
    word = {"float32": "float", "float64": "double"}.get(np.dtype(dtype).name, np.dtype(dtype).name)
    inputs = f"{word}[A,B] x, int64[N] i, {word}[1,32,8] free"
    proto = tiny.model(f"g ({inputs}) => (y) {{ [n] y = {node} }}", {"b": normal(96)})
    small = {"w": normal(*shape), "r": normal(1, 32, 8), "r3": normal(1, 24, 8)}
    for name, x in small.items():
        proto.graph.initializer.append(ir.to_proto(ir.tensor(x.astype(dtype), name=name)))
    (choice,) = planned_model(tiny.read(proto), recipe, target, opset_note)
    return choice


def planned_model(made: ir.Model, recipe: Recipe, target: str = "ort-cpu", opset_note: str = "") -> Plan:
    prepare(made)
    return make_plan(made, recipe, targets.get(target), infer_types(made), opset_note=opset_note)


CASES = [
    # scheme, target, node, label, reason
    ("w8a8", "ort-cpu", "MatMul", "int8", ""),
    ("w8a8", "ort-cpu", "Gemm", "int8", ""),
    ("w8a8", "onnx", "Conv", "int8", ""),
    ("w8a8", "onnx", "free-bias", "int8 stored", f"its bias is computed, so no int8 kernel takes it{UNPACKED}"),
    ("w8a8", "ort-cpu", "left", "int8 stored", f"the weight is not a matrix on the right{UNPACKED}"),
    ("w8a8", "onnx", "batched", "int8 stored", f"the weight is not a matrix on the right{UNPACKED}"),
    ("w8a8", "ort-cpu", "Gather", "int8 stored", f"no static int8 kernel for Gather{UNPACKED}"),
    ("w8a8", "ort-cpu", "LSTM", "int8 dynamic", ""),
    ("w8a8", "onnx", "LSTM", "int8 stored", f"no static int8 kernel for LSTM{UNPACKED}"),
    ("w8a8", "onnxq", "LSTM", "int8 dynamic", ""),
    ("w8a8", "onnxq", "layout", "int8 dynamic", ""),
    ("w8a8-dynamic", "onnxq", "GRU", "int8 dynamic", ""),
    ("w8a8", "onnxq", "half-LSTM", "int8 stored", f"its weights are not both constant{UNPACKED}"),
    ("w8a8-dynamic", "ort-cpu", "MatMul", "int8 dynamic", ""),
    ("w8a8-dynamic", "onnx", "Gemm", "int8 dynamic", ""),
    ("w8a8-dynamic", "ort-cpu", "LSTM", "int8 dynamic", ""),
    ("w8a8-dynamic", "onnx", "LSTM", "int8 stored", f"standard ONNX has no dynamically quantized LSTM{UNPACKED}"),
    ("w8a8-dynamic", "ort-cpu", "layout", "int8 stored", "DynamicQuantizeLSTM has no layout attribute"),
    ("w8a8-dynamic", "ort-cpu", "half-LSTM", "int8 stored", "its weights are not both constant"),
    ("w8a8-dynamic", "ort-cpu", "Conv", "int8 stored", f"no fast dynamic int8 kernel for Conv{UNPACKED}"),
    ("w8a16", "ort-cpu", "MatMul", "int8 b32", ""),
    ("w8a16", "onnx", "Gather", "int8 b32 stored", f"standard ONNX has no Gather on blocks{UNPACKED}"),
    ("w8a16", "ort-cpu", "Conv", "int8 stored", ""),
    ("w4a16", "ort-cpu", "MatMul", "uint4 b32", ""),
    ("w4a16", "onnx", "MatMul", "uint4 b32", ""),
    ("w4a16", "ort-cpu", "left", "uint4 b32 stored", f"the weight is not a matrix on the right{UNPACKED}"),
    ("w4a16", "ort-cpu", "Gather", "uint4 b32", ""),
    ("w4a16", "ort-cpu", "odd", "int8 b32", "rows of odd length do not fill whole bytes in 4 bits: 8 bits"),
    ("w4a16", "ort-cpu", "ConvTranspose", "int8 stored", "4 bits lose too much in ConvTranspose: 8 bits a channel"),
    ("w4a16", "ort-cpu", "GRU", "int8 stored", "4 bits lose too much in GRU: 8 bits a channel"),
    ("w4a16", "onnxq", "GRU", "int8", "4 bits lose too much in GRU: 8 bits a channel"),
    ("w8a16", "onnxq", "LSTM", "int8", ""),
    ("w4a16", "ort-cpu", "Attention", "int8 stored", "4 bits lose too much in Attention: 8 bits a channel"),
    ("nf4", "ort-cpu", "MatMul", "nf4 b64", ""),
    ("nf4", "onnx", "MatMul", "nf4 b64 stored", f"standard ONNX has no nf4 type{UNPACKED}"),
    ("fp4", "ort-cpu", "Gather", "int8 stored", "no kernel looks rows up in fp4: 8 bits a row"),
    ("fp16", "onnx", "MatMul", "float16", ""),
    ("fp16", "ort-cpu", "MatMul", "float16 stored", f"onnxruntime's processor kernels compute in float32{UNPACKED}"),
    ("bf16", "ort-cpu", "Conv", "bfloat16 stored", ""),
    ("bf16", "onnx", "table", "bfloat16 stored", ""),
    ("bf16", "onnxq", "MatMul", "bfloat16", ""),
    ("bfloat16", "onnxq", "MatMul", "bfloat16", ""),
    ("bf16", "onnxq", "left", "bfloat16 stored", ""),
    ("bf16", "onnxq", "Conv", "bfloat16 stored", ""),
    ("w4a16", "ort-cpu", "table", "int8 stored", "'w' is a table that Add reads: 8 bits a row"),
]


@pytest.mark.parametrize(("scheme", "target", "node", "label", "reason"), CASES)
def test_each_operator_gets_what_it_can_have(scheme: str, target: str, node: str, label: str, reason: str) -> None:
    choice = planned(*NODES[node], Recipe(scheme), target)
    assert (choice.label, choice.reason) == (label, reason)


@pytest.mark.parametrize(
    ("scheme", "k", "label", "reason"),
    [
        ("w4a16", 300, "uint4 b32", ""),  # a tenth more codes, and half as many scales
        ("w4a16", 64, "uint4 b32", ""),
        ("nf4", 128, "nf4 b64", ""),
        ("nf4", 24, "nf4 b32", "a row of 24 would be filled up more by blocks of 64"),
        ("nf4", 8, "nf4 b16", "a row of 8 would be filled up more by blocks of 64"),
        ("w4a16", 40, "uint4 b16", "a row of 40 would be filled up more by blocks of 32"),
        ("w4a16", 6, "int8 stored", "a row of 6 would be filled up to 16: 8 bits a row are smaller"),
        ("w8a16", 16, "int8 b16", "a row of 16 would be filled up more by blocks of 32"),
        ("w8a16", 100, "int8 b16", "a row of 100 would be filled up more by blocks of 32"),  # stored, they take memory
        ("w8a16", 8, "int8 stored", "a row of 8 would be filled up to 16: 8 bits a row are smaller"),
        ("mxfp4", 8, "int8 stored", "a row of 8 would be filled up to 32: 8 bits a row are smaller"),
        ("w4a16", 2, "float16 stored", "a row of 2 would be filled up to 16: 16 bits are smaller"),
    ],
)
def test_rows_of_tables_are_not_filled_up_where_that_takes_more_bytes(
    scheme: str, k: int, label: str, reason: str
) -> None:
    choice = planned("Gather(w, i)", (400, k), Recipe(scheme), "onnxq")
    assert (choice.label, choice.reason) == (label, reason)
    assert planned("Gather(w, i)", (400, k), Recipe(scheme, block_size=32), "onnxq").reason == ""


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic", "w8a16", "w4a16", "nf4", "fp16"])
@pytest.mark.parametrize("target", ["ort-cpu", "onnx"])
@pytest.mark.parametrize("node", ["MatMul", "Gather", "Conv"])
def test_float64_is_stored(node: str, target: str, scheme: str) -> None:
    """Packed and int8 kernels would compute in float32."""
    choice = planned(*NODES[node], Recipe(scheme), target, np.float64)
    assert choice.method is Method.STORED
    assert node != "MatMul" or choice.reason == "computes in float64, which no packed or int8 kernel does"


@pytest.mark.parametrize(
    ("scheme", "target", "stored"),
    [("w4a16", "onnx", True), ("w4a16", "ort-cpu", False), ("w8a8", "ort-cpu", True), ("fp16", "onnx", False)],
)
def test_an_opset_that_stays_low_is_a_reason(scheme: str, target: str, stored: bool) -> None:
    """com.microsoft's operators do not depend on it, nor does float16."""
    choice = planned(*NODES["MatMul"], Recipe(scheme), target, opset_note="cannot raise it")
    assert (choice.method is Method.STORED, choice.reason) == (stored, "cannot raise it" if stored else "")


@pytest.mark.parametrize(
    ("block", "scheme", "wanted"), [(None, "w4a16", 32), (None, "nf4", 64), (128, "w4a16", 128), (16, "fp4", 16)]
)
def test_blocks_are_as_long_as_asked_for(block: int | None, scheme: str, wanted: int) -> None:
    assert planned(*NODES["MatMul"], Recipe(scheme, block_size=block)).block == wanted


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_what_is_kept_of_a_widened_model_is_stored_as_it_was(dtype: type) -> None:
    word = np.dtype(dtype).name
    proto = tiny.model(f"g ({word}[A,64] x) => ({word}[A,32] y) {{ y = MatMul(x, w) }}")
    proto.graph.initializer.append(ir.to_proto(ir.tensor(normal(64, 32).astype(dtype), name="w")))
    made = tiny.read(proto)
    prepare(made, widen=True)
    (choice,) = make_plan(made, Recipe("w8a8", (Rule(KEEP),)), targets.get("ort-cpu"), infer_types(made))
    assert (choice.method, choice.format) == (Method.STORED, word)


@pytest.mark.parametrize("scheme", ["w4a16", "nf4", "w8a16", "w8a8"])
@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnxq"])
def test_turns_that_are_looked_up_are_no_embeddings(scheme: str, target: str) -> None:
    """Cosines and sines of places are a table of positions, of which each number turns a query and a key."""
    angles = np.outer(np.arange(300), 1e4 ** -(np.arange(32) / 32))
    turns = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    texts = (
        "g (int64[A] i, float[A,64] x) => (z) { e = Gather(words, i) p = Gather(turns, i) y = Mul(e, p) z = Add(x, y) }"
    )
    words = np.cumsum(normal(300, 64), axis=0, dtype=np.float32)
    for name, table in (("turns", turns), ("shifted", np.concatenate([turns[:2] * 0, 1.2 * turns]))):
        plan = planned_model(tiny.read(tiny.model(texts, {"words": words, "turns": table})), Recipe(scheme), target)
        assert (plan.choices["p"].label, plan.choices["p"].reason) == (
            "float16 stored",
            "'turns' is a table that Gather reads: 16 bits",
        ), name
        assert plan.choices["e"].format != "float16"


NAMES = ("layers.0/up", "layers.0/act", "layers.1/up", "head")
SQUARES: dict[str, NDArray] = {name: normal(64, 64, seed=i) for i, name in enumerate("uvw")}


def layers() -> ir.Model:
    proto = tiny.model(
        "g (float[A,64] x) => (z) { a = MatMul(x, u) s = Relu(a) b = MatMul(s, v) z = Gemm(b, w) }", SQUARES
    )
    for node, name in zip(proto.graph.node, NAMES, strict=True):
        node.name = name
    return tiny.read(proto)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ((Rule(KEEP, "head"),), {"head"}),
        ((Rule(KEEP, "layers.*"),), {"layers.0/up", "layers.1/up"}),
        ((Rule(KEEP, "re:^layers.[0-9]/up$"),), {"layers.0/up", "layers.1/up"}),
        ((Rule(KEEP, ops=("Gemm",)),), {"head"}),
        ((Rule(KEEP, "layers.*", ("Gemm",)),), set()),
        ((Rule(KEEP), Rule("w8a16", "*/up")), {"head"}),
        ((Rule("w8a16", "*/up"), Rule(KEEP)), {"head", "layers.0/up", "layers.1/up"}),
        ((parse_set("layers.0/*=keep"),), {"layers.0/up"}),
    ],
)
def test_rules_choose_nodes_and_the_last_one_wins(rules: tuple[Rule, ...], kept: set[str]) -> None:
    plan = planned_model(layers(), Recipe("w4a16", rules))
    assert {c.node for c in plan.those(Method.KEEP)} == kept
    assert {c.reason for c in plan.those(Method.KEEP)} <= {"kept by a rule of the recipe"}


def test_a_rule_sets_another_scheme() -> None:
    plan = planned_model(layers(), Recipe("w4a16", (Rule("w8a8", "head"), Rule("nf4", "*.1/*"))))
    assert [choice.label for choice in plan] == ["uint4 b32", "nf4 b64", "int8"]


def test_keeping_reaches_nodes_without_weights_in_half_models() -> None:
    plan = planned_model(layers(), Recipe("fp16", (Rule(KEEP, "*/act"),)), "onnx")
    assert [choice.node for choice in plan.those(Method.KEEP)] == ["layers.0/act"]


def test_schemes_that_only_a_rule_sets_count() -> None:
    recipe = Recipe("w4a16", (Rule("w8a8", "head"), Rule(KEEP, "tail")))
    assert recipe.schemes == {"w4a16", "w8a8"}
    with pytest.raises(BadRecipe, match="w8a8 needs calibration data"):
        recipe.resolve(has_data=False)
    with pytest.raises(BadRecipe, match="w8a8 needs calibration data"):
        Recipe("auto", (Rule("w8a8", "head"),)).resolve(has_data=False)
    assert recipe.resolve(has_data=True).keep_slow
    assert Recipe().resolve(has_data=True).scheme == "w8a8"
    assert Recipe().resolve(has_data=False).scheme == "w4a16"


IMAGE = "float[1,16,8,8]"
FILTERS: dict[str, NDArray] = {
    "f": normal(16, 16, 1, 1),
    "h": normal(16, 16, 1, 1, seed=1),
    "k": normal(16, 1, 1, seed=2),
    "two": np.array([1, 1, 2, 2], np.float32),
}


def riders(body: str, *rules: Rule) -> set[str]:
    """Operators without weights that are int8 in the static plan of a model."""
    made = tiny.read(tiny.model(f"g ({IMAGE} x, {IMAGE} u) => (z) {{ {body} }}", FILTERS))
    plan = planned_model(made, Recipe("w8a8", rules))
    return {choice.node for choice in plan if int8_regions.has_no_weights(choice)}


@pytest.mark.parametrize(
    ("body", "riding"),
    [
        ("a = Conv(x, f)  y = MaxPool<kernel_shape=[2,2]>(a)  z = Conv(y, h)", {"y"}),
        ("a = Conv(x, f)  r = Relu(a)  y = Sigmoid(r)  z = Conv(y, h)", {"y"}),
        ("a = Conv(x, f)  b = Conv(x, h)  y = Add(a, b)  r = Relu(y)  z = Conv(r, h)", {"y"}),
        ("a = Conv(x, f)  y = Sigmoid(a)  s = Mul(a, y)  z = Conv(s, h)", {"y", "s"}),
        ("a = Conv(x, f)  r = Relu(a)  y = Mul(r, k)  t = Transpose(y)  z = Conv(t, h)", {"y", "t"}),
        ("a = Conv(x, f)  t = Mul(a, k)  z = Conv(t, h)", set()),
        ("a = Conv(x, f)  y = Add(a, u)  z = Conv(y, h)", set()),
        ("a = Conv(x, f)  m = ReduceMin<keepdims=0>(x)  c = Clip(a, m)  y = Sigmoid(c)  z = Conv(y, h)", set()),
        ("y = MaxPool<kernel_shape=[2,2]>(x)  z = Conv(y, h)", set()),
        ("a = Conv(x, f)  z = MaxPool<kernel_shape=[2,2]>(a)", set()),
        ("a = Conv(x, f)  s = Softmax(a)  y = Sigmoid(s)  z = Conv(y, h)", set()),
        ("a = Conv(x, f)  y = AveragePool<kernel_shape=[3,3], ceil_mode=1>(a)  z = Conv(y, h)", set()),
        ('a = Conv(x, f)  y = Resize<mode="linear">(a, , two)  z = Conv(y, h)', set()),
        ("a = Conv(x, f)  y = com.microsoft.Gelu(a)  z = Conv(y, h)", set()),
    ],
    ids=[
        *("MaxPool", "behind-Relu", "Add-Relu", "SiLU", "by-constant", "folded", "float-input", "computed-Clip"),
        *("before", "after", "behind-Softmax", "ceil_mode", "linear-Resize", "contrib"),
    ],
)
def test_operators_ride_only_between_int8_kernels(body: str, riding: set[str]) -> None:
    assert riders(body) == riding


BETWEEN = "[a] a = Conv(x, f)  [p] p = Sigmoid(a)  [q] q = Sigmoid(p)  [z] z = Conv(q, h)"


def test_operators_without_weights_obey_rules() -> None:
    """One that is kept takes those behind it with it."""
    assert riders(BETWEEN) == {"p", "q"}
    assert riders(BETWEEN, Rule(KEEP, "q")) == set()
    assert riders(BETWEEN, Rule(KEEP, "a")) == set()


def test_operators_without_weights_go_back_to_float_with_their_convolution() -> None:
    made = tiny.read(tiny.model(f"g ({IMAGE} x) => (z) {{ {BETWEEN} }}", FILTERS))
    plan = planned_model(made, Recipe("w8a8"))
    pruned = int8_regions.prune(plan.replacing([in_float(plan.choices["z"], "slow")]), made)
    assert {c.node: (c.method, c.reason) for c in pruned} == {
        "a": (Method.STATIC, ""),
        "z": (Method.STORED, "slow"),
        "p": (Method.KEEP, "no longer between int8 operators"),
        "q": (Method.KEEP, "no longer between int8 operators"),
    }


@pytest.mark.parametrize(
    ("choice", "better"),
    [
        (Choice("n", "MatMul", Method.PACKED, "uint4", 32), (Method.PACKED, "int8", 32)),
        (Choice("n", "MatMul", Method.STORED, "nf4", 64), (Method.STORED, "int8", None)),
        (Choice("n", "Conv", Method.STORED, "int8"), (Method.STORED, "float16", None)),
        (Choice("n", "Conv", Method.STORED, "float16"), (Method.KEEP, None, None)),
        (Choice("n", "Conv", Method.HALF, "float16"), (Method.STORED, "float16", None)),
        (Choice("n", "MatMul", Method.PACKED, "bfloat16"), (Method.KEEP, None, None)),
        (Choice("n", "Add", Method.KEEP), None),
    ],
)
def test_each_format_has_a_finer_one(choice: Choice, better: tuple[Method, str | None, int | None] | None) -> None:
    found = finer(choice, "why")
    assert (None if found is None else (found.method, found.format, found.block)) == better


def test_a_plan_survives_being_written_down(tmp_path: Path) -> None:
    plan = planned_model(layers(), Recipe("w4a16", (Rule(KEEP, "head"),)))
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert load_plan(path) == plan
    dense = planned_model(layers(), Recipe("bf16"), "onnxq")
    assert dense.those(Method.PACKED)
    path.write_text(dense.to_json())
    assert load_plan(path) == dense
    path.write_text(dense.to_json().replace('"onnxq"', '"ort-cpu"'))
    with pytest.raises(BadRecipe, match="cannot be packed with format bfloat16 and block None"):
        load_plan(path)
    path.write_text(planned_model(layers(), Recipe("q4_k"), "onnxq").to_json().replace('"block": 32', '"block": 64'))
    with pytest.raises(BadRecipe, match="q4_k and block 64: a block of q4_k has 32 weights"):
        load_plan(path)
    path.write_text(plan.to_json().replace('"packed"', '"baked"'))
    with pytest.raises(BadRecipe, match="is not a plan written by 'onnxq plan': 'baked' is not a valid Method"):
        load_plan(path)


def test_a_plan_that_says_two_things_is_refused(tmp_path: Path) -> None:
    """Edited by hand: which of the two was meant is not ours to say."""
    text, path = planned_model(layers(), Recipe("w4a16")).to_json(), tmp_path / "plan.json"
    path.write_text(text.replace('"scheme": "w4a16"', '"scheme": "nf4", "scheme": "w4a16"'))
    with pytest.raises(BadRecipe, match="an object says 'scheme' twice"):
        load_plan(path)
    table = json.loads(text)
    path.write_text(json.dumps(table | {"choices": table["choices"] * 2}))
    with pytest.raises(BadRecipe, match=r"node '.*' is there twice"):
        load_plan(path)


def test_a_plan_with_a_rank_where_there_is_none_is_refused(tmp_path: Path) -> None:
    choice = Plan("w4a16", "onnxq").to_json()
    row = {"node": "t", "op": "Gather", "method": "packed", "format": "int4", "block": 32, "rank": 4}
    (tmp_path / "plan.json").write_text(json.dumps(json.loads(choice) | {"choices": [row]}), encoding="utf-8")
    with pytest.raises(BadRecipe, match="rank 4"):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(("own", "wanted"), [(None, "hqq"), ("rtn", "rtn")])
def test_a_plans_own_algorithm_goes_before_the_recipes(own: str | None, wanted: str) -> None:
    recipe = Recipe("w4a16", (Rule("w4a16+hqq", "n"),), algorithm="mse")
    choice = Choice("n", "MatMul", Method.PACKED, "int4", 32, algorithm=own)
    assert choice.algorithm_by(recipe) == wanted
    assert dataclasses.replace(choice, node="m").algorithm_by(recipe) == (own or "mse")
    assert dataclasses.replace(choice, node="m").algorithm_by(Recipe("w4a16")) == own


@pytest.mark.parametrize(("own", "wanted"), [(0, 8), (4, 4)])
def test_a_plans_own_rank_goes_before_the_recipes(own: int, wanted: int) -> None:
    recipe = Recipe("w4a16", (Rule("w4a16+rank8", "n"),))
    choice = Choice("n", "MatMul", Method.PACKED, "int4", 32, rank=own)
    assert choice.rank_by(recipe) == wanted
    assert dataclasses.replace(choice, node="m").rank_by(recipe) == own
    assert dataclasses.replace(choice, op="Gather").rank_by(recipe) == 0  # nothing is added beside rows of a table
