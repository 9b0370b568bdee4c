"""Rules of targets on models with strings, trees and float64."""

from __future__ import annotations

import onnx
import pytest
from tiny import read

from onnxq.targets.rules import findings, names

HEAD = '<ir_version: 9, opset_import: ["" : 17, "ai.onnx.ml" : 3]> '
STRINGS = HEAD + 'g (string[4] x) => (string[4] y) { y = StringNormalizer <case_change_action = "UPPER"> (x) }'
LABELS = HEAD + (
    "g (int64[4] x) => (float[4] y)"
    " { y = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2], values_floats = [1.0, 2.0]> (x) }"
)
DOUBLES = HEAD + "g (double[4, 4] x) => (double[4, 4] y) { t = MatMul (x, x)  y = Tanh (t) }"
FLOATS = DOUBLES.replace("double", "float")
#: By target, what a rule says of strings, of trees and of float64: True: refused, False: a note, None: nothing.
SAYS = {
    "coreml": (False, False, False),
    "openvino": (None, True, False),
    "ort-cuda": (False, False, None),
    "qnn": (False, False, False),
    "tensorrt": (True, True, False),
    "webgpu": (False, False, False),
}


def worst(text: str, target: str) -> bool | None:
    found = [each.refuses for each in findings(read(onnx.parser.parse_model(text)), target) if "fixed" not in each.rule]
    return max(found, default=None)


@pytest.mark.parametrize("target", names())
def test_types_and_domains_that_runtimes_lack(target: str) -> None:
    assert tuple(worst(text, target) for text in (STRINGS, LABELS, DOUBLES)) == SAYS[target]
    if target != "qnn":  # which has no products in floats
        assert worst(FLOATS, target) is None


def test_what_openvino_was_seen_to_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    openvino = pytest.importorskip("openvino")
    folder = tmp_path_factory.mktemp("models")
    for name, text in (("labels", LABELS), ("doubles", DOUBLES)):
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    with pytest.raises(RuntimeError, match="LabelEncoder"):
        openvino.Core().compile_model(str(folder / "labels.onnx"), "CPU")
    graph = openvino.Core().compile_model(str(folder / "doubles.onnx"), "CPU").get_runtime_model()
    types = {node.get_friendly_name(): node.get_rt_info()["runtimePrecision"].astype(str) for node in graph.get_ops()}
    assert types["t"] in ("f32", "bf16")
