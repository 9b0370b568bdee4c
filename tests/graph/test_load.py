"""Loading: external data stays on disk, and what cannot be read is said in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from tiny import normal

from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.model.load import external_tensors, is_quantized, load_model
from onnxq.model.operators import operator
from onnxq.passes.opsets.raise_opset import SMALL_BYTES
from onnxq.passes.prepare import prepare

W = normal(64, 32)


def external(folder: Path, **entries: str) -> Path:
    """A model whose weight lies in w.data; `entries` override where it says so."""
    proto = tiny.model("g (float[N,64] x) => (y) { y = MatMul(x, w) }", {"w": W})
    (folder / "w.data").write_bytes(b"\0" * 64 + W.tobytes())
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": "w.data", "offset": "64", "length": str(W.nbytes)} | entries).items():
        tensor.external_data.add(key=key, value=value)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


def test_external_weights_stay_on_disk(tmp_path: Path) -> None:
    made = load_model(external(tmp_path))
    (tensor,) = external_tensors(made)
    assert tensor.raw is None
    np.testing.assert_array_equal(tensor.numpy(), W)


def test_a_model_is_read_from_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = sorted(f.name for f in tmp_path.iterdir())
    for file in tmp_path.iterdir():
        file.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        np.testing.assert_array_equal(tiny.array(load_model(path).graph.initializers["w"]), W)
    finally:
        tmp_path.chmod(0o700)
    assert sorted(f.name for f in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "v.data"}, "needs the data file '{folder}/v.data', which is not there; put it beside the model"),
        ({"offset": "128"}, "'{folder}/w.data' is cut short: weight 'w' ends at byte 8320, the file has 8256"),
        ({"location": "../w.data"}, "'{folder}/model.onnx': weight 'w' lies in "),
        ({"location": "/etc/passwd"}, "'{folder}/model.onnx': weight 'w' lies in "),
    ],
    ids=["missing", "cut-short", "outside", "absolute"],
)
def test_external_data_that_cannot_be_read(tmp_path: Path, entries: dict[str, str], words: str) -> None:
    path = external(tmp_path, **entries)
    with pytest.raises(BadModel, match=re.escape(words.format(folder=tmp_path))):
        load_model(path)


CONSTANT = "w = Constant<value = float[1] {0}>()"
#: Models with a Constant node in each place that may hold one, and the way there.
PLACES = {
    "main": (f"{{ {CONSTANT}  y = MatMul(x, w) }}", lambda proto: proto.graph),
    "body": (
        f"{{ y = If(c) <then_branch = t () => (p) {{ {CONSTANT}  p = MatMul(x, w) }},"
        " else_branch = e () => (q) { q = Identity(x) }> }",
        lambda proto: proto.graph.node[0].attribute[0].g,
    ),
    "function": ("{ y = local.f(x) }", lambda proto: proto.functions[0]),
}


def with_constant_outside(folder: Path, place: str, w: NDArray, opset: int = 17) -> Path:
    """A model with a Constant node whose numbers are in w.data."""
    text, way = PLACES[place]
    function = (
        f'<domain: "local", opset_import: ["" : {max(opset, 13)}]> f (x) => (y) {{ {CONSTANT} y = MatMul(x, w) }}'
    )
    functions = function if place == "function" else ""
    proto = tiny.model(f"g (float[N,M] x, bool c) => (y) {text}", opset=opset, functions=functions)
    tensor = way(proto).node[0].attribute[0].t
    tensor.CopyFrom(onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=w.shape))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.data")
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize("place", PLACES)
def test_external_data_of_constant_nodes(tmp_path: Path, place: str) -> None:
    path = with_constant_outside(tmp_path, place, W)
    with pytest.raises(BadModel, match=r"needs the data file .*/w\.data', which is not there"):
        load_model(path)
    (tmp_path / "w.data").write_bytes(W.tobytes())
    (found,) = external_tensors(load_model(path))
    np.testing.assert_array_equal(found.numpy(), W)


@pytest.mark.parametrize("size", [8, 40], ids=["small", "large"])
@pytest.mark.parametrize("place", PLACES)
def test_external_data_stay_known_when_the_opset_is_raised(tmp_path: Path, place: str, size: int) -> None:
    """Protobuf, which ONNX's converter takes, does not say in which folder they are."""
    w = normal(size, size)
    assert (w.nbytes > SMALL_BYTES) == (size == 40)
    (tmp_path / "w.data").write_bytes(w.tobytes())
    made = load_model(with_constant_outside(tmp_path, place, w, opset=11))
    assert prepare(made, opset=21) == ""
    assert graph.opset(made) == 21
    np.testing.assert_array_equal(tiny.array(tiny.find(made, "MatMul").inputs[1]), w)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    whole = tiny.model("g (float[N,64] x) => (y) { y = MatMul(x, w) }", {"w": W}).SerializeToString()
    contents = {
        "text.onnx": (b"this is not a model", "is not an ONNX model, or is cut short"),
        "cut.onnx": (whole[:-100], "is not an ONNX model, or is cut short"),
        "empty.onnx": (b"", "it has neither nodes nor outputs"),
    }
    for name, (content, words) in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadModel, match=words):
            load_model(tmp_path / name)
    with pytest.raises(BadModel, match="no such file"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(BadModel, match="is not a file"):
        load_model(tmp_path)


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.model("g (float[4] x) => (y) { a = Add(x, b)  b = Relu(a)  y = Neg(b) }"), tmp_path)
    with pytest.raises(BadModel, match="the graph 'g' has a cycle"):
        load_model(path)


@pytest.mark.parametrize(
    "body",
    [
        "h = Add(x, y) y = Relu(h)",
        "c = Constant<value_int = 1>() b = Cast<to = 9>(c) y = If<then_branch = t () => (p)"
        " { h = Add(x, p) p = Relu(h) }, else_branch = e () => (q) { q = Neg(x) }>(b)",
    ],
    ids=["in it", "in a branch of it"],
)
def test_a_cycle_in_a_function_is_refused(body: str, tmp_path: Path) -> None:
    """It becomes one of the graph as soon as functions are inlined."""
    head = '<ir_version: 9, opset_import: ["": 17, "local": 1]>'
    main = "g (float[4] x) => (float[4] y) { y = local.f(x) }"
    function = f'<domain: "local", opset_import: ["": 17]> f (x) => (y) {{ {body} }}'
    path = tiny.save(onnx.parser.parse_model(f"{head} {main} {function}"), tmp_path)
    with pytest.raises(BadModel, match="has a cycle"):
        load_model(path)


def test_an_output_that_nobody_makes_is_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.model("g (float[4] x) => (y, z) { y = Relu(x) }"), tmp_path)
    with pytest.raises(BadModel, match="output 'z' is produced by no node"):
        load_model(path)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("q = QuantizeLinear(x, s)  y = DequantizeLinear(q, s)", "1 QuantizeLinear"),
        (
            "q, t, z = DynamicQuantizeLinear(x)  y = MatMulInteger(q, q, z, z)",
            "1 DynamicQuantizeLinear, 1 MatMulInteger",
        ),
        ("y = com.microsoft.DynamicQuantizeMatMul(x, w, s)", "1 DynamicQuantizeMatMul"),
        ("q = QuantizeLinear(v, s)  w2 = DequantizeLinear(q, s)  y = MatMul(x, w2)", None),
        ("y = MatMul(x, v)", None),
    ],
)
def test_quantized_models_are_known(body: str, found: str | None) -> None:
    """By their activations: weights stored in int8 are no reason to refuse."""
    constants = {"s": np.float32(0.1), "w": np.ones((4, 4), np.int8), "v": normal(4, 4)}
    made: ir.Model = tiny.read(tiny.model(f"g (float[4,4] x) => (y) {{ {body} }}", constants))
    assert is_quantized(made) == found


def test_inputs_of_the_runtimes_own_operators() -> None:
    """It needs every one without which a model is refused here."""
    for schema in get_all_operator_schema():
        known = operator(schema.name, 1, schema.domain) if schema.domain == graph.MICROSOFT else None
        if known is not None:
            needed = [i for i, each in enumerate(schema.inputs) if str(each.option).endswith("Single")]
            assert {i for i, _ in known.needed} <= set(needed) and known.inputs[0] <= schema.min_input, schema.name
            assert known.outputs[0] <= schema.min_output, schema.name
