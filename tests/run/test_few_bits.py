"""Codes of 2 and 3 bits on target onnxq: so many in the file, four when the model is loaded, and never floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import helper

import onnxq
from onnxq import Recipe, formats, layouts, own_ops
from onnxq.conversion.dequantize import dequantize
from onnxq.formats import Granularity
from onnxq.own_ops import Variant
from onnxq.plan import Method

WORDS = ["int2", "int3", "uint2", "ternary", "tq2_0", "tq1_0"]
TEXT = "g (int64[M] i) => (float[M, 40] y) { x = Gather(e, i)  h = MatMul(x, w)  y = Gemm <transB = 1> (h, v, b) }"
CONSTANTS = {
    "e": tiny.normal(300, 256),
    "w": tiny.normal(256, 256, seed=1),
    "v": tiny.normal(40, 256, seed=2),
    "b": tiny.normal(40, seed=3),
}
IDS = {"i": np.arange(0, 300, 7)}


def quantized(folder: Path, word: str, **recipe: object) -> onnxq.Result:
    path = tiny.save(tiny.model(TEXT, CONSTANTS), folder)
    wanted = Recipe(word, min_sqnr=float("-inf"), accuracy_level=0, **recipe)
    return onnxq.quantize(path, folder / "q.onnx", wanted, target="onnxq", check=False)


@pytest.mark.parametrize("word", WORDS)
def test_kernels_and_bodies_compute_what_the_codes_say(word: str, tmp_path: Path) -> None:
    made = quantized(tmp_path, word)
    assert {(choice.method, choice.format) for choice in made.plan} == {(Method.PACKED, word)}
    dequantize(made.output, tmp_path / "back.onnx")
    in_float = onnxruntime.InferenceSession(str(tmp_path / "back.onnx")).run(None, IDS)[0]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    bare = onnxruntime.InferenceSession(str(made.output))
    plain = onnxruntime.InferenceSession(str(made.output), options)
    for session in (onnxq.session(made.output), bare, plain):
        assert tiny.sqnr(in_float, session.run(None, IDS)[0]) > 100
    weights = {np.abs(onnx.numpy_helper.to_array(x)).max() for x in onnx.load(tmp_path / "back.onnx").graph.initializer}
    assert len(weights) > 3


@pytest.mark.parametrize("word", WORDS)
def test_files_hold_as_many_bits_as_before(word: str, tmp_path: Path) -> None:
    made = quantized(tmp_path, word)
    graph = onnx.load(made.output).graph
    assert [node.op_type for node in graph.node].count("WidenTiles") == 3
    codes = [x for x in graph.initializer if len(x.dims) == 4]
    bits = formats.get(word).bits
    assert sum(len(x.raw_data) for x in codes) == (304 + 256 + 48) * 256 * bits // 8  # rows in tiles of 16


def test_what_is_loaded_has_four_bits(tmp_path: Path) -> None:
    """No float weight is left in the graph that onnxruntime computes with."""
    made = quantized(tmp_path, "int3")
    if onnxq.ops_library() is None:
        pytest.skip("no native library")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxq.session(made.output, options)
    loaded = onnx.load(tmp_path / "loaded.onnx").graph
    assert sorted(node.op_type for node in loaded.node) == ["GatherNBits", "MatMulNBits", "MatMulNBits"]
    assert all(x.data_type != onnx.TensorProto.FLOAT or np.prod(x.dims) < 1000 for x in loaded.initializer)


@pytest.mark.parametrize("word", ["int2", "int3", "uint2"])
def test_rows_that_leave_much_of_their_blocks_empty_become_floats(word: str, tmp_path: Path) -> None:
    for k, is_packed in ((64, False), (384, False), (500, True)):
        text = f"g (float[N, {k}] x) => (float[N, 32] y) {{ y = MatMul(x, w) }}"
        path = tiny.save(tiny.model(text, {"w": tiny.normal(k, 32)}), tmp_path)
        recipe = Recipe(word, block_size=256, min_sqnr=float("-inf"))
        (choice,) = onnxq.quantize(path, tmp_path / f"{k}.onnx", recipe, target="onnxq", check=False).plan
        assert (choice.method is Method.PACKED) == is_packed
        assert is_packed or "blocks would be filled up" in choice.reason


def widened(word: str, tiles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What the body makes of them, in onnxruntime."""
    variant = Variant(own_ops.WIDEN, word)
    node = helper.make_node(variant.op, ["x"], ["y"], domain=own_ops.DOMAIN, overload=variant.overload)
    shape = [None] * 4
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, shape)],
    )
    imports = [helper.make_opsetid("", own_ops.OPSET), helper.make_opsetid(own_ops.DOMAIN, own_ops.VERSION)]
    model = helper.make_model(
        graph, opset_imports=imports, functions=[own_ops.body(variant, own_ops.OPSET)], ir_version=own_ops.IR_VERSION
    )
    found: NDArray[np.uint8] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": tiles})[0]
    return found


@pytest.mark.parametrize("word", ["int2", "int3", "uint2", "ternary"])
def test_the_body_gives_the_tiles_that_kernels_read(word: str) -> None:
    format = formats.get(word)
    for n, k, block in ((1, 1, 16), (17, 40, 16), (33, 300, 64)):
        q = format.encode(np.random.default_rng(n).standard_normal((n, k)).astype(np.float32), Granularity(1, block))
        short = layouts.few_bits_tiles(q)
        wanted = layouts.from_few_bits_tiles(short, signed=format.code_type.kind == "i")
        np.testing.assert_array_equal(widened(word, short), wanted)
