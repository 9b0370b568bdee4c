"""Granularity and symmetry of weights, as the user names them: each file computes what the formula says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import numpy_helper
from tiny import normal

import onnxq
from onnxq import Recipe, Rule, formats
from onnxq.cli import main
from onnxq.errors import BadRecipe
from onnxq.output.signature import read_signature
from onnxq.plan import Choice, load_plan
from onnxq.recipe import load_recipe

pytestmark = pytest.mark.usefixtures("quick")
E, W, G = normal(50, 96, seed=1), normal(96, 48, seed=2) * 3, normal(40, 48, seed=3)
B, C = normal(40, seed=4), normal(6, 5, 3, 3, seed=5) + 0.05
PRODUCTS = tiny.model(
    """g (int64[M] i) => (float[M,96] e0, float[M,40] y) {
        e0 = Gather(e, i)  t = Tanh(e0)  h = MatMul(t, w)  y = Gemm <transB = 1> (h, g, b)
    }""",
    {"e": E, "w": W, "g": G, "b": B},
)
CONV = tiny.model(
    """g (float[1,5,9,9] x) => (float[1,7] y) {
        c = Conv <pads = [1,1,1,1]> (x, k, d)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)  y = Gemm(f, v, z)
    }""",
    {"k": C, "d": normal(6, seed=6), "v": normal(6, 7, seed=7).repeat(1, axis=0), "z": normal(7, seed=8)},
)
INDICES = np.arange(0, 50, 4)


def rounded(w: NDArray, bits: int, *, symmetric: bool, axes: tuple[int, ...] | None) -> NDArray:
    """The formulas of a textbook, of what shares a scale along `axes`; None: all of it."""
    low, high = (end(w, axis=axes, keepdims=True).astype(np.float64) for end in (np.min, np.max))
    if symmetric:
        top = 2 ** (bits - 1) - 1
        s = np.float32(np.maximum(-low, high) / top)
        return np.clip(np.rint(w / s), -top - 1, top) * s
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    s = np.float32((high - low) / (2**bits - 1))
    z = np.rint(-low / s)
    return (np.clip(np.rint(w / s) + z, 0, 2**bits - 1) - z) * s


def expected(bits: int, *, symmetric: bool, whole: bool) -> list[NDArray]:
    def of(w: NDArray, channel: int) -> NDArray:
        return rounded(w, bits, symmetric=symmetric, axes=None if whole else (1 - channel,))

    looked_up = of(E, 0)[INDICES]
    return [looked_up, (np.tanh(looked_up) @ of(W, 1)) @ of(G, 0).T + B]


def made(folder: Path, model: onnx.ModelProto, recipe: Recipe, target: str = "ort-cpu", **options: object) -> Path:
    path = tiny.save(model, folder)
    result = onnxq.quantize(path, folder / "q.onnx", recipe, target=target, check=False, force=True, **options)
    assert result.output is not None
    return Path(result.output)


def run(path: Path, **feed: NDArray) -> list[NDArray]:
    return onnxq.session(path).run(None, feed)


@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnxq"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "affine"])
@pytest.mark.parametrize(("scheme", "bits"), [("w4a16", 4), ("w8a16", 8)])
def test_a_file_computes_what_the_formula_says(
    scheme: str, bits: int, symmetric: bool, granularity: str, target: str, tmp_path: Path
) -> None:
    recipe = Recipe(scheme, granularity=granularity, symmetric=symmetric, algorithm="rtn", accuracy_level=0)
    got = run(made(tmp_path, PRODUCTS, recipe, target), i=INDICES)
    whole = granularity == "tensor"
    for y, wanted in zip(got, expected(bits, symmetric=symmetric, whole=whole), strict=True):
        # Scales are rounded to float16 on target onnxq, and on target onnx onnxruntime rounds activations to int8.
        assert tiny.sqnr(wanted, y) > (90 if target == "ort-cpu" else 40)
    others = expected(bits, symmetric=symmetric, whole=not whole)
    assert tiny.sqnr(others[1], got[1]) < tiny.sqnr(expected(bits, symmetric=symmetric, whole=whole)[1], got[1]) - 3


@pytest.mark.parametrize("word", ["int4", "nf4", "pow2_int4", "nf4_dq", "uniform3", "float8_e4m3", "int3"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_formats_that_are_named(word: str, granularity: str, tmp_path: Path) -> None:
    """All that have no block of their own, on the target that takes them all: as `formats.quantize` rounds them."""
    path = made(tmp_path, PRODUCTS, Recipe(word, granularity=granularity, algorithm="rtn", accuracy_level=0), "onnxq")

    def of(w: NDArray, channel: int) -> NDArray:
        how = formats.Granularity(None if granularity == "tensor" else channel)
        return formats.quantize(w, word.removesuffix("_dq"), how).dequantize()

    looked_up = of(E, 0)[INDICES]
    got = run(path, i=INDICES)
    assert tiny.sqnr(np.tanh(looked_up) @ of(W, 1) @ of(G, 0).T + B, got[1]) > (25 if "dq" in word else 40)


@pytest.mark.parametrize("k", [50, 64])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("word", ["nf4", "fp4"])
def test_rows_that_are_no_whole_blocks(word: str, granularity: str, k: int, tmp_path: Path) -> None:
    """MatMulBnb4 counts its blocks through all rows: a block over the end of one would have the scales of two."""
    w = normal(k, 40, seed=9) * (1 + np.arange(40, dtype=np.float32))
    model = tiny.model(f"g (float[M,{k}] x) => (float[M,40] y) {{ y = MatMul(x, w) }}", {"w": w})
    path = made(tmp_path, model, Recipe(word, granularity=granularity, algorithm="rtn"))
    x = normal(3, k, seed=10)
    how = formats.Granularity(None if granularity == "tensor" else 1)
    assert tiny.sqnr(x @ formats.quantize(w, word, how).dequantize(), run(path, x=x)[0]) > 90
    assert ("MatMulBnb4" in {node.op_type for node in onnx.load(path).graph.node}) == (k == 64)


def test_blocks_of_a_kernel_repeat_the_scale_of_their_channel(tmp_path: Path) -> None:
    path = made(tmp_path, PRODUCTS, Recipe("w4a16", granularity="channel", symmetric=True))
    nodes = {node.name: node for node in onnx.load(path).graph.node}
    blocks = [a.i for node in nodes.values() for a in node.attribute if a.name == "block_size"]
    assert blocks == [32, 32, 16]  # of 96 and 48 numbers: nothing is filled up


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8-dynamic"])
def test_one_int8_scale_for_all(scheme: str, tmp_path: Path) -> None:
    model = CONV if scheme == "w8a8" else PRODUCTS
    x = np.random.default_rng(0).standard_normal((8, 1, 5, 9, 9)).astype(np.float32)
    recipe = Recipe(scheme, granularity="tensor", keep_slow=True)
    data = {"data": [{"x": each} for each in x]} if scheme == "w8a8" else {}
    path = made(tmp_path, model, recipe, **data)
    arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    scales = {name: a for name, a in arrays.items() if name.endswith("_scale") and name[0] in "kvwg"}
    originals = {"k": C, "v": numpy_helper.to_array(CONV.graph.initializer[2]), "w": W, "g": G}
    assert scales
    for name, scale in scales.items():
        assert scale.shape == ()
        assert scale == pytest.approx(np.abs(originals[name[0]]).max() / 127)
    feed = {"x": x[0]} if scheme == "w8a8" else {"i": INDICES}
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = tiny.evaluate(model, **feed)
    assert min(tiny.sqnr(a, b) for a, b in zip(wanted, session.run(None, feed), strict=True)) > 25
    ran = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert ran & ({"QLinearConv"} if scheme == "w8a8" else {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"})


def test_stored_weights_and_blocks(tmp_path: Path) -> None:
    """Convolutions have no packed kernel: one scale for all, and never blocks, which the plan says."""
    path = made(tmp_path, CONV, Recipe("w8a16", granularity="tensor", symmetric=False, algorithm="rtn", keep_slow=True))
    assert conv_of(path).label == "uint8 tensor stored"
    x = np.random.default_rng(1).standard_normal((1, 5, 9, 9)).astype(np.float32)
    exact = onnx.ModelProto()
    exact.CopyFrom(CONV)
    for tensor in exact.graph.initializer:
        if tensor.name == "k":
            tensor.CopyFrom(numpy_helper.from_array(rounded(C, 8, symmetric=False, axes=None).astype(np.float32), "k"))
    assert tiny.sqnr(tiny.evaluate(exact, x=x)[0], run(path, x=x)[0]) > 80
    conv = conv_of(made(tmp_path, CONV, Recipe("w8a16", granularity="block", keep_slow=True)))
    assert (conv.label, conv.reason) == ("int8 stored", "one scale a channel: it has no blocks")


def conv_of(path: Path) -> Choice:
    """Of the plan that a file says it was made by."""
    (conv,) = (choice for choice in read_signature(path).plan if choice.op == "Conv")
    return conv


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "q4_0", "granularity": "channel"}, "q4_0 has one scale for 32 weights, not one a channel"),
        ({"scheme": "mxfp4", "granularity": "tensor"}, "mxfp4 has one scale for 32 weights"),
        ({"scheme": "w8a8", "granularity": "block"}, "w8a8 has no blocks"),
        ({"scheme": "w8a8-dynamic", "symmetric": False}, "w8a8-dynamic has no affine weights"),
        ({"scheme": "w4a16", "granularity": "row"}, "unknown granularity 'row'; choose one of tensor, channel, block"),
        ({"scheme": "w4a16", "granularity": "channel", "block_size": 64}, "exclude each other"),
        ({"scheme": "int4", "symmetric": False}, "int4 is symmetric by its name; use uint4"),
        ({"scheme": "uint8", "symmetric": True}, "uint8 is affine by its name; use int8"),
        ({"scheme": "nf4", "symmetric": False}, "neither symmetric nor affine"),
        ({"scheme": "nf4_dq", "symmetric": True}, "nf4_dq is not symmetric"),
        ({"scheme": "int3", "symmetric": False}, "int3 is not affine"),
        ({"scheme": "uniform4", "symmetric": True}, "uniform4 is not symmetric"),
        ({"scheme": "float16", "symmetric": True}, "float16 is not symmetric"),
        ({"rules": (Rule("q8_0", "x"),), "granularity": "tensor"}, "q8_0 has one scale for 32 weights"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, words: str) -> None:
    with pytest.raises(BadRecipe, match=words):
        Recipe(**options)


def test_what_says_itself_may_be_said_again() -> None:
    for word, symmetric in (
        ("int4", True),
        ("uint4", False),
        ("uniform4", False),
        ("q4_1", False),
        ("pow2_int4", True),
    ):
        Recipe(word, symmetric=symmetric)
    with pytest.raises(BadRecipe, match="w8a8 has no affine weights"):
        Recipe("auto", symmetric=False).resolve(has_data=True)
    assert Recipe("auto", symmetric=False).resolve(has_data=False).scheme == "w4a16"


def test_recipe_files_plans_and_the_command_line(tmp_path: Path) -> None:
    """The same words everywhere; a plan that was written is carried out to the same file."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('scheme = "w4a16"\ngranularity = "channel"\nsymmetric = true\nalgorithm = "rtn"\n')
    assert load_recipe(recipe) == Recipe("w4a16", granularity="channel", symmetric=True, algorithm="rtn")
    model, plan = str(tiny.save(PRODUCTS, tmp_path)), tmp_path / "plan.json"
    words = [model, "-s", "w4a16", "-g", "channel", "--symmetric", "--algorithm", "rtn"]
    for command in (
        ["plan", *words, "-o", str(plan)],
        ["quantize", *words, "-o", str(tmp_path / "a.onnx"), "--no-check"],
        ["quantize", model, "--plan", str(plan), "--algorithm", "rtn", "-o", str(tmp_path / "b.onnx"), "--no-check"],
        ["quantize", model, "--recipe", str(recipe), "-o", str(tmp_path / "c.onnx"), "--no-check"],
        ["quantize", model, "--like", str(tmp_path / "a.onnx"), "-o", str(tmp_path / "d.onnx")],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code in (0, 3), done.output
    assert {c.label for c in load_plan(plan)} == {"int4 channel"}
    outputs = [run(tmp_path / f"{name}.onnx", i=INDICES)[1] for name in "abcd"]
    for other in outputs[1:]:
        np.testing.assert_array_equal(outputs[0], other)
    done = CliRunner().invoke(main, ["quantize", model, "-w", "int4", "--affine", "-o", str(tmp_path / "e.onnx")])
    assert done.exit_code == 1 and "int4 is symmetric by its name; use uint4" in done.output


@pytest.mark.each_value
@pytest.mark.filterwarnings("ignore:blocks of 32 change nothing")
@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnx-25", "onnxq", "ort-cuda", "qnn", "openvino"])
@pytest.mark.parametrize(("word", "least"), [("float8_e4m3", 25), ("float8_e5m2", 19), ("int16", 80), ("uint16", 80)])
def test_blocks_of_codes_that_no_kernel_reads(target: str, word: str, least: float, tmp_path: Path) -> None:
    text = "g (float[N, 64] x) => (float[N, 48] y) { h = MatMul(x, v)  r = Relu(h)  y = MatMul(r, w) }"
    model = tiny.save(tiny.model(text, {"v": normal(64, 80), "w": normal(80, 48, seed=1)}), tmp_path)
    recipe = Recipe(word, block_size=32, keep_slow=True, min_sqnr=-np.inf)
    result = onnxq.quantize(model, tmp_path / "out.onnx", recipe, target=target)
    assert {choice.block for choice in result.plan} == {None if "16" in word and "ort" in target else 32}
    assert result.check is not None and result.check.sqnr > least
