"""`onnxq inspect` shows what `onnxq quantize` refuses, and finds weights wherever they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from onnx import TensorProto, helper

import onnxq
from onnxq.cli import main


def inspect(path: Path) -> dict[str, list[str]]:
    """The lines of the table by the word in front."""
    result = CliRunner().invoke(main, ["inspect", str(path)], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    found: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        word, _, rest = line.partition("  ")
        found.setdefault(word.strip(), []).append(rest.strip())
    return found


def test_maps(tmp_path: Path) -> None:
    made = tiny.model("g (float[N, 2] x) => (float[N, 2] z) { z = Identity(x) }")
    element = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    made.graph.output[0].CopyFrom(helper.make_value_info("z", helper.make_sequence_type_proto(element)))
    made.graph.node[0].CopyFrom(helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0]))
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    path = tiny.save(made, tmp_path)
    assert inspect(path)["output"] == ["z: sequence(map(int64, float))"]


def test_sequences_and_what_may_be_missing(tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    inputs = [
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [None, 3]),
        helper.make_value_info("o", helper.make_optional_type_proto(tensor)),
        helper.make_value_info("p", helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor))),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in "yz"]
    nodes = [helper.make_node("OptionalHasElement", [name], [out]) for name, out in zip("op", "yz", strict=True)]
    made = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), ir_version=9)
    made.opset_import[0].version = 18
    said = inspect(tiny.save(made, tmp_path))["input"]
    assert said == ["s: sequence(float[?, 3])", "o: optional(float[2])", "p: optional(sequence(float[2]))"]


def test_opsets_and_domains_that_nobody_knows(tmp_path: Path) -> None:
    made = tiny.model("g (float[N, 2] x) => (float[N, 2] z) { h = Relu(x)  z = local.Magic(h) }")
    made.opset_import[0].version = 99
    found = inspect(tiny.save(made, tmp_path))
    assert found["opsets"][0].startswith("ai.onnx 99")
    assert found["nodes"] == ["2: 1 Relu, 1 local::Magic"]


@pytest.mark.usefixtures("quick")
def test_quantized_models(tmp_path: Path) -> None:
    text = "g (float[N, 64] x) => (float[N, 32] z) { y = MatMul(x, v)  z = MatMul(y, w) }"
    made = tiny.model(text, {"v": tiny.normal(64, 64), "w": tiny.normal(64, 32)})
    recipe = onnxq.Recipe("w4a16", (onnxq.Rule("keep", "z"),))
    found = inspect(onnxq.quantize(tiny.save(made, tmp_path), tmp_path / "q.onnx", recipe).output)
    assert found["quantized"] == ["1 MatMulNBits"]
    assert found["weights"] == ["1 of MatMul"]


def test_weights_behind_other_nodes_count(tmp_path: Path) -> None:
    made = tiny.model("g (float[N, 64] x) => (float[N, 64] z) { t = Transpose(v)  z = MatMul(x, t) }")
    made.graph.initializer.append(onnx.numpy_helper.from_array(tiny.normal(64, 64).astype(np.float32), "v"))
    assert inspect(tiny.save(made, tmp_path))["weights"] == ["1 of MatMul"]


def test_reasons_name_what_they_are_about(tmp_path: Path) -> None:
    lines = [f"y{i} = Mul(x, huge{i})" for i in range(3)]
    text = f"g (float[N, 300] x) => (y0, y1, y2, z) {{ {' '.join(lines)}  z = MatMul(x, w) }}"
    constants = {f"huge{i}": np.full((1, 300), (1 + i) * 1e30, np.float32) for i in range(3)}
    path = tiny.save(tiny.model(text, {**constants, "w": tiny.normal(300, 32)}), tmp_path)
    result = CliRunner().invoke(main, ["plan", str(path), "-s", "w4a16"], env={"COLUMNS": "300"})
    assert "…" not in result.stdout
    assert "'huge0' holds numbers too large or too small for float16 (and 2 more like it)" in result.stdout


def test_constants_are_those_of_nodes_too(tmp_path: Path) -> None:
    """Of functions and branches as well; what is no number, or several, is left out."""
    text = """g (float[N, 2] x, bool b) => (float[N, 2] z) {
        w = Constant<value = float[2, 2] {1, 2, 3, 4}>()
        i = Constant<value_ints = [1, 2]>()
        bad = Constant<value_float = 1.0, value_int = 1>()
        y = MatMul(x, w)
        u = local.Shift(y)
        z = If(b) <
            then_branch = t () => (t) { c = Constant<value_float = 1.0>() t = Add(u, c) },
            else_branch = e () => (e) { e = Identity(u) }
        >
    }"""
    shift = """<domain: "local", opset_import: ["" : 17]>
        Shift (a) => (r) { s = Constant<value_float = 2.0>() r = Add(a, s) }"""
    made = tiny.model(text, {"v": np.ones(4, np.float32)}, functions=shift)
    made.producer_name = "spox"
    found = inspect(tiny.save(made, tmp_path))
    assert found["constants"] == ["40 B float, 16 B int64"]
    assert found["made by"] == ["spox, IR 9"]
