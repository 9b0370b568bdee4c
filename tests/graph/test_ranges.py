"""A file of ranges is read exactly, and only for the model, data and method it belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import tiny

from onnxq.calibration.calibrate import hash_model
from onnxq.errors import BadRecipe
from onnxq.runtime.session import Input
from onnxq.samples.source import open_data
from onnxq.summaries.ranges import Range, Ranges, load_ranges

KEY = {"model": "m", "data": "d", "method": "percentile"}
VALUES = {"x": Range(-1.5, 2.25), "a/b:0": Range(0.1, 0.1), "tiny": Range(-1e-45, 3e38)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    values = {name: [r.low, r.high] for name, r in VALUES.items()}
    table = {**KEY, "values": values, "ranks": {"x": 4}, "problems": {"y": "never computed"}}
    (tmp_path / "ranges.json").write_text(json.dumps(table))
    return tmp_path / "ranges.json"


def test_every_number_is_read_exactly(saved: Path) -> None:
    assert load_ranges(saved, **KEY) == Ranges(**KEY, values=VALUES, ranks={"x": 4}, problems={"y": "never computed"})


@pytest.mark.parametrize("what", KEY)
def test_ranges_of_something_else_are_refused(saved: Path, what: str) -> None:
    which = "other data" if what == "data" else f"another {what}"
    with pytest.raises(BadRecipe, match=f"ranges.json' are of {which}; delete the file or give another --ranges"):
        load_ranges(saved, **{**KEY, what: "other"})


@pytest.mark.parametrize(
    "values", [[["x", 1, 2]], {"x": 1}, {"x": [1]}, {"x": ["a", 2]}, {"x": [2, 1]}, {"x": [float("nan"), 1]}], ids=str
)
def test_ranges_that_mean_nothing_are_refused(saved: Path, values: object) -> None:
    saved.write_text(json.dumps({**json.loads(saved.read_text()), "values": values}))
    with pytest.raises(BadRecipe, match="is not a file of ranges written by 'onnxq calibrate'"):
        load_ranges(saved, **KEY)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"3", b'{"model": "m"'], ids=str)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(BadRecipe, match="is not a file of ranges written by 'onnxq calibrate'"):
        load_ranges(tmp_path / "f", **KEY)


def test_absent_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=r"the ranges '.*none.json' cannot be read: No such file"):
        load_ranges(tmp_path / "none.json", **KEY)


def test_union() -> None:
    assert Range(-1, 2).union(Range(0, 3)) == Range(-1, 3)
    assert Range(5, 6).union(Range(1, 2)) == Range(1, 6)


TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 4] x) => (float[1, 4] y) <float[4] b = {1, 2, 3, 4}> {
  z = Add (x, b)
  y = LeakyRelu <alpha: float = 0.1> (z)
}
"""


def test_the_hash_of_a_model_sees_constants_attributes_operators_and_wires() -> None:
    changes = [("", ""), ("4}", "5}"), ("0.1", "0.2"), ("Add (x, b)", "Mul (x, b)"), ("Add (x, b)", "Add (b, x)")]
    texts = [TEXT.replace(*change) if change[0] else TEXT for change in changes]
    hashes = [hash_model(ir.from_proto(onnx.parser.parse_model(text))) for text in texts]
    assert len(set(hashes)) == len(changes)
    assert hash_model(ir.from_proto(onnx.parser.parse_model(TEXT))) == hashes[0]


def test_the_hash_of_a_model_sees_other_large_weights() -> None:
    text = "g (float[1, 256] x) => (float[1, 256] y) { y = MatMul(x, w) }"
    trained, retrained = (tiny.read(tiny.model(text, {"w": tiny.normal(256, 256, seed=seed)})) for seed in (1, 2))
    assert hash_model(trained) != hash_model(retrained)


def test_the_hash_of_data_is_that_of_what_the_model_is_given() -> None:
    inputs = (Input("x", ir.DataType.FLOAT.numpy(), (None,)),)
    one, same, other = (open_data([{"x": x}], inputs).hash() for x in ([1, 2], [1.0, 2.0], [1, 2.5]))
    assert one == same != other
