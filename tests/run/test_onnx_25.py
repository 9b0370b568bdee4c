"""Weights in the types of ONNX's newer versions: what they stand for, by its reference implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from onnx.reference import ReferenceEvaluator
from tiny import normal

from onnxq import OnnxqError, Recipe, layouts, quantize
from onnxq.pipeline import Result
from onnxq.runtime.session import Session
from onnxq.targets.onnx_25 import NEW

pytestmark = pytest.mark.usefixtures("quick")
#: Rows of 100 do not fill their last block; a table; a convolution; a product whose weight lies the other way.
TEXT = """g (float[n, 100] x, int64[n] ids, float[n, 8, 6, 6] p)
=> (float[n, 64] y, float[n, 64] t, float[n, 8, 6, 6] c) {
    h = MatMul (x, a)  r = Relu (h)  y = Gemm <transB = 1> (r, b, bias)  t = Gather (table, ids)
    c = Conv <pads = [1, 1, 1, 1]> (p, k)
}"""
WEIGHTS = {
    "a": normal(100, 96),
    "b": normal(64, 96, seed=1),
    "bias": normal(64, seed=2),
    "table": normal(40, 64, seed=3),
    "k": normal(8, 8, 3, 3, seed=4),
}
TYPES = onnx.TensorProto
#: Of codes and of scales.
STORED = {
    "mxfp4": (TYPES.FLOAT4E2M1, TYPES.FLOAT8E8M0),
    "nvfp4": (TYPES.FLOAT4E2M1, TYPES.FLOAT8E4M3FN),
    "e2m1": (TYPES.FLOAT4E2M1, TYPES.FLOAT),
    "float8_e4m3": (TYPES.FLOAT8E4M3FN, TYPES.FLOAT),
    "float8_e5m2": (TYPES.FLOAT8E5M2, TYPES.FLOAT),
}
FEED = {
    "x": normal(3, 100, seed=5),
    "ids": np.array([0, 39, 7]),
    "p": normal(3, 8, 6, 6, seed=6),
}


def made(folder: Path, word: str, target: str) -> Result:
    model = tiny.save(tiny.model(TEXT, WEIGHTS), folder)
    return quantize(model, folder / f"{target}.{word}.onnx", Recipe(word, min_sqnr=-np.inf), target=target)


def test_every_new_format_is_tried_here() -> None:
    assert set(STORED) == set(NEW)


@pytest.mark.parametrize("word", STORED)
def test_the_types_of_opset_25(tmp_path: Path, word: str) -> None:
    """The file, by the reference implementation, computes what other targets' files of the same format compute."""
    done = made(tmp_path, word, "onnx-25")
    proto = onnx.load(done.output)
    assert proto.opset_import[0].version == 25 and {node.domain for node in proto.graph.node} == {""}
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    codes, scales = STORED[word]
    assert types[f"a_{word}"] == types[f"b_{word}"] == codes and types["a_scale"] == types["b_scale"] == scales
    onnx.checker.check_model(proto, full_check=True)
    found = ReferenceEvaluator(proto).run(None, FEED)
    wanted = Session(made(tmp_path, word, "onnxq").output, library=False, optimize=False).run(FEED)
    assert tiny.sqnr(wanted[0], found[0]) > 40  # where scales are of float16
    assert done.check is not None and done.check.sqnr > (12 if codes == TYPES.FLOAT4E2M1 else 22)
    said = [note for note in done.check.notes if "has no kernels for float4e2m1" in note]
    assert bool(said) == (codes == TYPES.FLOAT4E2M1)
    in_float = tiny.evaluate(tiny.model(TEXT, WEIGHTS), **FEED)
    assert all(tiny.sqnr(a, b) > 12 for a, b in zip(in_float, found, strict=True))


def test_older_forms_stay_on_target_onnx(tmp_path: Path) -> None:
    proto = onnx.load(made(tmp_path, "nf4", "onnx").output)
    assert proto.opset_import[0].version == 17
    proto = onnx.load(made(tmp_path, "int4", "onnx").output)
    assert proto.opset_import[0].version == 21
    with pytest.raises(OnnxqError, match=r"onnx cannot hold mxfp4 weights: .*; give --target onnx-25"):
        made(tmp_path, "mxfp4", "onnx")


def test_what_the_new_types_stand_for_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that are not those of the codes: the reference implementation reads other numbers than were run."""
    honest = layouts.scales
    doubled = layouts.Layout(lambda q: honest(q) * 2, honest.form)
    monkeypatch.setattr(layouts, "scales", doubled)
    with pytest.raises(OnnxqError, match="reads other weights in the types of the saved model than were run"):
        made(tmp_path, "e2m1", "onnx-25")
    assert not list(tmp_path.glob("onnx-25*"))
