"""Quantized models for other targets: the same numbers come out, bit for bit, read by the runtime's own definitions."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from sweeps import swept
from tiny import normal

from onnxq import formats, quantize
from onnxq.checkpoints.encode_arrays import decode_file
from onnxq.checkpoints.import_weights import import_weights
from onnxq.cli import main
from onnxq.conversion.convert import convert
from onnxq.conversion.dequantize import dequantize
from onnxq.conversion.export_weights import export_weights
from onnxq.errors import BadOutput, BadRecipe, NothingToDo
from onnxq.recipe import Recipe, Rule
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
#: A lookup, a product with a bias that has rows of no whole blocks, a Gemm, a product inside a branch.
TEXT = """g (int64[n] ids, bool yes) => (float[n, 64] y) {
    x = Gather (table, ids)  h = MatMul (x, w)  b = Add (h, bias)  r = Relu (b)
    p = Gemm <transB = 1> (r, v, c)
    y = If (yes) <
        then_branch = t () => (float[n, 64] t) { t = MatMul (p, u) },
        else_branch = e () => (float[n, 64] e) { e = Identity (p) } >
}"""
CONSTANTS = {
    "table": normal(64, 96, seed=4),
    "w": normal(96, 72),
    "bias": normal(72, seed=1),
    "v": normal(64, 72, seed=2),
    "c": normal(64, seed=3),
    "u": normal(64, 64, seed=5),
}
TARGETS = ("onnx", "ort-cpu", "onnxq")


def run(path: Path) -> NDArray:
    """By the definitions of the operators: nothing is fused, so that no kernel rounds activations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    feed = {"ids": np.array([1, 63, 0]), "yes": np.array(True)}
    return onnxruntime.InferenceSession(path, options).run(None, feed)[0]


def quantized(folder: Path, word: str, target: str) -> Path:
    model, small = tiny.save(tiny.model(TEXT, CONSTANTS), folder), folder / "small.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(model, small, recipe, target=target, check=False)
    return small


#: Every pair of targets; and a round of them, which with the way back is every pair of two.
PAIRS = list(itertools.product(TARGETS, TARGETS))
ROUND = list(zip(TARGETS, TARGETS[1:] + TARGETS[:1], strict=True))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("word", "start", "end"),
    [("int4", *pair) for pair in PAIRS]
    + [(word, *pair) for word in ("uint4", "int8", "nf4") for pair in ROUND]
    + [("bfloat16", "onnxq", end) for end in TARGETS]
    + [("bfloat16", "onnx", "onnxq")],
)
def test_the_same_numbers(word: str, start: str, end: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, word, start)
    if word == "bfloat16" and start != "onnxq":
        with pytest.raises(NothingToDo, match="no products or lookups on packed weights"):
            convert(small, end, tmp_path / "end.onnx")
        return
    done = convert(small, end, tmp_path / "end.onnx", accuracy_level=0)
    assert done.kept and not done.again
    written = onnx.load(done.output)
    assert end == "onnxq" or (not written.functions and "onnxq" not in {each.domain for each in written.opset_import})
    assert tiny.sqnr(run(small), run(done.output)) > 120  # sums in another order at most
    back = convert(done.output, start, tmp_path / "back.onnx", accuracy_level=0) if word != "bfloat16" else done
    assert tiny.sqnr(run(small), run(back.output)) > 120


def test_a_product_of_two_constants_has_one_weight(tmp_path: Path) -> None:
    """What the codes are multiplied with is a constant as soon as constants are folded."""
    text = """g (float[24] x) => (float[48, 24] y) {
        a = Relu (k)  w = DequantizeLinear <axis = 0, block_size = 32> (codes, scales)
        m = MatMul (a, w)  y = Mul (x, m)
    }"""
    codes = np.random.default_rng(0).integers(-127, 128, (32, 24)).astype(np.int8)
    constants = {"k": normal(48, 32), "codes": codes, "scales": np.abs(normal(1, 24)) + 1}
    small = tiny.save(tiny.model(text, constants, opset=21), tmp_path)
    done = convert(small, "ort-cpu", tmp_path / "end.onnx")
    assert done.kept and not done.again


@pytest.mark.parametrize("alpha", [0.3, -1.0])
def test_alpha_of_a_gemm_leaves_the_codes_alone(alpha: float, tmp_path: Path) -> None:
    text = f"""g (float[2, 64] x) => (float[2, 24] y) {{
        w = DequantizeLinear <axis = 0, block_size = 32> (codes, scales)  y = Gemm <alpha = {alpha}> (x, w)
    }}"""
    codes = np.random.default_rng(0).integers(-127, 128, (64, 24)).astype(np.int8)
    constants = {"codes": codes, "scales": np.abs(normal(2, 24)) + 1}
    small = tiny.save(tiny.model(text, constants, opset=21, ir_version=10), tmp_path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    feed = {"x": normal(2, 64, seed=1)}
    wanted = onnxruntime.InferenceSession(small, options).run(None, feed)[0]
    for target in TARGETS:
        done = convert(small, target, tmp_path / f"{target}.onnx", accuracy_level=0)
        assert done.kept == ("y",) and not done.again
        assert tiny.sqnr(wanted, onnxruntime.InferenceSession(done.output, options).run(None, feed)[0]) > 110


@pytest.mark.parametrize("word", ["nf4_dq", "int4_dq", "int4_dq64", "mxfp4", "nvfp4"])
def test_scales_of_8_bits_stay(word: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, word, "onnxq")
    done = convert(small, "onnxq", tmp_path / "end.onnx", accuracy_level=0)
    assert len(done.kept) == 4 and not done.again and done.bytes_after <= done.bytes_before + 500
    np.testing.assert_array_equal(run(small), run(done.output))


@pytest.mark.parametrize("target", ["onnx", "ort-cpu"])
@pytest.mark.parametrize("word", ["nf4_dq", "nf4_dq512", "int4_dq"])
def test_scales_of_8_bits_become_floats_where_nothing_reads_them(word: str, target: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, word, "onnxq")
    done = convert(small, target, tmp_path / "end.onnx", accuracy_level=0)
    assert len(done.kept) == 4 and not done.again
    assert tiny.sqnr(run(small), run(done.output)) > 120


@pytest.mark.parametrize(
    "word", ["int3", "ternary", "q4_1", "q6_k", *map(swept, ("q5_0", "uniform4", "q2_k", "q3_k", "q4_k", "q5_k"))]
)
def test_what_onnxq_unpacks_at_load_keeps_its_codes(word: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, word, "onnxq")
    unpacks = "WidenTiles" if formats.get(word).widened else "DequantizeNBits"
    assert unpacks in {node.op_type for node in onnx.load(small).graph.node}
    same = convert(small, "onnxq", tmp_path / "same.onnx", accuracy_level=0)
    assert same.kept and not same.again
    np.testing.assert_array_equal(run(small), run(same.output))
    other = convert(small, "ort-cpu", tmp_path / "other.onnx", accuracy_level=0)
    if word in ("q4_1", "uniform4", "q2_k", "q4_k", "q5_k"):  # whose minima are no zero points: rounded again, and told
        assert other.again and all(30 < sqnr < 80 for _, sqnr in other.again.values())
        assert tiny.sqnr(run(small), run(other.output)) > 30
    else:
        assert other.kept and not other.again and tiny.sqnr(run(small), run(other.output)) > 120


@pytest.mark.parametrize("target", ["onnx", "ort-cpu"])
@pytest.mark.parametrize("word", ["mxfp4", "e2m1", "nvfp4"])
def test_floats_of_4_bits_become_int8_of_twice_the_code(word: str, target: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, word, "onnxq")
    done = convert(small, target, tmp_path / "end.onnx", accuracy_level=0)
    assert len(done.kept) == 4 and not done.again
    assert tiny.sqnr(run(small), run(done.output)) > 120


@pytest.mark.parametrize(("block", "is_symmetric"), [(16, True), (128, False), (256, True)])
def test_models_of_onnxruntime(is_symmetric: bool, block: int, tmp_path: Path) -> None:
    quantizer = MatMulNBitsQuantizer(
        tiny.model(TEXT, CONSTANTS, opset=21, ir_version=10), block_size=block, is_symmetric=is_symmetric,
        accuracy_level=0, op_types_to_quantize=("MatMul", "Gather"),
    )  # fmt: skip
    quantizer.process()
    small = tmp_path / "theirs.onnx"
    onnx.save(quantizer.model.model, small)
    for target in TARGETS:
        done = convert(small, target, tmp_path / f"{target}.onnx", accuracy_level=0)
        assert len(done.kept) >= 2 and not done.again
        assert tiny.sqnr(run(small), run(done.output)) > 120


def weights(path: Path) -> dict[str, NDArray]:
    return {name: make() for name, make in decode_file(path)}


@pytest.mark.parametrize("word", ["int4", "uint4", "int8", "nf4"])
def test_weights_alone(word: str, tmp_path: Path) -> None:
    small = quantized(tmp_path, word, "ort-cpu")
    rows = export_weights(small, tmp_path / "w.safetensors").rows
    assert all(row.sqnr is None for row in rows)
    # MatMulBnb4 counts blocks of 64 through rows of 96 and 72: no format of rows. Tables are in int8 beside it.
    stored = sorted(row.format for row in rows if row.format)
    assert stored == (["int8", "nf4"] if word == "nf4" else [word] * 4)
    found = weights(tmp_path / "w.safetensors")
    same = convert(small, "onnx", tmp_path / "onnx.onnx", accuracy_level=0)
    assert tiny.sqnr(CONSTANTS["w"].T, found["w"]) > 15 and found["w"].shape == (72, 96)
    assert found["table"].shape == (64, 96) and same.kept


@pytest.mark.parametrize(("word", "stored"), [("int4", "Q4_0"), ("int8", "Q8_0"), ("mxfp4", "MXFP4")])
def test_gguf_is_what_its_own_reader_reads(word: str, stored: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    small = quantized(tmp_path, word, "onnxq")
    rows = {row.name: row for row in export_weights(small, tmp_path / "w.gguf").rows}
    exact = {row.name: row for row in export_weights(small, tmp_path / "w.safetensors").rows}
    wanted = weights(tmp_path / "w.safetensors")
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "w.gguf").tensors}
    assert set(read) == set(rows) == set(exact)
    # Rows of 96 are whole blocks of 32; those of 72 are none, and become float16.
    assert read["w"].tensor_type.name == stored and rows["w"].sqnr is None
    got = gguf.quants.dequantize(read["w"].data, read["w"].tensor_type)
    np.testing.assert_array_equal(got, wanted["w"])
    assert rows["v"].sqnr is None or rows["v"].sqnr > 60


#: A table, a product and a Gemm whose rows are whole super blocks, and a product whose rows are not.
SUPER = """g (int64[n] ids) => (float[n, 40] y) {
    x = Gather (table, ids)  h = MatMul (x, w)  r = Relu (h)  p = Gemm <transB = 1> (r, v)  y = MatMul (p, u)
}"""
SUPERS = {
    "table": normal(48, 512, seed=4),
    "w": normal(512, 256),
    "v": normal(300, 256, seed=2),
    "u": normal(300, 40, seed=3),
}


@pytest.mark.parametrize("word", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_k_quants_are_what_their_own_reader_reads_and_come_back(word: str, tmp_path: Path) -> None:
    """Out of a model of ours, bit for bit as the gguf package decodes them, and into one again."""
    gguf = pytest.importorskip("gguf")
    model, small = tiny.save(tiny.model(SUPER, SUPERS), tmp_path), tmp_path / "small.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    quantize(model, small, recipe, target="onnxq", check=False)
    rows = {row.name: row for row in export_weights(small, tmp_path / "w.gguf").rows}
    export_weights(small, tmp_path / "w.npz")
    wanted = weights(tmp_path / "w.npz")
    for tensor in gguf.GGUFReader(tmp_path / "w.gguf").tensors:
        if tensor.name == "u":  # rows of 300: no whole super blocks
            continue
        assert tensor.tensor_type.name == word.upper() and rows[tensor.name].sqnr is None
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(got, wanted[tensor.name])
    assert rows["u"].sqnr is not None and rows["u"].sqnr > 60
    done = import_weights(model, tmp_path / "w.gguf", tmp_path / "back.onnx", target="onnxq", check=False)
    assert sorted(done.match.prefixes.values()) == ["table", "u", "v", "w"] and not done.match.rounded
    export_weights(tmp_path / "back.onnx", tmp_path / "again.npz")
    again = weights(tmp_path / "again.npz")
    for name in ("table", "w", "v"):
        np.testing.assert_array_equal(again.get(name, again.get(f"{name}.weight")), wanted[name])


def test_refusals(tmp_path: Path) -> None:
    model = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)
    for make in (
        lambda: convert(model, "onnx", tmp_path / "b.onnx"),
        lambda: export_weights(model, tmp_path / "b.gguf"),
    ):
        with pytest.raises(NothingToDo, match="no products or lookups on packed weights"):
            make()
    with pytest.raises(BadRecipe, match="unknown target 'tpu'"):
        convert(model, "tpu")
    with pytest.raises(BadRecipe, match="none of"):
        export_weights(model, tmp_path / "b.bin")
    small = quantized(tmp_path, "int4", "onnxq")
    with pytest.raises(BadOutput):
        convert(small, "onnx", small)
    (tmp_path / "w.gguf").write_bytes(b"mine")
    with pytest.raises(BadOutput):
        export_weights(small, tmp_path / "w.gguf")
    (tmp_path / "w.gguf").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "small.onnx"]


def test_command(tmp_path: Path) -> None:
    small = quantized(tmp_path, "int4", "onnxq")
    words = ["convert", str(small), "--to", "ort-cpu", "-o", str(tmp_path / "b.onnx")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0 and "the same, bit for bit" in done.output, done.output
    assert re.search(r"as fast as it was, \d+ thread", done.output), done.output
    said = json.loads(CliRunner().invoke(main, [*words, "--force", "--json"]).stdout)
    assert len(said["kept"]) == 4 and not said["again"]
    stored = {tensor.name for tensor in onnx.load(tmp_path / "b.onnx").graph.initializer}
    assert any(name.endswith("_nbits") for name in stored)
    done = CliRunner().invoke(main, ["convert", str(small), "--to", "gguf", "-o", str(tmp_path / "w.gguf")])
    first, _, head, *rest = done.output.splitlines()
    assert done.exit_code == 0 and re.fullmatch(r".*w\.gguf: 6 tensors, \d+ bytes", first), done.output
    assert head.split() == ["tensor", "shape", "format", "numbers"]
    assert ["table", "64×96", "q4_0", "the", "same"] in [line.split() for line in rest], done.output
    assert any(line.startswith("note: not of an architecture that llama.cpp runs") for line in rest), done.output


@pytest.mark.sweep
def test_int8_islands_are_regions_for_onnxq_and_islands_for_others(tmp_path: Path) -> None:
    """Of a network without packed weights: what it computes is the same, bit for bit, there and back."""
    models = Path(__file__).parents[2] / "models"
    recipe = Recipe("w8a8", min_sqnr=-np.inf, keep_slow=True)
    small, data = tmp_path / "onnx.onnx", models / "digits_cnn_calibration.npz"
    quantize(models / "digits_cnn.onnx", small, recipe, target="onnx", data=data, check=False)
    with np.load(models / "digits_cnn_eval.npz") as file:
        feed = {"image": file["image"][:16].astype(np.float32)}
    wanted = Session(small).run(feed)[0]
    there = convert(small, "onnxq", tmp_path / "onnxq.onnx")
    assert there.check is not None and there.check.sqnr > 100 and not there.kept
    assert "onnxq" in {node.domain for node in onnx.load(there.output).graph.node}
    for to in ("onnx", "ort-cpu", "openvino"):
        back = convert(there.output, to, tmp_path / f"{to}.back.onnx")
        written = onnx.load(back.output)
        assert not written.functions and {node.domain for node in written.graph.node} <= {"", "ai.onnx"}
        for path in (there.output, back.output):
            np.testing.assert_array_equal(Session(path).run(feed)[0], wanted)
    for path, to in ((small, "ort-cpu"), (there.output, "onnxq")):
        with pytest.raises(NothingToDo, match=f"nor int8 islands that are spelled otherwise for {to}"):
            convert(path, to, tmp_path / "none.onnx")
    done = CliRunner().invoke(main, ["convert", str(small), "--to", "onnxq", "-o", str(tmp_path / "again.onnx")])
    assert done.exit_code == 0 and "int8 islands" in done.output and "0 weights" not in done.output, done.output


@pytest.mark.parametrize("word", ["uint4", "int4", "nf4"])
def test_kernels_in_blocks_are_exported_as_floats_of_their_own_shape(word: str, tmp_path: Path) -> None:
    """Unpacked in flattened rows by standard operators: not the halves of bytes, which looked like codes of 8 bits."""
    text = """g (float[1, 32, 6, 64] x) => (float[1, 64, 6, 32] y) {
        h = Conv <pads = [1, 1, 1, 1]> (x, "a.weight", b)  y = MatMul (h, "c.weight")
    }"""
    constants = {"a.weight": normal(64, 32, 3, 3), "b": normal(64, seed=1), "c.weight": normal(64, 32, seed=2)}
    model, small = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "small.onnx"
    recipe = Recipe(word, min_sqnr=-np.inf, keep_slow=True, accuracy_level=0)
    np.savez(tmp_path / "data.npz", x=normal(4, 1, 32, 6, 64, seed=5))
    quantize(model, small, recipe, target="ort-cpu", data=tmp_path / "data.npz", check=False)  # kernels in 4 bits
    assert {"Floor", "Reshape", "Conv"} <= {node.op_type for node in onnx.load(small).graph.node}
    plain = dequantize(small, tmp_path / "float.onnx", check=False).output
    assert sorted(node.op_type for node in onnx.load(plain).graph.node) == ["Conv", "MatMul"]
    feed = {"x": normal(1, 32, 6, 64, seed=3)}
    assert tiny.sqnr(Session(small).run(feed)[0], Session(plain).run(feed)[0]) > 100
    (kernel,) = (x for x in onnx.load(plain).graph.initializer if len(x.dims) == 4)
    rows = {row.name: row for row in export_weights(small, tmp_path / "w.npz").rows}
    assert {name for name, row in rows.items() if row.shape != ()} == set(constants)
    np.testing.assert_array_equal(weights(tmp_path / "w.npz")["a.weight"], onnx.numpy_helper.to_array(kernel))
    done = import_weights(model, tmp_path / "w.npz", tmp_path / "back.onnx")
    assert not done.match.misfits
    assert tiny.sqnr(Session(small).run(feed)[0], Session(done.output).run(feed)[0]) > 35


def test_halves_have_the_names_of_their_weights(tmp_path: Path) -> None:
    """Beside codes: what is stored in 16 bits goes back where it came from."""
    text = """g (float[1, 8, 6, 64] x) => (float[1, 8, 6, 32] y) {
        h = Conv <pads = [1, 1, 1, 1]> (x, "a.weight")  y = MatMul (h, "c.weight")
    }"""
    constants = {"a.weight": normal(8, 8, 3, 3), "c.weight": normal(64, 32, seed=2)}
    model, small = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "small.onnx"
    recipe = Recipe("w4a16", min_sqnr=-np.inf, keep_slow=True, rules=(Rule("fp16", ops=("Conv",)),))
    quantize(model, small, recipe, target="ort-cpu", check=False)
    assert "a.weight_float16" in {tensor.name for tensor in onnx.load(small).graph.initializer}
    rows = {row.name for row in export_weights(small, tmp_path / "w.npz").rows if row.shape != ()}
    assert rows == set(constants)
    done = import_weights(model, tmp_path / "w.npz", tmp_path / "back.onnx")
    assert done.match.constants == ["a.weight"] and done.match.prefixes == {"y": "c"}


def test_names_that_end_in_a_number_stay_what_they_are(tmp_path: Path) -> None:
    """Only what quantizers hang on a name goes, not the layer that the name is of."""
    names = ("enc_layer1_q_weight", "enc_layer2_q_weight", "lstm4")
    products = [f"{b} = MatMul ({a}, {w})" for a, b, w in zip("xpq", "pqy", names, strict=True)]
    text = f"g (float[n, 64] x) => (float[n, 64] y) {{ {' '.join(products)} }}"
    model = tiny.save(tiny.model(text, {name: normal(64, 64, seed=i) for i, name in enumerate(names)}), tmp_path)
    for target in TARGETS:
        small = tmp_path / f"{target}.onnx"
        quantize(model, small, Recipe("w4a16", min_sqnr=-np.inf, keep_slow=True), target=target, check=False)
        rows = export_weights(small, tmp_path / f"{target}.npz").rows
        assert {row.name for row in rows if row.format is not None} == set(names)


def test_a_level_that_standard_operators_have_no_place_for_is_told_of(tmp_path: Path) -> None:
    packed, model = quantized(tmp_path, "int4", "onnxq"), tmp_path / "model.onnx"
    option = "session.qdq_matmulnbits_accuracy_level is 0"
    for target in ("onnx", "ort-cpu"):
        for level in (0, 4):
            recipe = Recipe("int4", min_sqnr=-np.inf, keep_slow=True, accuracy_level=level)
            made = quantize(model, tmp_path / f"{target}{level}.onnx", recipe, target=target)
            done = convert(packed, target, tmp_path / f"{level}{target}.onnx", accuracy_level=level)
            for check in (made.check, done.check):
                assert check is not None
                assert any(option in note for note in check.notes) == (target == "onnx" and level == 0)
