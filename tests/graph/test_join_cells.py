"""Steps of LSTMs that are written in parts become LSTMs, which compute the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal, ops

from onnxq.job import open_job
from onnxq.model import graph
from onnxq.passes.prepare import prepare
from onnxq.passes.recurrent.join_cells import JoinCells
from onnxq.recipe import Recipe, Rule

INT8 = Recipe("w8a16")

WEIGHTS = {"w": normal(6, 20), "r": normal(5, 20, seed=1), "b": normal(20, seed=2), "d": normal(1, 20, seed=3)}
TURNED = {name: np.ascontiguousarray(WEIGHTS[name].T) for name in "wr"}
FEED = {name: normal(2, size, seed=i + 5) for i, (name, size) in enumerate({"x": 6, "h": 5, "c": 5}.items())}
INPUTS = "float[B,6] x, float[B,5] h, float[B,5] c"


def gates(c: str = "c", number: str = "") -> str:
    """Of a sum, in the order of Keras: i, f, g, o. New states are k and n."""
    p, q, s, t, i, f, g, o, kept, fresh, k, a, n = (
        word + number for word in ("p", "q", "s", "t", "i", "f", "g", "o", "kept", "fresh", "k", "a", "n")
    )
    return f"""{p}, {q}, {s}, {t} = Split <axis = 1, num_outputs = 4> (sum{number})
        {i} = Sigmoid ({p})  {f} = Sigmoid ({q})  {g} = Tanh ({s})  {o} = Sigmoid ({t})
        {kept} = Mul ({f}, {c})  {fresh} = Mul ({i}, {g})  {k} = Add ({kept}, {fresh})
        {a} = Tanh ({k})  {n} = Mul ({o}, {a})"""


GATES = gates()
KERAS = f"first = MatMul (x, w)  second = MatMul (h, r)  both = Add (first, second)  sum = Add (both, b)  {GATES}"


def joined(text: str, constants: dict[str, NDArray] = WEIGHTS) -> ir.Model:
    """The graph with new states k and n, rewritten."""
    used = {name: x for name, x in constants.items() if f"{name})" in text or f"{name}," in text}
    model = tiny.read(tiny.model(f"m ({INPUTS}) => (float[B,5] k, float[B,5] n) {{ {text} }}", used, opset=18))
    prepare(model)
    JoinCells(INT8)(model)
    return model


def by_definition(order: str = "ifgo") -> list[NDArray]:
    """The new states, of sums whose gates are in this order."""
    sums = FEED["x"] @ WEIGHTS["w"] + FEED["h"] @ WEIGHTS["r"] + WEIGHTS["b"]
    part = dict(zip(order, np.split(sums, 4, 1), strict=True))
    i, f, o = (1 / (1 + np.exp(-part[gate])) for gate in "ifo")
    c = f * FEED["c"] + i * np.tanh(part["g"])
    return [c, o * np.tanh(c)]


SPELLINGS = {
    "of Keras": (KERAS, "ifgo"),
    "terms the other way round": (
        KERAS.replace("Add (first, second)", "Add (second, first)")
        .replace("Mul (f, c)", "Mul (c, f)")
        .replace("Mul (i, g)", "Mul (g, i)")
        .replace("Add (kept, fresh)", "Add (fresh, kept)")
        .replace("Mul (o, a)", "Mul (a, o)"),
        "ifgo",
    ),
    "bias before the state": (
        f"first = MatMul (x, w)  one = Add (first, b)  second = MatMul (h, r)  sum = Add (one, second)  {GATES}",
        "ifgo",
    ),
    "other order": (KERAS.replace("p, q, s, t = Split", "t, s, q, p = Split"), "ogfi"),
    "last axis": (KERAS.replace("axis = 1, num_outputs = 4> (sum)", "axis = -1> (sum, l)"), "ifgo"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: str) -> None:
    text, order = SPELLINGS[spelling]
    model = joined(text, WEIGHTS | {"l": np.full(4, 5, np.int64)})
    assert sorted(ops(model)) == ["LSTM", *["Squeeze"] * 2, *["Unsqueeze"] * 3]
    for got, wanted in zip(tiny.evaluate(model, **FEED), by_definition(order), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("turned", [0, 1])
def test_of_torch(turned: int) -> None:
    """Gemm, with a bias of each; vectors may be matrices of one row, and several add up."""
    text = f"""first = Gemm <transB = {turned}> (x, w, b)  second = Gemm <transB = {turned}> (h, r, d)
        sum = Add (second, first)  {GATES}"""
    model = joined(text, WEIGHTS | TURNED if turned else WEIGHTS)
    assert ops(model).count("LSTM") == 1
    sums = FEED["x"] @ WEIGHTS["w"] + FEED["h"] @ WEIGHTS["r"] + WEIGHTS["b"] + WEIGHTS["d"]
    i, f, g, o = np.split(sums, 4, 1)
    c = FEED["c"] / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    got = tiny.evaluate(model, **FEED)
    np.testing.assert_allclose(got[0], c, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got[1], np.tanh(c) / (1 + np.exp(-o)), rtol=0, atol=1e-6)


def test_steps_in_a_row_and_in_branches() -> None:
    """Steps share what is made of their weights; in a branch these lie in the graph around it."""
    text = f"""{KERAS}  first2 = MatMul (x, w)  other2 = MatMul (n, r)  both2 = Add (first2, other2)
        sum2 = Add (both2, b)  {gates("k", "2")}"""
    whole = f"m ({INPUTS}) => (float[B,5] k2, float[B,5] n2) {{ {text} }}"
    made = tiny.read(tiny.model(whole, {name: WEIGHTS[name] for name in "wrb"}, opset=18))
    prepare(made)
    wanted = tiny.evaluate(made, **FEED)
    JoinCells(INT8)(made)
    lstms = [node for node in graph.nodes(made) if node.op_type == "LSTM"]
    assert len(lstms) == 2
    assert [lstms[0].inputs[i] is lstms[1].inputs[i] for i in (1, 2)] == [True, True]
    for a, b in zip(wanted, tiny.evaluate(made, **FEED), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    branch = f"""m ({INPUTS}, bool yes) => (float[B,5] y) {{
        y = If (yes) <then_branch = t () => (float[B,5] n) {{ {KERAS} }},
                      else_branch = e () => (float[B,5] z) {{ z = Neg (h) }}> }}"""
    inside = tiny.read(tiny.model(branch, {name: WEIGHTS[name] for name in "wrb"}, opset=18))
    prepare(inside)
    assert JoinCells(INT8)(inside).modified
    (got,) = tiny.evaluate(inside, **FEED, yes=np.array(True))
    np.testing.assert_allclose(got, by_definition()[1], rtol=0, atol=1e-6)


OTHERS = {
    "gate read by another": (KERAS.replace("a = Tanh", "e = Neg (i)  a = Tanh"), "float[B,5] e, "),
    "sum read by another": (KERAS + "  e = Neg (sum)", "float[B,20] e, "),
    "tanh of the state read by another": (KERAS + "  e = Neg (a)", "float[B,5] e, "),
    "other function": (KERAS.replace("o = Sigmoid", "o = Tanh"), ""),
    "two gates are one": (KERAS.replace("o = Sigmoid (t)", "o = Sigmoid (p)"), ""),
    "three products": (KERAS.replace("sum = Add (both, b)", "third = MatMul (h, r)  sum = Add (both, third)"), ""),
    "one product": (f"first = MatMul (x, w)  sum = Add (first, b)  {GATES}", ""),
    "a sum with an activation": (KERAS.replace("(both, b)", "(both, z)"), ""),
    "factors": (KERAS.replace("MatMul (x, w)", "Gemm <alpha = 0.5> (x, w)"), ""),
    "parts of other sizes": (KERAS.replace("num_outputs = 4> (sum)", "> (sum, l)").replace("1, >", "1>"), ""),
    "bias of other sizes": (KERAS.replace("(both, b)", "(both, v)"), ""),
    "more dimensions": (KERAS, "3"),
    "float64": (KERAS, "double"),
    "an older opset": (KERAS.replace(", num_outputs = 4", ""), "12"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_cell_stays(case: str) -> None:
    text, note = OTHERS[case]
    inputs, more, opset, weights = INPUTS, "", 18, dict(WEIGHTS)
    if note == "3":
        inputs = inputs.replace("B,", "B,1,")
        text = text.replace("axis = 1", "axis = -1")
    elif note == "double":
        inputs = inputs.replace("float", "double")
        weights = {name: x.astype(np.float64) for name, x in weights.items()}
    elif note == "12":
        opset = 12
    else:
        more = note
    weights |= {"l": np.array([5, 5, 6, 4], np.int64), "v": normal(2, 20, seed=4)}
    used = {name: x for name, x in weights.items() if f"{name})" in text or f"{name}," in text}
    word = "double" if note == "double" else "float"
    shape = "B,1,5" if note == "3" else "B,5"
    given = f"{inputs}, float[B,20] z" if "(both, z)" in text else inputs
    proto = tiny.model(f"m ({given}) => ({more}{word}[{shape}] k, {word}[{shape}] n) {{ {text} }}", used, opset=opset)
    model = tiny.read(proto)
    prepare(model)
    assert not JoinCells(INT8)(model).modified
    assert "LSTM" not in ops(model)


@pytest.mark.parametrize(
    "inputs",
    [
        "float[B,6] x, float[1,5] h, float[B,5] c",
        "float[B,6] x, float[B,5] h, float[1,5] c",
        "float[1,6] x, float[B,5] h, float[B,5] c",
        "float[B,6] x, float[A,5] h, float[B,5] c",
        "float[B,6] x, float[B,5] h, float[B,1] c",
        "float[B,6] x, float[B,5] h, float c",
    ],
)
def test_a_row_that_is_repeated_is_no_state(inputs: str) -> None:
    """Sums repeat a single row, and a single number, which an LSTM does not."""
    model = tiny.read(
        tiny.model(
            f"m ({inputs}) => (float k, float n) {{ {KERAS} }}", {name: WEIGHTS[name] for name in "wrb"}, opset=18
        )
    )
    prepare(model)
    assert not JoinCells(INT8)(model).modified


@pytest.mark.parametrize(("inputs", "hidden"), [(0, 5), (6, 0)])
def test_nothing_to_multiply_is_no_cell(inputs: int, hidden: int) -> None:
    """A sum of no products is legal where a layer of no numbers is not."""
    shapes = f"float[B,{inputs}] x, float[B,{hidden}] h, float[B,{hidden}] c"
    sizes = {"w": (inputs, 4 * hidden), "r": (hidden, 4 * hidden), "b": (4 * hidden,)}
    used = {name: np.ones(size, np.float32) for name, size in sizes.items()}
    whole = f"m ({shapes}) => (float[B,{hidden}] k, float[B,{hidden}] n) {{ {KERAS} }}"
    model = tiny.read(tiny.model(whole, used, opset=18))
    prepare(model)
    assert not JoinCells(INT8)(model).modified


RULES = {
    "keeps one product": (Rule("keep", "second"),),
    "keeps all products": (Rule("keep", ops=("MatMul",)),),
    "keeps LSTMs": (Rule("keep", ops=("LSTM",)),),
    "other bits": (Rule("w4a16", "fir*"),),
    "other codes": (Rule("w8a16+rtn", "second"),),
    "other nodes": (Rule("keep", "third"),),
    "the same bits": (Rule("w8a8-dynamic", "*"),),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_for_single_nodes_hold(case: str) -> None:
    text = KERAS.replace("first =", "[first] first =").replace("second =", "[second] second =")
    used = {name: WEIGHTS[name] for name in "wrb"}
    model = tiny.read(tiny.model(f"m ({INPUTS}) => (float[B,5] k, float[B,5] n) {{ {text} }}", used, opset=18))
    prepare(model)
    assert JoinCells(Recipe("w8a16", rules=RULES[case]))(model).modified == (case in ("other nodes", "the same bits"))


@pytest.mark.parametrize(
    ("scheme", "target", "is_joined"),
    [("w8a8-dynamic", "onnxq", True), ("w8a16", "onnxq", True), ("w4a16", "onnxq", False), ("w8a16", "ort-cpu", False)],
)
def test_where_cells_are_joined(scheme: str, target: str, is_joined: bool, tmp_path: object) -> None:
    """Where there are kernels, and weights of 8 bits are wanted; the LSTM has the name of its first product."""
    big = {"w": normal(24, 80), "r": normal(20, 80, seed=1), "b": normal(80, seed=2)}
    text = KERAS.replace("first = MatMul", "[cell] first = MatMul")
    shapes = "float[B,24] x, float[B,20] h, float[B,20] c"
    path = tiny.save(
        tiny.model(f"m ({shapes}) => (float[B,20] k, float[B,20] n) {{ {text} }}", big, opset=18), tmp_path
    )
    plan = open_job(path, scheme, target=target).plan
    assert plan.choices["cell"].op == ("LSTM" if is_joined else "MatMul")
