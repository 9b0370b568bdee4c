"""Codes in blocks that kernels do not have, along the other axis, or of types that nothing unpacks in blocks."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from onnx import TensorProto, helper
from test_two_level_scales import run
from tiny import normal

from onnxq import OnnxqError
from onnxq.conversion.convert import convert
from onnxq.errors import NothingToDo

pytestmark = pytest.mark.usefixtures("quick")

TYPES = {
    "INT4": ml_dtypes.int4,
    "UINT4": ml_dtypes.uint4,
    "INT8": np.int8,
    "INT16": np.int16,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT4E2M1": ml_dtypes.float4_e2m1fn,
}


def saved(
    folder: Path,
    word: str,
    block: int,
    k: int = 40,
    n: int = 24,
    axis: int = 0,
    factor: float = 0.01,
    op: str = "MatMul",
) -> Path:
    """A product by codes of [k, n], or a lookup in them."""
    codes = np.clip(normal(k, n, seed=1) * 3, 0 if word[0] == "U" else -6, 6).astype(TYPES[word])
    blocks = [-(-size // block) if i == axis else size for i, size in enumerate((k, n))]
    scales = ((np.abs(normal(*blocks, seed=2)) + 1) * factor).astype(np.float32)
    inputs = [tensor("codes", codes, word), tensor("scales", scales, "FLOAT")]
    if word[0] == "U":
        inputs.append(tensor("zeros", np.full(blocks, 3).astype(TYPES[word]), word))
    names = [each.name for each in inputs]
    read = ["w", "x"] if op == "Gather" else ["x", "w"]
    nodes = [
        helper.make_node("DequantizeLinear", names, ["w"], "dq", axis=axis, block_size=block),
        helper.make_node(op, read, ["y"], "p"),
    ]
    given = ("x", TensorProto.INT64, [2]) if op == "Gather" else ("x", TensorProto.FLOAT, [2, k])
    x, y = helper.make_tensor_value_info(*given), helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, n])
    graph = helper.make_graph(nodes, "g", [x], [y], inputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    path = folder / f"{word}-{block}.onnx"
    onnx.save(model, path)
    return path


def tensor(name: str, array: NDArray, word: str) -> TensorProto:
    made: TensorProto = helper.make_tensor(name, getattr(TensorProto, word), array.shape, _raw(array), raw=True)
    return made


def _raw(array: NDArray) -> bytes:
    if array.dtype.name not in ("int4", "uint4", "float4_e2m1fn"):
        return array.tobytes()
    codes = array.view(np.uint8).reshape(-1) & 15
    codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
    return bytes(codes[0::2] | codes[1::2] << 4)


@pytest.mark.parametrize("target", ["onnx", "onnx-25", "onnxq", "ort-cpu", "tensorrt"])
@pytest.mark.parametrize(("word", "block"), [("INT4", 5), ("UINT4", 24), ("INT8", 1), ("FLOAT4E2M1", 5)])
def test_blocks_that_no_kernel_has_keep_their_codes(tmp_path: Path, target: str, word: str, block: int) -> None:
    done = convert(saved(tmp_path, word, block), target, tmp_path / "out.onnx", check=False)
    assert done.kept == ("p",) and not done.again


def test_what_they_become_computes_the_same(tmp_path: Path) -> None:
    for word, block in (("INT4", 5), ("UINT4", 24)):
        done = convert(saved(tmp_path, word, block), "ort-cpu", tmp_path / f"{word}.onnx", accuracy_level=0)
        assert done.check is not None and done.check.sqnr > 80


def test_a_lookup_in_blocks_of_one(tmp_path: Path) -> None:
    for target in ("onnx-25", "ort-cpu", "onnxq"):
        done = convert(
            saved(tmp_path, "INT4", 1, axis=1, op="Gather"), target, tmp_path / f"{target}.onnx", check=False
        )
        assert done.kept == ("p",)


@pytest.mark.parametrize(
    ("word", "target"),
    [*(("FLOAT8E4M3FN", to) for to in ("onnx", "onnxq", "ort-cpu", "tensorrt")), ("INT16", "tensorrt")],
)
def test_types_that_nothing_unpacks_in_blocks_get_other_codes(tmp_path: Path, target: str, word: str) -> None:
    done = convert(saved(tmp_path, word, 16), target, tmp_path / "out.onnx", check=False)
    why, near = done.again["p"]
    assert word.lower()[:5] in why and near > 30


@pytest.mark.parametrize("target", ["onnx", "onnx-25", "onnxq", "ort-cpu"])
def test_codes_of_16_bits_in_blocks_stay_where_onnxruntime_unpacks_them(tmp_path: Path, target: str) -> None:
    """Beside others, and alone, where nothing is left to convert."""
    with pytest.raises(NothingToDo):
        convert(saved(tmp_path, "INT16", 16), target, tmp_path / "out.onnx")
    model = onnx.load(saved(tmp_path, "INT16", 16))
    wide = np.random.default_rng(0).integers(-32768, 32768, (40, 24)).astype(np.int16)
    model.graph.initializer[0].CopyFrom(tensor("codes", wide, "INT16"))
    codes, scales = np.clip(normal(24, 16) * 3, -8, 7).astype(ml_dtypes.int4), np.abs(normal(2, 16)) + 1
    model.graph.initializer.extend([tensor("c", codes, "INT4"), tensor("s", scales.astype(np.float32), "FLOAT")])
    model.graph.node.extend(
        [
            helper.make_node("DequantizeLinear", ["c", "s"], ["v"], "dq2", axis=0, block_size=16),
            helper.make_node("MatMul", ["y", "v"], ["z"], "p2"),
        ]
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 16]))
    onnx.save(model, tmp_path / "two.onnx")
    done = convert(tmp_path / "two.onnx", target, tmp_path / "out.onnx", accuracy_level=0)
    assert done.kept == ("p2",) and not done.again
    x = normal(2, 40, seed=5)
    assert tiny.sqnr(run(tmp_path / "two.onnx", x=x)[0], run(done.output, x=x)[0]) > 100
    (stored,) = (x for x in onnx.load(done.output).graph.initializer if x.data_type == TensorProto.INT16)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored), wide)


def test_blocks_across_what_is_summed_get_other_codes(tmp_path: Path) -> None:
    for target in ("onnx-25", "ort-cpu", "onnxq"):
        done = convert(saved(tmp_path, "FLOAT4E2M1", 8, axis=1), target, tmp_path / f"{target}.onnx", check=False)
        why, near = done.again["p"]
        assert why == "blocks of weights lie along what is summed" and near > 30


def test_short_weights_are_found_again(tmp_path: Path) -> None:
    done = convert(saved(tmp_path, "INT16", 4, k=16, n=2), "openvino", tmp_path / "out.onnx", check=False)
    assert {*done.kept, *done.again} == {"p"}


@pytest.mark.parametrize(("target", "op"), [("ort-cpu", "GatherBlockQuantized"), ("onnxq", "GatherNBits")])
def test_rows_shorter_than_any_block_are_looked_up_in_the_shortest(target: str, op: str, tmp_path: Path) -> None:
    done = convert(saved(tmp_path, "INT4", 8, n=8, axis=1, op="Gather"), target, tmp_path / "out.onnx", check=False)
    assert done.kept == ("p",) and op in {node.op_type for node in onnx.load(done.output).graph.node}


def test_weights_that_are_no_numbers_keep_their_codes(tmp_path: Path) -> None:
    done = convert(saved(tmp_path, "INT4", 16, k=32, factor=np.nan), "onnx-25", tmp_path / "out.onnx", check=False)
    assert done.kept == ("p",)


def test_nothing_is_made_of_no_weights(tmp_path: Path) -> None:
    with pytest.raises(NothingToDo):
        convert(saved(tmp_path, "INT4", 16, n=0), "ort-cpu", tmp_path / "out.onnx")
    with pytest.raises(OnnxqError):
        convert(saved(tmp_path, "INT4", 16, k=0, op="Gather", axis=1), "onnx-25", tmp_path / "out.onnx")


def product(folder: Path, nodes: list[onnx.NodeProto], inits: list[TensorProto], k: int, word: str = "FLOAT") -> Path:
    """Of x [2, k]."""
    dtype = getattr(TensorProto, word)
    values = [helper.make_tensor_value_info("x", dtype, [2, k])]
    made = [helper.make_tensor_value_info(node.output[0], dtype, None) for node in nodes if node.output[0][0] == "y"]
    graph = helper.make_graph(nodes, "g", values, made, inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.save(model, folder / "in.onnx")
    return folder / "in.onnx"


def test_codes_without_dimensions_are_left_alone(tmp_path: Path) -> None:
    inits = [tensor("codes", np.array(1).astype(TYPES["INT8"]), "INT8"), tensor("s", np.array(2, np.float32), "FLOAT")]
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "s"], ["w"], "dq", axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "w"], ["y"], "p"),
    ]
    with pytest.raises(NothingToDo):
        convert(product(tmp_path, nodes, inits, 32), "onnxq", tmp_path / "out.onnx")


def test_scales_that_are_read_along_two_axes(tmp_path: Path) -> None:
    """The same constants, and two weights."""
    numbers = (np.arange(32 * 32).reshape(32, 32) % 15 + 1).astype(np.int8)
    inits = [
        tensor("codes", np.clip(normal(32, 32, seed=1) * 3, -6, 6).astype(np.int8), "INT8"),
        tensor("steps", numbers, "INT8"),
        tensor("factors", np.linspace(0.01, 1, 32, dtype=np.float32), "FLOAT"),
    ]
    nodes = []
    for axis in (0, 1):
        nodes += [
            helper.make_node("DequantizeLinear", ["steps", "factors"], [f"s{axis}"], f"s{axis}", axis=axis),
            helper.make_node(
                "DequantizeLinear", ["codes", f"s{axis}"], [f"w{axis}"], f"dq{axis}", block_size=1, axis=0
            ),
            helper.make_node("MatMul", ["x", f"w{axis}"], [f"y{axis}"], f"p{axis}"),
        ]
    given, x = product(tmp_path, nodes, inits, 32), normal(2, 32, seed=3)
    done = convert(given, "ort-cpu", tmp_path / "out.onnx", check=False)
    for a, b in zip(run(given, x=x), run(done.output, x=x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_alpha_that_half_precision_does_not_hold_stays(tmp_path: Path) -> None:
    codes = np.clip(normal(32, 16, seed=1) * 3, -6, 6).astype(np.int8)
    inits = [tensor("codes", codes, "INT8"), tensor("s", np.full((2, 16), 1e-4, np.float16), "FLOAT16")]
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "s"], ["w"], "dq", axis=0, block_size=16),
        helper.make_node("Gemm", ["x", "w"], ["y"], "p", alpha=1e5),
    ]
    with pytest.raises(NothingToDo):
        convert(product(tmp_path, nodes, inits, 32, "FLOAT16"), "onnxq", tmp_path / "out.onnx")
