"""Models of classical learning, whose probabilities are maps by class: what the ZipMap reads is quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from onnx import TensorProto, helper

import onnxq
from onnxq.cli import main
from onnxq.errors import BadModel
from onnxq.model.load import TYPE, load_model

KEYS = {
    "numbers": (TensorProto.INT64, {"classlabels_int64s": [3, 1, 7, 5]}),
    "words": (TensorProto.STRING, {"classlabels_strings": ["ant", "bee", "cat", "dog"]}),
}


def classifier(keys: str, opset: int = 17) -> onnx.ModelProto:
    made = tiny.model(
        """m (float[N,64] x) => (int64[N] label, float[N,4] p) {
        h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) s = Softmax<axis = -1>(y)
        label = ArgMax<axis = 1, keepdims = 0>(s) p = Identity(s) }""",
        {"w": tiny.normal(64, 128), "v": tiny.normal(128, 4)},
        opset=opset,
    )
    key, labels = KEYS[keys]
    made.graph.node[-1].CopyFrom(helper.make_node("ZipMap", ["s"], ["p"], domain="ai.onnx.ml", **labels))
    element = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    made.graph.output[1].CopyFrom(helper.make_value_info("p", helper.make_sequence_type_proto(element)))
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return made


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize(("scheme", "target"), [("w8a8", "ort-cpu"), ("fp16", "ort-cuda"), ("w4a16", "onnxq")])
def test_probabilities_stay_maps(keys: str, scheme: str, target: str, opset: int, tmp_path: Path) -> None:
    path = tiny.save(classifier(keys, opset), tmp_path, "m.onnx")
    rows = np.random.default_rng(0).standard_normal((30, 64)).astype(np.float32)
    recipe, data = onnxq.Recipe(scheme, keep_slow=True), [{"x": rows[i : i + 3]} for i in range(9)]
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, target=target, data=data)
    assert result.check is not None and 15 < result.check.sqnr < 100
    written = onnx.load(result.output)
    if target != "onnxq":
        onnx.checker.check_model(written)
    assert written.graph.output[1].type == onnx.load(path).graph.output[1].type
    sessions = [onnxruntime.InferenceSession(p) for p in (path, result.output)]
    assert {session.get_outputs()[1].type for session in sessions} == {sessions[0].get_outputs()[1].type}
    wanted, got = (session.run(["p"], {"x": rows})[0] for session in sessions)
    assert [list(row) for row in wanted] == [list(row) for row in got]
    assert tiny.sqnr(*(np.array([list(row.values()) for row in found]) for found in (wanted, got))) > 10


def test_other_commands_take_what_was_written(tmp_path: Path) -> None:
    path = tiny.save(classifier("words"), tmp_path, "m.onnx")
    quantized = str(onnxq.quantize(path, tmp_path / "q.onnx", "w4a16").output)
    for words in (
        ["check", str(path), quantized],
        ["check", str(path), quantized, "--by-layer"],
        ["inspect", quantized],
        ["doctor", quantized],
        ["dequantize", quantized, "-o", str(tmp_path / "d.onnx")],
        ["convert", quantized, "--to", "onnxq", "-o", str(tmp_path / "c.onnx")],
        ["analyze", str(path), "-w", "int8"],
    ):
        result = CliRunner().invoke(main, words)
        assert result.exit_code in (0, 4), (words, result.output)
    for name in ("d.onnx", "c.onnx"):
        assert "map_type" in str(onnx.load(tmp_path / name).graph.output[1].type)


def test_maps_that_go_in_are_refused_and_types_are_not_believed(tmp_path: Path) -> None:
    made = classifier("numbers")
    made.graph.output[0].metadata_props.add(key=TYPE, value="map(" * 2000)
    onnxq.quantize(tiny.save(made, tmp_path, "m.onnx"), tmp_path / "q.onnx", "fp16")
    made.graph.output[1].type.sequence_type.elem_type.map_type.key_type = 999
    with pytest.raises(BadModel, match="is not a legal ONNX model: 999"):
        load_model(tiny.save(made, tmp_path, "n.onnx"))
    made = classifier("numbers")
    made.graph.input[0].CopyFrom(helper.make_value_info("x", made.graph.output[1].type.sequence_type.elem_type))
    with pytest.raises(BadModel, match="the input 'x' is a map, which samples are not"):
        load_model(tiny.save(made, tmp_path, "i.onnx"))
