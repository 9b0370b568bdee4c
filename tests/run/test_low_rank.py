"""Two thin matrices beside a weight of few bits: the best ones, and nodes that compute them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxq import Recipe, formats, quantize
from onnxq.algorithms import rtn
from onnxq.algorithms.low_rank import lqer, qera, reconstruction
from onnxq.errors import BadRecipe, UnusedOption
from onnxq.folders.options_of_part import recipe_of
from onnxq.formats import Granularity
from onnxq.recipe import Rule, parse_set
from onnxq.summaries.seen_rows import LayerOfRows


def rows(count: int = 400, k: int = 64, seed: int = 0) -> NDArray[np.float32]:
    r = np.random.default_rng(seed)
    return (r.standard_normal((count, k)) @ (np.random.default_rng(9).standard_normal((k, k)) / 8)).astype(np.float32)


def left(error: NDArray, found: NDArray, x: NDArray) -> float:
    return float(np.square(x.astype(np.float64) @ (error - found)).sum())


@pytest.mark.parametrize("shape", [(64, 24), (64, 96), (64, 64)], ids=str)
def test_each_way_is_the_best_of_its_rank_by_what_it_looks_at(shape: tuple[int, int]) -> None:
    error, x = tiny.normal(*shape, seed=3), rows()
    gram = x.T @ x
    singular = np.linalg.svd(error.astype(np.float64), compute_uv=False)
    h = gram.astype(np.float64) + qera.DAMPING * np.trace(gram) / 64 * np.eye(64)
    root = np.linalg.cholesky(h).T
    by_data = np.linalg.svd(root @ error, compute_uv=False)
    for rank in (1, 4, 16):
        plain, seen = lqer.factors(error, rank), qera.factors(error, rank, gram)
        assert plain.a.shape == seen.a.shape == (64, rank) and plain.b.shape == seen.b.shape == (rank, shape[1])
        assert np.square(error - plain.a @ plain.b).sum() == pytest.approx(np.square(singular[rank:]).sum(), rel=1e-3)
        assert np.square(root @ (error - seen.a @ seen.b)).sum() == pytest.approx(
            np.square(by_data[rank:]).sum(), rel=1e-3
        )
        assert left(error, seen.a @ seen.b, x) < left(error, plain.a @ plain.b, x) < left(error, 0 * error, x)


def test_an_error_of_that_rank_is_made_up_for_wholly_and_the_same_each_time() -> None:
    error = (tiny.normal(64, 3) @ tiny.normal(3, 40, seed=1)).astype(np.float32)
    for found in (lqer.factors(error, 3), qera.factors(error, 3, rows().T @ rows())):
        np.testing.assert_allclose(found.a @ found.b, error, atol=1e-4)
    one, other = (qera.factors(error, 3, rows().T @ rows()) for _ in range(2))
    np.testing.assert_array_equal(one.a, other.a)
    assert lqer.factors(error, 500).a.shape == (64, 40)


@pytest.mark.parametrize("gram", [np.zeros((64, 64)), np.full((64, 64), np.nan), np.full((64, 64), np.inf)], ids=str)
def test_data_that_say_nothing_leave_the_way_without_them(gram: NDArray) -> None:
    error = tiny.normal(64, 24)
    found, plain = qera.factors(error, 4, gram.astype(np.float32)), lqer.factors(error, 4)
    np.testing.assert_array_equal(found.a @ found.b, plain.a @ plain.b)


def test_it_is_never_worse_than_nothing_and_zeros_are_zeros() -> None:
    w, x = tiny.normal(64, 24), rows()
    q = rtn.quantize(w, formats.get("int3"), Granularity(0, 32)).dequantize()
    for layer in (None, LayerOfRows.of(x[:, None], 1)):
        found = reconstruction(w, q, 4, layer)
        assert np.square(w - q - found.a @ found.b).sum() < 1.5 * np.square(w - q).sum()
        assert left(w - q, found.a @ found.b, x) < left(w - q, 0 * w, x)
        np.testing.assert_array_equal(found.a, found.a.astype(np.float16).astype(np.float32))
    exact = reconstruction(w, w, 4)
    assert not (exact.a @ exact.b).any()


TEXT = """m (float[N, 64] x) => (float[N, 24] y) {
    h = MatMul(x, W) r = Relu(h) y = Gemm <transB = 1, alpha = 0.5> (r, V, B) }"""


def model(folder: Path) -> Path:
    constants = {"W": tiny.normal(64, 96), "V": tiny.normal(96, 24, seed=1).T.copy(), "B": tiny.normal(24)}
    return tiny.save(tiny.model(TEXT, constants), folder)


def run(path: Path, x: NDArray) -> NDArray:
    return onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]


@pytest.mark.parametrize(
    ("target", "word"), [("onnxq", "int3"), ("ort-cpu", "int4"), ("ort-cpu", "nf4"), ("onnx", "int4")]
)
@pytest.mark.parametrize("has_data", [True, False], ids=["data", "weights"])
def test_files_of_every_target_compute_it_and_hold_halves(
    target: str, word: str, has_data: bool, tmp_path: Path
) -> None:
    path, other = model(tmp_path), rows(200, seed=7)
    data = [{"x": rows(40, seed=i)} for i in range(12)] if has_data else None
    found = {}
    for rank in ("", "+rank8"):
        recipe = Recipe(word, (parse_set(f"*={word}+rtn{rank}"),), accuracy_level=0, min_sqnr=float("-inf"))
        result = quantize(path, tmp_path / "q.onnx", recipe, target=target, data=data, check=False, force=True)
        found[rank] = tiny.sqnr(run(path, other), run(result.output, other))
    assert found["+rank8"] > found[""] + (2 if has_data else 0.5)
    made = onnx.load(result.output).graph.initializer
    factors = {i.name: numpy_helper.to_array(i) for i in made if "low_rank" in i.name}
    assert sorted(sorted(x.shape) for x in factors.values()) == [[8, 24], [8, 64], [8, 96], [8, 96]]
    assert {x.dtype for x in factors.values()} == {np.dtype(np.float16)}


def test_kernels_of_convolutions_are_made_up_for_when_they_are_unpacked(tmp_path: Path) -> None:
    text = """m (float[1, 8, 9, 9] x) => (float[1, 16, 9, 9] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, K) d = Conv <group = 16> (a, D) y = Relu(d) }"""
    proto = tiny.model(text, {"K": tiny.normal(16, 8, 3, 3), "D": tiny.normal(16, 1, 1, 1)})
    path, x = tiny.save(proto, tmp_path), tiny.normal(1, 8, 9, 9)
    data = [{"x": tiny.normal(1, 8, 9, 9, seed=i)} for i in range(12)]
    found = {}
    for rank in ("", "+rank4"):
        recipe = Recipe("int4", (parse_set(f"*=int4+rtn{rank}"),), min_sqnr=float("-inf"))
        result = quantize(path, tmp_path / "q.onnx", recipe, data=data, check=False, force=True)
        found[rank] = tiny.sqnr(run(path, x), run(result.output, x))
    assert found["+rank4"] > found[""] + 1.5


def test_the_rank_is_that_of_the_nodes_that_the_rule_is_for(tmp_path: Path) -> None:
    rules = (Rule("int4+rtn+rank4", ops=("Gemm",)),)
    result = quantize(model(tmp_path), tmp_path / "q.onnx", Recipe("int4", rules), target="onnxq", check=False)
    shapes = [tuple(i.dims) for i in onnx.load(result.output).graph.initializer if "low_rank" in i.name]
    assert sorted(shapes) == [(4, 24), (96, 4)]
    with pytest.warns(UnusedOption, match="the rank in 'int8\\+rank4' changes nothing"):
        quantize(
            tiny.save(tiny.model("m (int64[N] i) => (float[N, 32] y) { y = Gather(T, i) }", {"T": tiny.normal(99, 32)}),
                      tmp_path, "table.onnx"),
            tmp_path / "t.onnx", Recipe("int8", (parse_set("*=int8+rank4"),)), check=False,
        )  # fmt: skip


def test_a_rank_that_only_kernels_with_groups_have_is_told(tmp_path: Path) -> None:
    text = "m (float[1, 32, 9, 9] x) => (float[1, 32, 9, 9] y) { y = Conv <group = 2> (x, K) }"
    path = tiny.save(tiny.model(text, {"K": tiny.normal(32, 16, 1, 1)}), tmp_path)
    recipe = Recipe("int4", (parse_set("*=int4+rank4"),), min_sqnr=float("-inf"))
    with pytest.warns(UnusedOption, match="without groups or stacks"):
        quantize(path, tmp_path / "q.onnx", recipe, data=[{"x": tiny.normal(1, 32, 9, 9)}], check=False)


@pytest.mark.parametrize(
    ("text", "algorithm", "rank"),
    [("int3", None, 0), ("int3+gptq", "gptq", 0), ("int3+rank16", None, 16), ("int3+rank8+mse", "mse", 8)],
)
def test_rules_spell_it(text: str, algorithm: str | None, rank: int) -> None:
    rule = parse_set(f"*={text}")
    assert (rule.scheme, rule.algorithm, rule.rank) == ("int3", algorithm, rank)
    kept = recipe_of("m", ["m"], Recipe("int3", (rule,)), has_data=False).rules[0]
    assert kept.rank == rank and kept.algorithm == (None if algorithm == "gptq" else algorithm)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("int3+rank0", "write 'rank1' to 'rank9999'"),
        ("int3+rank", "write 'rank1' to 'rank9999'"),
        ("int3+Rank4", "write 'rank1' to 'rank9999'"),
        ("int3+rank12345", "write 'rank1' to 'rank9999'"),
        ("int3+gptq+mse", "names two of a kind"),
        ("int3+rank1+rank2", "names two of a kind"),
        ("keep+rank4", "keeps nodes in float"),
    ],
)
def test_what_is_no_rank_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadRecipe, match=why):
        parse_set(f"*={text}")
