"""One weight that several nodes read: one format, one line, stored once."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray

import onnxq
from onnxq import plan as plans
from onnxq.cli import _tables
from onnxq.conversion.convert import convert
from onnxq.conversion.dequantize import dequantize
from onnxq.conversion.export_weights import export_weights
from onnxq.job import open_job
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.passes.prepare import prepare
from onnxq.plan import Method
from onnxq.planning.shared_weights import reconciled, together
from onnxq.recipe import Recipe, Rule
from onnxq.runtime.session import Session
from onnxq.samples.trials import Trials
from onnxq.summaries.ranges import NO_RANGES
from onnxq.tuning.harm import harm
from onnxq.tuning.plan_bench import PlanBench

pytestmark = pytest.mark.usefixtures("quick")
ROWS, WIDTH = 512, 128

#: Two branches that read the same weights, and a table that is looked up and, turned, multiplied by.
MERGED = """g (int64[B, S] ids, bool[1] flag) => (float[B, S, 512] logits) {
  x = Gather(table, ids)
  h = If(flag) <
    then_branch = a () => (float[B, S, 128] ah) { au = MatMul(x, up)  ar = Relu(au)  ah = MatMul(ar, down) },
    else_branch = b () => (float[B, S, 128] bh) { bu = MatMul(x, up)  bt = Tanh(bu)  bh = MatMul(bt, down) }>
  head = Transpose<perm = [1, 0]>(table)  logits = MatMul(h, head) }"""
FLAT = """g (int64[N] ids) => (float[N, 512] logits) {
  x = Gather(table, ids)  u = MatMul(x, up)  r = Relu(u)  h = MatMul(r, down)  logits = Gemm<transB = 1>(h, table) }"""


def save(folder: Path, text: str) -> Path:
    constants = {"table": (ROWS, WIDTH), "up": (WIDTH, 256), "down": (256, WIDTH)}
    arrays = {name: tiny.normal(*shape, seed=i) for i, (name, shape) in enumerate(constants.items())}
    return tiny.save(tiny.model(text, arrays), folder)


def feeds(text: str, count: int = 4) -> list[dict[str, NDArray]]:
    rng = np.random.default_rng(0)
    if text is FLAT:
        return [{"ids": rng.integers(0, ROWS, 5 + i)} for i in range(count)]
    return [{"ids": rng.integers(0, ROWS, (2, 3 + i)), "flag": np.array([i % 2 == 0])} for i in range(count)]


#: Bytes a weight, scales and zero points included, of a file in which each weight is stored once.
BYTES = {"w8a8": 1.06, "w8a8-dynamic": 1.06, "w4a16": 0.72, "w8a16": 1.2, "nf4": 1.2, "fp16": 2, "bf16": 2}


@pytest.mark.pairwise
@pytest.mark.parametrize("text", [MERGED, FLAT], ids=["merged", "flat"])
@pytest.mark.parametrize("target", ["ort-cpu", "onnxq"])
@pytest.mark.parametrize("scheme", BYTES)
def test_a_shared_weight_is_stored_once(scheme: str, target: str, text: str, tmp_path: Path) -> None:
    path = save(tmp_path, text)
    data = feeds(text, 8) if scheme == "w8a8" else None
    plan = open_job(path, scheme, target, data).plan
    result = onnxq.quantize(
        path, tmp_path / "q.onnx", Recipe(scheme, min_sqnr=0.0), target=target, data=data, plan=plan
    )
    weights = ROWS * WIDTH + 2 * 256 * WIDTH
    functions = sum(f.ByteSize() for f in onnx.load(result.output).functions)
    assert result.bytes_after - functions < BYTES[scheme] * weights + 6000
    in_float, quantized = (onnxruntime.InferenceSession(p) for p in (path, result.output))
    for feed in feeds(text):
        floor = 12 if scheme in ("w4a16", "nf4") else 25
        assert tiny.sqnr(in_float.run(None, feed)[0], quantized.run(None, feed)[0]) > floor


def test_half_precision_is_stored_once_for_both_branches(tmp_path: Path) -> None:
    path = save(tmp_path, MERGED)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("fp16"), target="onnx")
    names = [t.name for t in onnx.load(result.output).graph.initializer if np.prod(t.dims) >= 256 * WIDTH]
    assert len(names) == 3  # the table, of which its transpose is made, up, down


def headed(rows: int, columns: int, folder: Path, word: str = "float") -> Path:
    """A model with a table that is its head too."""
    text = f"""g (int64[N] ids) => ({word}[N, {rows}] y) {{
        x = Gather(table, ids)  t = Tanh(x)  h = Transpose<perm = [1, 0]>(table)  y = MatMul(t, h) }}"""
    table = tiny.normal(rows, columns).astype(np.float16 if word == "float16" else np.float32)
    return tiny.save(tiny.model(text, {"table": table}), folder)


#: By target and scheme, bytes of a weight of a table that is the head too.
BLOCKS = {("ort-cpu", "w8a16"): 1.16, ("ort-cpu", "w4a16"): 0.64, ("onnx", "w8a16"): 1.13}


@pytest.mark.parametrize("columns", [WIDTH, 100])
@pytest.mark.parametrize(("target", "scheme"), BLOCKS)
def test_a_table_is_made_of_the_blocks_of_its_head(target: str, scheme: str, columns: int, tmp_path: Path) -> None:
    """Of 32 columns: the last ones of a table are filled up for the head, or those of the head for the table."""
    path = headed(500, columns, tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe(scheme, keep_slow=True, min_sqnr=0.0), target=target)
    assert {choice.block for choice in result.plan} == {32}
    assert result.bytes_after < BLOCKS[target, scheme] * 500 * 128 + 3000
    again = convert(result.output, target, tmp_path / "c.onnx", accuracy_level=4)
    assert again.bytes_after < result.bytes_after + 500
    back = dequantize(result.output, tmp_path / "back.onnx")
    assert back.bytes_after < 4 * 500 * columns + 1000
    feed = {"ids": np.arange(0, 500, 7)}
    wanted = onnxruntime.InferenceSession(path).run(None, feed)[0]
    plainly = onnxruntime.SessionOptions()
    plainly.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for file, options in itertools.product((result.output, again.output, back.output), (None, plainly)):
        got = onnxruntime.InferenceSession(file, options).run(None, feed)[0]
        assert tiny.sqnr(wanted, got) > (35 if scheme == "w8a16" else 12)


@pytest.mark.parametrize("columns", [WIDTH, 100])
def test_a_table_in_half_precision_is_made_of_its_head_too(columns: int, tmp_path: Path) -> None:
    """For target onnx, which unpacks it to float32 first; its scales are longer than those of the head."""
    path = headed(500, columns, tmp_path, "float16")
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a16", keep_slow=True), target="onnx")
    assert result.bytes_after < 1.2 * 500 * 128 + 3000
    again = convert(result.output, "onnx", tmp_path / "c.onnx")
    assert again.bytes_after < result.bytes_after + 500
    feed = {"ids": np.arange(0, 500, 7)}
    wanted, got, same = (
        onnxruntime.InferenceSession(p).run(None, feed)[0] for p in (path, result.output, again.output)
    )
    assert tiny.sqnr(wanted, got) > 35
    assert np.array_equal(got, same)


def tiled(rows: int, columns: int, folder: Path) -> tuple[Path, onnxq.Result]:
    """`headed`, and that in bfloat16, where the table is made of tiles."""
    path = headed(rows, columns, folder)
    return path, onnxq.quantize(path, folder / "q.onnx", Recipe("bf16", keep_slow=True), target="onnxq")


@pytest.mark.parametrize("columns", [WIDTH, 100])
def test_a_table_is_made_of_the_tiles_that_a_kernel_multiplies_by(columns: int, tmp_path: Path) -> None:
    """Of 16 rows and 32 columns, which are filled up: what is more than the table has is cut off."""
    path, result = tiled(500, columns, tmp_path)
    assert "DenseMatMul" in {node.op_type for node in onnx.load(result.output).graph.node}
    functions = sum(f.ByteSize() for f in onnx.load(result.output).functions)
    assert result.bytes_after - functions < 2 * 512 * 128 + 2500
    feed = {"ids": np.arange(0, 500, 7)}
    in_float = onnxruntime.InferenceSession(path).run(None, feed)[0]
    assert tiny.sqnr(in_float, Session(result.output).run(feed)[0]) > 40
    assert tiny.sqnr(in_float, onnxruntime.InferenceSession(result.output).run(None, feed)[0]) > 40


@pytest.mark.parametrize(("rows", "columns"), [(500, 100), (ROWS, WIDTH), (ROWS, 100)])
@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnxq"])
def test_a_table_of_tiles_is_one_weight_for_other_targets_too(
    target: str, rows: int, columns: int, tmp_path: Path
) -> None:
    _, result = tiled(rows, columns, tmp_path)
    made = convert(result.output, target, tmp_path / "c.onnx")
    functions = sum(f.ByteSize() for f in onnx.load(made.output).functions)
    assert made.bytes_after - functions < 2 * 512 * 128 + 2500
    feed = {"ids": np.arange(0, rows, 7)}
    outputs = [Session(each).run(feed)[0] for each in (result.output, made.output)]
    assert tiny.sqnr(*outputs) > 40


@pytest.mark.parametrize("target", ["ort-cpu", "onnxq"])
def test_a_table_of_tiles_gets_the_codes_of_its_head(target: str, tmp_path: Path) -> None:
    _, result = tiled(500, 128, tmp_path)
    recipe = Recipe("w8a16", keep_slow=True, requantize=True)
    made = onnxq.quantize(result.output, tmp_path / "again.onnx", recipe, target=target)
    functions = sum(f.ByteSize() for f in onnx.load(made.output).functions)
    assert made.bytes_after - functions < 1.2 * 512 * 128 + 4000
    assert [bool(choice.shares) for choice in made.plan] == [False, True]
    feed = {"ids": np.arange(0, 500, 7)}
    assert tiny.sqnr(*(Session(each).run(feed)[0] for each in (result.output, made.output))) > 35


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_table_of_halves_is_one_weight_with_its_head(is_folded: bool, tmp_path: Path) -> None:
    """Those of bfloat16 are computed with in float32: both are the same in that type too."""
    turn = "" if is_folded else "head = Transpose<perm = [1, 0]>(table)"
    text = (
        f"g (int64[N] ids) => (bfloat16[N, 500] y) {{ x = Gather(table, ids) {turn} t = Tanh(x) y = MatMul(t, head) }}"
    )
    table = tiny.normal(500, WIDTH).astype(ml_dtypes.bfloat16)
    arrays = {"table": table} | ({"head": np.ascontiguousarray(table.T)} if is_folded else {})
    plan = open_job(tiny.save(tiny.model(text, arrays), tmp_path), "w4a16", "onnxq").plan
    assert [bool(choice.shares) for choice in plan] == [False, True]


def test_a_table_of_tiles_is_exported_as_the_weight_that_it_is(tmp_path: Path) -> None:
    _, result = tiled(500, 100, tmp_path)
    rows = export_weights(result.output, tmp_path / "w.safetensors").rows
    assert [row.shape for row in rows] == [(500, 100), (500, 100)] and "table" in {row.name for row in rows}


def test_a_table_that_stays_in_float_is_stored_once(tmp_path: Path) -> None:
    path = save(tmp_path, MERGED)
    recipe = Recipe("w8a16", rules=(Rule("keep", "x"), Rule("keep", "logits")))
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe)
    assert result.bytes_after < 4 * ROWS * WIDTH + 1.2 * 2 * 256 * WIDTH + 6000


def test_a_transpose_that_the_exporter_folded_is_the_same_weight(tmp_path: Path) -> None:
    table = tiny.normal(ROWS, WIDTH)
    text = f"g (int64[B, S] ids) => (float[B, S, {ROWS}] y) {{ x = Gather(table, ids)  y = MatMul(x, head) }}"
    made = tiny.model(text, {"table": table, "head": np.ascontiguousarray(table.T)})
    path = tiny.save(made, tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a16", keep_slow=True))
    assert [choice.shares for choice in result.plan] == ["", "x"]
    assert result.bytes_after < 1.2 * ROWS * WIDTH + 4000  # bytes: of the one that both read
    in_float, quantized = (onnxruntime.InferenceSession(p) for p in (path, result.output))
    feed = {"ids": np.arange(12).reshape(3, 4)}
    assert tiny.sqnr(in_float.run(None, feed)[0], quantized.run(None, feed)[0]) > 35


def test_it_is_one_line_of_the_table(tmp_path: Path) -> None:
    plan = open_job(save(tmp_path, MERGED), "w8a16").plan
    assert {c.node: c.shares for c in plan if c.shares} == {"bu": "au", "bh": "ah", "logits": "x"}
    assert plans.load_plan(_written(plan, tmp_path)) == plan
    for each_node in (False, True):
        columns = [list(column.cells) for column in _tables.plan_table(plan, each_node=each_node).columns]
        if each_node:
            assert columns[0] == ["x (and 1 more)", "au (and 1 more)", "ah (and 1 more)"]
        else:
            assert sorted(columns[0]) == ["1", "2"]


def _written(plan: plans.Plan, folder: Path) -> Path:
    (folder / "plan.json").write_text(plan.to_json())
    return folder / "plan.json"


def test_choices_that_disagree_are_reconciled(tmp_path: Path) -> None:
    path = save(tmp_path, MERGED)
    model = load_model(path)
    prepare(model)
    plan = open_job(path, "w4a16").plan
    finer = plans.finer(plan.choices["bu"], "for accuracy")
    assert finer is not None
    agreed = reconciled(plan.replacing([finer]), model)
    assert {agreed.choices[n].format for n in ("au", "bu")} == {"int8"}
    assert agreed.choices["au"].reason == "shares its weights with 'bu', which needs this format"
    kept = plans.Choice("logits", "MatMul", Method.KEEP, reason="kept")
    agreed = reconciled(plan.replacing([kept]), model)
    assert agreed.method("x") is Method.KEEP
    assert agreed.choices["ah"] == plan.choices["ah"]


def test_the_noise_of_a_shared_weight_is_that_of_all_who_read_it(tmp_path: Path) -> None:
    """One reader alone in four bits, while the others keep the weight in float, shows none: it is stored once."""
    text = """g (float[N, 128] x, float[N, 128] z) => (float[N, 256] y) {
        [a] p = MatMul(x, up)  [b] q = MatMul(z, up)  [c] r = MatMul(x, other)  s = Sub(p, q)  y = Add(s, r) }"""
    weights = {"up": tiny.normal(128, 256), "other": tiny.normal(128, 256, seed=1) / 10}
    job = open_job(tiny.save(tiny.model(text, weights), tmp_path), "w4a16")
    rng = np.random.default_rng(0)
    feeds = [{name: rng.standard_normal((4, 128)).astype(np.float32) for name in "xz"} for _ in range(3)]
    bench = PlanBench(job.model, lambda plan: job.rewritten(plan, NO_RANGES), Trials.given(feeds, ""))
    base = job.plan.replacing(plans.Choice(c.node, c.op, Method.KEEP) for c in job.plan)
    noise = harm(bench, base, list(job.plan), measurements=8)
    assert noise["a"] == noise["b"] > 20 * noise["c"] > 0


def test_a_weight_that_two_read_gets_its_longer_format_first(tmp_path: Path) -> None:
    """Where it does all the harm, the others stay as short as they were asked for."""
    text = """g (float[N, 128] x, float[N, 128] z) => (float[N, 256] y) {
        [a] p = MatMul(x, up)  [b] q = MatMul(z, up)  [c] r = MatMul(x, other)  s = Sub(p, q)  y = Add(s, r) }"""
    weights = {"up": tiny.normal(128, 256), "other": tiny.normal(128, 256, seed=1) / 10}
    path = tiny.save(tiny.model(text, weights), tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w4a16", min_sqnr=30))
    bits = {choice.node: choice.format for choice in result.plan}
    assert bits["a"] == bits["b"] == "int8"
    assert bits["c"] == "uint4"


def test_codes_for_readers_of_both_ways_are_no_smaller_than_halves(tmp_path: Path) -> None:
    """A scale for each column serves one of them; the other one has codes of its own."""
    text = """g (float[N, 64] x) => (float[N, 64] y) {
        a = MatMul(x, w)  r = Relu(a)  y = Gemm<transB = 1>(r, w) }"""
    model = tiny.save(tiny.model(text, {"w": tiny.normal(64, 64)}), tmp_path)
    plan = onnxq.quantize(model, tmp_path / "out.onnx", "w8a8-dynamic").plan
    assert [choice.format for choice in plan] == ["float16", "float16"]
    assert next(iter(plan)).reason == "a shorter format would be no smaller here"


def test_weights_of_regions_are_constants(tmp_path: Path) -> None:
    """Two that are turned to each other lie there twice, for a region has no other reader of its weight."""
    text = """g (float[N, 4, 64] x, float[N, 64] z) => (float[N, 4, 64] y, float[N, 64] u) {
        t = Transpose<perm = [1, 0]>(w)  a = MatMul(x, t)  b = Relu(a)  y = MatMul(b, t)
        c = Gemm<transB = 1>(z, w)  d = Relu(c)  u = Gemm<transB = 1>(d, w) }"""
    model = tiny.save(tiny.model(text, {"w": tiny.normal(64, 64)}), tmp_path)
    data = [{"x": tiny.normal(1, 4, 64, seed=i), "z": tiny.normal(1, 64, seed=i)} for i in range(8)]
    recipe = Recipe("w8a8", keep_slow=True, min_sqnr=0.0)
    made = onnx.load(onnxq.quantize(model, tmp_path / "q.onnx", recipe, target="onnxq", data=data).output)
    constants = {each.name for each in made.graph.initializer}
    regions = [node for node in made.graph.node if node.op_type == "Region"]
    assert len(regions) == 2 and all({*node.input} <= constants | {"x", "z"} for node in regions)


def test_every_branch_is_timed_and_decided_by_its_own_kernels(tmp_path: Path, twice_as_fast: None) -> None:
    path = save(tmp_path, MERGED)
    model = open_job(path, "w8a8-dynamic").model
    inner = {node.name for node in graph.nodes(model) if node.op_type == "MatMul"}
    bench = PlanBench(model, lambda plan: model, Trials.given(feeds(MERGED), ""))
    assert len(inner) >= 4 and inner <= {run.node for run in bench.trace}
    assert [bool(feed["flag"].all()) for feed in bench.timed] == [True, False]
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a8-dynamic", prefer="speed"))
    assert len(result.plan.those(Method.DYNAMIC)) >= 4


def test_kernels_of_a_branch_are_of_a_sample_that_takes_it(tmp_path: Path) -> None:
    model = open_job(save(tmp_path, MERGED), "w8a8-dynamic").model
    trials = Trials.given(feeds(MERGED), "")
    every = [
        PlanBench(model, lambda plan: model, given).kernels(None)
        for given in (trials, Trials.given(trials.feeds[:1], ""))
    ]
    both, one = (Counter(kernel.op for kernel in kernels) for kernels in every)
    assert both["Tanh"] == 1 and one["Tanh"] == 0 and both["Gather"] == one["Gather"] == 1


def test_sines_and_cosines_of_the_same_places_get_one_format() -> None:
    """One of the two in longer numbers is no better a rotation: embeddings of the same ids are each for itself."""
    text = """g (int64[N] ids, int64[N] others) => (float[N, 32] y) {
      [a] a = Gather (cos, ids)  [b] b = Gather (sin, ids)  [c] c = Gather (sin, others)
      [d] d = Gather (words, ids)  [e] e = Gather (types, ids)
      s = Add (a, b)  t = Add (s, c)  u = Add (t, d)  y = Add (u, e) }"""
    angles = np.outer(np.arange(64), 10000.0 ** -np.linspace(0, 1, 32)).astype(np.float32)
    constants = {"cos": np.cos(angles), "sin": np.sin(angles)}
    constants |= {name: tiny.normal(64, 32, seed=i) for i, name in enumerate(("words", "types"))}

    def leaders(text: str) -> dict[str, str]:
        model = tiny.read(tiny.model(text, constants))
        prepare(model)
        return together(model)

    assert leaders(text) == {"a": "a", "b": "a", "c": "a"}
    assert leaders(text.replace("sin, others", "words, others")) == {"a": "a", "b": "a", "c": "c", "d": "c"}
