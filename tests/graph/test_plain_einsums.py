"""An Einsum that is a product of matrices becomes a MatMul, which computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from test_passes_folding import apply, assert_untouched

import onnxq
from onnxq.passes.prepare import prepare
from onnxq.passes.spelling.plain_einsums import PlainEinsums

SIZES = {"b": 2, "s": 5, "t": 7, "d": 6, "h": 3, "k": 4, "f": 8, "e": 2}


#: That models leave open.
OPEN = "best"


def parts(equation: str) -> list[str]:
    return equation.replace(" ", "").partition("->")[0].replace("...", "be").split(",")


def shapes(equation: str) -> list[tuple[int, ...]]:
    return [tuple(SIZES[letter] for letter in part) for part in parts(equation)]


def declared(part: str, *, are_open: str = OPEN) -> str:
    return ",".join(letter.upper() if letter in are_open else str(SIZES[letter]) for letter in part)


@pytest.mark.parametrize("is_first", [False, True], ids=["x,w", "w,x"])
@pytest.mark.parametrize(
    ("equation", "nodes"),
    [
        ("bsd,df->bsf", ["MatMul"]),
        ("bsd,dhk->bshk", ["MatMul", "Reshape"]),
        ("bshk,hkd->bsd", ["Reshape", "MatMul"]),
        ("bsd,dhk->bhsk", ["MatMul", "Reshape", "Transpose"]),
        ("bsd,hdk->bhsk", ["MatMul", "Reshape", "Transpose"]),
        ("bsd,fd->bsf", ["MatMul"]),
        ("dbs,df->bsf", ["Transpose", "MatMul"]),
        ("bds,fd->bfs", ["Transpose", "MatMul", "Transpose"]),
        ("bhks,hkd->bsd", ["Transpose", "Reshape", "MatMul"]),
        ("...d,df->...f", ["MatMul"]),
        ("... d, d h k -> ... h k", ["MatMul", "Reshape"]),
        ("d,df->f", ["MatMul"]),
        ("d,dhk->hk", ["MatMul", "Reshape"]),
        ("ebd,edf->ebf", ["MatMul"]),
        ("bd,df", ["MatMul"]),
    ],
)
def test_a_product_with_a_constant(equation: str, nodes: list[str], is_first: bool) -> None:
    x, w = (tiny.normal(*shape, seed=i) for i, shape in enumerate(shapes(equation)))
    shape = declared(parts(equation)[0])
    if is_first:
        if "->" not in equation:
            pytest.skip("the order of the result would be another")
        operands, _, out = equation.partition("->")
        equation = f"{','.join(reversed(operands.split(',')))}->{out}"
    args = "w, x" if is_first else "x, w"
    text = f'g (float[{shape}] x) => (y) {{ y = Einsum<equation = "{equation}">({args}) }}'
    made = apply(PlainEinsums, text, {"w": w})
    prepared = made.clone()
    prepare(prepared)
    assert [node.op_type for node in prepared.graph] == nodes
    wanted = np.einsum(equation.replace(" ", ""), *((w, x) if is_first else (x, w)))
    for model in (made, prepared):
        np.testing.assert_allclose(tiny.evaluate(model, x=x)[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "nodes"),
    [
        ("bshk,bthk->bhst", ["Transpose", "Transpose", "MatMul"]),
        ("bhst,bthk->bshk", ["Transpose", "MatMul", "Transpose"]),
        ("...sk,...tk->...st", ["Transpose", "MatMul"]),
        ("sd,td->st", ["Transpose", "MatMul"]),
    ],
)
def test_a_product_of_two_activations(equation: str, nodes: list[str]) -> None:
    a, b = (tiny.normal(*shape, seed=i) for i, shape in enumerate(shapes(equation)))
    declarations = ", ".join(
        f"float[{declared(part)}] {name}" for part, name in zip(parts(equation), "ab", strict=True)
    )
    text = f"""g ({declarations}) => (y) {{
        y = Einsum<equation = "{equation}">(a, b) }}"""
    made = apply(PlainEinsums, text, {})
    assert tiny.ops(made) == nodes
    np.testing.assert_allclose(tiny.evaluate(made, a=a, b=b)[0], np.einsum(equation, a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    [
        "bsd,df->bs",  # f is summed over, of the constant alone
        "bsd,df->df",
        "bsd,bsd->bsd",
        "bsd,dd->bsd",  # a diagonal
        "bbd,df->bf",
        "bsd,d->bs",  # a vector
        "bsd,f->bsdf",
        "esd,edhk->eshk",  # of each of several matrices with several axes
    ],
)
def test_other_sums_stay(equation: str) -> None:
    w = tiny.normal(*shapes(equation)[1])
    assert_untouched(
        PlainEinsums,
        f'g (float[{declared(parts(equation)[0])}] x) => (y) {{ y = Einsum<equation = "{equation}">(x, w) }}',
        {"w": w},
    )


def test_an_axis_of_one_index_that_stands_for_all_stays() -> None:
    text = 'g (float[2, 5, 1] x) => (y) { y = Einsum<equation = "bsd,df->bsf">(x, w) }'
    assert_untouched(PlainEinsums, text, {"w": tiny.normal(6, 8)})
    unknown = 'g (float x) => (y) { y = Einsum<equation = "...d,df->...f">(x, w) }'
    assert_untouched(PlainEinsums, unknown, {"w": tiny.normal(6, 8)})


@pytest.mark.parametrize(
    ("equation", "x", "w", "is_first"),
    [
        ("bsd,df->bsf", (2, 5, 1), (6, 8), False),
        ("bsd,df->bsf", (2, 5, 1), (6, 8), True),
        ("...d,df->...f", (2, 5, 1), (6, 8), False),
        ("d,df->f", (1,), (6, 8), False),
        ("bshk,hkd->bsd", (2, 5, 1, 4), (3, 4, 6), False),
        ("bshk,hkd->bsd", (2, 5, 3, 1), (3, 4, 6), False),
        ("bshk,hkd->bsd", (2, 5, 3, 4), (3, 4, 6), False),
        ("ebd,edf->ebf", (1, 5, 1), (2, 6, 8), False),
    ],
)
def test_a_size_that_the_caller_chooses_may_be_1(
    equation: str, x: tuple[int, ...], w: tuple[int, ...], is_first: bool
) -> None:
    operands, _, out = equation.partition("->")
    turned = f"{','.join(reversed(operands.split(',')))}->{out}" if is_first else equation
    args = "w, x" if is_first else "x, w"
    shape = declared(parts(equation)[0], are_open="".join(SIZES))
    text = f'g (float[{shape}] x) => (y) {{ y = Einsum<equation = "{turned}">({args}) }}'
    arrays = tiny.normal(*x), tiny.normal(*w, seed=1)
    made = apply(PlainEinsums, text, {"w": arrays[1]})
    assert "MatMul" in tiny.ops(made) and "Expand" in tiny.ops(made)
    np.testing.assert_allclose(tiny.evaluate(made, x=arrays[0])[0], np.einsum(equation, *arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "is_plain"),
    [
        ("N, S, 4, 16", "N, S, 4, 16", True),
        ("N, S, 4, D", "N, T, 4, D", True),  # of the same name
        ("N, S, 4, D", "N, T, 4, E", False),
        ("N, S, 4, D", "N, T, 4, 16", False),
        ("N, S, 4, ?", "N, T, 4, ?", False),
        ("N, S, 4, 1", "N, T, 4, 1", True),
        ("N, S, 1, 16", "M, T, 4, 16", True),  # MatMul repeats what there is a product of each of
    ],
)
def test_sizes_of_two_activations_may_be_1(a: str, b: str, is_plain: bool) -> None:
    text = f'g (float[{a}] a, float[{b}] b) => (y) {{ c = Relu(a) y = Einsum<equation = "bshk,bthk->bhst">(c, b) }}'
    made = tiny.read(tiny.model(text))
    assert PlainEinsums()(made).modified == is_plain


def test_sizes_that_a_model_computes_are_what_both_have() -> None:
    """Of keys and values behind a cache, and of scores behind a mask whose length has a name of its own."""
    text = """g (float[N, 4, S, 16] q, float[N, 4, P, 16] past, float[N, P, 4, 16] before, float[N, 4, S, 16] k,
        float[N, S, 4, 16] v, float[N, 1, S, K] m) => (y) {
        keys = Concat<axis = 2>(past, k)  values = Concat<axis = 1>(before, v)
        a = Einsum<equation = "bhqd,bhkd->bhqk">(q, keys)  s = Add(a, m)  p = Softmax<axis = -1>(s)
        y = Einsum<equation = "bhqk,bkhd->bqhd">(p, values) }"""
    made = apply(PlainEinsums, text, {})
    assert tiny.ops(made).count("MatMul") == 2


def test_a_weight_of_one_row_stays_for_sizes_that_are_not_known() -> None:
    text = 'g (float[N, S, D] x) => (y) { y = Einsum<equation = "bsd,df->bsf">(x, w) }'
    assert_untouched(PlainEinsums, text, {"w": tiny.normal(1, 8)})
    apply(PlainEinsums, text.replace("D]", "1]"), {"w": tiny.normal(1, 8)})


def test_dense_layers_of_jax_are_quantized_and_come_back(tmp_path: Path) -> None:
    text = """g (float[B, S, 64] x) => (float[B, S, 64] y) {
        q = Einsum<equation = "bsd,dhk->bshk">(x, Wq)  k = Einsum<equation = "bsd,dhk->bshk">(x, Wk)
        v = Einsum<equation = "bsd,dhk->bshk">(x, Wv)  a = Einsum<equation = "bqhd,bkhd->bhqk">(q, k)
        p = Softmax<axis = -1>(a)  o = Einsum<equation = "bhqk,bkhd->bqhd">(p, v)
        y = Einsum<equation = "bshk,hkd->bsd">(o, Wo) }"""
    weights = {f"W{word}": 0.1 * tiny.normal(64, 4, 16, seed=i) for i, word in enumerate("qkv")}
    weights["Wo"] = 0.1 * tiny.normal(4, 16, 64, seed=5)
    path = tiny.save(tiny.model(text, weights), tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", onnxq.Recipe("w8a16", keep_slow=True), target="onnxq")
    assert result.check is not None and result.check.sqnr > 35
    assert result.bytes_after < 0.5 * result.bytes_before
    assert "Einsum" not in {node.op_type for node in onnx.load(result.output).graph.node}
